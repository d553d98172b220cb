/** Vision Transformers of digits: an image cut into patches, two layers of four heads, ten classes. */

import { softmax } from "./arithmetic.js";
import { bytes } from "./base64.js";
import { layerNorm, linear } from "./layers.math.js";
import { MODEL } from "./patches_model.js";

/** @typedef {{ shape: number[], step: number, int8: string }} Packed */
/** @typedef {{ weights: number[][][], logits: number[] }} Run the weights of heads 1.1 to 2.4, a row for each token */

export const SIDE = 8;
export const FULL = 16; // the ink of a black pixel
export const HEADS = [1, 2].flatMap((layer) => [1, 2, 3, 4].map((head) => `${layer}.${head}`));
export const RECORD = MODEL.record;
const LAYERS = 2;
const [WIDTH, EACH] = [24, 6]; // width of the residual stream, width of a head
const MODELS = /** @type {Record<string, { right: number, parameters: Record<string, Packed> }>} */ (MODEL.models);

/** The permutation of shuffled pixels: the pixel at each position. */
export const MOVED = [...new Uint8Array(bytes(MODEL.moved))];
const INK = [...new Uint8Array(bytes(MODEL.images))];
/** The digits that can be chosen: 64 pixels from 0 to 16, and the label. */
export const DIGITS = MODEL.labels.map((label, i) => ({ label, ink: INK.slice(64 * i, 64 * (i + 1)) }));

/** @typedef {Record<string, { shape: number[], numbers: Float64Array }>} Parameters */
/** @type {Map<string, Parameters>} */
const UNPACKED = new Map();

/** The model's name; with patches of one pixel, shuffled pixels are the same model with shuffled positions. @param {number} size @param {string} pixels */
const made = (size, pixels) => `${size} ${size === 1 ? "in order" : pixels}`;

/** The number of test digits that the model classifies correctly. @param {number} size @param {string} pixels */
export const right = (size, pixels) => MODELS[made(size, pixels)].right;

/** The same before rounding, for each seed. @param {number} size @param {string} pixels */
export const recorded = (size, pixels) => /** @type {Record<string, number[]>} */ (RECORD.right)[made(size, pixels)];

/** @param {number} size @param {string} pixels @returns {Parameters} */
function parameters(size, pixels) {
  const key = `${size} ${pixels}`;
  const known = UNPACKED.get(key);
  if (known) return known;
  /** @type {Parameters} */
  const own = {};
  for (const [name, { shape, step, int8 }] of Object.entries(MODELS[made(size, pixels)].parameters)) {
    // float32 first, as in the library
    const numbers = Float64Array.from(new Int8Array(bytes(int8)), (whole) => Math.fround(whole * Math.fround(step)));
    own[name] = { shape, numbers };
  }
  if (size === 1 && pixels === "shuffled") {
    const { numbers } = own["positions.weight"];
    const places = numbers.slice();
    MOVED.forEach((from, to) => numbers.set(places.subarray((from + 1) * WIDTH, (from + 2) * WIDTH), (to + 1) * WIDTH));
  }
  UNPACKED.set(key, own);
  return own;
}

/** The number of parameters of a model. @param {number} size */
export function counted(size) {
  return Object.values(parameters(size, "in order")).reduce((all, { numbers }) => all + numbers.length, 0);
}

/** The pixels in the order of the input. @param {number[]} ink @param {string} pixels */
export function placed(ink, pixels) {
  return pixels === "shuffled" ? MOVED.map((from) => ink[from]) : ink;
}

/** The positions of the pixels of a patch, row by row. @param {number} patch counted from 0 @param {number} size */
export function inside(patch, size) {
  const across = SIDE / size;
  const [top, left] = [Math.floor(patch / across) * size, (patch % across) * size];
  return Array.from({ length: size * size }, (_, i) => (top + Math.floor(i / size)) * SIDE + left + (i % size));
}

