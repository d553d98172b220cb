/** Twenty steps of a training run: attention weights of two heads, the next symbol, and four switches between the layers. */

import {
  CURVES,
  EVERY,
  HIDEABLE,
  LONGEST,
  STEPS,
  SYMBOLS,
  another,
  answers,
  born,
  followers,
  isLikeTraining,
  parse,
  recorded,
  run,
} from "./birth.math.js";
import {
  button,
  checkbox,
  fixed,
  headline,
  html,
  linear,
  mappedSlider,
  named,
  numbers,
  oncePerFrame,
  panel,
  picture,
  setAttributes,
  slider,
  stage,
  svg,
} from "./kit.js";
import { previous, score } from "./patterns.math.js";
import { withPlayButton } from "./play.js";
import { memberSwitch, querySlider } from "./query_slider.js";
import { tabs } from "./tabs.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ step: number, symbols: string, query: number, hide: string[], forced: boolean, guess: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ query(): number, ran(): ReturnType<typeof run>, go(symbols: string): void }} State
 */

/** @type {(keyof Traits)[]} */
const RUN = ["symbols", "step", "hide", "forced"];
/** @type {(keyof Traits)[]} */
const INPUTS = [...RUN, "query"];
const SHOWN = 6; // next symbols that have a bar
const LAST = STEPS[STEPS.length - 1];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const symbols = () => scope.read("symbols");
  const how = () => ({ hide: scope.read("hide"), forced: scope.read("forced") });
  /** @type {ReturnType<typeof run>} */
  let ran;
  scope.when(RUN, () => {
    const n = symbols().length;
    if (n < 2 || n > LONGEST) throw new RangeError(`symbols must be 2 to ${LONGEST}, got ${n}`);
    ran = run(symbols(), scope.read("step"), how());
  });
  /** @type {State} */
  const state = {
    query: () => Math.min(scope.read("query"), symbols().length - 1),
    ran: () => ran,
    go(typed) {
      scope.change({ symbols: typed, query: typed.length - 1 });
    },
  };
  const right = () => answers(symbols()).map((answer, i) => answer && answer === SYMBOLS[best(ran.next[i])]);
  const known = () => answers(symbols()).filter(Boolean).length;
  const shown = (/** @type {number | null} */ x) => (x === null ? "–" : fixed(x));
  const ownBirth = born(CURVES[0].accuracy);
  /** @type {(keyof Traits)[]} */
  const told = [...RUN, "guess"];
  const halfRight = () => (scope.read("step") < ownBirth ? say("later") : String(ownBirth));
  const measured = numbers(scope, told, [
    [say("right in yours"), () => say("{n} of {total}", { n: right().filter(Boolean).length, total: known() })],
    [say("layer 1, previous symbol"), () => shown(score(ran.weights[0], previous(symbols())))],
    [say("layer 2, induction"), () => shown(score(ran.weights[1], followers(symbols())))],
    [say("the run: half right by step"), () => (scope.read("guess") ? halfRight() : say("guess first"))],
  ]);
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(
        scope,
        mappedSlider(scope.value("step"), {
          label: say("Steps of training"),
          min: STEPS[0],
          max: LAST,
          step: 1,
          toPlace: (step) => STEPS.indexOf(step),
          toValue: (place) => STEPS[place],
        }),
      ),
      html(
        "div",
        { class: "x-settings" },
        querySlider(scope, ["symbols"], {
          label: say("Query symbol"),
          count: () => symbols().length,
          query: state.query,
          show: (i) => `${i}: ${symbols()[i]}`,
        }),
        headline(scope, RUN, () => [fixed(recorded(scope.read("step"), how()), 3), say("right on 256 new passages")]),
      ),
    ),
    tabs(
      [
        say("Attention maps"),
        [
          [say("Layer 1"), map(scope, state, 0)],
          [say("Layer 2"), map(scope, state, 1)],
          ["", switches(scope)],
        ],
      ],
      [
        say("Next symbol"),
        [
          [say("Next"), expected(scope, state)],
          ["", typed(scope, state)],
        ],
      ],
      [say("Training"), [[say("Training"), curves(scope, measured)]]],
    ).element,
  );
  scope.when([...INPUTS, "guess"], () => {
    const next = ran.next[state.query()];
    scope.announce(
      say(
        "After {step} steps {share} of what can be known is right. After {symbol} it expects {next} with " +
          "probability {p}.",
        {
          step: scope.read("step"),
          share: fixed(recorded(scope.read("step"), how()), 3),
          symbol: symbols()[state.query()],
          next: SYMBOLS[best(next)],
          p: fixed(Math.max(...next)),
        },
      ) + (scope.read("guess") ? say(" Your guess is step {guess}.", { guess: scope.read("guess") ?? 0 }) : ""),
    );
  });
  return scope.dispose;
}

