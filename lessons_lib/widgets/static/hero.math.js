/** What the hero says of a sentence: who reads whom on the way to one word, and on which head the verb's number hangs. */

import { sum } from "./arithmetic.js";
import { HEADS, VOCABULARY, agreement, best, run } from "./heads.math.js";

/**
 * A weight that is large enough to be drawn: `to` reads `from` in this head. `share` is how much of it arrives: 1 in
 * layer 2; in layer 1 as much as layer 2 reads its reader, all of it if that is the word that asks.
 * @typedef {{ head: string, layer: number, from: number, to: number, weight: number, share: number }} Arc
 */

export const LONGEST = 8;
export const FAINT = 0.1;

/**
 * The arcs on the way to the word that asks: what it reads in layer 2, and what the words that it reads had read.
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
 * The strongest way that ends at the word that asks: an arc of layer 1 and one of layer 2 that goes on from its end,
 * neither from a word to itself. There is none where fewer than three words, or the heads that are off, allow none.
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
 * The head without which the number that was less likely gains most, if a verb is to come at all.
 * @param {string[]} words @param {number} query
 */
export function pivot(words, query) {
  const shares = (/** @type {string[]} */ off) => agreement(run(words, off).next[query]);
  const before = shares([]);
  if (sum(before) < 0.2) return null;
  const other = before[0] > before[1] ? 1 : 0;
  return HEADS[best(HEADS.map((head) => shares([head])[other]))];
}

/** The likeliest words and their probabilities. @param {number[]} p over the vocabulary @param {number} count */
export function likeliest(p, count) {
  const order = p.map((_, token) => token).sort((a, b) => p[b] - p[a]);
  return order.slice(0, count).map((token) => ({ word: VOCABULARY[token], p: p[token] }));
}
