/** Random walks from query to key, layer by layer: single walkers, and the exact distribution for each starting token. */

import { effectiveCount, sum } from "./arithmetic.js";
import {
  button,
  checkbox,
  fixed,
  html,
  linear,
  logSlider,
  named,
  numbers,
  panel,
  panels,
  picture,
  slider,
  stage,
  svg,
} from "./kit.js";
import { withPlayButton } from "./play.js";
import { STEPS, WALKERS, apart, draw, walkers, walks, weights } from "./walk.math.js";
import { say } from "./words.js";

/**
 * @typedef {{ n: number, start: number, layers: number, causal: boolean, temperature: number, residual: number,
 *   same: boolean, seed: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {number[][]} Matrix one row for each walker
 * @typedef {{ rows(): Matrix, mass(): number[], through(): Matrix, distances(): number[], walkers(): number[] }} Now
 */

/** @type {(keyof Traits)[]} */
const WEIGHTS = ["n", "seed", "causal", "temperature", "residual", "same"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  /** @type {Matrix[]} */
  let layers = [];
  /** @type {Matrix[]} */
  let places = [];
  /** @type {number[][]} */
  let paths = [];
  scope.when(WEIGHTS, () => {
    const drawn = draw(scope.read("seed"), scope.read("n"));
    layers = drawn.map((s) =>
      weights(scope.read("same") ? drawn[0] : s, scope.read("causal"), scope.read("temperature")),
    );
    places = walks(layers, scope.read("residual"));
  });
  scope.when([...WEIGHTS, "start"], () => {
    paths = walkers(layers, scope.read("residual"), scope.read("start"), scope.read("seed") + 1);
  });
  const now = {
    rows: () => places[scope.read("layers")],
    mass: () => places[scope.read("layers")][scope.read("start")],
    through: () => places.map((rows) => rows[scope.read("start")]),
    distances: () => places.map(apart),
    walkers: () => paths[scope.read("layers")],
  };
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(scope, slider(scope.value("layers"), { label: say("Layers back"), min: 0, max: STEPS, step: 1 })),
    ),
    scope.rebuild(
      ["n"],
      () => String(scope.read("n")),
      (part) =>
        panels(
          [say("Walkers"), crowd(part, now)],
          [say("Layers"), through(part, now)],
          [say("Distance"), curves(part, now)],
        ),
    ),
    html(
      "div",
      { class: "x-settings" },
      scope.rebuild(
        ["n"],
        () => String(scope.read("n")),
        (part) => slider(part.value("start"), { label: say("From token"), min: 0, max: part.read("n") - 1, step: 1 }),
      ),
      logSlider(scope.value("temperature"), { label: say("Temperature T"), min: 0.05, max: 20, show: (t) => fixed(t) }),
      slider(scope.value("residual"), {
        label: say("Residual share"),
        min: 0,
        max: 1,
        step: 0.05,
        show: (r) => fixed(r),
      }),
      html(
        "div",
        { class: "x-bench" },
        checkbox(scope.value("causal"), { label: say("causal") }),
        checkbox(scope.value("same"), { label: say("the same weights in every layer") }),
        button(say("Draw again"), () => scope.write("seed", (scope.read("seed") + 1) % 2 ** 31)),
      ),
    ),
    numbers(scope, EVERYTHING, [
      [say("mass on the start token"), () => fixed(now.mass()[scope.read("start")], 3)],
      [say("mass on token 0"), () => fixed(now.mass()[0], 3)],
      [say("effective number of tokens"), () => fixed(effectiveCount(now.mass()), 3)],
      [say("largest distance of two"), () => fixed(apart(now.rows()), 3)],
    ]),
  );
  scope.when(EVERYTHING, () => {
    const p = now.mass();
    const best = p.indexOf(Math.max(...p));
    scope.announce(
      say(
        "{layers} layers back from token {start}: most of the mass, {p}, is on token {best}; the largest " +
          "distance of two walkers is {apart}.",
        {
          layers: scope.read("layers"),
          start: scope.read("start"),
          p: fixed(p[best]),
          best,
          apart: fixed(apart(now.rows())),
        },
      ),
    );
  });
  return scope.dispose;
}

/** @type {(keyof Traits)[]} */
const EVERYTHING = [...WEIGHTS, "start", "layers"];
const [LEFT, RIGHT, TOP] = [34, 312, 22];

/** The distribution of the walk: a row for each layer, a column for each token. @param {Scope} scope @param {Now} now */
function through(scope, now) {
  const [n, bottom] = [scope.read("n"), 141];
  const drawing = picture(320, 172, say("mass on each token after each layer"));
  const x = linear([0, n], [LEFT, RIGHT]);
  const y = linear([0, STEPS + 1], [TOP, bottom]);
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
    svg("rect", { class: "x-ground", x: LEFT, y: TOP, width: RIGHT - LEFT, height: bottom - TOP }),
    ...cells.flat(),
    here,
    named(say("layers back"), 0, TOP - 10),
    ...[0, 4, 8, 12, 16].map((t) =>
      svg("text", { x: LEFT - 6, y: (y(t) + y(t + 1)) / 2 + 4, "text-anchor": "end" }, String(t)),
    ),
    ...tokens(n, x, bottom + 16),
  );
  scope.when([...WEIGHTS, "start"], () => {
    const shade = (/** @type {number} */ share) => Math.min(1, (share * n) / 4).toFixed(3);
    now.through().forEach((p, t) => p.forEach((share, j) => cells[t][j].setAttribute("fill-opacity", shade(share))));
  });
  scope.when(["layers"], () => here.setAttribute("y", String(y(scope.read("layers")))));
  return panel([drawing, say("The mass, a row for each layer. Full colour: {most} or more.", { most: fixed(4 / n) })]);
}

