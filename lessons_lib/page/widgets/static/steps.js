/** One row of attention: scores, exponentials, weights and the weighted average of the values, one step at a time. */

import { button, fixed, html, select, setAttributes, slider, stage, svg } from "./kit.js";
import { row } from "./steps.math.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ words: string[], scores: number[][], values: number[], query: number, step: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {ReturnType<typeof row> & { word: string, words: string[], scores: number[], values: number[] }} Row
 */

/** @type {(keyof Traits)[]} */
const ALL = ["words", "scores", "values", "query", "step"];
const [LARGEST, LAST] = [4, 4];
const NEXT = [mark("Next: exponentials"), mark("Next: weights"), mark("Next: average"), mark("Start again")];
/** The column's heading and the step that reveals it. @type {[string, number][]} */
const COLUMNS = [
  [mark("score"), 1],
  ["exp", 2],
  [mark("weight"), 3],
  [mark("value"), 4],
  [mark("weight × value"), 4],
];

/** The row of the query; traits whose lengths differ for a moment are cut or filled. @param {Scope} scope @returns {Row} */
function current(scope) {
  const words = scope.read("words");
  const query = Math.min(scope.read("query"), words.length - 1);
  const scores = words.map((_, j) => scope.read("scores")[query]?.[j] ?? 0);
  const values = words.map((_, j) => scope.read("values")[j] ?? 0);
  return { ...row(scores, values), word: words[query], words, scores, values };
}

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const facts = html("p", { class: "x-facts" });
  scope.add(
    controls(scope),
    scope.rebuild(["words"], () => JSON.stringify(scope.read("words")), table),
    facts,
    scope.rebuild(["words", "query"], () => JSON.stringify([scope.read("words"), scope.read("query")]), sliders),
  );
  scope.when(ALL, () => {
    const words = told(current(scope), scope.read("step"));
    facts.textContent = words;
    scope.announce(say("Step {step} of {LAST}. {words}", { step: scope.read("step"), LAST, words }));
  });
  return scope.dispose;
}

/** The query, and the buttons from step to step. @param {Scope} scope */
function controls(scope) {
  const back = button(say("Back"), () => scope.write("step", Math.max(1, scope.read("step") - 1)));
  const next = button("", () => scope.write("step", (scope.read("step") % LAST) + 1));
  next.className = "x-next";
  scope.when(["step"], () => {
    next.textContent = say(NEXT[scope.read("step") - 1]);
    back.disabled = scope.read("step") === 1;
  });
  const options = (/** @type {Scope} */ part) =>
    select(part.value("query"), {
      label: say("Query"),
      options: part.read("words").map((word, i) => /** @type {[number, string]} */ ([i, word])),
      plain: true,
    });
  return html(
    "div",
    { class: "x-bench x-controls" },
    html("span", { "aria-hidden": "true" }, say("Query")),
    scope.rebuild(["words"], () => JSON.stringify(scope.read("words")), options),
    back,
    next,
  );
}

