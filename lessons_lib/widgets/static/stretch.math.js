/** The clocks of RoPE beyond the length in training: how far each turns, which angles are new, what slows it down. */

import { LOSSES } from "./stretch_losses.js";

/**
 * @typedef {"none" | "interpolation" | "ntk" | "yarn"} Method
 * @typedef {{ base: number, width: number, method: Method, factor: number, length: number }} Setting
 * @typedef {{ trained: number, now: number, seen: number, plain: number, reach: number, isNew: boolean }} Clock
 *   radians: for each token as trained and as slowed down; in all, in training, at the length read as trained, and as
 *   slowed down; and whether the last are angles that training did not reach
 */

export const TRAINED = 64;
export const LONGEST = 512;
export const WIDTHS = [4, 8, 16, 32, 64, 128];
/** What was recorded: losses with base 10 000 and width 16, slowed by three factors (practised, by the largest). */
export const FACTORS = [2, 4, 8];
export const LENGTHS = [32, 64, 128, 256, 512];
const TURN = 2 * Math.PI;

/**
 * How far each clock turns for each token, in radians, as trained: base^(-2i/d).
 * @param {number} base @param {number} width
 */
function asTrained(base, width) {
  return Array.from({ length: width / 2 }, (_, i) => base ** ((-2 * i) / width));
}

/**
 * The same with a method that slows clocks down, as `lessons_lib.rope_scaling` does.
 * @param {Setting} setting
 */
export function frequencies({ base, width, method, factor }) {
  const omega = asTrained(base, width);
  if (method === "interpolation") return omega.map((w) => w / factor);
  if (method === "ntk") return asTrained(base * factor ** (width / (width - 2)), width);
  if (method === "none") return omega;
  // YaRN slows the clocks that never went round by the whole factor. None makes the 32 turns in 64 tokens from which it
  // keeps a clock as it is, so that the ramp begins with the fastest.
  const slow = Math.ceil(((width / 2) * Math.log(TRAINED / TURN)) / Math.log(base));
  return omega.map((w, i) => {
    const share = Math.min(1, i / slow);
    return w * (1 - share) + (w / factor) * share;
  });
}

/**
 * What scores are divided by besides the root of the width: YaRN lengthens queries and keys by 1 + ln(factor) / 10.
 * @param {Setting} setting
 */
export function temperature({ method, factor }) {
  return method === "yarn" ? (1 + 0.1 * Math.log(factor)) ** -2 : 1;
}

/**
 * Each clock, the fastest first. A text of n tokens turns it by n times its angle for a token; an angle is known if it
 * is no larger than one that training reached, and all are known to a clock that went once round.
 * @param {Setting} setting
 * @returns {Clock[]}
 */
export function clocks(setting) {
  const omega = frequencies(setting);
  return asTrained(setting.base, setting.width).map((trained, i) => {
    const [seen, reach] = [TRAINED * trained, setting.length * omega[i]];
    const isNew = seen < TURN && reach > seen * (1 + 1e-9);
    return { trained, now: omega[i], seen, plain: setting.length * trained, reach, isNew };
  });
}

/** The angles of a clock that training did not reach, from and to, if there are any. @param {Clock} clock */
export function unseen({ seen, reach, isNew }) {
  return isNew ? [seen, Math.min(reach, TURN)] : null;
}

/** Which of some numbers is nearest, by their quotient. @param {number[]} offered @param {number} x */
export function nearest(offered, x) {
  const far = (/** @type {number} */ one) => Math.abs(Math.log(one / x));
  return offered.reduce((best, one) => (far(one) < far(best) ? one : best));
}

/**
 * Recorded losses in nats: for each of three seeds those of the lengths. A window sees the last 64 tokens alone.
 * @param {Method | "window"} method @param {number} factor one of FACTORS; practised, the largest
 * @param {boolean} practised
 */
export function recorded(method, factor, practised) {
  const digits = LOSSES[method === "window" ? 2 : Number(practised)];
  const place = ["none", "interpolation", "ntk", "yarn"].indexOf(method);
  const row = place < 1 ? 0 : practised ? place : 3 * place - 2 + FACTORS.indexOf(factor);
  return [0, 1, 2].map((seed) =>
    LENGTHS.map((_, i) => {
      const from = 3 * ((3 * row + seed) * LENGTHS.length + i);
      return Number(digits.slice(from, from + 3)) / 100;
    }),
  );
}

/** Of each length the mean over seeds. @param {number[][]} seeds */
export function means(seeds) {
  return LENGTHS.map((_, i) => seeds.reduce((all, losses) => all + losses[i], 0) / seeds.length);
}
