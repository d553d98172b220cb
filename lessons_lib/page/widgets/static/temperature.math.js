/** Expected score and free energy of weights. */

import { logSumExp, sum, uniform } from "./arithmetic.js";

/** The average score under weights p. @param {number[]} p @param {number[]} scores */
export function expectedScore(p, scores) {
  return sum(p.map((w, i) => w * scores[i]));
}

/** T log sum exp(scores / T): the largest value that expected score + T * entropy can have. */
export function freeEnergy(/** @type {number[]} */ scores, /** @type {number} */ temperature) {
  return temperature * logSumExp(scores.map((s) => s / temperature));
}

/** Random weights that sum to one, even and uneven ones. @param {number} n @param {number} count */
export function otherWeights(n, count) {
  const random = uniform(1);
  return Array.from({ length: count }, (_, i) => {
    const shares = Array.from({ length: n }, () => (-Math.log(random())) ** (1 + (i % 4)));
    return shares.map((share) => share / sum(shares));
  });
}
