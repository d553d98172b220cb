/** Scores, averages and hulls of vectors in the plane. */

import { sum } from "./arithmetic.js";

/** @typedef {number[]} Point two coordinates */

/** @param {Point} a @param {Point} b */
export function dot(a, b) {
  return a[0] * b[0] + a[1] * b[1];
}

/** The angle between two vectors in degrees, as accurate near 0 and 180 as elsewhere. @param {Point} a @param {Point} b */
export function angle(a, b) {
  return (Math.atan2(Math.abs(a[0] * b[1] - a[1] * b[0]), dot(a, b)) * 180) / Math.PI;
}

/** Dot products of the query with the keys, or their cosines. @param {Point} query @param {Point[]} keys @param {string} similarity */
export function scores(query, keys, similarity) {
  return keys.map((key) => dot(query, key) / (similarity === "cosine" ? Math.hypot(...query) * Math.hypot(...key) : 1));
}

/** The weighted average of points. @param {number[]} p @param {Point[]} points @returns {Point} */
export function average(p, points) {
  return [0, 1].map((axis) => sum(p.map((w, j) => w * points[j][axis])));
}

/** The corners of the convex hull of the points, counter-clockwise. @param {Point[]} points */
export function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (/** @type {Point[]} */ from) => {
    /** @type {Point[]} */
    const chain = [];
    for (const c of from) {
      while (chain.length > 1 && !turnsLeft(chain[chain.length - 2], chain[chain.length - 1], c)) chain.pop();
      chain.push(c);
    }
    return chain.slice(0, -1);
  };
  const corners = [...half(sorted), ...half(sorted.reverse())];
  return corners.length ? corners : sorted.slice(0, 1);
}

/** @param {Point} a @param {Point} b @param {Point} c */
function turnsLeft(a, b, c) {
  return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) > 0;
}

/** The vector of the same direction with another length. @param {Point} v @param {number} length */
export function stretched(v, length) {
  return v.map((x) => (x * length) / Math.hypot(...v));
}
