/** A trained GPT: its weights unpacked, run on words with some heads switched off, and the next word drawn. */

import { softmax, uniform } from "./arithmetic.js";
import { MODEL } from "./gpt_model.js";

/** @typedef {{ shape: number[], float32?: string, steps?: string, int8?: string }} Packed */

export const VOCABULARY = MODEL.vocabulary.split(" ");
export const LONGEST = 96; // words of a text
export const VIEW = MODEL.config.n_context - 1; // words that the model is shown, the last ones
export const HEADS = [1, 2].flatMap((layer) => [1, 2, 3, 4].map((head) => `${layer}.${head}`));
export const STAGES = ["embedding", "1 attention", "1 feed-forward", "2 attention", "2 feed-forward"];

const [WIDTH, N_HEADS, EPS] = [MODEL.config.d_model, MODEL.config.n_heads, MODEL.config.norm_eps];
const HEAD_WIDTH = WIDTH / N_HEADS;

const bytes = (/** @type {string} */ text) => Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0)).buffer;

/** Whole numbers times the step of their row, or the numbers themselves. @param {Packed} packed */
function unpack({ shape, float32, steps, int8 }) {
  if (float32) return Float64Array.from(new Float32Array(bytes(float32)));
  const step = new Float32Array(bytes(steps ?? ""));
  return Float64Array.from(new Int8Array(bytes(int8 ?? "")), (whole, i) => whole * step[Math.floor(i / shape[1])]);
}

/** @type {Record<string, Packed>} */
const PACKED = MODEL.parameters;
/** @type {Record<string, Float64Array>} */
const PARAMETERS = Object.fromEntries(Object.entries(PACKED).map(([name, packed]) => [name, unpack(packed)]));

// A list of vectors is one array, vector after vector.

/** Each of the vectors through a matrix, whose rows are the outputs. @param {Float64Array} x @param {string} name */
function project(x, name) {
  const [weight, bias] = [PARAMETERS[`${name}.weight`], PARAMETERS[`${name}.bias`]];
  const [outs, ins] = PACKED[`${name}.weight`].shape;
  const y = new Float64Array((x.length / ins) * outs);
  for (let at = 0, from = 0; at < y.length; from += ins)
    for (let out = 0; out < outs; out++, at++) {
      let total = bias ? bias[out] : 0;
      for (let k = 0, w = out * ins; k < ins; k++, w++) total += weight[w] * x[from + k];
      y[at] = total;
    }
  return y;
}

/** Each vector without its mean, divided by its spread; gain and bias. @param {Float64Array} x @param {string} name */
function norm(x, name) {
  const [gain, bias] = [PARAMETERS[`${name}.weight`], PARAMETERS[`${name}.bias`]];
  const y = new Float64Array(x.length);
  for (let from = 0; from < x.length; from += WIDTH) {
    const own = x.subarray(from, from + WIDTH);
    const mean = own.reduce((a, b) => a + b, 0) / WIDTH;
    const spread = Math.sqrt(own.reduce((a, b) => a + (b - mean) ** 2, 0) / WIDTH + EPS);
    for (let k = 0; k < WIDTH; k++) y[from + k] = ((own[k] - mean) / spread) * gain[k] + bias[k];
  }
  return y;
}

/** Turn the pairs of each head by an angle that grows with the place, in the array itself. @param {Float64Array} x */
function rotate(x) {
  const half = HEAD_WIDTH / 2;
  for (let at = 0; at < x.length; at++) {
    const pair = at % HEAD_WIDTH;
    if (pair >= half) continue;
    const angle = Math.floor(at / WIDTH) * MODEL.config.rope_base ** (-pair / half);
    const [cos, sin, a, b] = [Math.cos(angle), Math.sin(angle), x[at], x[at + half]];
    x[at] = a * cos - b * sin;
    x[at + half] = a * sin + b * cos;
  }
  return x;
}

/** @typedef {(q: Float64Array, k: Float64Array, v: Float64Array) => void} Hear called by each layer, heads side by side */

/**
 * What attention adds to each vector, and the weights of its heads. A head that is off brings nothing.
 * @param {Float64Array} x @param {number} layer @param {string[]} off @param {Hear} [hear]
 */
function attend(x, layer, off, hear) {
  const at = `blocks.${layer}.attention`;
  const [normed, n] = [norm(x, `${at}.norm`), x.length / WIDTH];
  const [q, k, v] = ["q", "k", "v"].map((name) => project(normed, `${at}.sublayer.w_${name}`));
  rotate(q);
  rotate(k);
  hear?.(q, k, v);
  const found = new Float64Array(x.length);
  const weights = Array.from({ length: N_HEADS }, (_, head) =>
    Array.from({ length: n }, (_, i) => {
      const [query, from] = [i * WIDTH + head * HEAD_WIDTH, head * HEAD_WIDTH];
      const scores = Array.from({ length: i + 1 }, (_, j) => {
        let score = 0;
        for (let c = 0; c < HEAD_WIDTH; c++) score += q[query + c] * k[j * WIDTH + from + c];
        return score / Math.sqrt(HEAD_WIDTH);
      });
      const row = softmax(scores);
      if (!off.includes(`${layer + 1}.${head + 1}`))
        row.forEach((weight, j) => {
          for (let c = 0; c < HEAD_WIDTH; c++) found[query + c] += weight * v[j * WIDTH + from + c];
        });
      return row;
    }),
  );
  return { weights, out: project(found, `${at}.sublayer.w_o`) };
}

