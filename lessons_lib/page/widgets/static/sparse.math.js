/** Sparse attention patterns on the words of one text: which pairs of a query and a key are computed. */

import { uniform } from "./arithmetic.js";
import { square } from "./masks.math.js";

/**
 * A pattern and its budgets; each pattern uses the budgets that it needs.
 * @typedef {{ way: string, window: number, step: number, n_global: number, n_random: number, causal: boolean,
 *   seed: number }} Pattern
 */

export const N = 60; // words of the text
export const MOST_LAYERS = 8;
export const MASKS = ["window", "dilated", "longformer", "bigbird"];

/** The pairs that a mask allows: window, dilated, Longformer, BigBird. @param {Pattern} pattern */
export function mask({ way, window, step, n_global, n_random, causal, seed }) {
  const isGlobal = (/** @type {number} */ i) => i < n_global;
  const near = (/** @type {number} */ i, /** @type {number} */ j) => Math.abs(i - j) < window;
  const fixed = square(N, (i, j) => {
    if (way === "dilated") return Math.abs(i - j) < window * step && (i - j) % step === 0;
    return near(i, j) || (way !== "window" && (isGlobal(i) || isGlobal(j)));
  });
  if (way === "bigbird") {
    const random = uniform(seed);
    for (const row of fixed) {
      const draws = row.map((seen) => {
        const draw = random();
        return seen ? -1 : draw;
      });
      const order = draws.map((_, j) => j).sort((a, b) => draws[b] - draws[a]);
      for (const j of order.slice(0, n_random)) row[j] = true;
    }
  }
  return fixed.map((row, i) => row.map((seen, j) => seen && (!causal || j <= i)));
}

/** How many words the output of the last word can depend on, after 1, 2, ... layers of a mask. @param {boolean[][]} seen */
export function reachOfTheLast(seen) {
  let reached = seen.map((_, j) => j === N - 1);
  return Array.from({ length: MOST_LAYERS }, () => {
    const before = reached;
    reached = before.map((on, j) => on || before.some((far, i) => far && seen[i][j]));
    return reached.filter(Boolean).length;
  });
}