/** The index of the largest entry. @param {number[]} p */
const best = (p) => p.indexOf(Math.max(...p));

/** The switches: inputs of layer 2 without layer 1's output, and a fixed pattern in layer 1. @param {Scope} scope */
function switches(scope) {
  const ticks = HIDEABLE.map((part) =>
    checkbox(memberSwitch(scope.value("hide"), part, HIDEABLE), { label: say(part) }),
  );
  return html(
    "div",
    { class: "x-panel b-switches" },
    html(
      "div",
      { class: "x-bench", role: "group", "aria-label": say("layer 1 is hidden from layer 2's") },
      html("span", { class: "x-head" }, say("Hide layer 1 from layer 2’s")),
      ...ticks,
    ),
    html(
      "div",
      { class: "x-bench b-force" },
      checkbox(scope.value("forced"), { label: say("force layer 1 onto the previous symbol") }),
    ),
  );
}

/** The input for symbols. @param {Scope} scope @param {State} state */
function typed(scope, { go }) {
  const input = html("input", { type: "text", autocomplete: "off", autocapitalize: "characters", spellcheck: "false" });
  const message = html("p", { class: "x-facts b-message" });
  const judge = () => {
    const given = parse(input.value);
    const unknown = [...given].find((symbol) => !SYMBOLS.includes(symbol));
    if (unknown)
      return say("The model knows the letters A to Z and the digits 2 to 7, and not “{symbol}”.", { symbol: unknown });
    if (given.length < 2 || given.length > LONGEST) return say("The model takes 2 to {LONGEST} symbols.", { LONGEST });
    if (given !== scope.read("symbols")) go(given);
    if (isLikeTraining(given)) return "";
    return say(
      "The model was trained on repeated passages of 8 to 24 different symbols; these symbols are not such " +
        "a passage.",
    );
  };
  const judging = oncePerFrame(() => (message.textContent = judge()));
  input.addEventListener("input", judging.later);
  input.addEventListener("change", judging.flush);
  scope.when(["symbols"], () => {
    if (parse(input.value) !== scope.read("symbols")) input.value = scope.read("symbols");
    message.textContent = judge();
  });
  return html(
    "div",
    { class: "x-panel", style: "gap: 0.35rem" },
    html("label", { class: "b-typed" }, html("span", {}, say("Symbols")), input),
    html(
      "div",
      { class: "x-bench" },
      button(say("Another passage"), () => go(another(scope.read("symbols")))),
      message,
    ),
  );
}

const [LEFT, TOP, SIDE] = [28, 34, 288];
const LETTERS = 24; // largest number of symbols that are labelled

/**
 * The attention weights of a layer, a row for each query; a stronger colour is a larger weight. A frame marks the keys
 * that the trained head will attend to. A click selects the row as the query.
 * @param {Scope} scope @param {State} state @param {number} layer
 */
