/** Masks composed of parts, with the kinds of the library, and their reach over several layers. */

import { sum, uniform } from "./arithmetic.js";
import { mark } from "./words.js";

/** @typedef {boolean[][]} Mask one row for each query, one column for each key; true = may attend */

/**
 * A kind of mask: its spoken name; its numbers (name, minimum, maximum, default) or the name of a list of numbers;
 * whether query i may attend to key j among n positions; and the call of the library if it is not kind(n, ...numbers).
 * @typedef {{
 *   words: string,
 *   list?: string,
 *   numbers: [name: string, least: number, most: number, usual: number][],
 *   allows(n: number, numbers: number[]): (i: number, j: number) => boolean,
 *   python?(n: number, numbers: number[]): string,
 * }} Kind
 */

/** @typedef {{ operation: string, kind: string, numbers: number[] }} Part written "& dilated 3 2" */

/** @type {Record<string, Kind>} */
export const KINDS = {
  causal: { words: mark("causal"), numbers: [], allows: () => (i, j) => j <= i },
  bidirectional: { words: mark("bidirectional"), numbers: [], allows: () => () => true },
  sliding_window: {
    words: mark("sliding window"),
    numbers: [[mark("window"), 1, 32, 4]],
    allows:
      (n, [window]) =>
      (i, j) =>
        j <= i && i - j < window,
  },
  two_sided_window: {
    words: mark("window, both sides"),
    numbers: [[mark("window"), 1, 32, 3]],
    allows:
      (n, [window]) =>
      (i, j) =>
        Math.abs(i - j) < window,
    python: (n, [window]) => `sliding_window(${n}, ${window}, causal=False)`,
  },
  dilated: {
    words: mark("dilated window"),
    numbers: [
      [mark("window"), 1, 32, 3],
      [mark("dilation"), 1, 16, 2],
    ],
    allows:
      (n, [window, step]) =>
      (i, j) =>
        j <= i && i - j < window * step && (i - j) % step === 0,
  },
  block: {
    words: mark("blocks"),
    numbers: [[mark("size"), 1, 32, 4]],
    allows:
      (n, [size]) =>
      (i, j) =>
        Math.floor(i / size) === Math.floor(j / size),
  },
  documents: {
    words: mark("documents"),
    list: mark("lengths"),
    numbers: [[mark("length"), 1, 32, 5]],
    allows: (n, lengths) => {
      const ids = documentIds(n, lengths);
      return (i, j) => ids[i] === ids[j];
    },
    python: (n, lengths) => `documents(torch.tensor([${documentIds(n, lengths).join(", ")}]))`,
  },
  prefix: {
    words: mark("prefix, then causal"),
    numbers: [[mark("prefix"), 0, 32, 4]],
    allows:
      (n, [prefix]) =>
      (i, j) =>
        j <= i || j < prefix,
    python: (n, [prefix]) => `prefix(${n}, ${Math.min(n, prefix)})`,
  },
  global_tokens: {
    words: mark("global tokens"),
    list: mark("positions"),
    numbers: [[mark("position"), 0, 31, 0]],
    allows: (n, positions) => (i, j) => positions.includes(i) || positions.includes(j),
    python: (n, positions) => `global_tokens(${n}, [${positions.filter((position) => position < n).join(", ")}])`,
  },
  random_sparse: {
    words: mark("random"),
    numbers: [
      [mark("density"), 0, 1, 0.2],
      [mark("seed"), 0, 99, 0],
    ],
    allows(n, [density, seed]) {
      const random = uniform(seed);
      const drawn = Array.from({ length: n * n }, () => random() < density);
      return (i, j) => i === j || drawn[n * i + j];
    },
    python: (n, [density]) => `random_sparse(${n}, ${density}, generator)`,
  },
};

/** The document of each position; the remaining positions are one more document. @param {number} n @param {number[]} lengths */
function documentIds(n, lengths) {
  const ids = lengths.flatMap((length, id) => Array(length).fill(id));
  return Array.from({ length: n }, (_, i) => ids[i] ?? lengths.length);
}

/** Parse one part of a mask: "& dilated 3 2". Missing numbers take the defaults of the kind. @param {string} part @returns {Part} */
export function parse(part) {
  const words = part.split(" ");
  const operation = "&|".includes(words[0]) ? words.splice(0, 1)[0] : "";
  const [kind, ...given] = words;
  const numbers = given.length ? given.map(Number) : KINDS[kind].numbers.map((number) => number[3]);
  return { operation, kind, numbers };
}

/** The inverse of `parse`. @param {Part} part */
export function written({ operation, kind, numbers }) {
  return [operation, kind, ...numbers].filter((word) => word !== "").join(" ");
}

/**
 * A square matrix, row by row.
 * @template T
 * @param {number} n @param {(i: number, j: number) => T} entry @returns {T[][]}
 */
export function square(n, entry) {
  return Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => entry(i, j)));
}

/** Combine parts from left to right. @param {number} n @param {string[]} parts @returns {Mask} */
export function compose(n, parts) {
  return parts.map(parse).reduce(
    (mask, { operation, kind, numbers }) => {
      const allows = KINDS[kind].allows(n, numbers);
      return square(n, (i, j) => (operation === "&" ? mask[i][j] && allows(i, j) : mask[i][j] || allows(i, j)));
    },
    square(n, () => false),
  );
}

/**
 * Override cells of a mask by painted cells [query, key, allowed].
 * @param {Mask} mask @param {number[][]} painted @returns {Mask}
 */
export function overlay(mask, painted) {
  const covered = mask.map((row) => [...row]);
  for (const [i, j, allowed] of painted) if (i < mask.length && j < mask.length) covered[i][j] = Boolean(allowed);
  return covered;
}

/** The share of pairs that may attend. @param {Mask} mask */
export function density(mask) {
  return sum(mask.map((row) => row.filter(Boolean).length)) / mask.length ** 2;
}

/** The fully masked rows. @param {Mask} mask */
export function deadRows(mask) {
  return mask.flatMap((row, i) => (row.some(Boolean) ? [] : [i]));
}

/** Which inputs can influence which outputs after several layers; the residual stream connects each to itself. */
export function reach(/** @type {Mask} */ mask, /** @type {number} */ layers) {
  const n = mask.length;
  const layer = square(n, (i, j) => i === j || mask[i][j]);
  let reached = square(n, (i, j) => i === j);
  for (let l = 0; l < layers; l++) {
    const before = reached;
    reached = square(n, (i, j) => layer[i].some((may, k) => may && before[k][j]));
  }
  return reached;
}

/** The composition as a line of Python. @param {number} n @param {string[]} parts */
export function expression(n, parts) {
  const call = (/** @type {Part} */ { kind, numbers }) =>
    KINDS[kind].python?.(n, numbers) ?? `${kind}(${[n, ...numbers].join(", ")})`;
  return parts
    .map((part) => parse(part))
    .reduce((all, part, i, parsed) => {
      if (i === 0) return call(part);
      const loose = part.operation === "&" && parsed[i - 1].operation === "|";
      const left = loose ? `(${all})` : all;
      return `${left} ${part.operation} ${call(part)}`;
    }, "");
}
