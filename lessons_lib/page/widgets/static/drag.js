/** Points of a drawing that can be dragged. */

import { sum } from "./arithmetic.js";
import { oncePerFrame } from "./kit.js";
import { letters } from "./letters.js";

/**
 * Make an element movable by touch, by mouse and by the arrow keys.
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
  // Browsers ignore touch-action inside an SVG: without this they would scroll and cancel the touch.
  grip.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  grip.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    grip.focus({ preventScroll: true });
    grip.setPointerCapture(event.pointerId);
  });
  const move = oncePerFrame((/** @type {PointerEvent} */ event) => {
    const toDrawing = drawing.getScreenCTM()?.inverse();
    if (toDrawing) value.set(point(new DOMPoint(event.clientX, event.clientY).matrixTransform(toDrawing)));
  });
  grip.addEventListener("pointermove", (event) => {
    if (grip.hasPointerCapture(event.pointerId)) move.later(event);
  });
  for (const end of ["pointerup", "pointercancel"]) grip.addEventListener(end, move.flush);
}

/**
 * The name of a point: its text, whose origin is the point, and where the point is in the drawing.
 * @typedef {{ words: SVGTextElement, at: () => number[] }} Name
 */

/**
 * Place labels beside their points: away from the centre of the drawing, or where no point and no other label is. If all
 * positions are taken, a label moves to the position inside the drawing where it covers least.
 * @param {Name[]} names @param {number} size the width and height of the drawing
 * @param {number[][]} others other places that no name may hide
 * @param {number[][]} boxed left, top, right and bottom of what no name may hide either
 */
export function keepApart(names, size, others = [], boxed = []) {
  const points = names.map(({ at }) => at());
  const taken = [...points, ...others].map(([x, y]) => [x - 7, y - 7, x + 7, y + 7]).concat(boxed);
  names.forEach(({ words }, i) => {
    const [x, y] = points[i];
    const wide = 3.4 * letters(words.textContent ?? "") + 2;
    const outwards = Math.atan2(y - size / 2, x - size / 2);
    const boxes = [0, 1, -1, 2, -2, 3, -3, 4].map((eighth) => {
      const angle = (Math.hypot(x - size / 2, y - size / 2) < 1 ? -Math.PI / 2 : outwards) + (eighth * Math.PI) / 4;
      const [left, top] = [x + (11 + wide) * Math.cos(angle), y + 17 * Math.sin(angle)];
      return [left - wide, top - 7, left + wide, top + 7];
    });
    const free = (/** @type {number[]} */ [a, b, c, d]) =>
      a > 0 &&
      b > 0 &&
      c < size &&
      d < size &&
      taken.every(([left, top, right, bottom], j) => j === i || c < left || a > right || d < top || b > bottom);
    const hides = (/** @type {number[]} */ [a, b, c, d]) =>
      sum(
        taken.map(
          ([left, top, right, bottom]) =>
            Math.max(0, Math.min(c, right) - Math.max(a, left)) * Math.max(0, Math.min(d, bottom) - Math.max(b, top)),
        ),
      );
    const inside = boxes.map(([a, b, c, d]) => {
      const [right, down] = [Math.max(0, -a) + Math.min(0, size - c), Math.max(0, -b) + Math.min(0, size - d)];
      return [a + right, b + down, c + right, d + down];
    });
    const box = boxes.find(free) ?? inside.reduce((best, one) => (hides(one) < hides(best) ? one : best));
    taken.push(box);
    words.setAttribute("x", ((box[0] + box[2]) / 2 - x).toFixed(1));
    words.setAttribute("y", (box[3] - 3 - y).toFixed(1));
  });
}
