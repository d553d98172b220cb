/** Rotary positions as angles of hands: frequencies, relative angles and scores. */

import { sum } from "./arithmetic.js";

export const CLOCKS = 4;
export const TRAINED = 32;
export const REACH = 100;

/**
 * The angle that each hand turns per token, in radians: base^(-2i/d), changed by the two scalings.
 * @param {number} base @param {string} scaling @param {number} factor
 */
export function frequencies(base, scaling, factor) {
  const raised = scaling === "ntk" ? base * factor ** (CLOCKS / (CLOCKS - 1)) : base;
  const slower = scaling === "interpolation" ? factor : 1;
  return Array.from({ length: CLOCKS }, (_, i) => raised ** (-i / CLOCKS) / slower);
}

/**
 * The angle from each hand of the query to that of the key. The key is turned ahead by `back` tokens at the trained
 * frequencies: training put that angle into the weights, and no scaling changes it.
 * @param {number[]} omega @param {number[]} trained @param {number} distance key's position minus query's
 * @param {number} back
 */
export function between(omega, trained, distance, back) {
  return omega.map((w, i) => distance * w + back * trained[i]);
}

/** The dot product of hands of length one: the sum of the cosines. @param {number[]} angles */
export function score(angles) {
  return sum(angles.map(Math.cos));
}

/**
 * Whether each clock shows an angle that occurred in training on TRAINED tokens, with unscaled frequencies and a causal
 * mask: keys were 0 to TRAINED - 1 positions before the query. A clock that made a full turn has shown all angles.
 * @param {number[]} omega @param {number[]} trained @param {number} distance key's position minus query's
 */
export function seen(omega, trained, distance) {
  const turn = 2 * Math.PI;
  return omega.map((w, i) => {
    const shown = (TRAINED - 1) * trained[i];
    const now = (((-distance * w) % turn) + turn) % turn;
    return shown >= turn || now <= shown * (1 + 1e-12);
  });
}
