/** Arcs of attention weights on the paths to a query, and the head that the verb's number depends on most. */

import { sum } from "./arithmetic.js";
import { HEADS, VOCABULARY, agreement, best, run } from "./heads.math.js";

/**
 * An attention weight that is large enough to be drawn: query `to` attends to key `from` in this head. `share` is the
 * part that reaches the selected query: 1 in layer 2; in layer 1 the largest weight with which layer 2 attends to `to`,
 * and 1 if `to` is the selected query.
 * @typedef {{ head: string, layer: number, from: number, to: number, weight: number, share: number }} Arc
 */

export const LONGEST = 8;
export const FAINT = 0.1;
/** The nouns of the vocabulary. */
export const SINGULAR = "bird boy cat dog girl horse king man queen woman".split(" ");
export const PLURAL = "birds boys cats dogs girls horses kings men queens women".split(" ");

/**
 * The arcs on the paths to the selected query: its weights in layer 2, and the layer-1 weights of the words that it
 * attends to.
 * @param {number[][][]} weights of the eight heads @param {number} query @param {string[]} off
 * @returns {Arc[]}
 */
export function arcs(weights, query, off) {
  const on = HEADS.map((head, i) => ({ head, layer: Number(head[0]), rows: weights[i] })).filter(
    ({ head }) => !off.includes(head),
  );
  const seen = weights[0].map((_, word) =>
    word === query ? 1 : Math.max(0, ...on.filter(({ layer }) => layer === 2).map(({ rows }) => rows[query][word])),
  );
  return on
    .flatMap(({ head, layer, rows }) =>
      rows.flatMap((row, to) =>
        row.map((weight, from) => ({ head, layer, from, to, weight, share: layer === 1 ? seen[to] : +(to === query) })),
      ),
    )
    .filter(({ weight, share }) => weight >= FAINT && share >= FAINT);
}

/**
 * The strongest path that ends at the selected query: an arc of layer 1 and an arc of layer 2 that continues it, neither
 * from a word to itself. There is none with fewer than three words, or if the ablated heads leave none.
 * @param {Arc[]} drawn @param {number} query
 * @returns {[first: Arc, second: Arc] | null}
 */
export function chain(drawn, query) {
  const between = drawn.filter(({ from, to }) => from !== to);
  /** @type {[Arc, Arc][]} */
  const ways = between
    .filter(({ layer, to }) => layer === 2 && to === query)
    .flatMap((second) =>
      between
        .filter(({ layer, to }) => layer === 1 && to === second.from)
        .map((first) => /** @type {[Arc, Arc]} */ ([first, second])),
    );
  const strength = (/** @type {[Arc, Arc]} */ [first, second]) => first.weight * second.weight;
  return ways.length ? ways[best(ways.map(strength))] : null;
}

/**
 * The head whose ablation increases the probability of the less likely verb number most, given that a verb follows.
 * @param {string[]} words @param {number} query
 */
export function pivot(words, query) {
  const shares = (/** @type {string[]} */ off) => agreement(run(words, off).next[query]);
  const before = shares([]);
  if (sum(before) < 0.2) return null;
  const other = before[0] > before[1] ? 1 : 0;
  return HEADS[best(HEADS.map((head) => shares([head])[other]))];
}

/** The only singular or only plural noun, or null if there is none or more than one. @param {string[]} words @param {boolean} isSingular */
export function onlyNoun(words, isSingular) {
  const nouns = words.filter((word) => (isSingular ? SINGULAR : PLURAL).includes(word));
  return nouns.length === 1 ? nouns[0] : null;
}

/**
 * The most probable words and their probabilities, of all words or of some.
 * @param {number[]} p over the vocabulary @param {number} count @param {string[]} words
 */
export function likeliest(p, count, words = VOCABULARY) {
  const shares = words.map((word) => ({ word, p: p[VOCABULARY.indexOf(word)] }));
  return shares.sort((a, b) => b.p - a.p).slice(0, count);
}
