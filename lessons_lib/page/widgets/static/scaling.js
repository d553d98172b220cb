/** Scores of standard normal queries and keys at every width, under four scales, and their softmax. */

import { entropy, median, softmax, sum } from "./arithmetic.js";
import {
  button,
  fixed,
  headline,
  html,
  linear,
  mappedSlider,
  named,
  oncePerFrame,
  panel,
  picture,
  select,
  setAttributes,
  stage,
  svg,
  tiny,
} from "./kit.js";
import { withPlayButton } from "./play.js";
import { QUERIES, WIDTHS, bands, draw, jacobianNorm, scoreStd, scores } from "./scaling.math.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ width: number, n_keys: number, scaling: string, seed: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {number[][]} Matrix one row for each query
 */

/** @type {{ name: string, of: (p: number[]) => number, show: (x: number) => string }[]} */
const MEASURES = [
  { name: mark("entropy / log n"), of: (p) => entropy(p) / Math.log(p.length), show: (x) => fixed(x, 3) },
  { name: mark("largest weight"), of: (p) => Math.max(...p), show: (x) => fixed(x, 3) },
  { name: mark("norm of Jacobian"), of: jacobianNorm, show: tiny },
];
const mean = (/** @type {number[]} */ numbers) => sum(numbers) / numbers.length;

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  /** @type {ReturnType<typeof draw>} */
  let drawn;
  scope.when(["seed", "n_keys"], () => {
    drawn = draw(scope.read("seed"), scope.read("n_keys"));
  });
  const at = (/** @type {number} */ width) => scores(drawn, scope.read("scaling"), width);
  /** @type {Matrix} */
  let now;
  /** @type {Matrix} */
  let weights;
  scope.when(EVERYTHING, () => {
    now = at(scope.read("width"));
    weights = now.map((row) => softmax(row));
  });
  const largest = () => Math.max(...weights[0]);
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(
        scope,
        mappedSlider(scope.value("width"), {
          label: say("Width dₖ"),
          min: 1,
          max: 4096,
          step: 1,
          toPlace: Math.log2,
          toValue: (p) => 2 ** p,
        }),
      ),
      html(
        "div",
        { class: "x-bench" },
        select(scope.value("scaling"), {
          label: say("Scale"),
          options: [
            ["1", say("1 (none)")],
            ["1/sqrt(d)", "1 / √dₖ"],
            ["1/d", "1 / dₖ"],
            ["sqrt(d)", "√dₖ"],
          ],
        }),
        button(say("Draw again"), () => scope.write("seed", (scope.read("seed") + 1) % 2 ** 31)),
      ),
      headline(scope, EVERYTHING, () => [
        fixed(largest()),
        say("largest of {n} weights; if equal, {equal}", {
          n: scope.read("n_keys"),
          equal: fixed(1 / scope.read("n_keys")),
        }),
      ]),
    ),
    html(
      "div",
      { class: "x-panels" },
      melting(scope, at),
      spread(scope, () => now),
      throughWidths(scope, at),
    ),
    html(
      "details",
      {},
      html("summary", {}, say("Entropy, largest weight and Jacobian in numbers")),
      table(scope, () => weights),
    ),
  );
  scope.when(EVERYTHING, () => {
    const share = median(weights.map((p) => MEASURES[0].of(p)));
    const [width, scaling] = [scope.read("width"), scope.read("scaling")];
    scope.announce(
      say(
        "Width {width}: the scores have standard deviation {std}; the largest weight of this query is " +
          "{largest}; the median entropy is {share} percent of the most possible.",
        { width, std: short(scoreStd(scaling, width)), largest: fixed(largest()), share: fixed(100 * share, 0) },
      ),
    );
  });
  return scope.dispose;
}

/** @type {(keyof Traits)[]} */
const EVERYTHING = ["width", "scaling", "seed", "n_keys"];
const short = (/** @type {number} */ x) => (x >= 100 || Number.isInteger(x) ? x.toFixed(0) : x.toPrecision(2));

/**
 * A histogram of all scores, the normal curve of their variance, and the standard normal curve, both of height 1. The
 * axis is fixed: scores beyond it are not drawn.
 * @param {Scope} scope @param {() => Matrix} now
 */