/** A row for each word, a column for each step, and the sums below. @param {Scope} part */
function table(part) {
  const words = part.read("words");
  const column = (/** @type {string} */ name) => COLUMNS.findIndex(([head]) => head === name);
  const colours = ["query", "quiet", "key", "value", "output"];
  const cells = words.map(() =>
    COLUMNS.map((_, c) => {
      const bar = svg("rect", { height: 10, style: `fill: var(--${colours[c]})` });
      const drawn = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, bar);
      const track = html("div", { class: "x-track" }, drawn, ...(c ? [] : [html("div", { class: "x-zero" })]));
      const shown = html("span", { class: "x-value" });
      return { bar, shown, cell: html("div", { class: "x-cell" }, shown, track) };
    }),
  );
  const heads = COLUMNS.map(([head]) => html("span", { class: "x-head" }, say(head)));
  const sum = html("span", { class: "x-head x-sum" }, say("sum"));
  const sums = COLUMNS.map(() => html("span", { class: "x-sum x-value", style: "text-align: left" }));
  part.when(ALL, () => {
    const now = current(part);
    const most = { exp: Math.max(...now.exponentials), value: Math.max(...now.values, 1e-9) };
    const step = part.read("step");
    cells.forEach((found, j) => {
      const numbers = [now.scores[j], now.exponentials[j], now.weights[j], now.values[j], now.products[j]];
      const shares = [
        Math.abs(now.scores[j]) / LARGEST / 2,
        now.exponentials[j] / most.exp,
        now.weights[j],
        now.values[j] / most.value,
        now.products[j] / most.value,
      ];
      found.forEach(({ bar, shown, cell }, c) => {
        const reached = COLUMNS[c][1] <= step;
        cell.classList.toggle("x-later", !reached);
        shown.textContent = c === 1 ? exponential(numbers[c]) : fixed(numbers[c], [1, 1, 3, 1, 2][c]);
        const start = c ? 0 : 50 - (now.scores[j] < 0 ? 100 * shares[0] : 0);
        setAttributes(bar, { x: start, width: reached ? 100 * shares[c] : 0 });
      });
    });
    COLUMNS.forEach(([, first], c) => {
      heads[c].classList.toggle("x-later", first > step);
      sums[c].classList.toggle("x-later", Math.max(first, 2) > step);
    });
    sum.classList.toggle("x-later", step < 2);
    sums[column("exp")].textContent = exponential(now.total);
    sums[column("weight")].textContent = "1";
    sums[column("weight × value")].replaceChildren(html("b", {}, fixed(now.output)));
  });
  return html(
    "div",
    { class: "x-grid", style: `--columns: minmax(2.25rem, auto) repeat(${COLUMNS.length}, minmax(0, 1fr))` },
    html("span"),
    ...heads,
    ...words.flatMap((word, j) => [html("span", { class: "x-name" }, word), ...cells[j].map(({ cell }) => cell)]),
    sum,
    ...sums,
  );
}

/** A slider for each score of the query. @param {Scope} part */
function sliders(part) {
  const words = part.read("words");
  const score = (/** @type {number} */ j) => ({
    get: () => current(part).scores[j],
    set(/** @type {number} */ s) {
      const changed = current(part).scores.map((old, l) => (l === j ? s : old));
      part.write(
        "scores",
        part.read("scores").map((old, i) => (i === part.read("query") ? changed : old)),
      );
    },
    watch: (/** @type {() => void} */ draw) => part.when(["scores"], draw),
  });
  return html(
    "div",
    { class: "x-settings" },
    ...words.map((word, j) =>
      slider(score(j), {
        label: say("Score of {word}", { word }),
        min: -LARGEST,
        max: LARGEST,
        step: 0.1,
        show: (s) => fixed(s, 1),
      }),
    ),
  );
}

/** An exponential: more decimals below 1, so that it is never shown as zero. @param {number} x */
const exponential = (x) => fixed(x, x < 1 ? 3 : 1);

/** A number with one decimal, if it needs one. @param {number} x */
const short = (x) => fixed(x, Number.isInteger(Number(x.toFixed(1))) ? 0 : 1);

/** What the current step does, with its numbers. @param {Row} now @param {number} step */
function told({ word, words, scores, exponentials, total, weights, values, output }, step) {
  const list = (/** @type {number[]} */ numbers, /** @type {(x: number) => string} */ show) =>
    words.map((name, j) => `${name} ${show(numbers[j])}`).join(say(", "));
  const positive = (/** @type {number} */ x) => (x < 1 ? exponential(x) : short(x));
  if (step === 1)
    return say("Scores: how well the key of each word matches the query of {word}. {scores}.", {
      word,
      scores: list(scores, short),
    });
  if (step === 2)
    return say("Exponentials make every score positive: {exponentials}. Their sum is {total}.", {
      exponentials: list(exponentials, positive),
      total: positive(total),
    });
  if (step === 3) {
    const shares = list(weights, (p) => fixed(p, 3));
    return say("Weights: each exponential divided by the sum. {shares}; together 1.", { shares });
  }
  const terms = weights.map((p, j) => `${fixed(p, 3)} × ${short(values[j])}`).join(" + ");
  return say("Output for {word}: each value times its weight, added up. {terms} = {output}.", {
    word,
    terms,
    output: fixed(output),
  });
}

export default { render };
