// @ts-check
/** A walker that steps from query to key, layer by layer, and all its fellows that began on other tokens. */

import { effectiveCount, normal, softmax, sum, uniform } from "./arithmetic.js";
import { button, checkbox, fixed, html, linear, logSlider, picture, slider, stage, svg } from "./kit.js";

/** @typedef {number[][]} Matrix one row for each query */

export const STEPS = 16;

/** Standard normal scores for each layer that the walker meets. @param {number} seed @param {number} n */
export function draw(seed, n) {
  const random = uniform(seed);
  return Array.from({ length: STEPS }, () => square(n, () => normal(random)));
}

/** The weights of one layer. @param {Matrix} scores @param {boolean} causal @param {number} temperature */
export function weights(scores, causal, temperature) {
  return scores.map((row, i) => {
    const seen = softmax(causal ? row.slice(0, i + 1) : row, temperature);
    return row.map((_, j) => seen[j] ?? 0);
  });
}

/**
 * Where the walkers are after 0, 1, 2 ... layers, one row for the token that each began on.
 * @param {Matrix[]} layers in the order in which they are met @param {number} residual
 */
export function walks(layers, residual) {
  const n = layers[0].length;
  const places = [square(n, (i, j) => Number(i === j))];
  for (const a of layers) {
    const before = places[places.length - 1];
    places.push(
      square(n, (i, j) => residual * before[i][j] + (1 - residual) * sum(before[i].map((mass, k) => mass * a[k][j]))),
    );
  }
  return places;
}

/** Half the sum of absolute differences of the two rows that are farthest apart. @param {Matrix} rows */
export function apart(rows) {
  let most = 0;
  for (const p of rows) for (const q of rows) most = Math.max(most, sum(p.map((x, j) => Math.abs(x - q[j]))) / 2);
  return most;
}

/** @param {number} n @param {(i: number, j: number) => number} entry */
function square(n, entry) {
  return Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => entry(i, j)));
}

const WEIGHTS = ["n", "seed", "causal", "temperature", "residual", "same"];

function render({ model, el }) {
  const on = stage({ model, el });
  /** @type {Matrix[]} */
  let places;
  on.when(WEIGHTS, () => {
    const drawn = draw(on.read("seed"), on.read("n"));
    const layers = drawn.map((s) => weights(on.read("same") ? drawn[0] : s, on.read("causal"), on.read("temperature")));
    places = walks(layers, on.read("residual"));
  });
  const now = {
    rows: () => places[on.read("layers")],
    mass: () => places[on.read("layers")][on.read("start")],
    through: () => places.map((rows) => rows[on.read("start")]),
    distances: () => places.map(apart),
  };
  on.add(
    html(
      "div",
      { class: "x-panels" },
      html(
        "div",
        { class: "x-panel", style: "gap: 0" },
        on.anew(
          ["n"],
          () => String(on.read("n")),
          (part) => slider(part, "start", { label: "From token", min: 0, max: part.read("n") - 1, step: 1 }),
        ),
        slider(on, "layers", { label: "Layers back", min: 0, max: STEPS, step: 1 }),
      ),
      html(
        "div",
        { class: "x-panel", style: "gap: 0" },
        logSlider(on, "temperature", { label: "Temperature T", min: 0.05, max: 20, show: (t) => fixed(t) }),
        slider(on, "residual", { label: "Residual share", min: 0, max: 1, step: 0.05, show: (r) => fixed(r) }),
      ),
    ),
    html(
      "div",
      { class: "x-bench" },
      checkbox(on, "causal", { label: "causal" }),
      checkbox(on, "same", { label: "the same weights in every layer" }),
      button("Draw again", () => on.write("seed", (on.read("seed") + 1) % 2 ** 31)),
    ),
    on.anew(
      ["n"],
      () => String(on.read("n")),
      (part) =>
        html("div", { class: "x-panels" }, through(part, now), mass(part, now), curves(part, now), facts(part, now)),
    ),
  );
  on.when(EVERYTHING, () => {
    const p = now.mass();
    const best = p.indexOf(Math.max(...p));
    on.say(
      `${on.read("layers")} layers back from token ${on.read("start")}: most of the mass, ${fixed(p[best])}, is on ` +
        `token ${best}; the two walkers that are farthest apart have distance ${fixed(apart(now.rows()))}.`,
    );
  });
  return on.leave;
}

const EVERYTHING = [...WEIGHTS, "start", "layers"];
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 312, 12, 196];

