/** Seven kinds of efficient attention on the queries, keys and values of a trained head, and their errors. */

import { normal, softmax, sum, uniform } from "./arithmetic.js";
import { HEADS, opened, run } from "./gpt.math.js";
import { MODEL } from "./gpt_model.js";
import { square } from "./masks.math.js";
import { MASKS, N, mask } from "./sparse.math.js";

/** @typedef {number[][]} Matrix */
/** @typedef {import("./sparse.math.js").Pattern & { r: number }} How a method and its budgets */

export const TEXT =
  "the young men near these kings sing . then they sing . then they see themselves and follow two quiet birds . they sleep . they chase this boy . this brave girl beside the birds sings . then she follows the woman . she waits . then she dances . then she hears the women . she waits .";
export const WIDTH = 16; // width of a head
/** The values of the slider for random features or projected rows. */
export const FEATURES = [4, 8, 16, 32, 64, 128, 256];

/** @type {Record<string, { q: Matrix, k: Matrix, v: Matrix }>} */
const VECTORS = {};

/** The queries, keys and values of a head on the text. @param {string} head */
export function vectors(head) {
  if (!VECTORS[head]) {
    /** @type {Float64Array[][]} */
    const layers = [];
    run(opened(MODEL), TEXT.split(" "), [], (...all) => layers.push(all));
    HEADS.forEach((name, i) => {
      const [q, k, v] = layers[i >> 2].map((all) => {
        const wide = all.length / N;
        const at = (/** @type {number} */ row) => row * wide + (i % 4) * WIDTH;
        return Array.from({ length: N }, (_, row) => [...all.subarray(at(row), at(row) + WIDTH)]);
      });
      VECTORS[name] = { q, k, v };
    });
  }
  return VECTORS[head];
}

/** Whether the causal mask applies; Linformer is never masked here. @param {How} how */
export const isCausal = ({ way, causal }) => causal && way !== "linformer";

const dot = (/** @type {number[]} */ a, /** @type {number[]} */ b) => {
  let total = 0;
  for (let c = 0; c < a.length; c++) total += a[c] * b[c];
  return total;
};
const scaled = (/** @type {number[]} */ a, /** @type {number} */ by) => a.map((x) => x * by);

/** The matrix product of weights and rows. @param {Matrix} weights @param {Matrix} rows */
export function mixed(weights, rows) {
  return weights.map((row) => {
    const out = Array(rows[0].length).fill(0);
    row.forEach((weight, j) => {
      if (weight) for (let c = 0; c < out.length; c++) out[c] += weight * rows[j][c];
    });
    return out;
  });
}

/** The softmax weights over the allowed pairs. @param {Matrix} q @param {Matrix} k @param {(i: number, j: number) => boolean} sees */
function attend(q, k, sees) {
  return q.map((query, i) => softmax(k.map((key, j) => (sees(i, j) ? dot(query, key) / Math.sqrt(WIDTH) : -Infinity))));
}

/** The weights of linear attention, from products of features. @param {Matrix} q @param {Matrix} k features, not negative @param {boolean} causal */
function byFeatures(q, k, causal) {
  return q.map((query, i) => {
    const row = k.map((key, j) => (causal && j > i ? 0 : dot(query, key)));
    const total = sum(row) || 1;
    return scaled(row, 1 / total);
  });
}

/**
 * Random features of Performer: each sixteen are orthogonal, by Gram-Schmidt on columns of normal numbers, and have the
 * lengths of normal vectors.
 * @param {number} r @param {number} seed
 */
export function directions(r, seed) {
  const random = uniform(seed);
  const draw = () => Array.from({ length: WIDTH }, () => normal(random));
  const groups = Array.from({ length: Math.ceil(r / WIDTH) }, () => {
    const drawn = Array.from({ length: WIDTH }, draw);
    const columns = drawn.map((_, j) => drawn.map((row) => row[j]));
    columns.forEach((column, j) => {
      for (const before of columns.slice(0, j)) {
        const share = dot(column, before);
        before.forEach((x, c) => (column[c] -= share * x));
      }
      const length = Math.sqrt(dot(column, column));
      column.forEach((x, c) => (column[c] = x / length));
    });
    return drawn.map((_, i) => columns.map((column) => column[i]));
  }).flat();
  return Array.from({ length: r }, (_, i) => {
    const length = Math.hypot(...draw());
    return scaled(groups[i], length);
  });
}

/** The logarithms of the random features, up to a constant. @param {Matrix} rows @param {Matrix} omega */
function logFeatures(rows, omega) {
  return rows.map((row) => {
    const x = scaled(row, WIDTH ** -0.25);
    return omega.map((direction) => dot(direction, x) - dot(x, x) / 2);
  });
}

