/** FlashAttention's forward pass as steps: their effect on each row, and the bytes that they move. */

import { normal, sum, uniform } from "./arithmetic.js";

export const LARGEST = 16;
export const WIDTH = 4; // head width of the figure
export const REAL = { n: 4096, width: 64 };
export const BYTES = 4;

/**
 * @typedef {{ doing: "load" | "merge" | "write", rows: number[], keys: number[] }} Step
 * @typedef {{ peak: number, factor: number, total: number, out: number[] }} Row
 *   the running maximum of a query, its last factor, its running sum, and its output before division by the sum;
 *   the values are the identity matrix, so an output has one entry for each key: its weight
 */

/** @param {number} from @param {number} to */
export const span = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

/**
 * Scores with one decimal; a larger n keeps the scores of a smaller one. "rising" and "falling" sort each row.
 * @param {number} n @param {number} seed @param {string} order
 */
export function scores(n, seed, order) {
  const random = uniform(seed);
  const drawn = span(0, LARGEST).map(() => span(0, LARGEST).map(() => Math.round(20 * normal(random)) / 10));
  const rows = drawn.slice(0, n).map((row) => row.slice(0, n));
  if (order !== "drawn") for (const row of rows) row.sort((a, b) => (order === "rising" ? a - b : b - a));
  return rows;
}

/**
 * The steps in order: each block of queries visits its visible blocks of keys, then is written.
 * @param {number} n @param {number} blockQ @param {number} blockK @param {boolean} causal @returns {Step[]}
 */
export function schedule(n, blockQ, blockK, causal) {
  /** @type {Step[]} */
  const steps = [];
  for (let q = 0; q < n; q += blockQ) {
    const rows = span(q, Math.min(n, q + blockQ));
    for (let k = 0; k < (causal ? rows[rows.length - 1] + 1 : n); k += blockK) {
      const keys = span(k, Math.min(n, k + blockK));
      steps.push({ doing: "load", rows, keys }, { doing: "merge", rows, keys });
    }
    steps.push({ doing: "write", rows, keys: [] });
  }
  return steps;
}

/**
 * The scores of a query for some keys, -Infinity for masked keys.
 * @param {number[]} row @param {number} query @param {number[]} keys @param {boolean} causal
 */
export function seen(row, query, keys, causal) {
  return keys.map((j) => (causal && j > query ? -Infinity : row[j]));
}

/**
 * Merge the scores of one tile into a row with at least one visible key so far or in this tile.
 * @param {Row} row @param {number[]} keys @param {number[]} tile their scores @param {boolean} rescale
 * @returns {Row}
 */
export function merge(row, keys, tile, rescale) {
  const peak = Math.max(row.peak, ...tile);
  const factor = rescale ? Math.exp(row.peak - peak) : 1;
  const weights = tile.map((s) => Math.exp(s - peak));
  const out = row.out.map((o) => factor * o);
  keys.forEach((j, i) => {
    out[j] += weights[i];
  });
  return { peak, factor, total: factor * row.total + sum(weights), out };
}

/**
 * All rows after some steps; written rows are divided by their sums.
 * @param {number[][]} all the scores @param {Step[]} steps @param {boolean} causal @param {boolean} rescale
 */
export function run(all, steps, causal, rescale) {
  const rows = all.map((row) => ({ peak: -Infinity, factor: 1, total: 0, out: row.map(() => 0) }));
  for (const { doing, rows: block, keys } of steps)
    for (const i of block) {
      if (doing === "merge") rows[i] = merge(rows[i], keys, seen(all[i], i, keys, causal), rescale);
      if (doing === "write") rows[i] = { ...rows[i], out: rows[i].out.map((o) => o / rows[i].total) };
    }
  return rows;
}

/**
 * Numbers moved between slow and fast memory: a block of queries once, keys and values for each tile, outputs and
 * log-sum-exps once.
 * @param {Step[]} steps @param {number} width
 */
export function moved(steps, width) {
  const queries = (/** @type {Step} */ { rows, keys }) => (keys[0] === 0 ? rows.length * width : 0);
  return sum(
    steps.map((step) => {
      if (step.doing === "load") return queries(step) + 2 * step.keys.length * width;
      return step.doing === "write" ? step.rows.length * (width + 1) : 0;
    }),
  );
}

/**
 * The same for all steps in closed form: n (2 d + 1), and 2 d for each key that a block of queries visits.
 * @param {number} n @param {number} width @param {number} blockQ @param {number} blockK @param {boolean} causal
 */
export function traffic(n, width, blockQ, blockK, causal) {
  let met = 0;
  for (let q = 0; q < n; q += blockQ)
    met += causal ? Math.min(n, Math.ceil(Math.min(n, q + blockQ) / blockK) * blockK) : n;
  return n * (2 * width + 1) + 2 * width * met;
}

/** Three passes: read Q, K, write S; read S, write P; read P, V, write O. */
export function naiveTraffic(/** @type {number} */ n, /** @type {number} */ width) {
  return 4 * n * width + 4 * n * n;
}

/** Numbers in fast memory: Q and O, K and V, the tile, a maximum and a sum for each query. */
export function held(/** @type {number} */ width, /** @type {number} */ blockQ, /** @type {number} */ blockK) {
  return 2 * (blockQ + blockK) * width + blockQ * blockK + 2 * blockQ;
}

/** The side of the largest square tile, a power of two, that fits into the given memory. */
export function largestBlock(/** @type {number} */ numbers, /** @type {number} */ width) {
  let side = 1;
  while (held(width, 2 * side, 2 * side) <= numbers) side *= 2;
  return side;
}
