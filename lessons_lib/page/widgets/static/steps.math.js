/** The arithmetic of the steps explorer. The tests compare each function with the library's. */

import { sum } from "./arithmetic.js";

/**
 * One row of attention, step by step: exponentials of the scores, their sum, the weights, weight times value for each
 * word, and the output.
 * @param {number[]} scores @param {number[]} values
 */
export function row(scores, values) {
  const exponentials = scores.map(Math.exp);
  const total = sum(exponentials);
  const weights = exponentials.map((e) => e / total);
  const products = weights.map((p, j) => p * values[j]);
  return { exponentials, total, weights, products, output: sum(products) };
}
