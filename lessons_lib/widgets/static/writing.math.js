/** How a model goes on: which tokens may be drawn, the one that is, a text; and the pairs that were counted. */

import { softmax, uniform } from "./arithmetic.js";
import { run } from "./gpt.math.js";

/** @typedef {import("./gpt.math.js").Model} Model */

/** How often each token followed this one, of all that did. @param {Model} model @param {string} token */
export function followers({ vocabulary, pairs }, token) {
  const from = vocabulary.indexOf(token) * vocabulary.length;
  const counts = [...(pairs ?? []).slice(from, from + vocabulary.length)];
  const all = counts.reduce((a, b) => a + b, 0);
  return counts.map((count) => count / (all || 1));
}

/** Probabilities that reach `topP` within this many units of rounding reach it; as `ROUNDING_UNITS` in Python. */
const ROUNDING_UNITS = 8;

/**
 * The probability with which each token is drawn, and whether it may be: of the `topK` most probable at the temperature
 * the fewest whose probabilities reach `topP` together. Of equals the first is kept. At temperature 0 the best is taken.
 * As in Python, logits that are no distribution (NaN, infinity, or nothing but -Infinity) are an error.
 * @param {number[]} logits @param {{ temperature: number, topK: number, topP: number }} how
 */
export function chances(logits, { temperature, topK, topP }) {
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
 * The token at a place, drawn from logits. The chance for it is the seed's number for that place, so that it does not
 * matter how often one has pressed.
 * @param {Model} model @param {number[]} logits @param {{ temperature: number, topK: number, topP: number }} how
 * @param {number} seed @param {number} place
 */
export function draw({ vocabulary }, logits, how, seed, place) {
  let left = uniform(seed + Math.imul(place, 0x6d2b79f5))();
  const { p } = chances(logits, how);
  const drawn = p.findIndex((share) => (left -= share) < 0);
  return vocabulary[drawn < 0 ? p.indexOf(Math.max(...p)) : drawn]; // rounding may leave a little
}

/**
 * The text with its next token, and on as far as the next that is in `ends`.
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
