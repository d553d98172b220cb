/** Twelve tokens on their way through random layers: how alike they become, and what attention still prefers. */

import {
  button,
  checkbox,
  fixed,
  html,
  linear,
  logSlider,
  named,
  picture,
  select,
  slider,
  stage,
  svg,
  tiny,
} from "./kit.js";
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
const LEAST = 1e-12; // what is left below is rounding

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
      { class: "x-panels x-controls" },
      html(
        "div",
        { class: "x-panel", style: "gap: 0" },
        slider(scope.value("depth"), { label: "Layers", min: 0, max: LAYERS, step: 1 }),
        slider(scope.value("residual"), { label: "Residual", min: 0, max: 1, step: 0.05, show: (r) => fixed(r) }),
      ),
      html(
        "div",
        { class: "x-panel", style: "gap: 0" },
        logSlider(scope.value("temperature"), { label: "Temperature T", min: 0.05, max: 20, show: (t) => fixed(t) }),
        select(scope.value("norm"), {
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
      checkbox(scope.value("causal"), { label: "causal" }),
      button("Draw again", () => scope.write("seed", (scope.read("seed") + 1) % 2 ** 31)),
    ),
    html(
      "div",
      { class: "x-panels" },
      likeness(scope, now),
      html(
        "div",
        { class: "x-panel" },
        curves(
          scope,
          now,
          "spread of the tokens against layers, logarithmic",
          [
            ["1", 1],
            ["10⁻⁴", 1e-4],
            ["10⁻⁸", 1e-8],
            ["10⁻¹²", 1e-12],
          ],
          [(floor) => floor.spread],
          (value) => Math.log10(Math.max(value, LEAST)),
          ["spread of the tokens"],
        ),
        curves(
          scope,
          now,
          "effective rank and entropy against layers",
          [
            ["1", 1],
            ["½", 0.5],
            ["0", 0],
          ],
          [(floor) => floor.rank / TOKENS, (floor) => floor.undecided],
          (value) => value,
          ["effective rank, of 12", "entropy of the next attention"],
        ),
      ),
    ),
    facts(scope, now),
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

/** A cell for each pair of tokens: the stronger the colour, the more alike; the other colour, opposed. @param {Scope} scope @param {Now} now */
function likeness(scope, now) {
  const drawing = picture(320, 300, "cosine between every two tokens");
  const at = linear([0, TOKENS], [16, 304]);
  const cells = fill(TOKENS, TOKENS, () => 0).map((row, i) =>
    row.map((_, j) =>
      svg("rect", { x: at(j) + 0.5, y: at(i) - 11.5, width: at(1) - at(0) - 1, height: at(1) - at(0) - 1 }),
    ),
  );
  drawing.append(svg("rect", { class: "x-ground", x: 16, y: 4, width: 288, height: 288 }), ...cells.flat());
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
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "A cell for each pair of tokens after these layers. Blue: alike, the stronger the more. Orange: opposed. All blue: all tokens are one.",
    ),
  );
}

/**
 * Measures against the layers, and a line at the present depth.
 * @param {Scope} scope @param {Now} now @param {string} label
 * @param {[string, number][]} levels marks at the axis @param {((floor: Floor) => number)[]} measures
 * @param {(value: number) => number} height @param {string[]} names of the measures
 */
function curves(scope, now, label, levels, measures, height, names) {
  const top = 6 + 15 * names.length;
  const drawing = picture(320, 182, label);
  const x = linear([0, LAYERS], [LEFT, RIGHT]);
  const y = linear([levels[0][1], levels[levels.length - 1][1]].map(height), [top, BOTTOM]);
  const lines = ["x-line x-first", "x-line x-second x-dashed"]
    .slice(0, measures.length)
    .map((look) => svg("path", { class: look }));
  const here = svg("path", { class: "x-axis" });
  const rounding = svg("text", { y: BOTTOM - 6 });
  drawing.append(
    ...names.map((name, i) =>
      named(
        i ? `${name}, dashed` : name,
        i || names.length > 1 ? LEFT : 0,
        10 + 15 * i,
        ["x-of-first", "x-of-second"][i],
      ),
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
    measures.forEach((of, i) => {
      const values = now.all().map(of);
      const end = values.findIndex((value) => value < LEAST); // where only rounding is left, the line ends
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

/** @param {Scope} scope @param {Now} now */
function facts(scope, now) {
  /** @type {[string, (floor: Floor) => string][]} */
  const measures = [
    ["mean cosine of two tokens", ({ x }) => fixed(alike(x), 3)],
    ["spread", (floor) => tiny(floor.spread)],
    ["effective rank, of 12", ({ rank }) => fixed(rank)],
    ["entropy of the next layer's attention", (floor) => fixed(floor.undecided, 3)],
  ];
  const cells = measures.map(() => html("td"));
  scope.when(EVERYTHING, () => measures.forEach(([, of], i) => (cells[i].textContent = of(now.here()))));
  return html(
    "table",
    { class: "x-table x-wide" },
    ...measures.map(([name], i) => html("tr", {}, html("th", { scope: "row" }, name), cells[i])),
  );
}

export default { render };
