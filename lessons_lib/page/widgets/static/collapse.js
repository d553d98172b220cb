/** Twelve tokens in a stack of random layers: their directions as points, their rank, and the entropy of the attention. */

import {
  button,
  checkbox,
  fixed,
  html,
  linear,
  logSlider,
  named,
  panel,
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
  draw,
  effectiveRank,
  onSphere,
  spread,
  streams,
  undecided,
  weights,
} from "./collapse.math.js";
import { say } from "./words.js";

/**
 * @typedef {number[][]} Matrix one row for each token
 * @typedef {{ depth: number, residual: number, temperature: number, norm: string, causal: boolean,
 *   seed: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ rank: number, undecided: number }} Measured the tokens after a layer, and the attention of the next
 * @typedef {{ stack(): Matrix[], spreads(): number[], points(): number[][][], measured(): Measured[] }} Now
 * @typedef {(draw: () => void) => void} Drawing registers a function that draws
 */

/** @type {(keyof Traits)[]} */
const STACK = ["seed", "residual", "norm", "causal", "temperature"];
const [LEFT, RIGHT, BOTTOM] = [44, 312, 146];
const LEAST = 1e-12; // smaller values are rounding errors

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  /** @type {{ stack: Matrix[], spreads: number[], points: number[][][], measured: Measured[] }} */
  const found = { stack: [], spreads: [], points: [], measured: [] };
  const now = {
    stack: () => found.stack,
    spreads: () => found.spreads,
    points: () => found.points,
    measured: () => found.measured,
  };
  const table = html("div");
  /** Functions that draw what is known at once, and what takes longer. @type {(() => void)[][]} */
  const [drawings, statistics] = [[], []];
  const soon = (/** @type {() => void} */ redraw) => void drawings.push(redraw);
  const later = (/** @type {() => void} */ redraw) => void statistics.push(redraw);
  let frame = 0;
  const measure = () => {
    const drawn = draw(scope.read("seed"));
    const [causal, temperature] = [scope.read("causal"), scope.read("temperature")];
    found.measured = found.stack.map((x, t) => ({
      rank: effectiveRank(x),
      undecided: undecided(weights(x, drawn.layers[t], causal, temperature), causal),
    }));
    for (const redraw of statistics) redraw();
    table.removeAttribute("aria-busy");
  };
  const compute = () => {
    const drawn = draw(scope.read("seed"));
    const [causal, temperature] = [scope.read("causal"), scope.read("temperature")];
    found.stack = streams(drawn, scope.read("residual"), scope.read("norm"), causal, temperature);
    found.spreads = found.stack.map(spread);
    found.points = onSphere(found.stack);
    for (const redraw of drawings) redraw();
    table.setAttribute("aria-busy", "true");
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(measure); // after the drawings are shown
  };
  scope.later(() => cancelAnimationFrame(frame));
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(scope, slider(scope.value("depth"), { label: say("Layers"), min: 0, max: LAYERS, step: 1 })),
    ),
    panels(
      [say("Tokens"), sphere(scope, now, soon)],
      [
        say("Spread"),
        curves(scope, soon, {
          label: say("spread of the tokens against layers, logarithmic"),
          levels: [
            ["1", 1],
            ["10⁻⁴", 1e-4],
            ["10⁻⁸", 1e-8],
            ["10⁻¹²", 1e-12],
          ],
          measures: [[say("spread of the tokens"), now.spreads]],
          height: (value) => Math.log10(Math.max(value, LEAST)),
        }),
      ],
      [
        say("Rank"),
        curves(scope, later, {
          label: say("effective rank and entropy against layers, as shares of the largest"),
          levels: [
            ["1", 1],
            ["½", 0.5],
            ["0", 0],
          ],
          measures: [
            [say("effective rank, of 12"), () => now.measured().map(({ rank }) => rank / TOKENS)],
            [say("entropy of the next attention"), () => now.measured().map((one) => one.undecided)],
          ],
          height: (value) => value,
        }),
      ],
    ),
    html(
      "div",
      { class: "x-settings" },
      slider(scope.value("residual"), { label: say("Residual"), min: 0, max: 1, step: 0.05, show: (r) => fixed(r) }),
      logSlider(scope.value("temperature"), { label: say("Temperature T"), min: 0.05, max: 20, show: (t) => fixed(t) }),
      select(scope.value("norm"), {
        label: say("Norm"),
        options: [
          ["after", say("after")],
          ["before", say("before")],
        ],
      }),
      html(
        "div",
        { class: "x-bench" },
        checkbox(scope.value("causal"), { label: say("causal") }),
        button(say("Draw again"), () => scope.write("seed", (scope.read("seed") + 1) % 2 ** 31)),
      ),
    ),
    table,
  );
  const cells = [say("mean cosine"), say("spread"), say("effective rank, of 12"), say("entropy, 0 to 1")].map(
    (name) => {
      const cell = html("td");
      return { cell, row: html("tr", {}, html("th", { scope: "row" }, name), cell) };
    },
  );
  table.append(html("table", { class: "x-table x-numbers" }, ...cells.map(({ row }) => row)));
  const tell = () => {
    const depth = scope.read("depth");
    const measured = found.measured[depth];
    const [cosine, left] = [alike(found.stack[depth]), found.spreads[depth]];
    [fixed(cosine, 3), tiny(left), fixed(measured.rank), fixed(measured.undecided, 3)].forEach(
      (words, i) => (cells[i].cell.textContent = words),
    );
    scope.announce(
      say(
        "After {depth} layers the mean cosine of two tokens is {cosine}, their spread {left}, their effective " +
          "rank {rank} of {TOKENS}.",
        { depth, cosine: fixed(cosine), left: tiny(left), rank: fixed(measured.rank, 1), TOKENS },
      ),
    );
  };
  later(tell);
  scope.when(STACK, compute);
  scope.when(["depth"], () => found.measured.length && tell());
  return scope.dispose;
}

