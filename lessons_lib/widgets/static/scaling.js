/** Scores of standard normal queries and keys at every width, under four scales, and what the softmax makes of them. */

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

/** All scores as a histogram, the normal curve that they should follow, and the standard one, both as high as 1. @param {Scope} scope @param {() => Matrix} now */
function spread(scope, now) {
  const [left, right, top, bottom] = [8, 312, 32, 148];
  const drawing = picture(320, 170, "histogram of the scores");
  /** @param {(x: number) => number} x @param {number} std @param {(y: number) => number} y */
  const bell = (x, std, y) => {
    const points = Array.from({ length: 161 }, (_, i) => (i - 80) / 20).map((t) => [
      x(t * std),
      y(Math.exp((-t * t) / 2)),
    ]);
    return `M${points
      .filter(([px]) => px >= left && px <= right)
      .map((p) => p.map((c) => c.toFixed(1)).join(" "))
      .join("L")}`;
  };
  scope.when(EVERYTHING, () => {
    const std = scoreStd(scope.read("scaling"), scope.read("width"));
    const limit = 4 * Math.max(1, std);
    const x = linear([-limit, limit], [left, right]);
    const y = linear([0, 1.3], [bottom, top]);
    const all = now().flat();
    const bin = Math.min(std, limit) / 4;
    const counts = new Map();
    for (const s of all) counts.set(Math.floor(s / bin), (counts.get(Math.floor(s / bin)) ?? 0) + 1);
    const peak = (all.length * bin) / (std * Math.sqrt(2 * Math.PI));
    const bars = [...counts].filter(([i]) => i * bin >= -limit && (i + 1) * bin <= limit);
    drawing.replaceChildren(
      svg("path", {
        class: "x-fill",
        d: bars
          .map(([i, c]) => `M${x(i * bin)} ${bottom}V${y(Math.min(1.3, c / peak))}H${x((i + 1) * bin)}V${bottom}`)
          .join(""),
      }),
      svg("path", { class: "x-line x-first", d: bell(x, std, y) }),
      svg("path", { class: "x-line x-second x-dashed", d: bell(x, 1, y) }),
      svg("path", { class: "x-axis", d: `M${left} ${bottom}H${right}` }),
      named(`scores: standard deviation ${short(std)}`, left, 10, "x-of-first"),
      named("standard deviation 1, dashed", left, 25, "x-of-second"),
      ...[-0.5, 0, 0.5].map((t) =>
        svg(
          "text",
          { x: x(t * limit), y: bottom + 16, "text-anchor": "middle" },
          short(Math.abs(t * limit)).replace(/^/, t < 0 ? "−" : ""),
        ),
      ),
    );
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      `Scores of ${QUERIES} queries, and the normal curve of theory. ` + "Both curves are drawn equally high.",
    ),
  );
}

/** The weights of one query, one bar for each key. @param {Scope} scope @param {() => Matrix} now */
function weights(scope, now) {
  const [left, right, top, bottom] = [24, 312, 32, 148];
  const drawing = picture(320, 170, "weights of one query");
  scope.when(EVERYTHING, () => {
    const p = softmax(now()[0]);
    const y = linear([0, 1], [bottom, top]);
    const step = (right - left) / p.length;
    drawing.replaceChildren(
      svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
      ...[0, 1].map((t) => svg("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end" }, String(t))),
      named("weight", 0, top - 12),
      ...p.map((w, i) =>
        svg("rect", {
          class: "x-solid",
          x: left + (i + 0.15) * step,
          y: y(w),
          width: 0.7 * step,
          height: bottom - y(w),
        }),
      ),
      svg("text", { x: (left + right) / 2, y: bottom + 16, "text-anchor": "middle" }, `${p.length} keys`),
    );
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html("figcaption", {}, "The weights of one query, after the softmax."),
  );
}

/** What the weights are like: for this query, and over many. @param {Scope} scope @param {() => Matrix} now */
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
 * The Jacobian's norm over all widths, on a logarithmic scale: what of the gradient comes through.
 * @param {Scope} scope @param {(width: number) => Matrix} at
 */
function throughWidths(scope, at) {
  const [left, right, top, bottom, floor] = [42, 312, 36, 138, -12];
  const x = linear([0, WIDTHS.length - 1], [left, right]);
  const y = linear([floor, 0], [bottom, top]);
  const drawing = picture(320, 156, "norm of the softmax Jacobian against width");
  const here = svg("path", { class: "x-axis" });
  const lines = svg("g");
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    ...[0, -6, -12].map((e) =>
      svg("text", { x: left - 6, y: y(e) + 4, "text-anchor": "end" }, e ? tiny(10 ** e).slice(2) : "1"),
    ),
    ...[0, 6, 12].map((i) =>
      svg("text", { x: x(i), y: bottom + 15, "text-anchor": i === 12 ? "end" : "middle" }, String(2 ** i)),
    ),
    svg("text", { x: x(9), y: bottom + 15, "text-anchor": "middle" }, "width dₖ"),
    named("norm of the Jacobian", 0, 10),
    named("median query", left, 25, "x-of-first"),
    named("mean, dashed", 150, 25, "x-of-second"),
    here,
    lines,
  );
  scope.when(["scaling", "seed", "n_keys"], () => {
    const norms = WIDTHS.map((width) => at(width).map((row) => jacobianNorm(softmax(row))));
    const line = (/** @type {number[]} */ values) =>
      values.map((v, i) => `${i ? "L" : "M"}${x(i)} ${y(Math.max(floor, Math.log10(v || 1e-99))).toFixed(1)}`).join("");
    lines.replaceChildren(
      svg("path", { class: "x-line x-first", d: line(norms.map(median)) }),
      svg("path", { class: "x-line x-second x-dashed", d: line(norms.map(mean)) }),
    );
  });
  scope.when(["width"], () => here.setAttribute("d", `M${x(Math.log2(scope.read("width")))} ${top}V${bottom}`));
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "Norm of the softmax's Jacobian over many queries: what of the gradient comes through, at every width.",
    ),
  );
}

export default { render };