/** @param {Parameters} all @param {Float64Array} x @param {string} name */
function project(all, x, name) {
  const { shape, numbers } = all[`${name}.weight`];
  return linear(x, numbers, all[`${name}.bias`]?.numbers, shape);
}

/** @param {Parameters} all @param {Float64Array} x @param {string} name */
const norm = (all, x, name) => layerNorm(x, all[`${name}.weight`].numbers, all[`${name}.bias`].numbers, 1e-5);

/** The error function, by a series of positive terms without cancellation. @param {number} x */
export function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let [term, total] = [x, x];
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(total); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    total += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * total;
}

/** @param {number} x */
const gelu = (x) => (x * (1 + erf(x / Math.SQRT2))) / 2;

/**
 * The output of attention for each vector, and the attention weights of the heads.
 * @param {Parameters} all @param {Float64Array} x @param {string} at
 */
function attend(all, x, at) {
  const normed = norm(all, x, `${at}.norm`);
  const [q, k, v] = ["q", "k", "v"].map((name) => project(all, normed, `${at}.sublayer.w_${name}`));
  const found = new Float64Array(x.length);
  const tokens = Array.from({ length: x.length / WIDTH }, (_, i) => i);
  const weights = [0, 1, 2, 3].map((head) =>
    tokens.map((i) => {
      const query = i * WIDTH + head * EACH;
      const scores = tokens.map((j) => {
        let score = 0;
        for (let c = 0; c < EACH; c++) score += q[query + c] * k[j * WIDTH + head * EACH + c];
        return score / Math.sqrt(EACH);
      });
      const row = softmax(scores);
      row.forEach((weight, j) => {
        for (let c = 0; c < EACH; c++) found[query + c] += weight * v[j * WIDTH + head * EACH + c];
      });
      return row;
    }),
  );
  return { weights, out: project(all, found, `${at}.sublayer.w_o`) };
}

/**
 * The forward pass on a digit; token 0 is the summary token, token 1 the first patch.
 * @param {number[]} ink of the 64 pixels, in order, 0 to 16 @param {number} size @param {string} pixels @returns {Run}
 */
export function run(ink, size, pixels) {
  const all = parameters(size, pixels);
  const shown = placed(ink, pixels);
  const cut = Array.from({ length: (SIDE / size) ** 2 }, (_, patch) =>
    inside(patch, size).map((place) => shown[place] / FULL),
  );
  const x = new Float64Array((cut.length + 1) * WIDTH);
  x.set(all["summary"].numbers);
  x.set(project(all, Float64Array.from(cut.flat()), "embedding"), WIDTH);
  const add = (/** @type {Float64Array} */ more) => more.forEach((number, i) => (x[i] += number));
  add(all["positions.weight"].numbers);
  /** @type {number[][][]} */
  const weights = [];
  for (let layer = 0; layer < LAYERS; layer++) {
    const at = `encoder.blocks.${layer}`;
    const heads = attend(all, x, `${at}.attention`);
    weights.push(...heads.weights);
    add(heads.out);
    const up = project(all, norm(all, x, `${at}.feedforward.norm`), `${at}.feedforward.sublayer.w_up`);
    add(project(all, up.map(gelu), `${at}.feedforward.sublayer.w_down`));
  }
  const summary = norm(all, x, "encoder.norm").subarray(0, WIDTH);
  return { weights, logits: [...project(all, summary, "head")] };
}

/** The pixels on the straight line from one to another, both included. @param {number} from @param {number} to */
export function way(from, to) {
  const [a, b] = [from, to].map((place) => [Math.floor(place / SIDE), place % SIDE]);
  const steps = Math.max(Math.abs(b[0] - a[0]), Math.abs(b[1] - a[1]), 1);
  return Array.from({ length: steps + 1 }, (_, s) => {
    const [row, column] = a.map((k, axis) => Math.round(k + (s / steps) * (b[axis] - k)));
    return row * SIDE + column;
  });
}