function spread(scope, now) {
  const [left, right, top, bottom, limit] = [8, 312, 34, 126, 16];
  const x = linear([-limit, limit], [left, right]);
  const y = linear([0, 1.3], [bottom, top]);
  const inside = (/** @type {number} */ s) => x(Math.max(-limit, Math.min(limit, s))).toFixed(1);
  const bell = (/** @type {number} */ std) => {
    const steps = Array.from({ length: 161 }, (_, i) => (limit * (i - 80)) / 80);
    const places = steps.map((s) => [x(s), y(Math.exp(-((s / std) ** 2) / 2))]);
    return `M${places.map((place) => place.map((c) => c.toFixed(1)).join(" ")).join("L")}`;
  };
  const bars = svg("path", { class: "x-fill" });
  const curve = svg("path", { class: "x-line x-first" });
  const name = named("", left, 10, "x-of-first");
  const drawing = picture(320, 158, say("histogram of the scores"));
  drawing.append(
    bars,
    curve,
    svg("path", { class: "x-line x-second x-dashed", d: bell(1) }),
    svg("path", { class: "x-axis", d: `M${left} ${bottom}H${right}` }),
    name,
    named(say("standard deviation 1, dashed"), left, 25, "x-of-second"),
    ...[-8, 0, 8].map((s) => named(fixed(s, 0), x(s), bottom + 15, "", "middle")),
    named(say("score"), right, bottom + 15, "", "end"),
  );
  scope.when(EVERYTHING, () => {
    const std = scoreStd(scope.read("scaling"), scope.read("width"));
    const all = now().flat();
    const bin = std / 4;
    const counts = new Map();
    for (const s of all) counts.set(Math.floor(s / bin), (counts.get(Math.floor(s / bin)) ?? 0) + 1);
    const peak = (all.length * bin) / (std * Math.sqrt(2 * Math.PI));
    bars.setAttribute(
      "d",
      [...counts]
        .filter(([i]) => i * bin < limit && (i + 1) * bin > -limit)
        .map(
          ([i, c]) => `M${inside(i * bin)} ${bottom}V${y(Math.min(1.3, c / peak))}H${inside((i + 1) * bin)}V${bottom}`,
        )
        .join(""),
    );
    curve.setAttribute("d", bell(std));
    name.textContent = say("scores: standard deviation {std}", { std: short(std) });
  });
  return panel([
    drawing,
    say("Scores of {n} queries, and the normal curve of the same variance. Both curves are equally high.", {
      n: QUERIES,
    }),
  ]);
}

/**
 * The weights of one query at every width, as a stack of bars whose height is always 1. While the width grows without a
 * scale, they melt into one. The stack at the chosen width is framed; a click or a drag chooses another one.
 * @param {Scope} scope @param {(width: number) => Matrix} at
 */
function melting(scope, at) {
  const [left, right, top, bottom, half] = [20, 300, 26, 336, 9];
  const x = linear([0, WIDTHS.length - 1], [left + half, right]);
  const y = linear([0, 1], [bottom, top]);
  const drawing = picture(320, 362, say("weights of one query at every width, stacked"));
  const [streams, bars, keys] = [svg("g"), svg("g"), named("", right + half, 11, "", "end")];
  const frame = svg("rect", { class: "s-here", y: top - 2, width: 2 * half + 4, height: bottom - top + 4, rx: 3 });
  drawing.append(
    ...["0", "½", "1"].map((words, i) => named(words, left - 6, y(i / 2) + 4, "", "end")),
    ...[0, 6, 12].map((i) => named(String(2 ** i), x(i), bottom + 18, "", "middle")),
    named(say("width dₖ"), x(9), bottom + 18, "", "middle"),
    named(say("weights of one query, stacked"), 0, 11),
    keys,
    streams,
    bars,
    frame,
  );
  /** @type {number[][][]} */
  let stacks; // at each width, the lower and the upper end of each weight, the largest first
  scope.when(["scaling", "seed", "n_keys"], () => {
    stacks = WIDTHS.map((width) => bands(softmax(at(width)[0])));
    const edge = (/** @type {number} */ key, /** @type {number} */ end) => WIDTHS.map((_, i) => y(stacks[i][key][end]));
    streams.replaceChildren(
      ...stacks[0].map((_, key) => {
        const [low, high] = [edge(key, 0), edge(key, 1)].map((heights) => heights.map((h) => h.toFixed(1)));
        const there = WIDTHS.map((_, i) => [x(i), low[i]]);
        const back = WIDTHS.map((_, i) => [x(i), high[i]]).reverse();
        return svg("path", { class: `s-key ${shade(key)}`, d: `${curve(there, "M")}${curve(back, "L")}Z` });
      }),
    );
    bars.replaceChildren(...stacks[0].map((_, key) => svg("rect", { class: `s-bar ${shade(key)}`, width: 2 * half })));
    keys.textContent = say("{n} keys", { n: scope.read("n_keys") });
  });
  scope.when(EVERYTHING, () => {
    const i = WIDTHS.indexOf(scope.read("width"));
    [...bars.children].forEach((bar, key) => {
      const [low, high] = stacks[i][key];
      setAttributes(bar, { x: x(i) - half, y: y(high).toFixed(2), height: (y(low) - y(high)).toFixed(2) });
    });
    frame.setAttribute("x", String(x(i) - half - 2));
  });
  const choose = (/** @type {PointerEvent} */ event) => {
    const box = drawing.getBoundingClientRect();
    const place = linear(
      [x(0), x(WIDTHS.length - 1)],
      [0, WIDTHS.length - 1],
    )(((event.clientX - box.left) / box.width) * 320);
    const width = WIDTHS[Math.max(0, Math.min(WIDTHS.length - 1, Math.round(place)))];
    if (width !== scope.read("width")) scope.write("width", width);
  };
  drawing.classList.add("s-melting");
  const choosing = oncePerFrame(choose);
  drawing.addEventListener("pointerdown", (event) => event.button === 0 && choose(event));
  drawing.addEventListener("pointermove", (event) => event.buttons === 1 && choosing.later(event));
  drawing.addEventListener("pointerup", choosing.flush);
  return panel([drawing], "x-tall");

  /** A smooth line through places. @param {(number | string)[][]} places @param {string} begin */
  function curve(places, begin) {
    return places
      .map(([cx, cy], i) => {
        if (!i) return `${begin}${cx} ${cy}`;
        const [bx, by] = places[i - 1];
        const middle = (Number(bx) + Number(cx)) / 2;
        return `C${middle} ${by} ${middle} ${cy} ${cx} ${cy}`;
      })
      .join("");
  }
}

