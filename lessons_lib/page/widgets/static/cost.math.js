/** FLOPs and bytes of prefill and decoding, and a lower bound on their time. */

import { PRESETS, cacheBytes, parts } from "./budget.math.js";

/**
 * @typedef {import("./budget.math.js").Config} Config
 * @typedef {"read" | "write"} Mode
 * @typedef {{ matrices: number, pairs: number, weights: number, caches: number }} Cost
 */

/** FLOPs and bytes per second; the sources are in lessons_lib/page/widgets/cost.py. @type {Record<string, Device>} */
export const DEVICES = {
  A100: { flops: 312e12, bytes: 2.0e12 },
  H100: { flops: 989e12, bytes: 3.35e12 },
};

/** @typedef {{ flops: number, bytes: number }} Device */

/** The names of the models. */
export const MODELS = Object.keys(PRESETS);

/** @param {string} name @returns {Config} */
export function modelOf(name) {
  return PRESETS[name];
}

/**
 * FLOPs of products with weights and of pairs of tokens, bytes of weights and of keys and values, for a number of texts
 * of n tokens: prefill of all tokens, causal and without the output matrix, or decoding of one more token of each.
 * @param {Config} config @param {Mode} mode @param {number} n @param {number} texts
 * @returns {Cost}
 */
export function cost(config, mode, n, texts) {
  const { queries, keys, feedforward } = parts(config);
  const d = config.heads * config.head_width;
  const inBlocks = queries + keys + feedforward;
  const multiplied = inBlocks + config.vocab * d;
  const bytes = { weights: 2 * multiplied, caches: texts * cacheBytes(config, n) };
  return mode === "read"
    ? { matrices: texts * 2 * n * inBlocks, pairs: texts * 2 * n * n * config.layers * d, ...bytes }
    : { matrices: texts * 2 * multiplied, pairs: texts * 4 * n * config.layers * d, ...bytes };
}

/** The time of each part alone in seconds, at peak rates. @param {Cost} of @param {Device} device @returns {Cost} */
export function seconds(of, device) {
  return {
    matrices: of.matrices / device.flops,
    pairs: of.pairs / device.flops,
    weights: of.weights / device.bytes,
    caches: of.caches / device.bytes,
  };
}

/** The lower bound on the time, with arithmetic and memory in parallel. @param {Cost} took */
export function least(took) {
  return Math.max(took.matrices + took.pairs, took.weights + took.caches);
}

/** FLOPs for each byte. @param {Cost} of */
export function intensity(of) {
  return (of.matrices + of.pairs) / (of.weights + of.caches);
}

/** The trait that moves the point of a task along the roofline, and its largest value. */
export const LEVERS = {
  read: { trait: /** @type {const} */ ("tokens"), most: 1048576 },
  write: { trait: /** @type {const} */ ("texts"), most: 1024 },
};

/**
 * The sequence length (prefill) or batch size (decoding) whose FLOPs per byte are nearest to a wanted number, on a
 * logarithmic scale. FLOPs per byte rise with both.
 * @param {Config} config @param {Mode} mode @param {number} n @param {number} texts @param {number} wanted
 */
export function atIntensity(config, mode, n, texts, wanted) {
  const found = (/** @type {number} */ value) =>
    intensity(mode === "read" ? cost(config, mode, value, texts) : cost(config, mode, n, value));
  let [low, high] = [1, LEVERS[mode].most];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (found(middle) < wanted) low = middle;
    else high = middle;
  }
  return wanted / found(low) < found(high) / wanted ? low : high;
}