/** One row for each layer, one column for each token: the stronger the colour, the more of the mass. */
function through(on, now) {
  const [n, drawing] = [on.read("n"), picture(320, 216, "mass on each token after each layer")];
  const x = linear([0, n], [LEFT, RIGHT]);
  const y = linear([0, STEPS + 1], [TOP, BOTTOM]);
  const cells = Array.from({ length: STEPS + 1 }, (_, t) =>
    Array.from({ length: n }, (_, j) =>
      svg("rect", { class: "x-solid", x: x(j) + 0.5, y: y(t) + 0.5, width: x(1) - x(0) - 1, height: y(1) - y(0) - 1 }),
    ),
  );
  const here = svg("rect", {
    x: LEFT - 1,
    width: RIGHT - LEFT + 2,
    height: y(1) - y(0),
    style: "fill: none; stroke: var(--ink)",
  });
  drawing.append(
    svg("rect", { class: "x-ground", x: LEFT, y: TOP, width: RIGHT - LEFT, height: BOTTOM - TOP }),
    ...cells.flat(),
    here,
    ...[0, 4, 8, 12, 16].map((t) =>
      svg("text", { x: LEFT - 6, y: (y(t) + y(t + 1)) / 2 + 4, "text-anchor": "end" }, String(t)),
    ),
    ...tokens(n, x, BOTTOM + 16),
  );
  on.when([...WEIGHTS, "start"], () => {
    now
      .through()
      .forEach((p, t) => p.forEach((share, j) => cells[t][j].setAttribute("fill-opacity", share.toFixed(3))));
  });
  on.when(["layers"], () => here.setAttribute("y", String(y(on.read("layers")))));
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "The walk, from top to bottom: a row for each layer back, a column for each token. The stronger the colour, the more mass.",
    ),
  );
}

/** Where the walker is now, and where the average walker is. */
function mass(on, now) {
  const [n, drawing] = [on.read("n"), picture(320, 216, "mass on each token now")];
  const x = linear([0, n], [LEFT, RIGHT]);
  const y = linear([0, 1], [BOTTOM, TOP]);
  const side = x(1) - x(0);
  const bars = Array.from({ length: n }, (_, j) =>
    svg("rect", { class: "x-fill", x: x(j) + 0.15 * side, width: 0.7 * side }),
  );
  const common = svg("path", { class: "x-line x-second" });
  drawing.append(
    svg("path", { class: "x-axis", d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}` }),
    ...[0, 0.5, 1].map((t) => svg("text", { x: LEFT - 6, y: y(t) + 4, "text-anchor": "end" }, String(t))),
    ...bars,
    common,
    ...tokens(n, x, BOTTOM + 16),
  );
  on.when(EVERYTHING, () => {
    now.mass().forEach((share, j) => {
      bars[j].setAttribute("y", String(y(share)));
      bars[j].setAttribute("height", String(BOTTOM - y(share)));
    });
    const marks = Array.from({ length: n }, (_, j) => y(sum(now.rows().map((p) => p[j])) / n).toFixed(1));
    common.setAttribute(
      "d",
      marks.map((at, j) => `M${(x(j) + 0.05 * side).toFixed(1)} ${at}h${(0.9 * side).toFixed(1)}`).join(""),
    );
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "Bars: the mass in the framed row. Orange marks: the mean over walkers from all tokens. When bars and marks agree, the start is forgotten.",
    ),
  );
}

/** How far apart walkers can still be, and how much has come to token 0, through all layers. */
function curves(on, now) {
  const drawing = picture(320, 152, "distance of walkers, and mass on token 0, against layers");
  const [bottom, left] = [124, LEFT];
  const x = linear([0, STEPS], [left, RIGHT]);
  const y = linear([0, 1], [bottom, 10]);
  const lines = ["x-line x-first", "x-line x-second x-dashed"].map((look) => svg("path", { class: look }));
  const here = svg("path", { class: "x-axis" });
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} 10V${bottom}H${RIGHT}` }),
    ...[0, 0.5, 1].map((t) => svg("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end" }, String(t))),
    ...[0, 4, 8, 12, 16].map((t) => svg("text", { x: x(t), y: bottom + 16, "text-anchor": "middle" }, String(t))),
    here,
    ...lines,
  );
  on.when([...WEIGHTS, "start"], () => {
    [now.distances(), now.through().map((p) => p[0])].forEach((values, i) =>
      lines[i].setAttribute(
        "d",
        values.map((v, t) => `${t ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join(""),
      ),
    );
  });
  on.when(["layers"], () => here.setAttribute("d", `M${x(on.read("layers"))} 10V${bottom}`));
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "Against the layers. Line: the distance of the two walkers that are farthest apart. Dashed: this walker's mass on token 0.",
    ),
  );
}

function facts(on, now) {
  const measures = [
    ["mass still on its own token", (p) => p[on.read("start")]],
    ["mass on token 0", (p) => p[0]],
    ["tokens in effect", effectiveCount],
    ["farthest two walkers", () => apart(now.rows())],
  ];
  const cells = measures.map(() => html("td"));
  on.when(EVERYTHING, () => measures.forEach(([, of], i) => (cells[i].textContent = fixed(of(now.mass()), 3))));
  return html(
    "table",
    { class: "x-table x-wide" },
    ...measures.map(([name], i) => html("tr", {}, html("th", { scope: "row" }, name), cells[i])),
  );
}

/** The numbers of the tokens under their columns. */
function tokens(n, x, y) {
  return Array.from({ length: n }, (_, j) =>
    svg("text", { x: (x(j) + x(j + 1)) / 2, y, "text-anchor": "middle" }, String(j)),
  );
}

export default { render };
