/** Scales of guesses, and sentences that say how near a guess is. */

import { say } from "./words.js";

/** @typedef {{ good: boolean, remark: string }} Score */

/**
 * The map from a value to its position between 0 and 1, and its inverse.
 * @param {number} low @param {number} high @param {boolean} log
 */
export function scale(low, high, log) {
  const to = log ? Math.log : (/** @type {number} */ x) => x;
  const back = log ? Math.exp : (/** @type {number} */ x) => x;
  return {
    place: (/** @type {number} */ x) => (to(x) - to(low)) / (to(high) - to(low)),
    value: (/** @type {number} */ p) => back(to(low) + p * (to(high) - to(low))),
  };
}

/**
 * Round numbers on a scale: powers of ten, at most eight of them, or steps of 1, 2 or 5.
 * @param {number} low @param {number} high @param {boolean} log
 */
export function ticks(low, high, log) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9);
    const last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.ceil((last - first + 1) / 8);
    const tens = [];
    for (let e = first; e <= last; e += every) tens.push(Number(`1e${e}`));
    return tens.length > 1 ? tens : [low, high];
  }
  const rough = (high - low) / 5;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = ten * ([1, 2, 5].find((s) => s * ten >= rough * 0.999) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const many = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: many }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

/** A number with three digits, all digits before the point, or as a power of ten. @param {number} x */
export function show(x) {
  const size = Math.abs(x);
  if (size && (size < 1e-3 || size >= 1e6)) {
    const [digits, exponent] = String(Number(x.toPrecision(2)).toExponential()).split("e");
    const power = `10${[...exponent].map((c) => ({ "+": "", "-": "⁻" })[c] ?? "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]).join("")}`;
    const whole = digits.replace(/^(-?)1$/, "$1") + (/^-?1$/.test(digits) ? "" : "×");
    return (whole + power).replace("-", "\u2212");
  }
  return String(size >= 100 ? Math.round(x) : Number(x.toPrecision(3))).replace("-", "\u2212");
}

/**
 * How near a guessed number is: as a factor on a logarithmic scale, else as a part of the scale.
 * @param {number} value @param {number} answer @param {{ low: number, high: number, log: boolean }} about
 * @returns {Score}
 */
export function numberScore(value, answer, { low, high, log }) {
  const isLow = value < answer;
  if (log) {
    const factor = Math.max(value / answer, answer / value);
    const n = show(Number(factor.toPrecision(2)));
    const words = isLow ? say("a factor of {n} too low", { n }) : say("a factor of {n} too high", { n });
    if (factor < 1.12) return { good: true, remark: say("on the spot") };
    return { good: factor < 1.6, remark: factor < 1.6 ? say("close, {words}", { words }) : words };
  }
  const gap = Math.abs(value - answer);
  const n = show(Number(gap.toPrecision(2)));
  const words = isLow ? say("{n} too low", { n }) : say("{n} too high", { n });
  if (gap <= 0.025 * (high - low)) return { good: true, remark: say("on the spot") };
  const close = gap <= 0.1 * (high - low);
  return { good: close, remark: close ? say("close, {words}", { words }) : words };
}

/**
 * How near a drawn curve is: first the distance, then the shape, then the direction.
 * @param {number[]} mine @param {number[]} truth heights from 0 to 1 in the same columns
 * @returns {Score}
 */
export function curveScore(mine, truth) {
  const mean = (/** @type {number[]} */ a) => a.reduce((s, x) => s + x, 0) / a.length;
  const off = mean(mine.map((v, i) => Math.abs(v - truth[i])));
  const [a, b] = [mine, truth].map((row) => row.map((v) => v - mean(row)));
  const [sa, sb] = [a, b].map((row) => Math.sqrt(mean(row.map((v) => v * v))));
  const flat = Number(sa < 0.01) + Number(sb < 0.01);
  const alike = flat ? flat - 1 : mean(a.map((v, i) => v * b[i])) / (sa * sb);
  const away = say("{off} % of the height away on average", { off: Math.round(100 * off) });
  if (off < 0.04) return { good: true, remark: say("On the spot: {away}", { away }) };
  if (off < 0.1) return { good: true, remark: say("Close: {away}", { away }) };
  if (alike > 0.9) return { good: off < 0.2, remark: say("The right shape: {away}", { away }) };
  if (alike > 0.5) return { good: false, remark: say("The right direction, another shape: {away}", { away }) };
  if (alike < -0.4) return { good: false, remark: say("It goes the other way: {away}", { away }) };
  return { good: false, remark: say("Another story: {away}", { away }) };
}

/**
 * The heights of a measured curve at equally spaced columns: linear between two points, constant beyond them.
 * @param {[number, number][]} points places from 0 to 1, from left to right @param {number} last the last column
 */
export function sampled(points, last) {
  return Array.from({ length: last + 1 }, (_, i) => {
    const u = i / last;
    const j = points.findIndex(([x]) => x >= u);
    if (j <= 0) return points[j < 0 ? points.length - 1 : 0][1];
    const [[a, c], [b, d]] = [points[j - 1], points[j]];
    return c + ((u - a) / (b - a)) * (d - c);
  });
}

/**
 * Draw a straight line over the columns from one spot to another.
 * @param {(number | null)[]} heights changed in place
 * @param {[number, number]} from column and height @param {[number, number]} to
 */
export function stroke(heights, from, to) {
  const [[a, c], [b, d]] = from[0] <= to[0] ? [from, to] : [to, from];
  for (let i = a; i <= b; i++) heights[i] = a === b ? to[1] : c + ((i - a) / (b - a)) * (d - c);
}

/**
 * Complete a drawn curve: the first and the last height extend to the edge from up to `edge` columns away, and gaps
 * between two strokes are filled linearly.
 * @param {(number | null)[]} heights changed in place @param {number} edge
 */
export function mend(heights, edge) {
  const last = heights.length - 1;
  /** @type {[number, number][]} */
  const known = heights.flatMap((v, i) => (v === null ? [] : [[i, v]]));
  if (!known.length) return;
  const [left, right] = [known[0], known[known.length - 1]];
  if (left[0] <= edge) heights.fill(left[1], 0, left[0]);
  if (right[0] >= last - edge) heights.fill(right[1], right[0] + 1);
  known.slice(1).forEach((spot, i) => stroke(heights, known[i], spot));
}
