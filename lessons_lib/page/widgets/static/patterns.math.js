/** Pattern scores of attention weights, as in lessons_lib.analysis.patterns. A row holds the visible keys of a query. */

import { sum } from "./arithmetic.js";

/**
 * The share of weight on the targets of each row above chance, relative to the largest possible; null if no row can be
 * above chance.
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

/** Clamp to [0, 1]. @param {number} x */
export function clamped(x) {
  return Math.min(1, Math.max(0, x));
}

/** The previous position of each row, as target. @param {ArrayLike<unknown>} places */
export function previous(places) {
  return Array.from(places, (_, i) => (i ? [i - 1] : []));
}
