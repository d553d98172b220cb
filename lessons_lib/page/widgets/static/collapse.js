/** Twelve tokens in a stack of random layers: their similarity, and the entropy of the attention. */

import {
  button,
  checkbox,
  fixed,
  html,
  linear,
  logSlider,
  named,
  numbers,
  panels,
  picture,
  select,
  slider,
  stage,
  svg,
  tiny,
} from "./kit.js";
import { withPlayButton } from "./play.js";
import {
  LAYERS,
  TOKENS,
  alike,
  cosines,
  draw,
  effectiveRank,
  fill,
  spread,
  streams,
  undecided,
  weights,
} from "./collapse.math.js";

/**
 * @typedef {number[][]} Matrix one row for each token
 * @typedef {{ depth: number, residual: number, temperature: number, norm: string, causal: boolean,
 *   seed: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ x: Matrix, spread: number, rank: number, undecided: number }} Floor the tokens after a layer, measured
 * @typedef {{ all(): Floor[], here(): Floor }} Now
 */

/** @type {(keyof Traits)[]} */
const STACK = ["seed", "residual", "norm", "causal", "temperature"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...STACK, "depth"];
const [LEFT, RIGHT, BOTTOM] = [44, 312, 146];
const LEAST = 1e-12; // smaller values are rounding errors

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  /** @type {Floor[]} */
  let floors;
  scope.when(STACK, () => {
    const drawn = draw(scope.read("seed"));
    const [causal, temperature] = [scope.read("causal"), scope.read("temperature")];
    floors = streams(drawn, scope.read("residual"), scope.read("norm"), causal, temperature).map((x, t) => ({
      x,
      spread: spread(x),
      rank: effectiveRank(x),
      undecided: undecided(weights(x, drawn.layers[t], causal, temperature), causal),
    }));
  });
  const now = { all: () => floors, here: () => floors[scope.read("depth")] };
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(scope, slider(scope.value("depth"), { label: "Layers", min: 0, max: LAYERS, step: 1 })),
    ),
    panels(
      ["Similarity", likeness(scope, now)],
      [
        "Spread",
        curves(scope, now, {
          label: "spread of the tokens against layers, logarithmic",
          levels: [
            ["1", 1],
            ["10⁻⁴", 1e-4],
            ["10⁻⁸", 1e-8],
            ["10⁻¹²", 1e-12],
          ],
          measures: [["spread of the tokens", (floor) => floor.spread]],
          height: (value) => Math.log10(Math.max(value, LEAST)),
        }),
      ],
      [
        "Rank",
        curves(scope, now, {
          label: "effective rank and entropy against layers, as shares of the largest",
          levels: [
            ["1", 1],
            ["½", 0.5],
            ["0", 0],
          ],
          measures: [
            ["effective rank, of 12", (floor) => floor.rank / TOKENS],
            ["entropy of the next attention", (floor) => floor.undecided],
          ],
          height: (value) => value,
        }),
      ],
    ),
    html(
      "div",
      { class: "x-settings" },
      slider(scope.value("residual"), { label: "Residual", min: 0, max: 1, step: 0.05, show: (r) => fixed(r) }),
      logSlider(scope.value("temperature"), { label: "Temperature T", min: 0.05, max: 20, show: (t) => fixed(t) }),
      select(scope.value("norm"), {
        label: "Norm",
        options: [
          ["after", "after"],
          ["before", "before"],
        ],
      }),
      html(
        "div",
        { class: "x-bench" },
        checkbox(scope.value("causal"), { label: "causal" }),
        button("Draw again", () => scope.write("seed", (scope.read("seed") + 1) % 2 ** 31)),
      ),
    ),
    numbers(scope, EVERYTHING, [
      ["mean cosine", () => fixed(alike(now.here().x), 3)],
      ["spread", () => tiny(now.here().spread)],
      ["effective rank, of 12", () => fixed(now.here().rank)],
      ["entropy, 0 to 1", () => fixed(now.here().undecided, 3)],
    ]),
  );
  scope.when(EVERYTHING, () => {
    const { x, spread: left, rank } = now.here();
    scope.announce(
      `After ${scope.read("depth")} layers the mean cosine of two tokens is ${fixed(alike(x))}, their spread ${tiny(left)}, ` +
        `their effective rank ${fixed(rank, 1)} of ${TOKENS}.`,
    );
  });
  return scope.dispose;
}

