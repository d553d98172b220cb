/** A trained head by seven methods of efficient attention: its weights beside the exact ones, and the error of its output. */

import { questionCard } from "./question.js";
import { fixed, html, linear, mappedSlider, named, panel, panels, picture, select, stage, svg } from "./kit.js";
import { HEADS } from "./gpt.math.js";
import {
  FEATURES,
  WIDTH,
  error,
  exact,
  inner,
  isCausal,
  multiplications,
  pairs,
  spread,
  vectors,
  weights,
} from "./pairs.math.js";
import { MASKS, N, mask } from "./sparse.math.js";
import { BUDGETS, PATTERNS, maskAndDraws, patternSliders } from "./sparse_controls.js";
import { mark, say } from "./words.js";

/**
 * @typedef {import("./pairs.math.js").How} How
 * @typedef {How & { head: string, guess: string | null }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./sparse_controls.js").Budget | "r"} Budget
 * @typedef {{ how(): How, head(): string, errs(how: How): number, hidden(): boolean }} State
 */

/** The methods with their names and budgets; the curve follows the first budget. @type {Record<string, [string, Budget[]]>} */
const METHODS = {
  ...PATTERNS,
  linformer: [mark("Linformer"), ["r"]],
  linear: [mark("linear, elu + 1"), []],
  performer: [mark("Performer"), ["r"]],
};
/** @type {(keyof How)[]} */
const HOW = ["way", "window", "step", "n_global", "n_random", "r", "causal", "seed"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...HOW, "head", "guess"];
/** The setting that the guess is about. @type {How} */
const ASKED = {
  way: "window",
  window: 8,
  step: 2,
  n_global: 1,
  n_random: 3,
  r: 64,
  causal: true,
  seed: 0,
};

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const how = () => /** @type {How} */ (Object.fromEntries(HOW.map((name) => [name, scope.read(name)])));
  const head = () => scope.read("head");
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @type {State} */
  const state = {
    how,
    head,
    errs(one) {
      const budgets = one.way ? METHODS[one.way][1] : [];
      const drawn = ["bigbird", "performer"].includes(one.way) && one.seed;
      const key = [head(), one.way, isCausal(one), drawn, ...budgets.map((budget) => one[budget])].join();
      const found = known.get(key) ?? error(one, head());
      known.set(key, found);
      return found;
    },
    hidden: () => scope.read("guess") === null,
  };
  const found = html("b");
  const rest = html("span");
  scope.add(
    guess(scope),
    html(
      "div",
      { class: "x-settings" },
      select(scope.value("way"), {
        label: say("Method"),
        options: Object.entries(METHODS).map(([way, [name]]) => [way, say(name)]),
      }),
      select(scope.value("head"), {
        label: say("Trained head"),
        options: HEADS.map((name) => [
          name,
          say("{head}, spread {spread}", { head: name, spread: fixed(spread(name), 1) }),
        ]),
      }),
    ),
    budgets(scope),
    html("p", { class: "b-headline" }, found, " ", rest),
    panels([say("Weights"), looks(scope, state)], [say("Error"), errors(scope, state)]),
  );
  scope.when(EVERYTHING, () => {
    const now = how();
    const count = pairs(now);
    const all = { ...now, way: "", causal: isCausal(now) };
    found.textContent = state.hidden() ? say("Error ?") : say("Error {error}", { error: fixed(state.errs(now)) });
    const known = {
      head: head(),
      method: say(METHODS[now.way][0]),
      needs: grouped(multiplications(now)),
      exact: grouped(multiplications(all)),
    };
    rest.textContent = count
      ? say(
          "for head {head} by {method}, with {n} of {total} pairs and {needs} multiplications. Exact attention " +
            "needs {exact}.",
          { ...known, n: grouped(count), total: grouped(N * N) },
        )
      : say(
          "for head {head} by {method}, with no pairs, but {n} numbers for each word and {needs} multiplications. " +
            "Exact attention needs {exact}.",
          { ...known, n: inner(now) },
        );
    scope.announce(`${found.textContent} ${rest.textContent}`);
  });
  return scope.dispose;
}

const grouped = (/** @type {number} */ x) => x.toLocaleString("en");

