/** Efficient attention: the computed pairs, the weights beside the exact ones, the error, and recall after training. */

import { questionCard } from "./question.js";
import {
  button,
  checkbox,
  fixed,
  html,
  linear,
  mappedSlider,
  named,
  numbers,
  panels,
  picture,
  select,
  slider,
  stage,
  svg,
} from "./kit.js";
import { HEADS } from "./gpt.math.js";
import { reach } from "./masks.math.js";
import {
  FAR,
  FEATURES,
  N,
  WIDTH,
  error,
  exact,
  forTheLast,
  inner,
  isCausal,
  mask,
  multiplications,
  pairs,
  spread,
  vectors,
  weights,
} from "./pairs.math.js";
import { RECALL } from "./pairs_recall.js";

/**
 * @typedef {import("./pairs.math.js").How} How
 * @typedef {How & { head: string, layers: number, guess: string | null }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {"window" | "step" | "n_global" | "n_random" | "r"} Budget
 * @typedef {{ how(): How, head(): string, errs(how: How): number, hidden(): boolean }} State
 */

/** The methods with their names and budgets; the curve follows the first budget. @type {Record<string, [string, Budget[]]>} */
const METHODS = {
  window: ["window", ["window"]],
  dilated: ["dilated window", ["window", "step"]],
  longformer: ["Longformer", ["window", "n_global"]],
  bigbird: ["BigBird", ["window", "n_global", "n_random"]],
  linformer: ["Linformer", ["r"]],
  linear: ["linear, elu + 1", []],
  performer: ["Performer", ["r"]],
};
/** @type {Record<Budget, [string, number, number]>} */
const BUDGETS = {
  window: ["Window", 1, N],
  step: ["Step between keys", 1, 8],
  n_global: ["Global words", 0, 8],
  n_random: ["Random words", 0, 16],
  r: ["Features r", FEATURES[0], FEATURES[FEATURES.length - 1]],
};
/** @type {(keyof How)[]} */
const HOW = ["way", "window", "step", "n_global", "n_random", "r", "causal", "seed"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...HOW, "head", "layers", "guess"];
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
  scope.add(
    guess(scope),
    html(
      "div",
      { class: "x-settings" },
      select(scope.value("way"), {
        label: "Method",
        options: Object.entries(METHODS).map(([way, [name]]) => [way, name]),
      }),
      select(scope.value("head"), {
        label: "Trained head",
        options: HEADS.map((name) => [name, `${name}, spread ${fixed(spread(name), 1)}`]),
      }),
    ),
    budgets(scope),
    panels(
      ["Pairs", computed(scope, state)],
      ["Weights", looks(scope, state)],
      ["Budget", curve(scope, state)],
      ["Errors", board(scope, state)],
      ["Recall", recalled(scope)],
    ),
  );
  scope.when(EVERYTHING, () => {
    const now = how();
    const count = pairs(now);
    const cost = count ? `${count} of ${N * N} pairs` : `no pair, but ${inner(now)} numbers for each word`;
    const far = state.hidden() ? "First answer the question above." : `Error ${fixed(state.errs(now))}.`;
    scope.announce(`${METHODS[now.way][0]} computes ${cost}. Head ${head()}. ${far}`);
  });
  return scope.dispose;
}

const grouped = (/** @type {number} */ x) => x.toLocaleString("en");

