/** Two attention layers at twenty steps of their training: unpack the weights, run with four switches, score the heads. */

import { softmax, sum, uniform } from "./arithmetic.js";
import { MODEL } from "./birth_model.js";
import { mark } from "./words.js";
import { bytes } from "./base64.js";

/** @typedef {{ hide: string[], forced: boolean }} How `hide`: of what in layer 2 the output of layer 1 is kept away */

export const SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
export const LONGEST = MODEL.config.n_context;
export const STEPS = [0, 25, 50, 75, 90, 100, 105, 110, 115, 120, 125, 130, 140, 150, 165, 180, 200, 230, 260, 300];
export const HIDEABLE = [mark("queries"), mark("keys"), mark("values")];
export const EVERY = MODEL.record.every; // steps from one point of a curve to the next

/** The curves of each seed, first the one with checkpoints: a number from 0 to 1 every few steps. */
export const CURVES = MODEL.record.seeds.map(
  (seed) => /** @type {Record<string, Record<string, number[]>>} */ (MODEL.record.curves)[seed],
);

const [WIDTH, EPS] = [MODEL.config.d_model, MODEL.config.norm_eps];
const LAYERS = [0, 1].map((layer) => `blocks.${layer}.attention`);
const MATRICES = [
  "embedding",
  "places",
  ...LAYERS.flatMap((at) => ["q", "k", "v", "o"].map((part) => `${at}.sublayer.w_${part}`)),
  "head",
];

/** Decode bfloat16 numbers, the upper halves of float32. @param {string} text */
const halves = (text) => new Float32Array(Uint32Array.from(new Uint16Array(bytes(text)), (half) => half << 16).buffer);

/** @type {Map<number, Record<string, Float64Array>>} */
const unpacked = new Map();

/** The parameters at a training step: integers times the step of their row. @param {number} step */
function parameters(step) {
  const known = unpacked.get(step);
  if (known) return known;
  const { int8, steps, gains } = MODEL.checkpoints[STEPS.indexOf(step)];
  const [sizes, gain] = [halves(steps), Float64Array.from(halves(gains))];
  const all = Float64Array.from(new Int8Array(bytes(int8)), (whole, i) => whole * sizes[Math.floor(i / WIDTH)]);
  let end = 0;
  const found = Object.fromEntries(
    MATRICES.map((name) => [name, all.subarray(end, (end += WIDTH * (name === "places" ? LONGEST : WIDTH)))]),
  );
  [`${LAYERS[0]}.norm`, `${LAYERS[1]}.norm`, "norm"].forEach((name, i) => {
    found[name] = gain.subarray(i * WIDTH, (i + 1) * WIDTH);
  });
  unpacked.set(step, found);
  return found;
}

// A list of vectors is stored as one array, vector after vector.

/** Apply a square matrix, whose rows are the outputs, to each vector. @param {Float64Array} x @param {Float64Array} weight */
function project(x, weight) {
  return x.map((_, at) => {
    const [from, row] = [at - (at % WIDTH), (at % WIDTH) * WIDTH];
    let total = 0;
    for (let k = 0; k < WIDTH; k++) total += weight[row + k] * x[from + k];
    return total;
  });
}

/** Layer norm without bias. @param {Float64Array} x @param {Float64Array} gain */
function norm(x, gain) {
  const y = new Float64Array(x.length);
  for (let from = 0; from < x.length; from += WIDTH) {
    const own = x.subarray(from, from + WIDTH);
    const mean = own.reduce((a, b) => a + b, 0) / WIDTH;
    const spread = Math.sqrt(own.reduce((a, b) => a + (b - mean) ** 2, 0) / WIDTH + EPS);
    for (let k = 0; k < WIDTH; k++) y[from + k] = ((own[k] - mean) / spread) * gain[k];
  }
  return y;
}

/** @param {Float64Array} x @param {Float64Array} more */
const plus = (x, more) => x.map((number, i) => number + more[i]);

/**
 * The causal attention weights of a layer, and its output; its queries, keys and values read separate streams.
 * @param {Record<string, Float64Array>} own @param {number} layer @param {Float64Array[]} streams @param {boolean} forced
 */
