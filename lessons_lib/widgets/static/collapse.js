// @ts-check
/** Twelve tokens on their way through random layers: how alike they become, and what attention still prefers. */

import { effectiveCount, entropy, normal, softmax, sum, uniform } from "./arithmetic.js";
import { button, checkbox, fixed, html, linear, logSlider, picture, select, slider, stage, svg, tiny } from "./kit.js";

/** @typedef {number[][]} Matrix one row for each token, or one for each coordinate that comes in */
/** @typedef {{ bilinear: Matrix, values: Matrix }} Layer what a layer compares tokens with, and what it makes of them */

export const TOKENS = 12;
export const WIDTH = 16;
export const LAYERS = 32;

/** Tokens and layers; one layer more than is passed, to see what it would attend to. @param {number} seed */
export function draw(seed) {
  const random = uniform(seed);
  const matrix = (/** @type {number} */ rows, scale = 1) => fill(rows, WIDTH, () => scale * normal(random));
  const tokens = units(matrix(TOKENS));
  const layers = Array.from({ length: LAYERS + 1 }, () => ({
    bilinear: matrix(WIDTH),
    values: matrix(WIDTH, 1 / Math.sqrt(WIDTH)),
  }));
  return { tokens, layers };
}

/** What a layer attends to. @param {Matrix} x @param {Layer} layer @param {boolean} causal @param {number} temperature */
export function weights(x, { bilinear }, causal, temperature) {
  const normed = units(x);
  const queries = times(normed, bilinear);
  return normed.map((_, i) => {
    const scores = normed.map((key) => dot(queries[i], key) / WIDTH);
    const seen = softmax(causal ? scores.slice(0, i + 1) : scores, temperature);
    return scores.map((_, j) => seen[j] ?? 0);
  });
}

/**
 * The tokens after 0, 1, 2 ... layers.
 * @param {{ tokens: Matrix, layers: Layer[] }} drawn
 * @param {number} residual @param {string} norm @param {boolean} causal @param {number} temperature
 */
export function streams({ tokens, layers }, residual, norm, causal, temperature) {
  const found = [tokens];
  for (const layer of layers.slice(0, LAYERS)) {
    const x = found[found.length - 1];
    const mixed = times(times(weights(x, layer, causal, temperature), units(x)), layer.values);
    const next = x.map((row, i) => row.map((value, c) => residual * value + mixed[i][c]));
    found.push(norm === "after" ? units(next) : next);
  }
  return found;
}

/** The share of the length that is not common to all tokens. @param {Matrix} x */
export function spread(x) {
  const mean = x[0].map((_, c) => sum(x.map((row) => row[c])) / x.length);
  const apart = x.map((row) => row.map((value, c) => value - mean[c]));
  return Math.sqrt(sum(apart.map((row) => dot(row, row))) / sum(x.map((row) => dot(row, row))));
}

/** Cosines between tokens. @param {Matrix} x */
export function cosines(x) {
  const lengths = x.map((row) => Math.sqrt(dot(row, row)));
  return x.map((a, i) => x.map((b, j) => dot(a, b) / (lengths[i] * lengths[j])));
}

/** exp of the entropy of the singular values, from turning rows until all are at right angles. @param {Matrix} x */
export function effectiveRank(x) {
  const rows = x.map((row) => [...row]);
  for (let sweep = 0; sweep < 12; sweep++)
    for (let i = 0; i < rows.length; i++)
      for (let j = 0; j < i; j++) {
        const [a, b, c] = [dot(rows[i], rows[i]), dot(rows[j], rows[j]), dot(rows[i], rows[j])];
        const angle = Math.atan2(2 * c, a - b) / 2;
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        [rows[i], rows[j]] = [
          rows[i].map((value, k) => cos * value + sin * rows[j][k]),
          rows[j].map((value, k) => cos * value - sin * rows[i][k]),
        ];
      }
  const sigma = rows.map((row) => Math.sqrt(dot(row, row)));
  return effectiveCount(sigma.map((s) => s / sum(sigma)));
}