/** The question before errors are shown. @param {Scope} scope */
function guess(scope) {
  /** @type {[string, string][]} */
  const options = [
    ["1.3", say("1.3 only")],
    ["2.4", say("2.4 only")],
    ["both", say("both")],
    ["neither", say("neither")],
  ];
  const { card, tell } = questionCard(
    "b-guess",
    say(
      "Head 1.3 gives all words nearly the same score (spread {spread}), head 2.4 very different ones " +
        "({other}). Each is computed with a window of 8 words, and with 64 random features of Performer. " +
        "For which head is the output of the window nearer to the exact output?",
      { spread: fixed(spread("1.3"), 1), other: fixed(spread("2.4"), 1) },
    ),
    options,
    (value) => scope.write("guess", value),
  );
  scope.when(["guess"], () => {
    const said = scope.read("guess");
    if (said === null) return tell("");
    const found = ["1.3", "2.4"].map((head) => {
      const [near, drawn, even] = ["window", "performer", ""].map((way) => error({ ...ASKED, way }, head));
      return {
        head,
        near,
        words: say("head {head}: window {near}, features {drawn}, plain average {even}", {
          head,
          near: fixed(near),
          drawn: fixed(drawn),
          even: fixed(even),
        }),
        wins: near < drawn,
      };
    });
    const nearer = found.filter(({ wins }) => wins).map(({ head }) => head);
    const right = nearer.length === 1 ? nearer[0] : nearer.length ? "both" : "neither";
    const called = (/** @type {string} */ wanted) => options.find(([value]) => value === wanted)?.[1] ?? "";
    tell(
      say(
        "You said {said}; it is {right}. Errors, {errors}. Where the weights are nearly equal, a few pairs are " +
          "not enough. Where a few weights are large, 64 random features are hardly better than the plain average.",
        {
          said: called(said),
          right: called(right),
          errors: found.map(({ words }) => words).join(say("; ")),
        },
      ),
    );
  });
  return card;
}

/** The sliders of the selected method. @param {Scope} scope */
function budgets(scope) {
  return scope.rebuild(
    ["way"],
    () => scope.read("way"),
    (part) => {
      const way = part.read("way");
      const mixes = way === "linformer";
      const sliders = MASKS.includes(way)
        ? patternSliders(part, way)
        : METHODS[way][1].map(() =>
            mappedSlider(part.value("r"), {
              label: mixes ? say("Mixtures r") : say("Features r"),
              min: FEATURES[0],
              max: mixes ? 64 : FEATURES[FEATURES.length - 1],
              step: 1,
              show: (r) => String(mixes ? Math.min(r, N) : r),
              toPlace: (r) => FEATURES.indexOf(r),
              toValue: (place) => FEATURES[place],
            }),
          );
      return html(
        "div",
        { class: "b-budget" },
        html("div", { class: "x-settings x-controls" }, ...sliders),
        maskAndDraws(part, { masked: !mixes, drawn: ["bigbird", "performer"].includes(way) }),
      );
    },
  );
}

/** The exact weights, and those of the selected method; before the guess, its pairs alone. @param {Scope} scope @param {State} state */
function looks(scope, { how, head, hidden }) {
  const drawing = picture(328, 194, say("exact weights, and those of the efficient method"));
  const caption = html("figcaption");
  const [top, side] = [30, 160 / N];
  scope.when([...HOW, "head", "guess"], () => {
    const now = how();
    const own = vectors(head());
    const [left, r] = [168, inner(now)];
    const ground = (/** @type {number} */ x) => svg("rect", { class: "x-ground", x, y: top, width: 160, height: 160 });
    drawing.replaceChildren(
      named(say("exact, head {head}", { head: head() }), 0, 12),
      named(say(METHODS[now.way][0]), left, 12),
      named(say("keys"), 160, 26, "", "end"),
      named(say("queries"), 0, 26),
      ground(0),
      ...paths(exact(isCausal(now), own), 0, top, side),
      ...(hidden() && r ? shapes(now, left, top) : [ground(left)]),
      ...(r ? [] : [svg("path", { class: hidden() ? "x-may" : "b-computed", d: cells(mask(now), left, top, side) })]),
      ...(hidden() ? [] : paths(weights(now, own), left, top, side)),
    );
    const about = r
      ? now.way === "linformer"
        ? say("Linformer attends to {r} means of neighbouring words, without a causal mask.", { r })
        : say("Sums over the words, {r} features each, replace the pairs.", { r })
      : say("Tinted: the pairs that are computed.");
    caption.textContent = hidden()
      ? r
        ? say("Left: the attention weights of each query (row) on each key (column). Right: what replaces the pairs.")
        : say(
            "Left: the attention weights of each query (row) on each key (column). Right: the pairs that are computed.",
          )
      : say(
          "Attention weights of each query (row) on each key (column). {about} Four times the weight has " +
            "twice the strength of colour.",
          { about },
        );
  });
  return panel([drawing, caption]);
}

/** The features or mixtures, drawn around the square of pairs that they replace. @param {How} how @param {number} left @param {number} top */
function shapes(how, left, top) {
  const r = inner(how);
  const unit = 160 / (N + r + 2);
  return [
    ["b-never", r + 2, r + 2, N, N],
    ["b-queries", 0, r + 2, r, N],
    ["b-keys", r + 2, 0, N, r],
  ].map(([look, x, y, w, h]) =>
    svg("rect", {
      class: look,
      x: left + unit * Number(x),
      y: top + unit * Number(y),
      width: unit * Number(w),
      height: unit * Number(h),
    }),
  );
}

/** The true cells of a mask as one path. @param {boolean[][]} rows @param {number} left @param {number} top @param {number} side */
function cells(rows, left, top, side) {
  return rows
    .flatMap((row, i) =>
      row.map((on, j) => (on ? `M${(left + side * j).toFixed(1)} ${(top + side * i).toFixed(1)}h2.5v2.5h-2.5z` : "")),
    )
    .join("");
}