/** The look of a weight by its rank: the largest, and the others in turns. @param {number} rank */
const shade = (rank) => (rank ? `s-${rank % 3}` : "s-most");

/** Measures of the weights: for this query, and over many. @param {Scope} scope @param {() => Matrix} weights */
function table(scope, weights) {
  const cells = MEASURES.map(() => [0, 1, 2].map(() => html("td")));
  scope.when(EVERYTHING, () => {
    MEASURES.forEach(({ of, show }, i) => {
      const values = weights().map((p) => of(p));
      [values[0], median(values), mean(values)].forEach((value, j) => {
        cells[i][j].textContent = show(value);
      });
    });
  });
  return html(
    "table",
    { class: "x-table" },
    html(
      "tr",
      {},
      html("td"),
      ...[say("this query"), say("median"), say("mean")].map((head) => html("th", { scope: "col" }, head)),
    ),
    ...MEASURES.map(({ name }, i) => html("tr", {}, html("th", { scope: "row" }, say(name)), ...cells[i])),
  );
}

/**
 * The norm of the softmax Jacobian over all widths, on a logarithmic scale: the factor on the gradient.
 * @param {Scope} scope @param {(width: number) => Matrix} at
 */
function throughWidths(scope, at) {
  const [left, right, top, bottom, floor] = [42, 312, 26, 128, -12];
  const x = linear([0, WIDTHS.length - 1], [left, right]);
  const y = linear([floor, 0], [bottom, top]);
  const drawing = picture(320, 148, say("norm of the softmax Jacobian against width"));
  const here = svg("path", { class: "x-axis" });
  const lines = svg("g");
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    ...[0, -6, -12].map((e) => named(e ? tiny(10 ** e).slice(2) : "1", left - 6, y(e) + 4, "", "end")),
    ...[0, 6, 12].map((i) => named(String(2 ** i), x(i), bottom + 15, "", i === 12 ? "end" : "middle")),
    named(say("width dₖ"), x(9), bottom + 15, "", "middle"),
    named(say("norm of the Jacobian"), 0, 10),
    here,
    lines,
  );
  scope.when(["scaling", "seed", "n_keys"], () => {
    const norms = WIDTHS.map((width) => at(width).map((row) => jacobianNorm(softmax(row))));
    const height = (/** @type {number} */ v) => y(Math.max(floor, Math.log10(v || 1e-99)));
    const line = (/** @type {number[]} */ values) =>
      values.map((v, i) => `${i ? "L" : "M"}${x(i)} ${height(v).toFixed(1)}`).join("");
    const [medians, means] = [norms.map(median), norms.map(mean)];
    lines.replaceChildren(
      svg("path", { class: "x-line x-first", d: line(medians) }),
      svg("path", { class: "x-line x-second x-dashed", d: line(means) }),
      // each label on its own side of the lines: the mean is above the median where they differ
      named(say("median query"), x(6), Math.min(bottom - 5, height(medians[6]) + 18), "x-of-first", "end"),
      named(say("mean, dashed"), right, Math.min(height(means[10]), height(means[12])) - 8, "x-of-second", "end"),
    );
  });
  scope.when(["width"], () => here.setAttribute("d", `M${x(Math.log2(scope.read("width")))} ${top}V${bottom}`));
  return panel([
    drawing,
    say("The norm of the softmax's Jacobian over many queries: what of the gradient comes through."),
  ]);
}

export default { render };