/** Entropy of the weights as a share of the largest possible; a row with one visible key has no say. @param {Matrix} a @param {boolean} causal */
export function undecided(a, causal) {
  const shares = a
    .map((row, i) => [entropy(row), Math.log(causal ? i + 1 : row.length)])
    .filter(([, most]) => most > 0);
  return sum(shares.map(([h, most]) => h / most)) / shares.length;
}

/** Each row at root mean square 1. @param {Matrix} x */
function units(x) {
  return x.map((row) => {
    const size = Math.sqrt(dot(row, row) / row.length);
    return row.map((value) => value / size);
  });
}

/** @param {Matrix} a @param {Matrix} b */
function times(a, b) {
  return a.map((row) => b[0].map((_, c) => sum(row.map((value, k) => value * b[k][c]))));
}

/** @param {number[]} a @param {number[]} b */
function dot(a, b) {
  return sum(a.map((value, i) => value * b[i]));
}

/** @param {number} rows @param {number} columns @param {() => number} entry */
function fill(rows, columns, entry) {
  return Array.from({ length: rows }, () => Array.from({ length: columns }, entry));
}

const STACK = ["seed", "residual", "norm", "causal", "temperature"];
const EVERYTHING = [...STACK, "depth"];
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 312, 12, 124];

function render({ model, el }) {
  const on = stage({ model, el });
  /** @type {{ x: Matrix, spread: number, rank: number, undecided: number }[]} */
  let floors;
  on.when(STACK, () => {
    const drawn = draw(on.read("seed"));
    const [causal, temperature] = [on.read("causal"), on.read("temperature")];
    floors = streams(drawn, on.read("residual"), on.read("norm"), causal, temperature).map((x, t) => ({
      x,
      spread: spread(x),
      rank: effectiveRank(x),
      undecided: undecided(weights(x, drawn.layers[t], causal, temperature), causal),
    }));
  });
  const now = { all: () => floors, here: () => floors[on.read("depth")] };
  on.add(
    html(
      "div",
      { class: "x-panels" },
      html(
        "div",
        { class: "x-panel", style: "gap: 0" },
        slider(on, "depth", { label: "Layers", min: 0, max: LAYERS, step: 1 }),
        slider(on, "residual", { label: "Residual", min: 0, max: 1, step: 0.05, show: (r) => fixed(r) }),
      ),
      html(
        "div",
        { class: "x-panel", style: "gap: 0" },
        logSlider(on, "temperature", { label: "Temperature T", min: 0.05, max: 20, show: (t) => fixed(t) }),
        select(on, "norm", {
          label: "Norm",
          options: [
            ["after", "after sum"],
            ["before", "before"],
          ],
        }),
      ),
    ),
    html(
      "div",
      { class: "x-bench" },
      checkbox(on, "causal", { label: "causal" }),
      button("Draw again", () => on.write("seed", (on.read("seed") + 1) % 2 ** 31)),
    ),
    html(
      "div",
      { class: "x-panels" },
      likeness(on, now),
      html(
        "div",
        { class: "x-panel" },
        curves(
          on,
          now,
          "spread of the tokens against layers, logarithmic",
          [
            ["1", 1],
            ["10⁻⁴", 1e-4],
            ["10⁻⁸", 1e-8],
            ["10⁻¹²", 1e-12],
          ],
          [(floor) => floor.spread],
          (value) => Math.log10(Math.max(value, 1e-12)),
          "Spread of the tokens after each layer, on a logarithmic axis.",
        ),
        curves(
          on,
          now,
          "effective rank and entropy against layers",
          [
            ["1", 1],
            ["½", 0.5],
            ["0", 0],
          ],
          [(floor) => floor.rank / TOKENS, (floor) => floor.undecided],
          (value) => value,
          "Line: effective rank, of 12. Dashed: entropy of the next layer's attention, of the largest possible.",
        ),
      ),
    ),
    facts(on, now),
  );
  on.when(EVERYTHING, () => {
    const { x, spread: left, rank } = now.here();
    on.say(
      `After ${on.read("depth")} layers the mean cosine of two tokens is ${fixed(alike(x))}, their spread ${tiny(left)}, ` +
        `their effective rank ${fixed(rank, 1)} of ${TOKENS}.`,
    );
  });
  return on.leave;
}