function map(scope, { query, ran }, layer) {
  const frame = scope.rebuild(
    ["symbols"],
    () => scope.read("symbols"),
    (part) => {
      const symbols = scope.read("symbols");
      const n = symbols.length;
      const side = SIDE / n;
      const drawing = picture(
        320,
        TOP + SIDE + 4,
        say("weights of layer {layer}, a row for each query", { layer: layer + 1 }),
      );
      const gap = n > LETTERS ? 0.5 : 1;
      const cell = (/** @type {number} */ i, /** @type {number} */ j) => ({
        x: LEFT + side * j + gap / 2,
        y: TOP + side * i + gap / 2,
        width: side - gap,
        height: side - gap,
      });
      const cells = [...symbols].map((_, i) =>
        Array.from({ length: i + 1 }, (_, j) => svg("rect", { class: "x-solid", ...cell(i, j) })),
      );
      const steps = [...symbols].map((_, i) => `V${TOP + side * i}h${side}`).join("");
      const targets = (layer ? followers : previous)(symbols);
      const row = svg("rect", { class: "b-row" });
      const names = [...symbols].map((symbol, i) => [
        svg("text", { x: LEFT - 8, y: TOP + side * (i + 0.5) + 4, "text-anchor": "end" }, symbol),
        svg("text", { x: LEFT + side * (i + 0.5), y: TOP - 6, "text-anchor": "middle" }, symbol),
      ]);
      drawing.append(
        named(say("keys"), LEFT + SIDE, 12, "", "end"),
        named(say("query"), 0, 12),
        svg("path", { class: "x-ground", d: `M${LEFT} ${TOP}${steps}V${TOP + SIDE}H${LEFT}Z` }),
        ...cells.flat(),
        ...targets.flatMap((places, i) => places.map((j) => svg("rect", { class: "b-target", ...cell(i, j) }))),
        row,
        ...names.flat(),
      );
      part.when(INPUTS, () => {
        ran().weights[layer].forEach((weights, i) =>
          weights.forEach((weight, j) => cells[i][j].setAttribute("fill-opacity", weight.toFixed(3))),
        );
        const last = query();
        const read = best(ran().weights[layer][last]);
        const around = { x: LEFT - 1, y: TOP + side * last - 1, width: side * (last + 1) + 2, height: side + 2 };
        setAttributes(row, around);
        names.forEach(([left, above], i) => {
          left.classList.toggle("b-query", i === last);
          above.classList.toggle("b-query", i === read);
          if (n <= LETTERS) return;
          left.textContent = i === last ? symbols[i] : "";
          above.textContent = i === read ? symbols[i] : "";
        });
      });
      drawing.addEventListener("click", ({ clientY }) => {
        const { top, height } = drawing.getBoundingClientRect();
        const place = Math.floor((((clientY - top) / height) * (TOP + SIDE + 4) - TOP) / side);
        if (place >= 0 && place < n) scope.write("query", place);
      });
      return drawing;
    },
  );
  const framed = layer ? say("what followed earlier copies of the query symbol") : say("the previous symbol");
  return panel([
    frame,
    say("Layer {layer}: the stronger the colour, the more weight. Framed: {framed}.", { layer: layer + 1, framed }),
  ]);
}

/** The most probable next symbols; a button appends one after the query. @param {Scope} scope @param {State} state */
function expected(scope, { query, ran, go }) {
  const rows = Array.from({ length: SHOWN }, () => {
    const take = button("", () => go(scope.read("symbols").slice(0, query() + 1) + take.textContent));
    const bar = html("div", { class: "x-bar" });
    return { take, bar, shown: html("span", { class: "x-value" }), mark: html("span", { class: "x-facts" }) };
  });
  const title = html("span", { class: "x-head" });
  scope.when(INPUTS, () => {
    const p = ran().next[query()];
    const order = p.map((_, token) => token).sort((a, b) => p[b] - p[a]);
    const answer = answers(scope.read("symbols"))[query()];
    title.textContent = say("after {symbol}", { symbol: scope.read("symbols")[query()] });
    rows.forEach(({ take, bar, shown, mark }, i) => {
      take.textContent = SYMBOLS[order[i]];
      take.disabled = query() + 1 >= LONGEST;
      bar.style.width = `${100 * p[order[i]]}%`;
      shown.textContent = fixed(p[order[i]], 3);
      mark.textContent = take.textContent === answer ? say("as before") : "";
    });
  });
  return panel([
    html(
      "div",
      { class: "x-grid b-next", style: "--columns: 3.5rem 1fr 3rem 4.25rem" },
      title,
      ...[say("probability"), "", ""].map((head) => html("span", { class: "x-head" }, head)),
      ...rows.flatMap(({ take, bar, shown, mark }) => [take, html("div", { class: "x-track" }, bar), shown, mark]),
    ),
    say("The six likeliest next symbols; each is a button. “As before”: it followed last time, too."),
  ]);
}

