/** The answer of a soft look-up, the value of the best key, and the derivative of the soft answer. */

import { softmax, sum } from "./arithmetic.js";

/** @typedef {number[]} Point two coordinates */

/** Dot products of the query with the keys. @param {Point} query @param {Point[]} keys */
export function scores(query, keys) {
  return keys.map((key) => query[0] * key[0] + query[1] * key[1]);
}

/** The average of the values, weighted by the softmax of the scores. @param {Point} query @param {Point[]} keys @param {number[]} values */
export function answer(query, keys, values) {
  return sum(softmax(scores(query, keys)).map((p, j) => p * values[j]));
}

/** The value of the best key. @param {Point} query @param {Point[]} keys @param {number[]} values */
export function best(query, keys, values) {
  const s = scores(query, keys);
  return values[s.indexOf(Math.max(...s))];
}

/** The change of the soft answer when the query turns left by one degree. @param {Point} query @param {Point[]} keys @param {number[]} values */
export function perDegree(query, keys, values) {
  const o = answer(query, keys, values);
  const turned = scores([-query[1], query[0]], keys);
  return (sum(softmax(scores(query, keys)).map((p, j) => p * (values[j] - o) * turned[j])) * Math.PI) / 180;
}

/** The vector with a direction and a length. @param {number} degrees @param {number} length @returns {Point} */
export function pointing(degrees, length) {
  return [length * Math.cos((degrees * Math.PI) / 180), length * Math.sin((degrees * Math.PI) / 180)];
}

/** @param {Point} v */
export function lengthOf(v) {
  return Math.hypot(...v);
}

/** The direction in degrees, counter-clockwise from the first axis. @param {Point} v */
export function directionOf(v) {
  return (Math.atan2(v[1], v[0]) * 180) / Math.PI;
}
