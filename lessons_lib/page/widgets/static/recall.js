/** Recorded recall: of pairs of a key and a value, the share that one trained layer returns. */

import { sum } from "./arithmetic.js";
import { button, fixed, html, linear, mappedSlider, named, panel, panels, picture, select, stage, svg } from "./kit.js";
import { RECALL } from "./recall_record.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ pairs: number, kind: string, steps: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ shares(kind: string, pairs?: number): number[], state(kind: string): number }} Now
 *   the shares recalled with each seed, and the numbers that a kind of layer stores for the pairs
 */

/** @type {(keyof Traits)[]} */
const EVERYTHING = ["pairs", "kind", "steps"];
/** The names of the recorded kinds of layers. @type {Record<string, string>} */
const NAMES = {
  attention: mark("attention"),
  window: mark("window of 4"),
  "elu + 1": mark("linear, elu + 1"),
  sum: mark("linear, plain sum"),
  delta: mark("delta rule"),
  "gated delta": mark("delta rule, decay"),
  Performer: mark("Performer, 8"),
  GRU: "GRU",
};
const KINDS = /** @type {{ kind: string, state: number[], shares: number[][][] }[]} */ (RECALL.kinds);
const mean = (/** @type {number[]} */ shares) => sum(shares) / shares.length;

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const found = (/** @type {string} */ kind) => KINDS.filter((one) => one.kind === kind)[0];
  const at = (/** @type {number} */ pairs) => RECALL.pairs.indexOf(pairs);
  /** @type {Now} */
  const now = {
    shares: (kind, pairs = scope.read("pairs")) =>
      found(kind).shares[RECALL.steps.indexOf(scope.read("steps"))][at(pairs)] ?? [],
    state: (kind) => found(kind).state[at(scope.read("pairs"))],
  };
  const share = html("b");
  const rest = html("span");
  scope.add(
    html(
      "div",
      { class: "x-settings x-controls" },
      mappedSlider(scope.value("pairs"), {
        label: say("Pairs in the text"),
        min: RECALL.pairs[0],
        max: RECALL.pairs[RECALL.pairs.length - 1],
        step: 1,
        toPlace: at,
        toValue: (place) => RECALL.pairs[place],
      }),
      select(scope.value("steps"), {
        label: say("Training"),
        options: RECALL.steps.map((n) => [n, say("{n} steps", { n })]),
      }),
    ),
    html("p", { class: "c-headline" }, share, " ", rest),
    panels([say("Kinds"), kinds(scope, now)], [say("Pairs"), curve(scope, now)]),
  );
  scope.when(EVERYTHING, () => {
    const { pairs, kind, steps } = { pairs: scope.read("pairs"), kind: scope.read("kind"), steps: scope.read("steps") };
    const shares = now.shares(kind);
    share.textContent = shares.length ? fixed(mean(shares)) : say("Not recorded");
    const known = {
      pairs,
      kind: say(NAMES[kind]),
      state: now.state(kind).toLocaleString("en"),
      commonest: fixed(RECALL.commonest[at(pairs)]),
    };
    rest.textContent = shares.length
      ? say(
          "of {pairs} pairs: {kind}, which stores {state} numbers. Always answering the commonest value of the text " +
            "would score {commonest}.",
          { ...known },
        )
      : say(
          "of {pairs} pairs after {steps} steps: {kind}, which stores {state} numbers. Always answering the commonest " +
            "value of the text would score {commonest}.",
          { ...known, steps },
        );
    scope.announce(say("Recalled: {share} {rest}", { share: share.textContent, rest: rest.textContent }));
  });
  return scope.dispose;
}

