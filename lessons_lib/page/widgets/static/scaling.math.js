/** Scores of standard normal queries and keys at every width, and the norm of the softmax Jacobian. */

import { normal, uniform } from "./arithmetic.js";

export const QUERIES = 200;
export const WIDTHS = Array.from({ length: 13 }, (_, i) => 2 ** i);

/** The scale factor of a score. @param {string} scaling @param {number} width */
export function scale(scaling, width) {
  /** @type {Record<string, number>} */
  const factors = { 1: 1, "1/sqrt(d)": 1 / Math.sqrt(width), "1/d": 1 / width, "sqrt(d)": Math.sqrt(width) };
  return factors[scaling];
}

/** Standard deviation of scale * q.k for independent standard normal entries: scale * sqrt(d). */
export function scoreStd(/** @type {string} */ scaling, /** @type {number} */ width) {
  return scale(scaling, width) * Math.sqrt(width);
}

/**
 * Frobenius norm of the softmax Jacobian diag(p) - p p^T: the root of sum_i p_i^2 ((1 - p_i)^2 + sum_{j != i} p_j^2).
 * Expanded, it would be a difference of numbers near 1 when one weight is near 1, and lose all digits below 1e-8. So the
 * rest beside p_i is summed, never subtracted.
 * @param {number[]} p
 */
export function jacobianNorm(p) {
  let squared = 0;
  for (let i = 0; i < p.length; i++) {
    let [rest, restSquared] = [0, 0];
    for (let j = 0; j < p.length; j++) {
      if (j === i) continue;
      rest += p[j];
      restSquared += p[j] * p[j];
    }
    squared += p[i] * p[i] * (rest * rest + restSquared);
  }
  return Math.sqrt(squared);
}

/**
 * Lengths |q| at each of WIDTHS, and one standard normal number for each of n keys, for every query.
 *
 * Given q, the score q.k of a key with standard normal entries is normal with standard deviation |q|, and the keys are
 * independent: |q| times these numbers has exactly the distribution of the scores. |q|^2 is a sum of squares of normal numbers,
 * drawn two at a time as -2 log u; width 1 needs a single one. A wider query continues a narrower one.
 * @param {number} seed @param {number} n
 */
export function draw(seed, n) {
  const random = uniform(seed);
  return Array.from({ length: QUERIES }, () => {
    const directions = Array.from({ length: n }, () => normal(random));
    const pair = -2 * Math.log(random());
    const lengths = [Math.sqrt(pair) * Math.abs(Math.cos(2 * Math.PI * random()))];
    let squared = pair;
    for (let width = 2; lengths.length < WIDTHS.length; width += 2) {
      if (width === WIDTHS[lengths.length]) lengths.push(Math.sqrt(squared));
      squared -= 2 * Math.log(random());
    }
    return { lengths, directions };
  });
}

/**
 * The scaled scores of every query.
 * @param {ReturnType<typeof draw>} drawn @param {string} scaling @param {number} width
 */
export function scores(drawn, scaling, width) {
  const [factor, at] = [scale(scaling, width), WIDTHS.indexOf(width)];
  return drawn.map(({ lengths, directions }) => directions.map((z) => factor * lengths[at] * z));
}

/**
 * Stack weights, the largest first: the lower and the upper end of each, from 0 to 1.
 * @param {number[]} p
 */
export function bands(p) {
  let low = 0;
  return [...p].sort((a, b) => b - a).map((weight) => [low, (low += weight)]);
}