/** Cells of about one weight, joined in one path. @param {number[][]} rows @param {number} left @param {number} top @param {number} side */
function paths(rows, left, top, side) {
  /** @type {string[]} */
  const shades = [];
  rows.forEach((row, i) =>
    row.forEach((weight, j) => {
      const shade = Math.ceil(12 * Math.sqrt(weight) - 0.5);
      const at = `M${(left + side * j).toFixed(1)} ${(top + side * i).toFixed(1)}h2.5v2.5h-2.5z`;
      if (shade > 0) shades[shade] = (shades[shade] ?? "") + at;
    }),
  );
  return Object.entries(shades).map(([shade, d]) =>
    svg("path", { class: "x-solid", d, "fill-opacity": (Number(shade) / 12).toFixed(2) }),
  );
}

const WORST = 1.5; // the largest error drawn
/** The windows at which the curve is computed, besides the selected one. */
const SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 60];

/** The error against the budget of the selected method, and the errors of all methods at their budgets. @param {Scope} scope @param {State} state */
function errors(scope, { how, errs, hidden }) {
  const [wide, high, left, right, top] = [344, 230, 28, 206, 26];
  const y = (/** @type {number} */ far) => linear([0, WORST], [high - 36, top])(Math.min(WORST, far));
  const drawing = picture(wide, high, say("error against budget, and the errors of all methods"));
  scope.when(EVERYTHING, () => {
    const now = how();
    const [budget] = METHODS[now.way][1];
    const [least, most] = budget && budget !== "r" ? [1, 64] : [4, 256];
    const x = (/** @type {number} */ size) => linear([least, most].map(Math.log2), [left + 4, right])(Math.log2(size));
    const title =
      budget === "r"
        ? now.way === "linformer"
          ? say("mixtures r")
          : say("features r")
        : budget
          ? say(BUDGETS[budget][0]).toLowerCase()
          : say("features, as many as the width");
    drawing.replaceChildren(
      named(say("error of the output"), 0, 12),
      named(say("all methods"), right + 16, 12),
      svg("path", { class: "x-axis", d: `M${left} ${top}V${y(0)}H${right + 4}M${right + 16} ${top}V${y(0)}` }),
      ...[0, 0.5, 1, 1.5].map((far) => named(fixed(far, 1), left - 4, y(far) + 4, "", "end")),
      ...[1, 4, 16, 64, 256]
        .filter((some) => some >= least && some <= most)
        .map((some) => named(String(some), x(some), y(0) + 16, "", "middle")),
      named(title, right, high - 4, "", "end"),
    );
    const even = errs({ ...now, way: "", causal: isCausal(now) });
    drawing.append(svg("path", { class: "x-line x-second x-dashed", d: `M${left} ${y(even)}H${right + 16}` }));
    if (hidden()) {
      drawing.append(
        named(say("plain average"), right + 20, y(even) + 4, "x-of-second"),
        named(say("more after your answer"), (left + right) / 2, y(0.3), "", "middle"),
      );
      return;
    }
    const all = budget === "r" ? FEATURES : [...SIZES, now.window].sort((a, b) => a - b);
    const points = budget
      ? all.map((value) => `${x(value).toFixed(1)} ${y(errs({ ...now, [budget]: value })).toFixed(1)}`)
      : [];
    if (points.length) drawing.append(svg("path", { class: "x-line x-first", d: `M${points.join("L")}` }));
    drawing.append(
      svg("circle", {
        class: "x-dot x-first",
        r: 5,
        cx: x(budget ? now[budget] : WIDTH),
        cy: y(errs(now)),
      }),
      ...ladder(now, even, errs).flatMap(({ words, far, at, look }) => [
        svg("circle", { class: `b-tick ${look}`, r: 3.5, cx: right + 16, cy: y(far) }),
        svg("path", { class: "x-axis", d: `M${right + 21} ${y(far)}L${right + 32} ${at}` }),
        named(words, right + 35, at + 4, look),
      ]),
    );
  });

  /** Each method and its error, with labels at least 14 apart. @param {How} now @param {number} even @param {(one: How) => number} errs */
  function ladder(now, even, errs) {
    const rungs = Object.entries(METHODS).map(([way, [name]]) => ({
      words: say(name),
      far: errs({ ...now, way }),
      at: 0,
      look: way === now.way ? "b-own" : "",
    }));
    rungs.push({ words: say("plain average"), far: even, at: 0, look: "x-of-second" });
    rungs.sort((a, b) => b.far - a.far);
    let above = top - 14;
    for (const rung of rungs) above = rung.at = Math.max(y(rung.far), above + 14);
    let below = y(0) + 14;
    for (const rung of [...rungs].reverse()) below = rung.at = Math.min(rung.at, below - 14);
    return rungs;
  }

  return panel([
    drawing,
    say(
      "Distance from the exact output, relative to its size; nothing is trained again. Errors above {WORST} " +
        "are drawn there. The plain average ignores the query. Linformer is compared with exact attention " +
        "without a causal mask.",
      { WORST: fixed(WORST, 1) },
    ),
  ]);
}

export default { render };
