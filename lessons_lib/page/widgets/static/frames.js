/** Work that is done at most once for each frame that the browser shows. */

/**
 * A function that does the work at once, and then at most once a frame: calls within a frame are answered together at
 * the next frame, which sees the last values.
 * @param {() => void} work
 */
export function oncePerFrame(work) {
  let waiting = false;
  let again = false;
  const next = () => {
    waiting = again;
    again = false;
    if (!waiting) return;
    requestAnimationFrame(next);
    work();
  };
  return () => {
    if (waiting) {
      again = true;
      return;
    }
    waiting = true;
    requestAnimationFrame(next);
    work();
  };
}
