/** Two graphs, the weights that trained heads of three kinds give their edges, and labels that spread along them. */

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
/** Of each dictionary the entries' words, and what they say. */
export const DEALS = MODEL.deals.map((parts) => parts.map((part) => [...part].map(Number)));
export const RIGHT = /** @type {Record<string, Record<string, number[]>>} */ (MODEL.record.right);

const WIDTH = 8; // of a head
const MEMBERS = SIDES.length;
const EDGES = (MODEL.edges.match(/../g) ?? []).map((pair) => [...pair].map((letter) => parseInt(letter, 36)));
const HEADS = /** @type {Record<string, Record<string, Record<string, [number, string]>>>} */ (
  /** @type {unknown} */ (MODEL.heads)
);

/** How many nodes can ask. @param {string} graph */
export const askers = (graph) => (graph === "club" ? MEMBERS : WORDS);

/** Whether there could be an edge: no member to itself, no asker to an asker. @param {string} graph @param {number[]} pair */
export function possible(graph, [u, v]) {
  return u < v && (graph === "club" ? v < MEMBERS : u < WORDS && v >= WORDS && v < 2 * WORDS);
}

/**
 * Who may attend to whom; of the pairs in `edits` those that had an edge have none, and the other way round. Each
 * member of the club is its own neighbour too.
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

/** A part of a head, a row for each feature. @param {[number, string]} part @param {number} head @param {number} wide */
function rows([step, packed], head, wide) {
  const whole = wide === 1 ? new Int16Array(bytes(packed)) : new Int8Array(bytes(packed));
  const numbers = Array.from(whole, (one) => step * one);
  const all = Array.from({ length: numbers.length / wide }, (_, i) => numbers.slice(i * wide, (i + 1) * wide));
  return all.filter((_, i) => i % 2 === head - 1);
}

/** What a node is: places of ones in its vector. @param {string} graph @param {number} deal */
function features(graph, deal) {
  if (graph === "club") return [...Array(MEMBERS).keys()].map((u) => [u]);
  const [words, says] = DEALS[deal];
  return [...words.keys()].map((u) => [u]).concat(words.map((word, i) => [word, WORDS + says[i]]));
}

const leaky = (/** @type {number} */ x) => (x > 0 ? x : 0.2 * x);
const dot = (/** @type {number[]} */ a, /** @type {number[]} */ b) => sum(a.map((x, i) => x * b[i]));

/** How each query scores each key. @param {Asked} asked */
export function scores({ graph, score, head, deal }) {
  const { q, k, a } = HEADS[graph][score];
  const wide = score === "gat" ? 1 : WIDTH;
  const [queries, keys] = [q, k].map((part) => {
    const own = rows(part, head, wide);
    return features(graph, deal).map((ones) => own[0].map((_, i) => sum(ones.map((one) => own[one][i]))));
  });
  if (score === "dot") return queries.map((query) => keys.map((key) => dot(query, key) / Math.sqrt(WIDTH)));
  const vector = a ? rows(a, head, wide)[0] : [1]; // what a does to GAT's queries and keys is done
  const bent = (/** @type {number[]} */ query, /** @type {number[]} */ key) => query.map((x, i) => leaky(x + key[i]));
  return queries.map((query) => keys.map((key) => dot(vector, bent(query, key))));
}

/** What each node gives each of its neighbours: rows that sum to one, or to nothing where there is none. @param {Asked} asked */
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

/** All nodes as GAT ranks them, best first: whoever asks, as a score rises with the key's part. @param {Asked} asked */
export function ranked(asked) {
  const [row] = scores({ ...asked, score: "gat" });
  return [...row.keys()].sort((a, b) => row[b] - row[a]);
}

/** To whom each node gives most, of those that have a neighbour. @param {number[][]} given */
export function firstChoices(given) {
  return given.map((row) => (sum(row) ? row.indexOf(Math.max(...row)) : -1));
}

/** Of the pairs of nodes that two or more see, how many are put in one order by some and in the other by others. @param {number[][]} given @param {Mask} mask */
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
 * How much of each side's labels reaches each member: (1 - alpha) (I - alpha S)^-1 Y, by elimination:
 * the table is positive definite, so no pivot is near zero.
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