/**
 * The tokens as points on a map of the sphere of directions, and their way through the last layer.
 * @param {Scope} scope @param {Now} now @param {Drawing} soon
 */
function sphere(scope, now, soon) {
  const [middle, high, radius] = [160, 152, 140];
  const drawing = picture(320, 310, say("the directions of the tokens, seen from their mean"));
  const quarter = radius * Math.SQRT1_2;
  const colour = (/** @type {number} */ i) => `--share: ${Math.round((100 * i) / (TOKENS - 1))}%`;
  const trails = Array.from({ length: TOKENS }, (_, i) => svg("path", { class: "l-trail", style: colour(i) }));
  const dots = Array.from({ length: TOKENS }, (_, i) => svg("circle", { class: "l-token", r: 6, style: colour(i) }));
  drawing.append(
    svg("circle", { class: "x-ground", cx: middle, cy: high, r: radius }),
    svg("circle", { class: "x-axis", cx: middle, cy: high, r: radius }),
    svg("circle", { class: "x-axis x-dashed", cx: middle, cy: high, r: quarter }),
    svg("path", { class: "x-axis", d: `M${middle - 5} ${high}h10M${middle} ${high - 5}v10` }),
    named("90°", middle, high + quarter + 14, "", "middle"),
    named(say("180° from the mean"), middle, high + radius + 15, "", "middle"),
    ...trails,
    ...dots,
  );
  const at = (/** @type {number[]} */ [x, y]) => [middle + radius * x, high - radius * y];
  const redraw = () => {
    const depth = scope.read("depth");
    const [points, before] = [now.points()[depth], now.points()[Math.max(0, depth - 1)]];
    if (!points) return;
    points.forEach((point, i) => {
      const [x, y] = at(point).map((c) => c.toFixed(1));
      dots[i].style.transform = `translate(${x}px, ${y}px)`;
      trails[i].setAttribute("d", `M${at(before[i]).map((c) => c.toFixed(1))}L${x} ${y}`);
    });
  };
  soon(redraw);
  scope.when(["depth"], redraw);
  return panel(
    [
      drawing,
      say(
        "A point for each token, the first blue, the last orange. Its distance from the centre is its angle " +
          "to the mean. Lines: the last layer. All in the centre: all equal.",
      ),
    ],
    "x-tall",
  );
}

/**
 * Measures against the layers, and a line at the current depth.
 * @param {Scope} scope @param {Drawing} redrawn
 * @param {{ label: string, levels: [string, number][], measures: [string, () => number[]][],
 *   height: (value: number) => number }} options `levels` are marks at the axis
 */
function curves(scope, redrawn, { label, levels, measures, height }) {
  const top = 6 + 15 * measures.length;
  const drawing = picture(320, 182, label);
  const x = linear([0, LAYERS], [LEFT, RIGHT]);
  const y = linear([levels[0][1], levels[levels.length - 1][1]].map(height), [top, BOTTOM]);
  const looks = ["x-first", "x-second x-dashed"];
  const lines = measures.map((_, i) => svg("path", { class: `x-line ${looks[i]}` }));
  const here = svg("path", { class: "x-axis" });
  const rounding = svg("text", { y: BOTTOM - 6 });
  drawing.append(
    ...measures.map(([name], i) =>
      named(i ? say("{name}, dashed", { name }) : name, LEFT, 10 + 15 * i, ["x-of-first", "x-of-second"][i]),
    ),
    svg("text", { x: (LEFT + RIGHT) / 2, y: BOTTOM + 31, "text-anchor": "middle" }, say("layers")),
    svg("path", { class: "x-axis", d: `M${LEFT} ${top}V${BOTTOM}H${RIGHT}` }),
    ...levels.map(([name, value]) => svg("text", { x: LEFT - 6, y: y(height(value)) + 4, "text-anchor": "end" }, name)),
    ...[0, 8, 16, 24, 32].map((t) => svg("text", { x: x(t), y: BOTTOM + 16, "text-anchor": "middle" }, String(t))),
    here,
    rounding,
    ...lines,
  );
  redrawn(() =>
    measures.forEach(([, of], i) => {
      const values = of();
      const end = values.findIndex((value) => value < LEAST); // the line ends where only rounding errors are left
      const shown = end < 0 || measures.length > 1 ? values : values.slice(0, end + 1);
      const points = shown.map((value, t) => `${x(t).toFixed(1)} ${y(height(value)).toFixed(1)}`);
      lines[i].setAttribute("d", `M${points.join("L")}`);
      rounding.textContent = shown.length < values.length ? say("below rounding") : "";
      rounding.setAttribute("x", String(x(Math.min(shown.length, 20)) + 4));
    }),
  );
  scope.when(["depth"], () => here.setAttribute("d", `M${x(scope.read("depth"))} ${top}V${BOTTOM}`));
  return panel([drawing]);
}

export default { render };