/** The question before errors are shown. @param {Scope} scope */
function guess(scope) {
  /** @type {[string, string][]} */
  const options = [
    ["1.3", "1.3 only"],
    ["2.4", "2.4 only"],
    ["both", "both"],
    ["neither", "neither"],
  ];
  const { card, tell } = questionCard(
    "b-guess",
    `Head 1.3 gives all words nearly the same score (spread ${fixed(spread("1.3"), 1)}), head 2.4 very different ones ` +
      `(${fixed(spread("2.4"), 1)}). Each is computed with a window of 8 words, and with 64 random features of Performer. For ` +
      "which head is the output of the window nearer to the exact output?",
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
        words: `head ${head}: window ${fixed(near)}, features ${fixed(drawn)}, plain average ${fixed(even)}`,
        wins: near < drawn,
      };
    });
    const right = found.every(({ wins }) => wins)
      ? "both"
      : (found.find(({ wins }) => wins)?.head.concat(" only") ?? "neither");
    tell(
      `You said ${options.find(([value]) => value === said)?.[1]}; it is ${right}. Errors, ` +
        `${found.map(({ words }) => words).join("; ")}. Where the weights are nearly equal, a few pairs are not enough. Where ` +
        "a few weights are large, 64 random features are hardly better than the plain average.",
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
      const way = scope.read("way");
      const sliders = METHODS[way][1].map((budget) => {
        const [label, min, max] = BUDGETS[budget];
        if (budget !== "r") return slider(part.value(budget), { label, min, max, step: 1 });
        const [toPlace, toValue] = [
          (/** @type {number} */ r) => FEATURES.indexOf(r),
          (/** @type {number} */ place) => FEATURES[place],
        ];
        const mixes = way === "linformer";
        const show = (/** @type {number} */ r) => String(mixes ? Math.min(r, N) : r);
        return mappedSlider(part.value(budget), {
          label: mixes ? "Mixtures r" : label,
          min,
          max: mixes ? 64 : max,
          step: 1,
          show,
          toPlace,
          toValue,
        });
      });
      const hides = checkbox(part.value("causal"), { label: "later words hidden" });
      const [tick] = hides.getElementsByTagName("input");
      tick.disabled = way === "linformer";
      if (tick.disabled) part.when(["causal"], () => (tick.checked = false));
      const again = button("Draw again", () => scope.write("seed", (scope.read("seed") + 1) % 1000));
      return html(
        "div",
        {},
        html("div", { class: "x-settings x-controls" }, ...sliders),
        html("div", { class: "x-bench b-more" }, hides, ["bigbird", "performer"].includes(way) ? again : ""),
      );
    },
  );
}

const [SIZE, LEFT, TOP] = [280, 24, 34];

/** The square of pairs, or the shapes that replace it. @param {Scope} scope @param {State} state */
function computed(scope, { how }) {
  const frame = html("div");
  const legend = html("p", { class: "x-legend" });
  const caption = html("figcaption");
  const key = (/** @type {string} */ look, /** @type {string} */ words) =>
    html("span", {}, html("i", { class: `x-key ${look}` }), words);
  const made = () => pairs(how()) || N * inner(how());
  const heard = () => {
    const now = how();
    if (inner(now)) return N;
    return reach(mask(now), scope.read("layers"))[N - 1].filter(Boolean).length;
  };
  scope.when([...HOW, "layers"], () => {
    const now = how();
    const r = inner(now);
    const drawing = picture(
      LEFT + SIZE + 2,
      TOP + SIZE + 2,
      r ? "features or mixtures that replace the pairs" : "pairs that are computed",
    );
    frame.replaceChildren(drawing);
    drawing.append(named(r ? "" : "keys", LEFT + SIZE, 12, "", "end"), named(r ? "" : "queries", 0, 12));
    if (r) {
      const unit = SIZE / (N + r + 2);
      const rect = (
        /** @type {string} */ look,
        /** @type {number} */ x,
        /** @type {number} */ y,
        /** @type {number} */ w,
        /** @type {number} */ h,
      ) => svg("rect", { class: look, x: LEFT + unit * x, y: TOP + unit * y, width: unit * w, height: unit * h });
      drawing.append(
        rect("b-never", r + 2, r + 2, N, N),
        rect("b-queries", 0, r + 2, r, N),
        rect("b-keys", r + 2, 0, N, r),
      );
      const mixes = now.way === "linformer";
      legend.replaceChildren(
        key("b-queries", mixes ? `scores, ${N} × ${r}` : `features of queries, ${N} × ${r}`),
        key("b-keys", mixes ? `mixtures, ${r} × ${N}` : `features of keys, ${r} × ${N}`),
      );
      caption.textContent = mixes
        ? `Each of the ${r} mixtures is the mean of neighbouring words, and no causal mask is applied. The dashed square of pairs is never computed.`
        : `Sums over the words replace the pairs. The dashed square of ${N} × ${N} pairs is never computed.`;
      return;
    }
    const seen = mask(now);
    const side = SIZE / N;
    const cells = (/** @type {boolean[][]} */ rows) =>
      rows
        .flatMap((row, i) =>
          row.map((on, j) => (on ? `M${(LEFT + side * j).toFixed(1)} ${(TOP + side * i).toFixed(1)}h4v4h-4z` : "")),
        )
        .join("");
    const near = reach(seen, scope.read("layers")).map((row, i) => row.map((on, j) => on && !seen[i][j]));
    drawing.append(
      svg("rect", { class: "x-ground", x: LEFT, y: TOP, width: SIZE, height: SIZE }),
      svg("path", { class: "b-near", d: cells(near) }),
      svg("path", { class: "x-may", d: cells(seen) }),
      ...[0, 20, 40].flatMap((k) => [
        named(String(k + 1), LEFT + side * (k + 0.5), TOP - 4, "", "middle"),
        named(String(k + 1), LEFT - 4, TOP + side * (k + 0.5) + 5, "", "end"),
      ]),
    );
    legend.replaceChildren(key("x-may", "computed"), key("b-near", `within reach of ${scope.read("layers")} layers`));
    const drawn = now.way === "bigbird" && now.causal ? " Random keys that come later are hidden." : "";
    caption.textContent = `A row for each of ${N} queries, a column for each key.${drawn}`;
  });
  const depth = scope.rebuild(
    ["way"],
    () => String(inner(how()) > 0),
    (part) =>
      inner(how()) ? html("div") : slider(part.value("layers"), { label: "Layers L", min: 1, max: 8, step: 1 }),
  );
  return html(
    "figure",
    { class: "x-panel x-tall" },
    depth,
    frame,
    legend,
    caption,
    numbers(
      scope,
      [...HOW, "layers"],
      [
        [
          "pairs computed",
          () => (inner(how()) ? `none; 2 × ${grouped(made())} numbers` : `${grouped(made())} of ${grouped(N * N)}`),
        ],
        ["as a share of n²", () => `${fixed((100 * made() * (inner(how()) ? 2 : 1)) / N ** 2, 1)} %`],
        ["multiplications", () => grouped(multiplications(how()))],
        ["exact attention", () => grouped(multiplications({ ...how(), way: "", causal: isCausal(how()) }))],
        [
          `for the last of ${grouped(FAR)} words`,
          () => `${grouped(forTheLast(how()))}; exact ${grouped(2 * WIDTH * FAR)}`,
        ],
        ["within reach of the last word", () => `${heard()} of ${N} words`],
      ],
    ),
  );
}