/** The weights with which a method averages the values of a head. @param {How} how @param {{ q: Matrix, k: Matrix }} head */
export function weights(how, { q, k }) {
  const causal = isCausal(how);
  if (MASKS.includes(how.way)) {
    const seen = mask(how);
    return attend(q, k, (i, j) => seen[i][j]);
  }
  if (how.way === "linformer") {
    const pool = pooling(inner(how));
    return mixed(
      attend(q, mixed(pool, k), () => true),
      pool,
    );
  }
  if (how.way === "linear") {
    const positive = (/** @type {Matrix} */ rows) => rows.map((row) => row.map((x) => (x > 0 ? x + 1 : Math.exp(x))));
    return byFeatures(positive(q), positive(k), causal);
  }
  const omega = directions(how.r, how.seed);
  const [logQ, logK] = [logFeatures(q, omega), logFeatures(k, omega)];
  const peak = Math.max(...logK.flat());
  return byFeatures(
    logQ.map((row) => row.map((x) => Math.exp(x - Math.max(...row)))),
    logK.map((row) => row.map((x) => Math.exp(x - peak))),
    causal,
  );
}

/** The mean-pooling matrix of Linformer, with r rows. @param {number} r */
export function pooling(r) {
  const edge = (/** @type {number} */ i) => Math.floor((i * N) / r);
  return Array.from({ length: r }, (_, i) =>
    Array.from({ length: N }, (_, j) => (j >= edge(i) && j < edge(i + 1) ? 1 / (edge(i + 1) - edge(i)) : 0)),
  );
}

/** The weights of exact attention. @param {boolean} causal @param {{ q: Matrix, k: Matrix }} head */
export function exact(causal, { q, k }) {
  return attend(q, k, (i, j) => !causal || j <= i);
}

/** Uniform weights over the visible words. @param {boolean} causal */
export function even(causal) {
  return square(N, (i, j) => (causal ? Number(j <= i) / (i + 1) : 1 / N));
}

/** How far outputs lie from the exact ones: root of the sum of squares, over that of the exact. @param {Matrix} out @param {Matrix} wanted */
export function distance(out, wanted) {
  const squares = (/** @type {Matrix} */ rows) => sum(rows.map((row) => dot(row, row)));
  return Math.sqrt(squares(out.map((row, i) => row.map((x, c) => x - wanted[i][c]))) / squares(wanted));
}

/** The exact outputs of each head, with and without the causal mask. @type {Record<string, Matrix>} */
const OUTPUTS = {};

/** The relative error of a way on a head; of no way, that of the plain average. @param {How} how @param {string} head */
export function error(how, head) {
  const all = vectors(head);
  const causal = isCausal(how);
  const own = how.way ? weights(how, all) : even(causal);
  const wanted = (OUTPUTS[`${head} ${causal}`] ??= mixed(exact(causal, all), all.v));
  return distance(mixed(own, all.v), wanted);
}

/** The standard deviation of the scores of the pairs that the head was trained on. @param {string} head */
export function spread(head) {
  const { q, k } = vectors(head);
  const scores = q.flatMap((query, i) => k.slice(0, i + 1).map((key) => dot(query, key) / Math.sqrt(WIDTH)));
  const mean = sum(scores) / scores.length;
  return Math.sqrt(sum(scores.map((score) => (score - mean) ** 2)) / (scores.length - 1));
}

/** How many pairs are computed; of no way, those of exact attention. @param {How} how */
export function pairs(how) {
  if (!how.way) return how.causal ? (N * (N + 1)) / 2 : N * N;
  return MASKS.includes(how.way) ? mask(how).flat().filter(Boolean).length : 0;
}

/** How many numbers stand for each word in place of the pairs. @param {How} how */
export function inner({ way, r }) {
  return { linformer: Math.min(r, N), linear: WIDTH, performer: r }[way] ?? 0;
}

/**
 * Multiplications: for each pair its score and its share of the output; for features, in the sums and in reading them,
 * and first in making them; for mixtures, in mixing keys and values, and in attending to those.
 * @param {How} how
 */
export function multiplications(how) {
  const r = inner(how);
  return r ? N * r * each(how) : 2 * WIDTH * pairs(how);
}

/** For each word and each feature or mixture. @param {How} how */
function each({ way }) {
  return { linformer: 4 * WIDTH, linear: 2 * WIDTH + 1 }[way] ?? 4 * WIDTH + 1;
}
