/** Attention weights of eight heads before a verb: pattern scores, the subject, and the probability of agreement. */

import { softmax, sum } from "./arithmetic.js";
import { opened } from "./gpt.math.js";
import { MODEL } from "./gpt_model.js";
import { clamped, previous, score } from "./patterns.math.js";
import { nextWord } from "./stories.math.js";

export const STORIES = opened(MODEL);
export const VOCABULARY = STORIES.vocabulary;
export const LONGEST = 16; // maximal number of words
export const VERBS = VOCABULARY.slice(-26);
export const PLURAL = VERBS.filter((verb) => VERBS.includes(`${verb}s`));
export const SINGULAR = PLURAL.map((verb) => `${verb}s`);
const BEFORE_A_SUBJECT = "then a the these this two brave happy quiet small tired young".split(" ");

/** Words before a verb: without a noun of the other number in between, and with one. */
export const PREPARED = [
  "the young queen",
  "the queen near a cat",
  "the dogs behind the kings",
  "the dogs behind the king",
  "the queen near two cats",
  "the horses that a boy likes",
  "the king that these women follow",
  "the tired king near two cats waits . then he sees himself and",
];

/**
 * Results on held-out stories: the number of verbs with a noun of the other number in between, and the probability of
 * the correct number there, with all heads and without each. `ofPlural` and `ofSingular` are by number of the subject.
 */
export const HELD_OUT = {
  verbs: 467,
  whole: 0.999,
  /** @type {Record<string, number>} */
  without: { 1.1: 0.985, 1.2: 0.246, 1.3: 0.999, 1.4: 0.999, 2.1: 0.999, 2.2: 0.999, 2.3: 0.999, 2.4: 0.586 },
  byItsMean: { 1.2: 0.335, 2.4: 0.718 },
  ofPlural: { 2.4: 0.251, both: 0.029 },
  ofSingular: { 2.4: 0.995 },
};

/** The position of the subject of the next verb; null if the grammar allows no verb there. @param {string[]} words */
export function subject(words) {
  const next = nextWord(words, VOCABULARY);
  if (!next || !next.slice(-VERBS.length).some((p) => p > 0)) return null;
  let start = words.lastIndexOf(".") + 1;
  const that = words.indexOf("that", start);
  const clause = that < 0 ? [] : words.slice(that + 1);
  if (clause.length && !clause.some((word) => VERBS.includes(word))) start = that + 1; // the clause's own subject
  return words.findIndex((word, i) => i >= start && !BEFORE_A_SUBJECT.includes(word));
}

/**
 * The probabilities of verbs of either number, and the share of the subject's number; null if no verb may follow.
 * @param {number[]} logits of the word after them @param {string[]} words
 */
export function agreement(logits, words) {
  const next = nextWord(words, VOCABULARY);
  if (subject(words) === null || !next) return null;
  const p = softmax(logits);
  const of = (/** @type {string[]} */ verbs) => sum(verbs.map((verb) => p[VOCABULARY.indexOf(verb)]));
  const [singular, plural] = [of(SINGULAR), of(PLURAL)];
  const isPlural = PLURAL.some((verb) => next[VOCABULARY.indexOf(verb)] > 0);
  return { singular, plural, isPlural, right: (isPlural ? plural : singular) / (singular + plural) };
}

/** The diffuse score: the share of weight that is spread evenly. @param {number[][]} rows */
function diffuse(rows) {
  const gained = sum(rows.map((row) => sum(row.map((weight) => Math.min(weight, 1 / row.length))) - 1 / row.length));
  const possible = sum(rows.map((row) => 1 - 1 / row.length));
  return possible > 0 ? clamped(gained / possible) : null;
}

/**
 * The pattern scores of a head, and the weight of its last row on the subject; null without a subject.
 * @param {number[][]} rows as far as each word may see @param {number | null} place of the subject
 */
export function scores(rows, place) {
  return {
    previous: score(rows, previous(rows)),
    first: score(
      rows,
      rows.map(() => [0]),
    ),
    itself: score(
      rows,
      rows.map((_, i) => [i]),
    ),
    diffuse: diffuse(rows),
    subject: place === null ? null : rows[rows.length - 1][place],
  };
}