/** A row for each kind of layer: the mean share as a bar, and a dot for each seed. @param {Scope} scope @param {Now} now */
function kinds(scope, now) {
  const rows = KINDS.map(({ kind }) => ({
    kind,
    choose: button(say(NAMES[kind]), () => scope.write("kind", kind)),
    bar: html("div", { class: "x-bar" }),
    dots: Array.from({ length: RECALL.seeds }, () => html("i", { class: "c-seed" })),
    shown: html("span", { class: "x-value" }),
  }));
  const bar = html("div", { class: "x-bar x-whole" });
  const common = html("span", { class: "x-value" });
  scope.when(EVERYTHING, () => {
    for (const row of rows) {
      const shares = now.shares(row.kind);
      row.choose.setAttribute("aria-pressed", String(row.kind === scope.read("kind")));
      row.bar.style.width = shares.length ? `${100 * mean(shares)}%` : "0";
      row.dots.forEach((dot, seed) => {
        dot.hidden = !shares.length;
        dot.style.left = `${100 * (shares[seed] ?? 0)}%`;
      });
      row.shown.textContent = shares.length ? fixed(mean(shares)) : "\u2013";
    }
    const least = RECALL.commonest[RECALL.pairs.indexOf(scope.read("pairs"))];
    bar.style.width = `${100 * least}%`;
    common.textContent = fixed(least);
  });
  return panel([
    html(
      "div",
      { class: "x-grid c-kinds", style: "--columns: 9rem 1fr 2.5rem" },
      ...[say("kind of layer"), say("share of the pairs recalled"), ""].map((head) =>
        html("span", { class: "x-head" }, head),
      ),
      ...rows.flatMap(({ choose, bar: own, dots, shown }) => [
        choose,
        html("div", { class: "x-track" }, own, ...dots),
        shown,
      ]),
      html("span", { class: "x-head" }, say("commonest value")),
      html("div", { class: "x-track" }, bar),
      common,
    ),
    say(
      "Bars: means over {seeds} seeds; dots: the seeds. A record of trained layers, each at the best of its " +
        "learning rates. The steps limit some of them: 3200 steps raise the delta rules and the plain sum, " +
        "and a dash means not run.",
      { seeds: RECALL.seeds },
    ),
  ]);
}

/** The share against the number of pairs: each seed of the selected kind, and the commonest value. @param {Scope} scope @param {Now} now */
function curve(scope, now) {
  const [wide, high, left, top] = [320, 300, 30, 40];
  const x = (/** @type {number} */ pairs) => linear([2, 5], [left + 10, wide - 14])(Math.log2(pairs));
  const y = linear([0, 1], [high - 36, top]);
  const drawing = picture(wide, high, say("share recalled against the number of pairs"));
  const line = (/** @type {number[]} */ shares) =>
    `M${shares.map((share, i) => `${x(RECALL.pairs[i]).toFixed(1)} ${y(share).toFixed(1)}`).join("L")}`;
  const seeds = Array.from({ length: RECALL.seeds }, () => svg("path", { class: "x-line x-first" }));
  const here = svg("path", { class: "x-axis" });
  const name = svg("text", { class: "x-of-first", x: left + 4, y: 12 });
  drawing.append(
    name,
    named(say("commonest value, dashed"), left + 4, 28, "x-of-second"),
    svg("path", { class: "x-axis", d: `M${left} ${top}V${y(0)}H${wide - 6}` }),
    ...[0, 0.5, 1].map((share) => named(fixed(share, 1), left - 6, y(share) + 4, "", "end")),
    ...RECALL.pairs.map((pairs) => named(String(pairs), x(pairs), y(0) + 16, "", "middle")),
    named(say("pairs in the text"), wide - 6, high - 4, "", "end"),
    here,
    svg("path", { class: "x-line x-second x-dashed", d: line(RECALL.commonest) }),
    ...seeds,
  );
  scope.when(EVERYTHING, () => {
    const kind = scope.read("kind");
    name.textContent = say("{kind}, each seed", { kind: say(NAMES[kind]) });
    here.setAttribute("d", `M${x(scope.read("pairs"))} ${top}V${y(0)}`);
    seeds.forEach((path, seed) => {
      const shares = RECALL.pairs.map((pairs) => now.shares(kind, pairs)[seed]);
      path.setAttribute("d", shares[0] === undefined ? "" : line(shares));
    });
  });
  return panel([
    drawing,
    say(
      "The text has pairs of a key and one of 16 values, then the keys in another order; each is answered " +
        "with a value.",
    ),
  ]);
}

export default { render };
