/** What can be taken hold of in a drawing. */

/**
 * Let an element be moved with a finger, a mouse, or the arrow keys.
 * @param {SVGElement} grip @param {SVGSVGElement} drawing
 * @param {(place: DOMPoint) => number[]} point what a place of the drawing stands for
 * @param {import("./kit.js").Value<number[]>} value
 */
export function draggable(grip, drawing, point, value) {
  /** @type {Record<string, number[]>} */
  const steps = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
  grip.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    value.set(value.get().map((c, axis) => c + step[axis]));
  });
  grip.addEventListener("pointerdown", (event) => {
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
