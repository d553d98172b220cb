/** Two graphs, the attention weights of three kinds of trained heads, and label propagation. */

import { softmax, sum } from "./arithmetic.js";
import { bytes } from "./base64.js";
import { MODEL } from "./graph_heads.js";

/**
 * @typedef {boolean[][]} Mask who may attend to whom
 * @typedef {{ graph: string, score: string, head: number, deal: number, edits: number[][] }} Asked
 */

export const KINDS = ["gat", "gatv2", "dot"];
export const PLACES = MODEL.places;
export const SIDES = [...MODEL.sides].map(Number);
export const WORDS = 8;
/** The keys and the values of the entries of each dictionary. */
export const DEALS = MODEL.deals.map((parts) => parts.map((part) => [...part].map(Number)));
export const RIGHT = /** @type {Record<string, Record<string, number[]>>} */ (MODEL.record.right);

const WIDTH = 8; // of a head
const MEMBERS = SIDES.length;
const EDGES = (MODEL.edges.match(/../g) ?? []).map((pair) => [...pair].map((letter) => parseInt(letter, 36)));
const HEADS = /** @type {Record<string, Record<string, Record<string, [number, string]>>>} */ (
  /** @type {unknown} */ (MODEL.heads)
);

/** The number of query nodes. @param {string} graph */
export const queries = (graph) => (graph === "club" ? MEMBERS : WORDS);

/** Whether a pair may have an edge: not a member with itself, not two query nodes. @param {string} graph @param {number[]} pair */
export function possible(graph, [u, v]) {
  return u < v && (graph === "club" ? v < MEMBERS : u < WORDS && v >= WORDS && v < 2 * WORDS);
}

/**
 * The mask of the graph. Pairs in `edits` lose their edge, or get one if they had none. Each member of the club is also
 * its own neighbour.
 * @param {string} graph @param {number[][]} edits @returns {Mask}
 */
export function neighbours(graph, edits) {
  const club = graph === "club";
  const n = club ? MEMBERS : 2 * WORDS;
  const places = [...Array(n).keys()];
  const mask = places.map((u) => places.map((v) => (club ? u === v : u < WORDS && v >= WORDS)));
  const turn = (/** @type {number[]} */ [u, v]) => {
    mask[u][v] = !mask[u][v];
    if (club) mask[v][u] = mask[u][v];
  };
  if (club) EDGES.forEach(turn);
  edits.filter((pair) => possible(graph, pair)).forEach(turn);
  return mask;
}

/** A parameter of a head, a row for each feature. @param {[number, string]} part @param {number} head @param {number} wide */
function rows([step, packed], head, wide) {
  const whole = wide === 1 ? new Int16Array(bytes(packed)) : new Int8Array(bytes(packed));
  const numbers = Array.from(whole, (one) => step * one);
  const all = Array.from({ length: numbers.length / wide }, (_, i) => numbers.slice(i * wide, (i + 1) * wide));
  return all.filter((_, i) => i % 2 === head - 1);
}

/** The features of the nodes: the positions of the ones in each vector. @param {string} graph @param {number} deal */
function features(graph, deal) {
  if (graph === "club") return [...Array(MEMBERS).keys()].map((u) => [u]);
  const [words, says] = DEALS[deal];
  return [...words.keys()].map((u) => [u]).concat(words.map((word, i) => [word, WORDS + says[i]]));
}

const leaky = (/** @type {number} */ x) => (x > 0 ? x : 0.2 * x);
const dot = (/** @type {number[]} */ a, /** @type {number[]} */ b) => sum(a.map((x, i) => x * b[i]));

/** The scores of all queries and keys. @param {Asked} asked */
export function scores({ graph, score, head, deal }) {
  const { q, k, a } = HEADS[graph][score];
  const wide = score === "gat" ? 1 : WIDTH;
  const [queries, keys] = [q, k].map((part) => {
    const own = rows(part, head, wide);
    return features(graph, deal).map((ones) => own[0].map((_, i) => sum(ones.map((one) => own[one][i]))));
  });
  if (score === "dot") return queries.map((query) => keys.map((key) => dot(query, key) / Math.sqrt(WIDTH)));
  const vector = a ? rows(a, head, wide)[0] : [1]; // GAT's queries and keys are stored as products with a
  const bent = (/** @type {number[]} */ query, /** @type {number[]} */ key) => query.map((x, i) => leaky(x + key[i]));
  return queries.map((query) => keys.map((key) => dot(vector, bent(query, key))));
}

/** The attention weights: rows sum to one, or to zero for a node without neighbours. @param {Asked} asked */
export function weights(asked) {
  const mask = neighbours(asked.graph, asked.edits);
  return scores(asked).map((row, u) => {
    const own = [...row.keys()].filter((v) => mask[u][v]);
    const given = own.length ? softmax(own.map((v) => row[v])) : [];
    const spread = row.map(() => 0);
    own.forEach((v, i) => (spread[v] = given[i]));
    return spread;
  });
}

/** All nodes in GAT's order, best first: the same for every query, because a score increases with the key's term. @param {Asked} asked */
export function ranked(asked) {
  const [row] = scores({ ...asked, score: "gat" });
  return [...row.keys()].sort((a, b) => row[b] - row[a]);
}

/** The key with the largest weight, for each node that has a neighbour. @param {number[][]} given */
export function firstChoices(given) {
  return given.map((row) => (sum(row) ? row.indexOf(Math.max(...row)) : -1));
}

/** The number of pairs of keys, visible to two or more queries, that queries rank in different orders. @param {number[][]} given @param {Mask} mask */
export function reversed(given, mask) {
  let [pairs, opposite] = [0, 0];
  for (let j = 0; j < mask.length; j++)
    for (let k = 0; k < j; k++) {
      const signs = given.filter((_, u) => mask[u][j] && mask[u][k]).map((row) => Math.sign(row[j] - row[k]));
      if (signs.length > 1) pairs += 1;
      if (signs.includes(1) && signs.includes(-1)) opposite += 1;
    }
  return { pairs, opposite };
}

/**
 * Label propagation, (1 - alpha) (I - alpha S)^-1 Y, by Gaussian elimination: the matrix is positive definite, so no
 * pivot is near zero.
 * @param {Mask} mask @param {number[][]} labels member and side @param {number} alpha
 */
export function propagate(mask, labels, alpha) {
  const edge = mask.map((row, u) => row.map((has, v) => has && u !== v));
  const degree = edge.map((row) => row.filter(Boolean).length);
  const table = edge.map((row, u) => [
    ...row.map((has, v) => Number(u === v) - (has ? alpha / Math.sqrt(degree[u] * degree[v]) : 0)),
    0,
    0,
  ]);
  const n = mask.length;
  for (const [u, side] of labels) table[u][n + side] = 1 - alpha;
  for (let i = 0; i < n; i++)
    for (let row = 0; row < n; row++) {
      const share = table[row][i] / table[i][i];
      if (row !== i && share) for (let c = i; c < n + 2; c++) table[row][c] -= share * table[i][c];
    }
  return table.map((row, i) => [row[n] / row[i], row[n + 1] / row[i]]);
}
