/** What can be taken hold of in a drawing. */

/**
 * Let an element be moved with a finger, a mouse, or the arrow keys.
 * @param {SVGElement} grip @param {SVGSVGElement} drawing
 * @param {(place: DOMPoint) => number[]} point what a place of the drawing stands for
 * @param {import("./kit.js").Value<number[]>} value
 * @param {(now: number[], step: number[]) => number[]} [moved] where an arrow key leads; by default, along its arrow
 */
export function draggable(grip, drawing, point, value, moved = (now, step) => now.map((c, axis) => c + step[axis])) {
  /** @type {Record<string, number[]>} */
  const steps = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
  grip.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    value.set(moved(value.get(), step));
  });
  // A browser does not look at touch-action inside a drawing: without this it would scroll, and take the finger away.
  grip.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  grip.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    grip.focus({ preventScroll: true });
    grip.setPointerCapture(event.pointerId);
  });
  grip.addEventListener("pointermove", (event) => {
    if (!grip.hasPointerCapture(event.pointerId)) return;
    const toDrawing = drawing.getScreenCTM()?.inverse();
    if (toDrawing) value.set(point(new DOMPoint(event.clientX, event.clientY).matrixTransform(toDrawing)));
  });
}
