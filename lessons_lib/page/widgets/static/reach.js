/** Sparse attention patterns: the computed pairs, and how far information travels through several layers. */

import { html, linear, named, panel, panels, picture, select, slider, stage, svg } from "./kit.js";
import { reach } from "./masks.math.js";
import { withPlayButton } from "./play.js";
import { MOST_LAYERS, N, mask, reachOfTheLast } from "./sparse.math.js";
import { PATTERNS, maskAndDraws, patternSliders } from "./sparse_controls.js";
import { say } from "./words.js";

/**
 * @typedef {import("./sparse.math.js").Pattern} Pattern
 * @typedef {Pattern & { layers: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ seen: boolean[][], counts: number[] }} Now the computed pairs, and the reach after each number of layers
 */

/** @type {(keyof Pattern)[]} */
const PATTERN = ["way", "window", "step", "n_global", "n_random", "causal", "seed"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...PATTERN, "layers"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  /** @type {Now} */
  let now;
  scope.when(PATTERN, () => {
    const pattern = /** @type {Pattern} */ (Object.fromEntries(PATTERN.map((name) => [name, scope.read(name)])));
    const seen = mask(pattern);
    now = { seen, counts: reachOfTheLast(seen) };
  });
  const reached = html("b");
  const rest = html("span");
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(scope, slider(scope.value("layers"), { label: say("Layers"), min: 1, max: MOST_LAYERS, step: 1 })),
    ),
    html(
      "div",
      { class: "x-settings" },
      select(scope.value("way"), {
        label: say("Pattern"),
        options: Object.entries(PATTERNS).map(([way, [name]]) => [way, say(name)]),
      }),
      scope.rebuild(
        ["way"],
        () => scope.read("way"),
        (part) => {
          const way = part.read("way");
          const sliders = patternSliders(part, way);
          return html("div", {}, ...sliders, maskAndDraws(part, { masked: true, drawn: way === "bigbird" }));
        },
      ),
    ),
    html("p", { class: "f-headline" }, reached, " ", rest),
    panels([say("Pairs"), square(scope, () => now)], [say("Reach"), curve(scope, () => now)]),
  );
  scope.when(EVERYTHING, () => {
    const layers = scope.read("layers");
    const count = now.seen.flat().filter(Boolean).length;
    reached.textContent = say("{n} of {N} words", { n: now.counts[layers - 1], N });
    const known = { n: count.toLocaleString("en"), total: (N * N).toLocaleString("en") };
    rest.textContent =
      layers > 1
        ? say(
            "can influence the output of the last word through {layers} layers, with {n} of {total} pairs computed " +
              "in each.",
            { layers, ...known },
          )
        : say(
            "can influence the output of the last word through 1 layer, with {n} of {total} pairs computed in each.",
            { ...known },
          );
    scope.announce(`${say(PATTERNS[scope.read("way")][0])}: ${reached.textContent} ${rest.textContent}`);
  });
  return scope.dispose;
}

const [SIZE, LEFT, TOP] = [280, 24, 34];

/** The square of pairs: computed, and within reach. @param {Scope} scope @param {() => Now} now */
function square(scope, now) {
  const drawing = picture(LEFT + SIZE + 2, TOP + SIZE + 2, say("computed pairs, and pairs within reach"));
  const [near, computed, last] = ["f-near", "x-may", "f-last"].map((look) => svg("path", { class: look }));
  const side = SIZE / N;
  drawing.append(
    svg("rect", { class: "x-ground", x: LEFT, y: TOP, width: SIZE, height: SIZE }),
    near,
    computed,
    last,
    named(say("keys"), LEFT + SIZE, 12, "", "end"),
    named(say("queries"), 0, 12),
    ...[0, 19, 39, 59].flatMap((k) => [
      named(String(k + 1), LEFT + side * (k + 0.5), TOP - 4, "", "middle"),
      named(String(k + 1), LEFT - 4, TOP + side * (k + 0.5) + 4, "", "end"),
    ]),
  );
  last.setAttribute("d", `M${LEFT - 1} ${TOP + side * (N - 1) - 1}h${SIZE + 2}v${side + 2}h${-SIZE - 2}z`);
  const cells = (/** @type {boolean[][]} */ rows) =>
    rows
      .flatMap((row, i) =>
        row.map((on, j) => (on ? `M${(LEFT + side * j).toFixed(1)} ${(TOP + side * i).toFixed(1)}h4v4h-4z` : "")),
      )
      .join("");
  scope.when(EVERYTHING, () => {
    const { seen } = now();
    computed.setAttribute("d", cells(seen));
    near.setAttribute(
      "d",
      cells(reach(seen, scope.read("layers")).map((row, i) => row.map((on, j) => on && !seen[i][j]))),
    );
  });
  const key = (/** @type {string} */ look, /** @type {string} */ words) =>
    html("span", {}, html("i", { class: `x-key ${look}` }), words);
  return panel([
    drawing,
    html("p", { class: "x-legend" }, key("x-may", say("computed")), key("f-near", say("within reach of the layers"))),
    say("A row for each of {N} queries. The frame is the row of the last word.", { N }),
  ]);
}

/** The reach of the last word against the number of layers. @param {Scope} scope @param {() => Now} now */
function curve(scope, now) {
  const [wide, high, left, top] = [320, 316, 30, 34];
  const x = linear([1, MOST_LAYERS], [left + 10, wide - 12]);
  const y = linear([0, N], [high - 36, top]);
  const drawing = picture(wide, high, say("words within reach of the last word against the number of layers"));
  const line = svg("path", { class: "x-line x-first" });
  const dots = Array.from({ length: MOST_LAYERS }, (_, i) =>
    svg("circle", { class: "x-dot x-first", r: 3, cx: x(i + 1) }),
  );
  const label = svg("text", { class: "x-of-first", "text-anchor": "middle" });
  drawing.append(
    named(say("words within reach of the last"), 0, 12),
    svg("path", { class: "x-axis", d: `M${left} ${top}V${y(0)}H${wide - 6}` }),
    ...[0, 20, 40, 60].map((some) => named(String(some), left - 6, y(some) + 4, "", "end")),
    ...dots.map((_, i) => named(String(i + 1), x(i + 1), y(0) + 16, "", "middle")),
    named(say("layers"), wide - 6, high - 4, "", "end"),
    line,
    ...dots,
    label,
  );
  scope.when(EVERYTHING, () => {
    const { counts } = now();
    const layers = scope.read("layers");
    line.setAttribute("d", `M${counts.map((some, i) => `${x(i + 1).toFixed(1)} ${y(some).toFixed(1)}`).join("L")}`);
    dots.forEach((dot, i) => {
      dot.setAttribute("cy", y(counts[i]).toFixed(1));
      dot.setAttribute("r", i + 1 === layers ? "6" : "3");
    });
    label.textContent = String(counts[layers - 1]);
    label.setAttribute("x", String(x(layers)));
    label.setAttribute("y", (y(counts[layers - 1]) - 11).toFixed(1));
  });
  return panel([drawing, say("The line ends at 60 if the output of the last word can depend on all words.")]);
}

export default { render };
