/** A random walk from query to key, layer by layer. */

import { normal, softmax, sum, uniform } from "./arithmetic.js";

/** @typedef {number[][]} Matrix one row for each query */

export const STEPS = 16;
export const WALKERS = 40;

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

/**
 * The tokens of single walkers after 0, 1, 2 ... layers. Each walker takes one random number a layer, the same whatever
 * the weights are, so that a small change of the weights changes few steps.
 * @param {Matrix[]} layers in the order in which they are met @param {number} residual @param {number} start @param {number} seed
 */
export function walkers(layers, residual, start, seed) {
  const random = uniform(seed);
  const paths = [Array(WALKERS).fill(start)];
  for (const a of layers) paths.push(paths[paths.length - 1].map((token) => step(a[token], residual, token, random())));
  return paths;
}

/** The next token for a random number between 0 and 1. @param {number[]} row @param {number} residual @param {number} token @param {number} chance */
function step(row, residual, token, chance) {
  let left = (chance - residual) / (1 - residual);
  if (!(left > 0)) return token;
  const reached = row.findIndex((share) => (left -= share) <= 0);
  return reached < 0 ? row.map((share) => share > 0).lastIndexOf(true) : reached; // rounding
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