/** The mean cosine of two different tokens. @param {Matrix} x */
function alike(x) {
  return (sum(cosines(x).map(sum)) - x.length) / (x.length * (x.length - 1));
}

/** A cell for each pair of tokens: the stronger the colour, the more alike; the other colour, opposed. */
function likeness(on, now) {
  const drawing = picture(320, 300, "cosine between every two tokens");
  const at = linear([0, TOKENS], [16, 304]);
  const cells = fill(TOKENS, TOKENS, () => 0).map((row, i) =>
    row.map((_, j) =>
      svg("rect", { x: at(j) + 0.5, y: at(i) - 11.5, width: at(1) - at(0) - 1, height: at(1) - at(0) - 1 }),
    ),
  );
  drawing.append(svg("rect", { class: "x-ground", x: 16, y: 4, width: 288, height: 288 }), ...cells.flat());
  on.when(EVERYTHING, () =>
    cosines(now.here().x).forEach((row, i) =>
      row.forEach((cosine, j) => {
        cells[i][j].setAttribute(
          "style",
          `fill: var(--${cosine < 0 ? "second" : "first"}); fill-opacity: ${Math.abs(cosine).toFixed(3)}`,
        );
      }),
    ),
  );
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "A cell for each pair of tokens after these layers. Blue: alike, the stronger the more. Orange: opposed. All blue: all tokens are one.",
    ),
  );
}

/** Measures against the layers, and a line at the present depth. */
function curves(on, now, label, levels, measures, height, caption) {
  const drawing = picture(320, 144, label);
  const x = linear([0, LAYERS], [LEFT, RIGHT]);
  const y = linear([levels[0][1], levels[levels.length - 1][1]].map(height), [TOP, BOTTOM]);
  const lines = ["x-line x-first", "x-line x-second x-dashed"]
    .slice(0, measures.length)
    .map((look) => svg("path", { class: look }));
  const here = svg("path", { class: "x-axis" });
  drawing.append(
    svg("path", { class: "x-axis", d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}` }),
    ...levels.map(([name, value]) => svg("text", { x: LEFT - 6, y: y(height(value)) + 4, "text-anchor": "end" }, name)),
    ...[0, 8, 16, 24, 32].map((t) => svg("text", { x: x(t), y: BOTTOM + 16, "text-anchor": "middle" }, String(t))),
    here,
    ...lines,
  );
  on.when(STACK, () =>
    measures.forEach((of, i) => {
      const points = now.all().map((floor, t) => `${x(t).toFixed(1)} ${y(height(of(floor))).toFixed(1)}`);
      lines[i].setAttribute("d", `M${points.join("L")}`);
    }),
  );
  on.when(["depth"], () => here.setAttribute("d", `M${x(on.read("depth"))} ${TOP}V${BOTTOM}`));
  return html("figure", { class: "x-panel" }, drawing, html("figcaption", {}, caption));
}

function facts(on, now) {
  const measures = [
    ["mean cosine of two tokens", ({ x }) => fixed(alike(x), 3)],
    ["spread", (floor) => tiny(floor.spread)],
    ["effective rank, of 12", ({ rank }) => fixed(rank)],
    ["entropy of the next layer's attention", (floor) => fixed(floor.undecided, 3)],
  ];
  const cells = measures.map(() => html("td"));
  on.when(EVERYTHING, () => measures.forEach(([, of], i) => (cells[i].textContent = of(now.here()))));
  return html(
    "table",
    { class: "x-table x-wide" },
    ...measures.map(([name], i) => html("tr", {}, html("th", { scope: "row" }, name), cells[i])),
  );
}

export default { render };
