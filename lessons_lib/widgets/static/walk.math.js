/** A random walk from query to key, layer by layer. */

import { normal, softmax, sum, uniform } from "./arithmetic.js";

/** @typedef {number[][]} Matrix one row for each query */

export const STEPS = 16;

/** Standard normal scores for each layer that the walker meets. @param {number} seed @param {number} n */
export function draw(seed, n) {
  const random = uniform(seed);
  return Array.from({ length: STEPS }, () => square(n, () => normal(random)));
}

/** The weights of one layer. @param {Matrix} scores @param {boolean} causal @param {number} temperature */
export function weights(scores, causal, temperature) {
  return scores.map((row, i) => {
    const seen = softmax(causal ? row.slice(0, i + 1) : row, temperature);
    return row.map((_, j) => seen[j] ?? 0);
  });
}

/**
 * Where the walkers are after 0, 1, 2 ... layers, one row for the token that each began on.
 * @param {Matrix[]} layers in the order in which they are met @param {number} residual
 */
export function walks(layers, residual) {
  const n = layers[0].length;
  const places = [square(n, (i, j) => Number(i === j))];
  for (const a of layers) {
    const before = places[places.length - 1];
    places.push(
      square(n, (i, j) => residual * before[i][j] + (1 - residual) * sum(before[i].map((mass, k) => mass * a[k][j]))),
    );
  }
  return places;
}

/** Half the sum of absolute differences of the two rows that are farthest apart. @param {Matrix} rows */
export function apart(rows) {
  let most = 0;
  for (const p of rows) for (const q of rows) most = Math.max(most, sum(p.map((x, j) => Math.abs(x - q[j]))) / 2);
  return most;
}

/** @param {number} n @param {(i: number, j: number) => number} entry */
function square(n, entry) {
  return Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => entry(i, j)));
}
