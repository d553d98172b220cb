/** Sampling from a model: next-token probabilities, one token, a text; and bigram frequencies of the training data. */

import { softmax, uniform } from "./arithmetic.js";
import { run } from "./gpt.math.js";

/** @typedef {import("./gpt.math.js").Model} Model */

/** The frequency of each token after this one in the training data. @param {Model} model @param {string} token */
export function followers({ vocabulary, pairs }, token) {
  const from = vocabulary.indexOf(token) * vocabulary.length;
  const counts = [...(pairs ?? []).slice(from, from + vocabulary.length)];
  const all = counts.reduce((a, b) => a + b, 0);
  return counts.map((count) => count / (all || 1));
}

/** A sum that is below `topP` by at most this many rounding units counts as reaching it; `ROUNDING_UNITS` in Python. */
const ROUNDING_UNITS = 8;

/**
 * The sampling probability of each token, and whether it may be drawn: of the `topK` most probable tokens at the
 * temperature, the fewest whose probabilities sum to `topP`. Of equal tokens the first is kept. Temperature 0 selects the
 * most probable token. As in Python, logits without a distribution (NaN, infinity, or only -Infinity) raise an error.
 * @param {number[]} logits @param {{ temperature: number, topK: number, topP: number }} how
 */
export function nextTokenProbs(logits, { temperature, topK, topP }) {
  if (!Number.isFinite(Math.max(...logits)))
    throw new RangeError("logits must be finite or -Infinity, and at least one of them finite");
  const order = logits.map((_, token) => token).sort((a, b) => logits[b] - logits[a]);
  const few = order.slice(0, topK);
  const p = softmax(
    few.map((token) => logits[token]),
    temperature || 1,
  );
  const threshold = topP * (1 - ROUNDING_UNITS * Number.EPSILON);
  let before = 0;
  const drawn = few.filter((_, rank) => {
    const isKept = topP === 1 || before < threshold;
    before += p[rank];
    return isKept;
  });
  const shares = temperature
    ? softmax(
        drawn.map((token) => logits[token]),
        temperature,
      )
    : drawn.map((_, rank) => Number(rank === 0));
  const kept = logits.map((_, token) => drawn.includes(token));
  return { kept, p: logits.map((_, token) => shares[drawn.indexOf(token)] ?? 0) };
}

/**
 * The token at a position, drawn from logits. Its random number depends on seed and position alone, not on the number of
 * clicks.
 * @param {Model} model @param {number[]} logits @param {{ temperature: number, topK: number, topP: number }} how
 * @param {number} seed @param {number} place
 */
export function draw({ vocabulary }, logits, how, seed, place) {
  let left = uniform(seed + Math.imul(place, 0x6d2b79f5))();
  const { p } = nextTokenProbs(logits, how);
  const drawn = p.findIndex((share) => (left -= share) < 0);
  return vocabulary[drawn < 0 ? p.indexOf(Math.max(...p)) : drawn]; // the sum may be slightly below 1
}

/**
 * The text with its next token, continued up to the next token in `ends`.
 * @param {Model} model @param {string[]} text @param {string[]} off
 * @param {{ temperature: number, topK: number, topP: number }} how @param {number} seed @param {string[]} ends
 */
export function write(model, text, off, how, seed, ends) {
  const tokens = [...text];
  do {
    const { lens } = run(model, tokens, off);
    tokens.push(draw(model, lens[lens.length - 1], how, seed, tokens.length));
  } while (!ends.includes(tokens[tokens.length - 1]) && tokens.length < model.longest);
  return tokens;
}