/** The exact weights, and those of the selected method. @param {Scope} scope @param {State} state */
function looks(scope, { how, head, hidden }) {
  const frame = html("div");
  scope.when([...HOW, "head", "guess"], () => {
    const drawing = picture(328, 178, "exact weights, and those of the efficient method");
    frame.replaceChildren(drawing);
    const own = vectors(head());
    const both = [exact(isCausal(how()), own), hidden() ? [] : weights(how(), own)];
    both.forEach((rows, which) => {
      const [left, side] = [168 * which, 160 / N];
      drawing.append(
        named(which ? METHODS[how().way][0] : "exact", left, 12),
        svg("rect", { class: "x-ground", x: left, y: 18, width: 160, height: 160 }),
        ...paths(rows, left, 18, side),
      );
    });
  });
  return html(
    "figure",
    { class: "x-panel" },
    frame,
    html(
      "figcaption",
      {},
      "Attention weights of each query (row) on each key (column): exact, and by the efficient method from the same queries and keys. Four times the weight has twice the strength of colour.",
    ),
  );
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

const WORST = 1.5; // the error of a full bar

/** All methods at their budgets, beside the plain average. @param {Scope} scope @param {State} state */
function board(scope, { how, errs, hidden }) {
  const rows = [
    ...Object.entries(METHODS),
    /** @type {[string, [string, Budget[]]]} */ (["", ["plain average", []]]),
  ].map(([way, [name]]) => {
    const bar = html("div", { class: `x-bar ${way ? "" : "x-whole"}` });
    const shown = html("span", { class: "x-value" });
    const cost = html("span", { class: "x-value" });
    const choose = way ? button(name, () => scope.write("way", way)) : html("span", {}, name);
    return { way, bar, shown, cost, choose };
  });
  scope.when(EVERYTHING, () =>
    rows.forEach(({ way, bar, shown, cost, choose }) => {
      const one = { ...how(), way };
      const far = errs(one);
      bar.style.width = hidden() ? "0" : `${100 * Math.min(1, far / WORST)}%`;
      shown.textContent = hidden() ? "–" : fixed(far);
      cost.textContent = way ? grouped(multiplications(one)) : "";
      if (way) choose.setAttribute("aria-pressed", String(way === scope.read("way")));
    }),
  );
  return html(
    "figure",
    { class: "x-panel" },
    html(
      "div",
      { class: "x-grid b-board", style: "--columns: 8.5rem 1fr 2.5rem 4.25rem" },
      ...["method", "error", "", "multipl."].map((name) => html("span", { class: "x-head" }, name)),
      ...rows.flatMap(({ bar, shown, cost, choose }) => [choose, html("div", { class: "x-track" }, bar), shown, cost]),
    ),
    html(
      "figcaption",
      {},
      `Error of the head’s output relative to the exact one, each method at its own budget; nothing is trained again. A full bar is ${fixed(WORST, 1)} or more. The plain average ignores the query. Linformer is compared with exact attention without a causal mask.`,
    ),
  );
}

/** Error against the budget of the selected method. @param {Scope} scope @param {State} state */
function curve(scope, { how, errs, hidden }) {
  const [wide, high, left, top] = [328, 190, 30, 24];
  const x = (/** @type {number} */ budget) => linear([0, 8], [left, wide - 10])(Math.log2(budget));
  const y = (/** @type {number} */ far) => linear([0, 2], [high - 34, top])(Math.min(2, far));
  const frame = html("div");
  scope.when(EVERYTHING, () => {
    const now = how();
    const drawing = picture(wide, high, "error against budget");
    frame.replaceChildren(drawing);
    const [budget] = METHODS[now.way][1];
    drawing.append(
      named("error of the output", 0, 12),
      svg("path", { class: "x-axis", d: `M${left} ${top}V${y(0)}H${wide - 10}` }),
      ...[0, 0.5, 1, 1.5, 2].map((far) => named(fixed(far, 1), left - 6, y(far) + 4, "", "end")),
      ...[1, 4, 16, 64, 256].map((some) => named(String(some), x(some), y(0) + 16, "", "middle")),
      named(
        budget ? BUDGETS[budget][0].toLowerCase() : "features, as many as the head is wide",
        wide - 10,
        high - 2,
        "",
        "end",
      ),
    );
    if (hidden()) return;
    const even = errs({ ...now, way: "", causal: isCausal(now) });
    drawing.append(
      svg("path", { class: "x-line x-second x-dashed", d: `M${left} ${y(even)}H${wide - 10}` }),
      named("plain average", wide - 10, y(even) - 5, "x-of-second", "end"),
    );
    const [, min, max] = BUDGETS[budget] ?? ["", 0, -1];
    const all = budget === "r" ? FEATURES : Array.from({ length: max - min + 1 }, (_, i) => min + i);
    const points = all.map((value) => `${x(value).toFixed(1)} ${y(errs({ ...now, [budget]: value })).toFixed(1)}`);
    if (points.length) drawing.append(svg("path", { class: "x-line x-first", d: `M${points.join("L")}` }));
    drawing.append(
      svg("circle", { class: "x-dot x-first", r: 5, cx: x(budget ? now[budget] : WIDTH), cy: y(errs(now)) }),
    );
  });
  return html(
    "figure",
    { class: "x-panel" },
    frame,
    html("figcaption", {}, "The circle is the setting of the slider; errors above 2 are drawn at 2."),
  );
}

/** The methods of the record that are methods of this figure. @type {Record<string, string>} */
const RECORDED = { window: "window", linear: "elu + 1", performer: "Performer" };

/** The names of the recorded methods. @type {Record<string, string>} */
const SAID = {
  window: "window of 4",
  sum: "adding",
  delta: "delta rule",
  "gated delta": "delta, decays",
  Performer: "Performer, 8",
};

/** The recorded recall of trained layers. @param {Scope} scope */
function recalled(scope) {
  const kinds = /** @type {[string, number, number[]][]} */ (RECALL.kinds);
  const rows = kinds.map(([kind, kept, shares]) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, SAID[kind] ?? kind),
      html("td", {}, grouped(kept)),
      ...shares.map((share) =>
        html("td", { style: `background: color-mix(in srgb, var(--first) ${30 * share}%, transparent)` }, fixed(share)),
      ),
    ),
  );
  scope.when(["way"], () =>
    rows.forEach((row, i) => row.classList.toggle("b-own", kinds[i][0] === RECORDED[scope.read("way")])),
  );
  const heads = ["kind", "numbers", ...RECALL.pairs.map(String)];
  return html(
    "figure",
    { class: "x-panel" },
    html(
      "table",
      { class: "x-table b-recall" },
      html("tr", {}, ...heads.map((name) => html("th", { scope: "col" }, name))),
      ...rows,
    ),
    html(
      "figcaption",
      {},
      `A record: of ${RECALL.pairs.join(", ")} pairs of key and value, the share that one layer of each kind recalls after ` +
        `${RECALL.steps} steps of training, each at the best of its learning rates; means of ${RECALL.seeds} seeds. Numbers: what the layer keeps ` +
        `of ${RECALL.pairs[RECALL.pairs.length - 1]} pairs. The sliders do not change it; the chosen method is bold.`,
    ),
  );
}

export default { render };