/** @param {number} x */
const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

/**
 * What the model makes of the last words in its view: the weights of the eight heads, a row for each word as far as it
 * may see, and for the last word the logits of the next, read off after each sublayer. `first` is the place of the
 * first word in view.
 * @param {string[]} text @param {string[]} off @param {Hear} [hear]
 */
export function run(text, off, hear) {
  const first = Math.max(0, text.length - VIEW);
  const words = text.slice(first);
  const embedding = PARAMETERS["embedding.weight"];
  const x = new Float64Array(words.length * WIDTH);
  words.forEach((word, i) => {
    const token = VOCABULARY.indexOf(word);
    if (token < 0) throw new RangeError(`text must be made of the model's words, got ${word}`);
    x.set(embedding.subarray(token * WIDTH, (token + 1) * WIDTH), i * WIDTH);
  });
  const read = () => [...project(norm(x.subarray(-WIDTH), "norm"), "embedding")];
  const add = (/** @type {Float64Array} */ more) => more.forEach((number, i) => (x[i] += number));
  const lens = [read()];
  /** @type {number[][][]} */
  const weights = [];
  for (const layer of [0, 1]) {
    const heads = attend(x, layer, off, hear);
    weights.push(...heads.weights);
    add(heads.out);
    lens.push(read());
    const at = `blocks.${layer}.feedforward`;
    add(project(project(norm(x, `${at}.norm`), `${at}.sublayer.w_up`).map(gelu), `${at}.sublayer.w_down`));
    lens.push(read());
  }
  return { first, weights, lens };
}

/**
 * The probability with which each word is drawn, and whether it may be: of the `topK` most probable at the temperature
 * the fewest whose probabilities reach `topP` together. Of equals the first is kept. At temperature 0 the best is taken.
 * @param {number[]} logits @param {{ temperature: number, topK: number, topP: number }} how
 */
export function chances(logits, { temperature, topK, topP }) {
  const order = logits.map((_, token) => token).sort((a, b) => logits[b] - logits[a]);
  const few = order.slice(0, topK);
  const p = softmax(
    few.map((token) => logits[token]),
    temperature || 1,
  );
  let before = 0;
  const drawn = few.filter((_, rank) => {
    const isKept = topP === 1 || before < topP;
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
 * The text with its next word, or up to its next full stop. The chance for the word at a place is the seed's number for
 * that place, so that it does not matter how often one has pressed.
 * @param {string[]} text @param {string[]} off @param {{ temperature: number, topK: number, topP: number }} how
 * @param {number} seed @param {boolean} toStop
 */
export function write(text, off, how, seed, toStop) {
  const words = [...text];
  do {
    const { lens } = run(words, off);
    let left = uniform(seed + Math.imul(words.length, 0x6d2b79f5))();
    const { p } = chances(lens[lens.length - 1], how);
    const drawn = p.findIndex((share) => (left -= share) < 0);
    words.push(VOCABULARY[drawn < 0 ? p.indexOf(Math.max(...p)) : drawn]); // rounding may leave a little
  } while (toStop && words[words.length - 1] !== "." && words.length < LONGEST);
  return words;
}

/** What was typed as words. @param {string} typed @returns {string[]} */
export function parse(typed) {
  return typed.toLowerCase().match(/[^\s.]+|\./g) ?? [];
}

/**
 * A weight that is large enough to be drawn: `to` reads `from` in this head, words counted in view. `share` is how much
 * of it arrives at the last word: 1 in layer 2; in layer 1 as much as layer 2 reads its reader, 1 if that is the last.
 * @typedef {{ head: string, from: number, to: number, weight: number, share: number }} Arc
 */

/** The arcs on the way to the last word, of heads that are on. @param {number[][][]} weights @param {string[]} off */
export function arcs(weights, off) {
  const last = weights[0].length - 1;
  const on = HEADS.map((head, i) => ({ head, rows: weights[i] })).filter(({ head }) => !off.includes(head));
  const above = on.filter(({ head }) => head[0] === "2");
  const share = (/** @type {string} */ head, /** @type {number} */ to) => {
    if (to === last) return 1;
    return head[0] === "2" ? 0 : Math.max(0, ...above.map(({ rows }) => rows[last][to]));
  };
  return on
    .flatMap(({ head, rows }) =>
      rows.flatMap((row, to) => row.map((weight, from) => ({ head, from, to, weight, share: share(head, to) }))),
    )
    .filter(({ weight, share }) => weight >= 0.1 && share >= 0.1);
}