/** A cell for each pair of tokens: the stronger the colour, the larger the cosine; another colour if negative. @param {Scope} scope @param {Now} now */
function likeness(scope, now) {
  const drawing = picture(320, 330, "cosine between every two tokens");
  const at = linear([0, TOKENS], [32, 312]);
  const cells = fill(TOKENS, TOKENS, () => 0).map((row, i) =>
    row.map((_, j) =>
      svg("rect", { x: at(j) + 0.5, y: at(i) - 9.5, width: at(1) - at(0) - 1, height: at(1) - at(0) - 1 }),
    ),
  );
  const middle = (/** @type {number} */ i) => (at(i) + at(i + 1)) / 2;
  drawing.append(
    svg("rect", { class: "x-ground", x: 32, y: 22, width: 280, height: 280 }),
    ...cells.flat(),
    named("token", 0, 10),
    svg("text", { x: 172, y: 330, "text-anchor": "middle" }, "token"),
    ...[0, 4, 8, 11].flatMap((i) => [
      svg("text", { x: middle(i), y: 316, "text-anchor": "middle" }, String(i)),
      svg("text", { x: 26, y: middle(i) - 6, "text-anchor": "end" }, String(i)),
    ]),
  );
  scope.when(EVERYTHING, () =>
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
    { class: "x-panel x-tall" },
    drawing,
    html(
      "figcaption",
      {},
      "Cosine similarity of each pair. Blue: alike, orange: opposed. All blue: all tokens are equal.",
    ),
  );
}

/**
 * Measures against the layers, and a line at the current depth.
 * @param {Scope} scope @param {Now} now
 * @param {{ label: string, levels: [string, number][], measures: [string, (floor: Floor) => number][],
 *   height: (value: number) => number }} options `levels` are marks at the axis
 */
function curves(scope, now, { label, levels, measures, height }) {
  const top = 6 + 15 * measures.length;
  const drawing = picture(320, 182, label);
  const x = linear([0, LAYERS], [LEFT, RIGHT]);
  const y = linear([levels[0][1], levels[levels.length - 1][1]].map(height), [top, BOTTOM]);
  const looks = ["first", "second x-dashed"];
  const lines = measures.map((_, i) => svg("path", { class: `x-line x-${looks[i]}` }));
  const here = svg("path", { class: "x-axis" });
  const rounding = svg("text", { y: BOTTOM - 6 });
  drawing.append(
    ...measures.map(([name], i) =>
      named(i ? `${name}, dashed` : name, LEFT, 10 + 15 * i, ["x-of-first", "x-of-second"][i]),
    ),
    svg("text", { x: (LEFT + RIGHT) / 2, y: BOTTOM + 31, "text-anchor": "middle" }, "layers"),
    svg("path", { class: "x-axis", d: `M${LEFT} ${top}V${BOTTOM}H${RIGHT}` }),
    ...levels.map(([name, value]) => svg("text", { x: LEFT - 6, y: y(height(value)) + 4, "text-anchor": "end" }, name)),
    ...[0, 8, 16, 24, 32].map((t) => svg("text", { x: x(t), y: BOTTOM + 16, "text-anchor": "middle" }, String(t))),
    here,
    rounding,
    ...lines,
  );
  scope.when(STACK, () =>
    measures.forEach(([, of], i) => {
      const values = now.all().map(of);
      const end = values.findIndex((value) => value < LEAST); // the line ends where only rounding errors are left
      const shown = end < 0 || measures.length > 1 ? values : values.slice(0, end + 1);
      const points = shown.map((value, t) => `${x(t).toFixed(1)} ${y(height(value)).toFixed(1)}`);
      lines[i].setAttribute("d", `M${points.join("L")}`);
      rounding.textContent = shown.length < values.length ? "below rounding" : "";
      rounding.setAttribute("x", String(x(Math.min(shown.length, 20)) + 4));
    }),
  );
  scope.when(["depth"], () => here.setAttribute("d", `M${x(scope.read("depth"))} ${top}V${BOTTOM}`));
  return html("figure", { class: "x-panel" }, drawing);
}

export default { render };