/** @type {[string, string, string, string][]} */
const MEASURES = [
  ["accuracy", mark("right where it can be known"), "x-first", "x-of-first"],
  ["induction", mark("layer 2, induction, dashed"), "x-second x-dashed", "x-of-second"],
  ["previous_token", mark("layer 1, previous symbol, dotted"), "b-third", "b-of-third"],
];

/** Three measures of three runs up to the current step, and the reader's guess. @param {Scope} scope @param {HTMLElement} measured in numbers */
function curves(scope, measured) {
  const [left, right, top, bottom] = [30, 312, 64, 274];
  const drawing = picture(320, 308, say("accuracy and two scores against the steps of training, of three runs"));
  const [x, y] = [linear([0, LAST], [left, right]), linear([0, 1], [bottom, top])];
  const lines = CURVES.flatMap((curve, run) =>
    MEASURES.map(([name, , look]) => ({
      values: curve[name],
      line: svg("path", { class: `x-line ${look}${run ? " b-other" : ""}` }),
    })),
  );
  const [here, guess] = [svg("path", { class: "x-axis" }), svg("path", { class: "b-guess" })];
  const shown = svg("g", {}, ...lines.map(({ line }) => line).reverse());
  const ask = named("", (left + right) / 2, (top + bottom) / 2, "", "middle");
  const guessed = svg("text", { y: top - 5, "text-anchor": "middle" });
  drawing.append(
    ...MEASURES.map(([, words, , look], i) => named(say(words), left, 10 + 15 * i, look)),
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    svg("text", { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle" }, say("steps of training")),
    ...[0, 100, 200, 300].map((s) => svg("text", { x: x(s), y: bottom + 17, "text-anchor": "middle" }, String(s))),
    ...["0", "½", "1"].map((words, i) => svg("text", { x: left - 6, y: y(i / 2) + 4, "text-anchor": "end" }, words)),
    here,
    guess,
    guessed,
    shown,
    ask,
  );
  scope.when(["step"], () => {
    const step = scope.read("step");
    here.setAttribute("d", `M${x(step)} ${top}V${bottom}`);
    for (const { values, line } of lines) {
      const points = values.slice(0, step / EVERY + 1).map((v, i) => `${x(i * EVERY).toFixed(1)} ${y(v).toFixed(1)}`);
      line.setAttribute("d", `M${points.join("L")}`);
    }
  });
  scope.when(["guess"], () => {
    const at = scope.read("guess");
    guess.setAttribute("d", at ? `M${x(at)} ${top}V${bottom}` : "");
    guessed.textContent = at ? say("guess") : "";
    ask.textContent = at ? "" : say("Guess first: the curves wait for it.");
    shown.style.display = at ? "" : "none";
    guessed.setAttribute("x", String(Math.max(left + 18, Math.min(right - 18, x(at)))));
  });
  return panel(
    [
      slider(scope.value("guess"), {
        label: say("Your guess"),
        min: 0,
        max: LAST,
        step: 5,
        show: (step) => (step ? String(step) : say("none")),
      }),
      drawing,
      say(
        "As far as the present step. Thick: the run of this figure. Thin: two others, from other seeds. No " +
          "switch changes them.",
      ),
      measured,
    ],
    "b-training",
  );
}

export default { render };
