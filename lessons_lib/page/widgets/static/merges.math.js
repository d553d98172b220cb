/** Byte-pair encoding of a text by merges that were learned before. */

import { LEARNED } from "./merges_learned.js";

export const MERGES = LEARNED.merges;
export const LONGEST = 80;
const WORD = / ?[A-Za-z]+| ?[0-9]+| ?[^A-Za-z0-9 ]+| /gu;

/** The words of a text, each with the space before it. @param {string} text */
export function words(text) {
  return text.match(WORD) ?? [];
}

/** Join every occurrence of a pair. @param {number[]} tokens @param {number[]} pair @param {number} made */
function merged(tokens, [left, right], made) {
  /** @type {number[]} */
  const joined = [];
  for (const token of tokens) {
    if (joined.length && joined[joined.length - 1] === left && token === right) joined[joined.length - 1] = made;
    else joined.push(token);
  }
  return joined;
}

/**
 * The tokens of a text before any merge, and after each merge that changes them.
 * @param {string} text
 * @returns {{ merges: number, tokens: number[] }[]}
 */
export function stages(text) {
  let cut = words(text).map((word) => [...new TextEncoder().encode(word)]);
  const found = [{ merges: 0, tokens: cut.flat() }];
  MERGES.forEach((pair, i) => {
    const next = cut.map((tokens) => merged(tokens, pair, 256 + i));
    if (next.every((tokens, word) => tokens.length === cut[word].length)) return;
    cut = next;
    found.push({ merges: i + 1, tokens: cut.flat() });
  });
  return found;
}

/** The index of the last stage that needs at most this many merges. @param {{ merges: number }[]} all @param {number} merges */
export function reached(all, merges) {
  return all.reduce((last, stage, i) => (stage.merges <= merges ? i : last), 0);
}

/** The bytes that a token stands for. @param {number} token @returns {number[]} */
export function bytes(token) {
  return token < 256 ? [token] : MERGES[token - 256].flatMap(bytes);
}

/** The text of a token, a space as ␣; bytes that are no character by themselves as [C3]. @param {number} token */
export function spelled(token) {
  const all = bytes(token);
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(all)).replaceAll(" ", "␣");
  } catch {
    return all.map((byte) => `[${byte.toString(16).toUpperCase().padStart(2, "0")}]`).join("");
  }
}
