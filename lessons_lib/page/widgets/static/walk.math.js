/** A random walk from query to key, layer by layer. */

import { normal, softmax, sum, uniform } from "./arithmetic.js";

/** @typedef {number[][]} Matrix one row for each query */

export const STEPS = 16;

/** Standard normal scores for each layer, in the order of the walk. @param {number} seed @param {number} n */
export function draw(seed, n) {
  const random = uniform(seed);
  return Array.from({ length: STEPS }, () => square(n, () => normal(random)));
}

/** The attention weights of one layer. @param {Matrix} scores @param {boolean} causal @param {number} temperature */
export function weights(scores, causal, temperature) {
  return scores.map((row, i) => {
    const seen = softmax(causal ? row.slice(0, i + 1) : row, temperature);
    return row.map((_, j) => seen[j] ?? 0);
  });
}

/**
 * The distributions of the walks after 0, 1, 2 ... layers, a row for each starting token.
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

/** The largest total variation distance between two rows. @param {Matrix} rows */
export function apart(rows) {
  let most = 0;
  for (const p of rows) for (const q of rows) most = Math.max(most, sum(p.map((x, j) => Math.abs(x - q[j]))) / 2);
  return most;
}

/** @param {number} n @param {(i: number, j: number) => number} entry */
function square(n, entry) {
  return Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => entry(i, j)));
}