/** Walkers as dots that step, in bars of their exact distribution, and the mean over all starting tokens. @param {Scope} scope @param {Now} now */
function crowd(scope, now) {
  const [n, bottom] = [scope.read("n"), 284];
  const drawing = picture(320, 316, say("the walkers and the mass on each token now"));
  const x = linear([0, n], [LEFT, RIGHT]);
  const y = linear([0, 1], [bottom, TOP]);
  const side = x(1) - x(0);
  const bars = Array.from({ length: n }, (_, j) =>
    svg("rect", { class: "x-fill", x: x(j) + 0.12 * side, width: 0.76 * side }),
  );
  const common = svg("path", { class: "x-line x-second" });
  // A pile of all walkers is as high as the mass 1.
  const width = 0.76 * side;
  const beside = Math.max(1, Math.round(Math.sqrt((width * WALKERS) / (bottom - TOP))));
  const above = ((bottom - TOP) * beside) / WALKERS;
  const radius = Math.min(0.45 * above, (0.45 * width) / beside, 5);
  const dots = Array.from({ length: WALKERS }, () => svg("circle", { class: "w-walker", r: radius.toFixed(1) }));
  drawing.append(
    svg("path", { class: "x-axis", d: `M${LEFT} ${TOP}V${bottom}H${RIGHT}` }),
    ...[0, 0.5, 1].map((t) => svg("text", { x: LEFT - 6, y: y(t) + 4, "text-anchor": "end" }, String(t))),
    named(say("mass"), 0, TOP - 10),
    named(say("mean over all starts"), RIGHT, TOP - 10, "x-of-second", "end"),
    ...bars,
    ...dots,
    common,
    ...tokens(n, x, bottom + 16),
  );
  scope.when(EVERYTHING, () => {
    now.mass().forEach((share, j) => {
      bars[j].setAttribute("y", String(y(share)));
      bars[j].setAttribute("height", String(bottom - y(share)));
    });
    const marks = Array.from({ length: n }, (_, j) => y(sum(now.rows().map((p) => p[j])) / n).toFixed(1));
    common.setAttribute(
      "d",
      marks.map((at, j) => `M${(x(j) + 0.05 * side).toFixed(1)} ${at}h${(0.9 * side).toFixed(1)}`).join(""),
    );
    const piles = Array(n).fill(0);
    now.walkers().forEach((token, walker) => {
      const height = piles[token]++;
      const left = x(token) + 0.12 * side + (width * ((height % beside) + 0.5)) / beside;
      const top = bottom - above * (Math.floor(height / beside) + 0.5);
      dots[walker].style.transform = `translate(${left.toFixed(1)}px, ${top.toFixed(1)}px)`;
    });
  });
  return panel(
    [
      drawing,
      say(
        "{WALKERS} walkers from one token step from query to key. Bars: the exact mass. Where they reach the " +
          "mean over walkers from all tokens, the start is forgotten.",
        { WALKERS },
      ),
    ],
    "x-tall",
  );
}

/**
 * The largest distance between two walks, and the mass on token 0, through all layers.
 * @param {Scope} scope @param {Now} now
 */
function curves(scope, now) {
  const drawing = picture(320, 168, say("distance of walkers, and mass on token 0, against layers"));
  const [top, bottom, left] = [36, 132, LEFT];
  const x = linear([0, STEPS], [left, RIGHT]);
  const y = linear([0, 1], [bottom, top]);
  const lines = ["x-line x-first", "x-line x-second x-dashed"].map((look) => svg("path", { class: look }));
  const here = svg("path", { class: "x-axis" });
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${RIGHT}` }),
    ...[0, 0.5, 1].map((t) => svg("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end" }, String(t))),
    ...[0, 4, 8, 12, 16].map((t) => svg("text", { x: x(t), y: bottom + 16, "text-anchor": "middle" }, String(t))),
    named(say("largest distance of two walkers"), left, 10, "x-of-first"),
    named(say("this walker's mass on token 0, dashed"), left, 25, "x-of-second"),
    svg("text", { x: (left + RIGHT) / 2, y: bottom + 31, "text-anchor": "middle" }, say("layers back")),
    here,
    ...lines,
  );
  scope.when([...WEIGHTS, "start"], () => {
    [now.distances(), now.through().map((p) => p[0])].forEach((values, i) =>
      lines[i].setAttribute(
        "d",
        values.map((v, t) => `${t ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join(""),
      ),
    );
  });
  scope.when(["layers"], () => here.setAttribute("d", `M${x(scope.read("layers"))} ${top}V${bottom}`));
  return panel([drawing]);
}

/** The indices of the tokens under their columns. @param {number} n @param {(j: number) => number} x @param {number} y */
function tokens(n, x, y) {
  const names = Array.from({ length: n }, (_, j) =>
    svg("text", { x: (x(j) + x(j + 1)) / 2, y, "text-anchor": "middle" }, String(j)),
  );
  return [...names, svg("text", { x: (LEFT + RIGHT) / 2, y: y + 14, "text-anchor": "middle" }, say("token"))];
}

export default { render };
