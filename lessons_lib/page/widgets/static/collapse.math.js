/** Tokens in a stack of random layers, and measures of their differences. */

import { effectiveCount, entropy, normal, softmax, sum, uniform } from "./arithmetic.js";

/** @typedef {number[][]} Matrix one row for each token, or one for each coordinate that comes in */
/** @typedef {{ bilinear: Matrix, values: Matrix }} Layer what a layer compares tokens with, and what it makes of them */

export const TOKENS = 12;
export const WIDTH = 16;
export const LAYERS = 32;

/** Random tokens and layers; one more layer than the tokens pass, for its attention weights. @param {number} seed */
export function draw(seed) {
  const random = uniform(seed);
  const matrix = (/** @type {number} */ rows, scale = 1) => fill(rows, WIDTH, () => scale * normal(random));
  const tokens = units(matrix(TOKENS));
  const layers = Array.from({ length: LAYERS + 1 }, () => ({
    bilinear: matrix(WIDTH),
    values: matrix(WIDTH, 1 / Math.sqrt(WIDTH)),
  }));
  return { tokens, layers };
}

/** The attention weights of a layer. @param {Matrix} x @param {Layer} layer @param {boolean} causal @param {number} temperature */
export function weights(x, { bilinear }, causal, temperature) {
  const normed = units(x);
  const queries = times(normed, bilinear);
  return normed.map((_, i) => {
    const scores = normed.map((key) => dot(queries[i], key) / WIDTH);
    const seen = softmax(causal ? scores.slice(0, i + 1) : scores, temperature);
    return scores.map((_, j) => seen[j] ?? 0);
  });
}

/**
 * The tokens after 0, 1, 2 ... layers.
 * @param {{ tokens: Matrix, layers: Layer[] }} drawn
 * @param {number} residual @param {string} norm @param {boolean} causal @param {number} temperature
 */
export function streams({ tokens, layers }, residual, norm, causal, temperature) {
  const found = [tokens];
  for (const layer of layers.slice(0, LAYERS)) {
    const x = found[found.length - 1];
    const mixed = times(times(weights(x, layer, causal, temperature), units(x)), layer.values);
    const next = x.map((row, i) => row.map((value, c) => residual * value + mixed[i][c]));
    found.push(norm === "after" ? units(next) : next);
  }
  return found;
}

/** The spread: the share of the norm that is not common to all tokens. @param {Matrix} x */
export function spread(x) {
  const mean = x[0].map((_, c) => sum(x.map((row) => row[c])) / x.length);
  const apart = x.map((row) => row.map((value, c) => value - mean[c]));
  return Math.sqrt(sum(apart.map((row) => dot(row, row))) / sum(x.map((row) => dot(row, row))));
}

/** Cosines between tokens. @param {Matrix} x */
function cosines(x) {
  const lengths = x.map((row) => Math.sqrt(dot(row, row)));
  return x.map((a, i) => x.map((b, j) => dot(a, b) / (lengths[i] * lengths[j])));
}

/** The mean cosine of two different tokens. @param {Matrix} x */
export function alike(x) {
  return (sum(cosines(x).map(sum)) - x.length) / (x.length * (x.length - 1));
}

/** The effective rank: exp of the entropy of the singular values, by rotating rows until all are orthogonal. @param {Matrix} x */
export function effectiveRank(x) {
  const rows = x.map((row) => Float64Array.from(row));
  let turned = true;
  for (let sweep = 0; turned && sweep < 12; sweep++) {
    turned = false;
    for (let i = 0; i < rows.length; i++)
      for (let j = 0; j < i; j++) {
        const [one, two] = [rows[i], rows[j]];
        let [a, b, c] = [0, 0, 0];
        for (let k = 0; k < one.length; k++) {
          a += one[k] * one[k];
          b += two[k] * two[k];
          c += one[k] * two[k];
        }
        if (c * c <= 1e-30 * a * b) continue; // orthogonal
        turned = true;
        const angle = Math.atan2(2 * c, a - b) / 2;
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        for (let k = 0; k < one.length; k++)
          [one[k], two[k]] = [cos * one[k] + sin * two[k], cos * two[k] - sin * one[k]];
      }
  }
  const sigma = rows.map((row) => Math.hypot(...row));
  return effectiveCount(sigma.map((s) => s / sum(sigma)));
}

