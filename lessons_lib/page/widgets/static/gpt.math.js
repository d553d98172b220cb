/** A trained GPT: unpack its weights, and run it on a text with some heads ablated. */

import { softmax } from "./arithmetic.js";
import { bytes } from "./base64.js";
import { mark } from "./words.js";
import { layerNorm, linear } from "./layers.math.js";

/**
 * A token is a word, or a character.
 * @typedef {{ shape: number[], float32?: string, steps?: string, int8?: string }} Packed
 * @typedef {{ vocabulary: string, parameters: Record<string, Packed>, pairs?: string,
 *   config: { n_context: number, d_model: number, n_heads: number, norm_eps: number, rope_base: number } }} Carried
 * @typedef {ReturnType<typeof opened>} Model
 */

export const HEADS = [1, 2].flatMap((layer) => [1, 2, 3, 4].map((head) => `${layer}.${head}`));
export const STAGES = [
  mark("embedding"),
  mark("1 attention"),
  mark("1 feed-forward"),
  mark("2 attention"),
  mark("2 feed-forward"),
];

/** Unpack a parameter: integers times the step of their row, or float32 numbers. @param {Packed} packed */
function unpack({ shape, float32, steps, int8 }) {
  if (float32) return Float64Array.from(new Float32Array(bytes(float32)));
  const step = new Float32Array(bytes(steps ?? ""));
  return Float64Array.from(new Int8Array(bytes(int8 ?? "")), (whole, i) => whole * step[Math.floor(i / shape[1])]);
}

/**
 * The model of a data script. Words are separated by spaces in its vocabulary and in a text, characters are not. `pairs`
 * counts how often each character followed each other one in the training data. `view` is the number of last tokens
 * that the model reads, `longest` the maximal number of tokens of a text.
 * @param {Carried} carried
 */
export function opened({ vocabulary, parameters, pairs, config }) {
  const between = pairs ? "" : " ";
  return {
    vocabulary: vocabulary.split(between),
    between,
    longest: pairs ? 240 : 96,
    view: config.n_context - 1,
    width: config.d_model,
    headWidth: config.d_model / config.n_heads,
    config,
    shapes: Object.fromEntries(Object.entries(parameters).map(([name, { shape }]) => [name, shape])),
    parameters: Object.fromEntries(Object.entries(parameters).map(([name, packed]) => [name, unpack(packed)])),
    pairs: pairs ? new Uint16Array(bytes(pairs)) : null,
  };
}

/** @param {Model} model @param {Float64Array} x @param {string} name */
function project({ parameters, shapes }, x, name) {
  return linear(x, parameters[`${name}.weight`], parameters[`${name}.bias`], shapes[`${name}.weight`]);
}

/** @param {Model} model @param {Float64Array} x @param {string} name */
function norm({ parameters, config }, x, name) {
  return layerNorm(x, parameters[`${name}.weight`], parameters[`${name}.bias`], config.norm_eps);
}

/**
 * Rotate the pairs of each head by an angle that grows with the position (RoPE), in place.
 * @param {Model} model @param {Float64Array} x
 */
function rotate({ width, headWidth, config }, x) {
  const half = headWidth / 2;
  for (let at = 0; at < x.length; at++) {
    const pair = at % headWidth;
    if (pair >= half) continue;
    const angle = Math.floor(at / width) * config.rope_base ** (-pair / half);
    const [cos, sin, a, b] = [Math.cos(angle), Math.sin(angle), x[at], x[at + half]];
    x[at] = a * cos - b * sin;
    x[at + half] = a * sin + b * cos;
  }
  return x;
}

/** @typedef {(q: Float64Array, k: Float64Array, v: Float64Array) => void} Hear called by each layer, heads side by side */

/**
 * The output of attention for each vector, and the attention weights of its heads. An ablated head outputs zero.
 * @param {Model} model @param {Float64Array} x @param {number} layer @param {string[]} off
 * @param {Hear} [hear]
 */
function attend(model, x, layer, off, hear) {
  const { width, headWidth } = model;
  const at = `blocks.${layer}.attention`;
  const n = x.length / width;
  const normed = norm(model, x, `${at}.norm`);
  const [q, k, v] = ["q", "k", "v"].map((name) => project(model, normed, `${at}.sublayer.w_${name}`));
  rotate(model, q);
  rotate(model, k);
  hear?.(q, k, v);
  const found = new Float64Array(x.length);
  const weights = Array.from({ length: width / headWidth }, (_, head) =>
    Array.from({ length: n }, (_, i) => {
      const [query, from] = [i * width + head * headWidth, head * headWidth];
      const scores = Array.from({ length: i + 1 }, (_, j) => {
        let score = 0;
        for (let c = 0; c < headWidth; c++) score += q[query + c] * k[j * width + from + c];
        return score / Math.sqrt(headWidth);
      });
      const row = softmax(scores);
      if (!off.includes(`${layer + 1}.${head + 1}`))
        row.forEach((weight, j) => {
          for (let c = 0; c < headWidth; c++) found[query + c] += weight * v[j * width + from + c];
        });
      return row;
    }),
  );
  return { weights, out: project(model, found, `${at}.sublayer.w_o`) };
}

/** @param {number} x */
const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

/**
 * The forward pass on the last tokens of a text: the causal attention weights of the eight heads, and the logits of the
 * next token after each sublayer. `first` is the position of the first token that is read.
 * @param {Model} model @param {string[]} text @param {string[]} off
 * @param {Hear} [hear]
 */
export function run(model, text, off, hear) {
  const { vocabulary, width, view, parameters } = model;
  const first = Math.max(0, text.length - view);
  const seen = text.slice(first);
  const embedding = parameters["embedding.weight"];
  const x = new Float64Array(seen.length * width);
  seen.forEach((one, i) => {
    const token = vocabulary.indexOf(one);
    if (token < 0) throw new RangeError(`text must be made of what the model knows, got ${one}`);
    x.set(embedding.subarray(token * width, (token + 1) * width), i * width);
  });
  const read = () => [...project(model, norm(model, x.subarray(-width), "norm"), "embedding")];
  const add = (/** @type {Float64Array} */ more) => more.forEach((number, i) => (x[i] += number));
  const lens = [read()];
  /** @type {number[][][]} */
  const weights = [];
  for (const layer of [0, 1]) {
    const heads = attend(model, x, layer, off, hear);
    weights.push(...heads.weights);
    add(heads.out);
    lens.push(read());
    const at = `blocks.${layer}.feedforward`;
    const up = project(model, norm(model, x, `${at}.norm`), `${at}.sublayer.w_up`);
    add(project(model, up.map(gelu), `${at}.sublayer.w_down`));
    lens.push(read());
  }
  return { first, weights, lens };
}

/** Convert typed text to tokens: words and full stops, or characters. @param {Model} model @param {string} typed @returns {string[]} */
export function parse({ between }, typed) {
  if (!between) return [...typed.replace(/[‘’]/g, "'").replace(/\s/g, " ")];
  return typed.toLowerCase().match(/[^\s.]+|\./g) ?? [];
}
