/** Scores of standard normal queries and keys at every width, under four scales, and their softmax. */

import { entropy, median, softmax, sum } from "./arithmetic.js";
import { button, fixed, html, linear, mappedSlider, named, picture, select, stage, svg, tiny } from "./kit.js";
import { QUERIES, WIDTHS, draw, jacobianNorm, scoreStd, scores } from "./scaling.math.js";

/**
 * @typedef {{ width: number, n_keys: number, scaling: string, seed: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {number[][]} Matrix one row for each query
 */

/** @type {{ name: string, of: (p: number[]) => number, show: (x: number) => string }[]} */
const MEASURES = [
  { name: "entropy / log n", of: (p) => entropy(p) / Math.log(p.length), show: (x) => fixed(x, 3) },
  { name: "largest weight", of: (p) => Math.max(...p), show: (x) => fixed(x, 3) },
  { name: "norm of Jacobian", of: jacobianNorm, show: tiny },
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
  const now = () => at(scope.read("width"));
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      mappedSlider(scope.value("width"), {
        label: "Width dₖ",
        min: 1,
        max: 4096,
        step: 1,
        toPlace: Math.log2,
        toValue: (p) => 2 ** p,
      }),
      html(
        "div",
        { class: "x-bench" },
        select(scope.value("scaling"), {
          label: "Scale",
          options: [
            ["1", "1 (none)"],
            ["1/sqrt(d)", "1 / √dₖ"],
            ["1/d", "1 / dₖ"],
            ["sqrt(d)", "√dₖ"],
          ],
        }),
        button("Draw again", () => scope.write("seed", (scope.read("seed") + 1) % 2 ** 31)),
      ),
    ),
    html(
      "div",
      { class: "x-panels" },
      spread(scope, now),
      weights(scope, now),
      throughWidths(scope, at),
      table(scope, now),
    ),
  );
  scope.when(EVERYTHING, () => {
    const [first] = now().map((row) => softmax(row));
    const share = median(now().map((row) => MEASURES[0].of(softmax(row))));
    const [width, scaling] = [scope.read("width"), scope.read("scaling")];
    scope.announce(
      `Width ${width}: the scores have standard deviation ${short(scoreStd(scaling, width))}; ` +
        `the largest weight of this query is ${fixed(Math.max(...first))}; ` +
        `the median entropy is ${fixed(100 * share, 0)} percent of the most possible.`,
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
  const drawing = picture(320, 158, "histogram of the scores");
  drawing.append(
    bars,
    curve,
    svg("path", { class: "x-line x-second x-dashed", d: bell(1) }),
    svg("path", { class: "x-axis", d: `M${left} ${bottom}H${right}` }),
    name,
    named("standard deviation 1, dashed", left, 25, "x-of-second"),
    ...[-8, 0, 8].map((s) => named(fixed(s, 0), x(s), bottom + 15, "", "middle")),
    named("score", right, bottom + 15, "", "end"),
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
    name.textContent = `scores: standard deviation ${short(std)}`;
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      `Scores of ${QUERIES} queries, and the normal curve of the same variance. Both curves are equally high.`,
    ),
  );
}

/** The weights of one query, one bar for each key. @param {Scope} scope @param {() => Matrix} now */
function weights(scope, now) {
  const [left, right, top, bottom] = [24, 312, 26, 126];
  const drawing = picture(320, 146, "weights of one query");
  const y = linear([0, 1], [bottom, top]);
  scope.when(EVERYTHING, () => {
    const p = softmax(now()[0]);
    const step = (right - left) / p.length;
    drawing.replaceChildren(
      svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
      ...[0, 1].map((t) => named(String(t), left - 6, y(t) + 4, "", "end")),
      named("weight, of one query", 0, 10),
      ...p.map((w, i) =>
        svg("rect", {
          class: "x-solid",
          x: left + (i + 0.15) * step,
          y: y(w),
          width: 0.7 * step,
          height: bottom - y(w),
        }),
      ),
      named(`${p.length} keys`, right, bottom + 15, "", "end"),
    );
  });
  return html("figure", { class: "x-panel" }, drawing);
}

/** Measures of the weights: for this query, and over many. @param {Scope} scope @param {() => Matrix} now */
function table(scope, now) {
  const cells = MEASURES.map(() => [0, 1, 2].map(() => html("td")));
  scope.when(EVERYTHING, () => {
    const all = now().map((row) => softmax(row));
    MEASURES.forEach(({ of, show }, i) => {
      const values = all.map((p) => of(p));
      [values[0], median(values), mean(values)].forEach((value, j) => {
        cells[i][j].textContent = show(value);
      });
    });
  });
  return html(
    "table",
    { class: "x-table" },
    html("tr", {}, html("td"), ...["this query", "median", "mean"].map((head) => html("th", { scope: "col" }, head))),
    ...MEASURES.map(({ name }, i) => html("tr", {}, html("th", { scope: "row" }, name), ...cells[i])),
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
  const drawing = picture(320, 148, "norm of the softmax Jacobian against width");
  const here = svg("path", { class: "x-axis" });
  const lines = svg("g");
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    ...[0, -6, -12].map((e) => named(e ? tiny(10 ** e).slice(2) : "1", left - 6, y(e) + 4, "", "end")),
    ...[0, 6, 12].map((i) => named(String(2 ** i), x(i), bottom + 15, "", i === 12 ? "end" : "middle")),
    named("width dₖ", x(9), bottom + 15, "", "middle"),
    named("norm of the Jacobian", 0, 10),
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
      named("median query", x(6), Math.min(bottom - 5, height(medians[6]) + 18), "x-of-first", "end"),
      named("mean, dashed", right, Math.min(height(means[10]), height(means[12])) - 8, "x-of-second", "end"),
    );
  });
  scope.when(["width"], () => here.setAttribute("d", `M${x(Math.log2(scope.read("width")))} ${top}V${bottom}`));
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html("figcaption", {}, "The norm of the softmax's Jacobian over many queries: what of the gradient comes through."),
  );
}

export default { render };