function attend(own, layer, streams, forced) {
  const [forQueries, forKeys, values] = streams.map((x) => norm(x, own[`${LAYERS[layer]}.norm`]));
  const matrix = (/** @type {string} */ part) => own[`${LAYERS[layer]}.sublayer.w_${part}`];
  const q = project(plus(forQueries, own.places), matrix("q"));
  const k = project(plus(forKeys, own.places), matrix("k"));
  const v = project(values, matrix("v"));
  const found = new Float64Array(v.length);
  const weights = Array.from({ length: v.length / WIDTH }, (_, i) => {
    const scores = Array.from({ length: i + 1 }, (_, j) => {
      let score = 0;
      for (let c = 0; c < WIDTH; c++) score += q[i * WIDTH + c] * k[j * WIDTH + c];
      return score / Math.sqrt(WIDTH);
    });
    const row = forced ? scores.map((_, j) => Number(j === Math.max(0, i - 1))) : softmax(scores);
    row.forEach((weight, j) => {
      for (let c = 0; c < WIDTH; c++) found[i * WIDTH + c] += weight * v[j * WIDTH + c];
    });
    return row;
  });
  return { weights, written: project(found, matrix("o")) };
}

/**
 * The attention weights of both layers at a training step, and the probabilities of the next symbol at each position.
 * @param {string} symbols @param {number} step @param {How} how
 */
export function run(symbols, step, { hide, forced }) {
  const own = parameters(step);
  const before = new Float64Array(symbols.length * WIDTH);
  [...symbols].forEach((symbol, i) => {
    const token = SYMBOLS.indexOf(symbol);
    if (token < 0) throw new RangeError(`symbols must be of ${SYMBOLS}, got ${symbol}`);
    before.set(own.embedding.subarray(token * WIDTH, (token + 1) * WIDTH), i * WIDTH);
  });
  const first = attend(own, 0, [before, before, before], forced);
  const after = plus(before, first.written);
  const second = attend(
    own,
    1,
    HIDEABLE.map((part) => (hide.includes(part) ? before : after)),
    false,
  );
  const logits = project(norm(plus(after, second.written), own.norm), own.head);
  return {
    weights: [first.weights, second.weights],
    next: [...symbols].map((_, i) => softmax([...logits.subarray(i * WIDTH, (i + 1) * WIDTH)])),
  };
}

/** The recorded accuracy on held-out passages, at a training step and a setting of the switches. @param {number} step @param {How} how */
export function recorded(step, { hide, forced }) {
  const way = sum(HIDEABLE.map((part, i) => (hide.includes(part) ? 2 ** i : 0))) + (forced ? 8 : 0);
  return MODEL.record.switched[STEPS.indexOf(step)][way];
}

/** The first recorded step with an accuracy of one half on predictable symbols. @param {number[]} accuracy */
export function born(accuracy) {
  return EVERY * accuracy.findIndex((share) => share >= 0.5);
}

/** For each symbol, the positions after its earlier occurrences. @param {string} symbols */
export function followers(symbols) {
  return [...symbols].map((symbol, i) =>
    [...symbols.slice(0, i)].flatMap((other, j) => (other === symbol ? [j + 1] : [])),
  );
}

/** For each position, the symbol after the last earlier occurrence; nothing at the first occurrence. @param {string} symbols */
export function answers(symbols) {
  return followers(symbols).map((places) => (places.length ? symbols[places[places.length - 1]] : ""));
}

/** Convert typed text to symbols. @param {string} typed */
export function parse(typed) {
  return typed.toUpperCase().replace(/\s/g, "");
}

/** Whether the symbols repeat a passage of 8 to 24 different symbols, as in training. @param {string} symbols */
export function isLikeTraining(symbols) {
  const period = symbols.indexOf(symbols[0], 1);
  const passage = period < 0 ? symbols : symbols.slice(0, period);
  const isRepeated = [...symbols].every((symbol, i) => symbol === passage[i % passage.length]);
  return isRepeated && new Set(passage).size === passage.length && passage.length >= 8 && passage.length <= 24;
}

/** Another passage of 8 to 12 different symbols, two and a part repetitions; it depends on the passage before. @param {string} symbols */
export function another(symbols) {
  const random = uniform(sum([...symbols].map((symbol, i) => (i + 1) * SYMBOLS.indexOf(symbol))));
  const period = 8 + Math.floor(5 * random());
  const left = [...SYMBOLS];
  const passage = Array.from({ length: period }, () => left.splice(Math.floor(left.length * random()), 1)[0]).join("");
  return passage + passage + passage.slice(0, 3);
}
