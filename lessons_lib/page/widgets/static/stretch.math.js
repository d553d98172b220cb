/** Rotary frequencies beyond the training length: angles, new angles, and three methods of scaling. */

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
/** The setting of the recorded losses: base 10 000, width 16, three factors (fine-tuned: the largest factor). */
export const FACTORS = [2, 4, 8];
export const LENGTHS = [32, 64, 128, 256, 512];
const TURN = 2 * Math.PI;

/**
 * The trained frequency of each clock, in radians per token: base^(-2i/d).
 * @param {number} base @param {number} width
 */
function asTrained(base, width) {
  return Array.from({ length: width / 2 }, (_, i) => base ** ((-2 * i) / width));
}

/**
 * The frequencies scaled by a method, as in `lessons_lib.attention.rope_scaling`.
 * @param {Setting} setting
 */
export function frequencies({ base, width, method, factor }) {
  const omega = asTrained(base, width);
  if (method === "interpolation") return omega.map((w) => w / factor);
  if (method === "ntk") return asTrained(base * factor ** (width / (width - 2)), width);
  if (method === "none") return omega;
  // YaRN divides the frequency of clocks that made less than one turn by the full factor. No clock makes the 32 turns in
  // 64 tokens above which YaRN keeps a frequency, so the ramp begins with the fastest clock.
  const slow = Math.ceil(((width / 2) * Math.log(TRAINED / TURN)) / Math.log(base));
  return omega.map((w, i) => {
    const share = Math.min(1, i / slow);
    return w * (1 - share) + (w / factor) * share;
  });
}

/**
 * The temperature of the scores, besides the root of the width: YaRN scales queries and keys by 1 + ln(factor) / 10.
 * @param {Setting} setting
 */
export function temperature({ method, factor }) {
  return method === "yarn" ? (1 + 0.1 * Math.log(factor)) ** -2 : 1;
}

/**
 * The clocks, the fastest first. A text of n tokens turns a clock by n times its frequency. An angle is known if training
 * reached a larger or equal one, and a clock that made a full turn knows all angles.
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

/** The range of angles of a clock that training did not reach, if there is one. @param {Clock} clock */
export function unseen({ seen, reach, isNew }) {
  return isNew ? [seen, Math.min(reach, TURN)] : null;
}

/** The nearest of some numbers, by ratio. @param {number[]} offered @param {number} x */
export function nearest(offered, x) {
  const far = (/** @type {number} */ one) => Math.abs(Math.log(one / x));
  return offered.reduce((best, one) => (far(one) < far(best) ? one : best));
}

/**
 * Recorded losses in nats: for each of three seeds, one for each length. With a window only the last 64 tokens are
 * visible.
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

/** The mean over seeds for each length. @param {number[][]} seeds */
export function means(seeds) {
  return LENGTHS.map((_, i) => seeds.reduce((all, losses) => all + losses[i], 0) / seeds.length);
}
