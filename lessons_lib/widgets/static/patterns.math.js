/** Maps of attention, scored as lessons_lib.patterns scores a head. A row is a place that reads, as far as it may see. */

import { sum } from "./arithmetic.js";

/**
 * The share of weight on each row's own targets beyond chance, of what there could be beyond chance; null if it cannot
 * show.
 * @param {number[][]} rows @param {number[][]} targets
 */
export function score(rows, targets) {
  let [gained, possible] = [0, 0];
  rows.forEach((row, i) => {
    if (!targets[i].length) return;
    const chance = targets[i].length / row.length;
    gained += sum(targets[i].map((j) => row[j])) - chance;
    possible += 1 - chance;
  });
  return possible > 0 ? clamped(gained / possible) : null;
}

/** Between 0 and 1. @param {number} x */
export function clamped(x) {
  return Math.min(1, Math.max(0, x));
}

/** The place before each, as targets. @param {ArrayLike<unknown>} places */
export function previous(places) {
  return Array.from(places, (_, i) => (i ? [i - 1] : []));
}
