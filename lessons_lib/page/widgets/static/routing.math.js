/** Routing of words to experts: probabilities, biases, capacity and load balance. */

import { effectiveCount, softmax, sum } from "./arithmetic.js";
import { MODEL } from "./routing_scores.js";
import { bytes } from "./base64.js";

/**
 * @typedef {{ topK: number, capacity: number, bias: number[] }} How `capacity` is the factor of what an even share is
 * @typedef {{ probabilities: number[][], experts: number[][], weights: number[][], dropped: boolean[][],
 *   asked: number[], load: number[], capacity: number, balanceLoss: number }} Routing
 * @typedef {{ step: number, scores: string, bias: number[], asked: number[][] }} Layer
 */

export const TEXTS = MODEL.texts.map((text) => text.split(" "));
export const LENGTH = TEXTS[0].length;
export const EXPERTS = 8;
/** The values of the capacity slider; at the last one, the number of experts, no expert is ever full. */
export const CAPACITIES = [0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, EXPERTS];
export const RATE = 0.02; // step of the bias update
export const HELD_OUT = MODEL.record.held_out.words;

const ROUTERS = /** @type {Record<string, { above: number[], layers: Layer[] }>} */ (MODEL.routers);
/** @type {Map<string, number[][]>} */
const UNPACKED = new Map();

/** The record of a router's training. @param {string} balance @param {number} topK */
export function router(balance, topK) {
  return ROUTERS[`${balance} ${topK}`];
}

/**
 * The scores of the eight experts for the first n words of a story.
 * @param {string} balance @param {number} topK @param {number} layer from 1 @param {number} text @param {number} n
 */
export function scores(balance, topK, layer, text, n) {
  const key = `${balance} ${topK} ${layer}`;
  let rows = UNPACKED.get(key);
  if (!rows) {
    const { step, scores: packed } = router(balance, topK).layers[layer - 1];
    const numbers = Array.from(new Int8Array(bytes(packed)), (whole) => step * whole);
    rows = Array.from({ length: numbers.length / EXPERTS }, (_, i) => numbers.slice(i * EXPERTS, (i + 1) * EXPERTS));
    UNPACKED.set(key, rows);
  }
  return rows.slice(text * LENGTH, text * LENGTH + n);
}

/**
 * The routing of each word: the experts are selected by probability and bias, and selections beyond the capacity are
 * dropped, later ones first.
 * @param {number[][]} rows scores @param {How} how @returns {Routing}
 */
export function route(rows, { topK, capacity: factor, bias }) {
  const probabilities = rows.map((row) => softmax(row));
  const experts = probabilities.map((p) => {
    const wish = p.map((chance, i) => chance + bias[i]);
    return [...wish.keys()].sort((a, b) => wish[b] - wish[a]).slice(0, topK);
  });
  const weights = experts.map((own, i) => {
    const chances = own.map((expert) => probabilities[i][expert]);
    return topK === 1 ? chances : chances.map((chance) => chance / sum(chances));
  });
  const capacity = Math.ceil((factor * rows.length * topK) / EXPERTS);
  const asked = Array(EXPERTS).fill(0);
  const dropped = rows.map(() => Array(topK).fill(false));
  for (let choice = 0; choice < topK; choice++)
    experts.forEach((own, i) => {
      asked[own[choice]] += 1;
      dropped[i][choice] = asked[own[choice]] > capacity;
    });
  const choices = rows.length * topK;
  const balanceLoss = sum(
    asked.map((many, i) => (many / choices) * (sum(probabilities.map((p) => p[i])) / rows.length)),
  );
  return {
    probabilities,
    experts,
    weights,
    dropped,
    asked,
    load: asked.map((many) => Math.min(many, capacity)),
    capacity,
    balanceLoss: EXPERTS * balanceLoss,
  };
}

/** The effective number of experts. @param {number[]} asked how often each was asked for */
export function inEffect(asked) {
  const all = sum(asked);
  return effectiveCount(asked.map((many) => many / all));
}

/**
 * The biases after one update: lower for experts with more words than average, higher for experts with fewer.
 * @param {number[]} bias @param {number[]} asked @param {number} rate
 */
export function rebalanced(bias, asked, rate) {
  const mean = sum(asked) / asked.length;
  return bias.map((b, i) => Number(Math.min(1, Math.max(-1, b + rate * Math.sign(mean - asked[i]))).toFixed(6)));
}

/**
 * The effect of the last word of a call on the words before it: the selections that are dropped, and those that are
 * not dropped any more.
 * @param {number[][]} rows @param {How} how
 */
export function lastWord(rows, how) {
  const [before, after] = [route(rows.slice(0, -1), how), route(rows, how)];
  /** @type {{ word: number, choice: number, expert: number }[]} */
  const out = [];
  /** @type {typeof out} */
  const back = [];
  before.dropped.forEach((own, word) =>
    own.forEach((was, choice) => {
      const is = after.dropped[word][choice];
      if (was !== is) (is ? out : back).push({ word, choice, expert: before.experts[word][choice] });
    }),
  );
  return { out, back, places: after.capacity - before.capacity };
}

/**
 * The words that an expert computes, in order of arrival.
 * @param {Routing} routing @param {number} expert
 */
export function inside({ experts, dropped }, expert) {
  const choices = experts[0].map((_, choice) =>
    experts.flatMap((own, word) => (own[choice] === expert && !dropped[word][choice] ? [{ word, choice }] : [])),
  );
  return choices.flat();
}
