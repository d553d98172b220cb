/** A button that moves a slider by itself. */

import { button, html } from "./kit.js";
import { say } from "./words.js";

/**
 * A slider with a button that moves it step by step to its end, or from its start if it is at its end. It stops when
 * the reader uses a control or leaves the page.
 * @template T
 * @param {import("./kit.js").Scope<T>} scope
 * @param {HTMLElement} control the element with the slider, which may be built again
 * @param {number} [pace] milliseconds for a step; with reduced motion at least 500
 */
export function withPlayButton(scope, control, pace = 600) {
  /** @type {AbortController | undefined} */
  let playing;
  const stop = () => playing?.abort();
  /** Move the slider; return whether it can move further. @param {boolean} [restart] */
  const move = (restart) => {
    const [slide] = control.getElementsByTagName("input");
    if (restart && slide.value === slide.max) slide.value = slide.min;
    else slide.stepUp();
    for (const kind of ["input", "change"]) slide.dispatchEvent(new Event(kind));
    return slide.value !== slide.max;
  };
  const start = () => {
    const body = /** @type {HTMLElement} */ (made.closest(".x-body"));
    const { signal } = (playing = new AbortController());
    const least = matchMedia("(prefers-reduced-motion: reduce)").matches ? 500 : 0;
    const timer = setInterval(() => move() || stop(), Math.max(pace, least));
    const show = (/** @type {boolean} */ on) => {
      made.textContent = on ? say("Pause") : say("Play");
      body.classList.toggle("x-playing", on);
    };
    signal.addEventListener("abort", () => {
      clearInterval(timer);
      playing = undefined;
      show(false);
    });
    const touched = (/** @type {Event} */ event) => {
      const taken = /** @type {Element} */ (event.target).closest("a, input, select, label, button, [tabindex]");
      if (event.isTrusted && taken && !taken.matches(".x-play, .x-tabs *")) stop();
    };
    for (const kind of ["pointerdown", "input", "click"])
      body.addEventListener(kind, touched, { capture: true, signal });
    document.addEventListener("visibilitychange", stop, { signal });
    addEventListener("pagehide", stop, { signal });
    show(true);
    if (!move(true)) stop();
  };
  const made = button(say("Play"), () => (playing ? stop() : start()));
  made.className = "x-play";
  scope.later(stop);
  return html("div", { class: "x-played" }, made, control);
}
