/** What a language model computes and fetches to read or to write, and how long that takes at least. */

import { PRESETS, cacheBytes, parts } from "./budget.math.js";

/**
 * @typedef {import("./budget.math.js").Config} Config
 * @typedef {"read" | "write"} Mode
 * @typedef {{ matrices: number, pairs: number, weights: number, caches: number }} Cost
 */

/** FLOPs and bytes a second; the sources stand in lessons_lib/widgets/cost.py. @type {Record<string, Device>} */
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
 * FLOPs with weights and between tokens, bytes of weights and of keys and values, for so many texts of n tokens: all of
 * them read at once, without the future and without the output matrix, or one more token of each written.
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

/** Seconds that each part takes by itself, at peak rates. @param {Cost} of @param {Device} device @returns {Cost} */
export function seconds(of, device) {
  return {
    matrices: of.matrices / device.flops,
    pairs: of.pairs / device.flops,
    weights: of.weights / device.bytes,
    caches: of.caches / device.bytes,
  };
}

/** The time below which it cannot be done, arithmetic and memory side by side. @param {Cost} took */
export function least(took) {
  return Math.max(took.matrices + took.pairs, took.weights + took.caches);
}

/** FLOPs for each byte. @param {Cost} of */
export function intensity(of) {
  return (of.matrices + of.pairs) / (of.weights + of.caches);
}
