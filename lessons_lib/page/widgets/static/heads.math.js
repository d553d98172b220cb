/** A trained model of two layers: unpack its weights, and run it on a sentence with some heads ablated. */

import { softmax, sum } from "./arithmetic.js";
import { MODEL } from "./heads_model.js";
import { bytes } from "./base64.js";

/** @typedef {number[][]} Matrix one row for each position, or for each output of a projection */

export const VOCABULARY = MODEL.vocabulary.split(" ");
export const LONGEST = 16;
export const HEADS = [1, 2].flatMap((layer) => [1, 2, 3, 4].map((head) => `${layer}.${head}`));

/**
 * Unpack a parameter from bytes between -127 and 127 to rows; a vector is one row.
 * @param {{ shape: number[], step: number, base64: string }} packed @returns {Matrix}
 */
function unpack({ shape, step, base64 }) {
  const width = shape[shape.length - 1];
  const numbers = Array.from(new Int8Array(bytes(base64)), (whole) => step * whole);
  return Array.from({ length: numbers.length / width }, (_, i) => numbers.slice(i * width, (i + 1) * width));
}

const PARAMETERS = Object.fromEntries(Object.entries(MODEL.parameters).map(([name, packed]) => [name, unpack(packed)]));

const dot = (/** @type {number[]} */ a, /** @type {number[]} */ b) => sum(a.map((x, i) => x * b[i]));
const add = (/** @type {number[]} */ a, /** @type {number[]} */ b) => a.map((x, i) => x + b[i]);
const project = (/** @type {Matrix} */ x, /** @type {Matrix} */ w) => x.map((row) => w.map((out) => dot(row, out)));

/** Divide each row by its root mean square, then scale each coordinate. @param {Matrix} x @param {Matrix} gain */
function norm(x, [gain]) {
  return x.map((row) => row.map((entry, i) => (entry * gain[i]) / Math.sqrt(dot(row, row) / row.length + 1e-5)));
}

/**
 * The output and the attention weights of one head, which owns the rows `from` to `to` of the projections.
 * @param {Matrix} x @param {string} layer @param {number} from @param {number} to
 */
function attend(x, layer, from, to) {
  const [q, k, v] = ["q", "k", "v"].map((name) => project(x, PARAMETERS[`${layer}.w_${name}.weight`].slice(from, to)));
  const weights = q.map((query, i) => {
    const seen = softmax(k.slice(0, i + 1).map((key) => dot(query, key) / Math.sqrt(to - from)));
    return q.map((_, j) => seen[j] ?? 0);
  });
  const out = weights.map((row) => v[0].map((_, c) => sum(row.map((weight, j) => weight * v[j][c]))));
  return { weights, out };
}

/**
 * The attention weights of the eight heads, and the next-word probabilities at each position, with some heads ablated.
 * @param {string[]} words @param {string[]} off
 */
export function run(words, off) {
  const embedding = PARAMETERS["embedding.weight"];
  let x = words.map((word, i) => add(embedding[VOCABULARY.indexOf(word)], PARAMETERS["positions.weight"][i]));
  /** @type {Matrix[]} */
  const weights = [];
  for (const layer of [0, 1]) {
    const at = `blocks.${layer}.attention`;
    const normed = norm(x, PARAMETERS[`${at}.norm.weight`]);
    const width = x[0].length / MODEL.n_heads;
    const heads = Array.from({ length: MODEL.n_heads }, (_, head) => {
      const { weights: own, out } = attend(normed, `${at}.sublayer`, head * width, (head + 1) * width);
      weights.push(own);
      return off.includes(`${layer + 1}.${head + 1}`) ? out.map((row) => row.map(() => 0)) : out;
    });
    const joined = words.map((_, i) => heads.flatMap((head) => head[i]));
    x = project(joined, PARAMETERS[`${at}.sublayer.w_o.weight`]).map((row, i) => add(row, x[i]));
  }
  const logits = project(norm(x, PARAMETERS["norm.weight"]), embedding);
  return { weights, next: logits.map((row) => softmax(row)) };
}

/** The probabilities of a singular and of a plural verb. @param {number[]} p over the vocabulary */
export function agreement(p) {
  const verbs = MODEL.verbs.split(" ");
  const share = (/** @type {boolean} */ one) =>
    sum(verbs.filter((verb) => verb.endsWith("s") === one).map((verb) => p[VOCABULARY.indexOf(verb)]));
  return [share(true), share(false)];
}

/** The index of the largest entry. @param {number[]} row */
export function best(row) {
  return row.indexOf(Math.max(...row));
}

/** Convert typed text to words of the model, and list the unknown words. @param {string} typed */
export function parse(typed) {
  const words = typed.toLowerCase().replaceAll(".", " . ").split(/\s+/).filter(Boolean);
  return { words, unknown: words.filter((word) => !VOCABULARY.includes(word)) };
}