/** Entropy of the weights as a share of the largest possible; rows with one visible key are left out. @param {Matrix} a @param {boolean} causal */
export function undecided(a, causal) {
  const shares = a
    .map((row, i) => [entropy(row), Math.log(causal ? i + 1 : row.length)])
    .filter(([, most]) => most > 0);
  return sum(shares.map(([h, most]) => h / most)) / shares.length;
}

/**
 * The directions of the tokens after each layer on a map of their sphere, centred on the mean direction: a map of equal
 * areas in a disc of radius 1, with the opposite direction at the rim. The distance of a point from the centre is exact.
 * Of the other directions the map keeps the two in which the tokens differ most, turned to stay near the layer before.
 * @param {Matrix[]} stack
 */
export function onSphere(stack) {
  /** @type {number[][]} */
  let before = stack[0].map((_, i) => [Math.cos(2 * i), Math.sin(2 * i)]);
  return stack.map((x, t) => {
    const directions = x.map((row) => divided(row, Math.sqrt(dot(row, row))));
    const centre = x[0].map((_, c) => sum(directions.map((row) => row[c])));
    const length = Math.sqrt(dot(centre, centre));
    const mean = length ? divided(centre, length) : directions[0];
    const along = directions.map((row) => dot(row, mean));
    const aside = directions.map((row, i) => row.map((value, c) => value - along[i] * mean[c]));
    before = alignedTo(before, plane(aside, before, t ? 10 : 40)).map((point, i) => {
      const far = Math.sqrt(dot(aside[i], aside[i]));
      const half = Math.atan2(far, along[i]) / 2;
      const size = Math.sqrt(dot(point, point));
      return size ? point.map((value) => (value / size) * Math.sin(half)) : [Math.sin(half), 0];
    });
    return before;
  });
}

/** The coordinates of rows in the plane in which they have most of their length, by orthogonal iteration. @param {Matrix} rows @param {number[][]} start @param {number} steps */
function plane(rows, start, steps) {
  const columns = rows[0].map((_, c) => rows.map((row) => row[c]));
  const unit = (/** @type {number[]} */ vector) => divided(vector, Math.sqrt(dot(vector, vector)) || 1);
  let points = start;
  for (let step = 0; step < steps; step++) {
    const [first, second] = [0, 1].map((axis) => {
      const along = points.map((point) => point[axis]);
      return columns.map((column) => dot(column, along));
    });
    const one = unit(first);
    const share = dot(one, second);
    const two = unit(second.map((value, c) => value - share * one[c]));
    points = rows.map((row) => [dot(row, one), dot(row, two)]);
  }
  return points;
}

/** The points, turned and perhaps mirrored to lie near others. @param {number[][]} wanted @param {number[][]} points */
function alignedTo(wanted, points) {
  const total = (/** @type {number} */ a, /** @type {number} */ b) => sum(points.map((p, i) => p[a] * wanted[i][b]));
  const [xx, xy, yx, yy] = [total(0, 0), total(0, 1), total(1, 0), total(1, 1)];
  const mirror = Math.hypot(xx - yy, xy + yx) > Math.hypot(xx + yy, xy - yx) ? -1 : 1;
  const angle = Math.atan2(xy - mirror * yx, xx + mirror * yy);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  return points.map(([x, y]) => [cos * x - sin * mirror * y, sin * x + cos * mirror * y]);
}

/** @param {number[]} row @param {number} by */
function divided(row, by) {
  return row.map((value) => value / by);
}

/** RMS norm: scale each row to root mean square 1. @param {Matrix} x */
function units(x) {
  return x.map((row) => {
    const size = Math.sqrt(dot(row, row) / row.length);
    return row.map((value) => value / size);
  });
}

/** @param {Matrix} a @param {Matrix} b */
function times(a, b) {
  return a.map((row) => {
    const out = b[0].map(() => 0);
    row.forEach((value, k) => {
      for (let c = 0; c < out.length; c++) out[c] += value * b[k][c];
    });
    return out;
  });
}

/** @param {number[]} a @param {number[]} b */
function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

/** @param {number} rows @param {number} columns @param {() => number} entry */
function fill(rows, columns, entry) {
  return Array.from({ length: rows }, () => Array.from({ length: columns }, entry));
}
