/** Words joined to their experts: load balance, capacity, and the effect of a bias. */

import { questionCard } from "./question.js";
import {
  button,
  entry,
  fixed,
  headline,
  html,
  mappedSlider,
  named,
  numbers,
  panel,
  picture,
  select,
  slider,
  stage,
  svg,
} from "./kit.js";
import { COLOURS } from "./palette.js";
import {
  CAPACITIES,
  EXPERTS,
  HELD_OUT,
  LENGTH,
  RATE,
  TEXTS,
  inEffect,
  inside,
  lastWord,
  rebalanced,
  route,
  router,
  scores,
} from "./routing.math.js";
import { querySlider } from "./query_slider.js";
import { tabs } from "./tabs.js";
import { clauses } from "./clauses.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ balance: string, top_k: number, layer: number, story: number, words: number, query: number,
 *   capacity: number, bias: number[], guess: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./routing.math.js").Routing} Routing
 * @typedef {{ story(): string[], query(): number, now(): Routing, rows(): number[][],
 *   how(): import("./routing.math.js").How, hidden(): boolean }} State
 */

/** @type {(keyof Traits)[]} */
const TRAINED = ["balance", "top_k", "layer"];
/** @type {(keyof Traits)[]} */
const ROUTED = [...TRAINED, "story", "words", "capacity", "bias"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...ROUTED, "query", "guess"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const story = () => TEXTS[scope.read("story")];
  const rows = () =>
    scores(scope.read("balance"), scope.read("top_k"), scope.read("layer"), scope.read("story"), scope.read("words"));
  const how = () => {
    const own = router(scope.read("balance"), scope.read("top_k")).layers[scope.read("layer") - 1].bias;
    const bias = added(scope).map((b, i) => b + own[i]);
    return { topK: scope.read("top_k"), capacity: scope.read("capacity"), bias };
  };
  /** @type {Routing} */
  let now;
  scope.when(ROUTED, () => (now = route(rows(), how())));
  /** @type {State} */
  const state = {
    story,
    query: () => Math.min(scope.read("query"), scope.read("words") - 1),
    now: () => now,
    rows,
    how,
    hidden: () => scope.read("balance") === "none" && !scope.read("guess"),
  };
  const shown = tabs(
    [
      say("Words"),
      [
        [say("Words"), joined(scope, state)],
        ["", beside(scope, state)],
      ],
    ],
    [
      say("Experts"),
      [
        [say("Experts"), experts(scope, state)],
        ["", balance(scope, state)],
      ],
    ],
  ).element;
  const question = guess(scope);
  const style = COLOURS.map((colour, i) => `--of-${i + 1}: ${colour}`).join("; ");
  scope.add(html("div", { class: "r-all", style }, choices(scope), question, calls(scope, state), shown));
  scope.when(["balance", "guess"], () => (shown.hidden = state.hidden()));
  scope.when(EVERYTHING, () => {
    if (state.hidden()) return scope.announce(say("First say how many experts will be in use."));
    const { experts: chosen, dropped, asked, balanceLoss } = now;
    const i = state.query();
    scope.announce(
      say(
        "{word} goes to expert {experts}. Tokens routed to the eight: {asked}, as evenly as to {even} " +
          "equally busy experts; balance loss {loss}, {dropped} of {choices} choices dropped.",
        {
          word: story()[i],
          experts: chosen[i].map((expert) => expert + 1).join(say(" and ")),
          asked: asked.join(say(", ")),
          even: fixed(inEffect(asked), 1),
          loss: fixed(balanceLoss),
          dropped: count(dropped.flat()),
          choices: dropped.flat().length,
        },
      ),
    );
  });
  return scope.dispose;
}

/** The bias that the reader adds to each expert. @param {Scope} scope */
function added(scope) {
  const bias = scope.read("bias");
  return bias.length === EXPERTS ? bias : Array(EXPERTS).fill(0);
}

const count = (/** @type {boolean[]} */ all) => all.filter(Boolean).length;

/** The controls for the router. @param {Scope} scope */
function choices(scope) {
  return html(
    "div",
    { class: "x-settings" },
    select(scope.value("balance"), {
      label: say("Trained with"),
      options: [
        ["none", say("no balance")],
        ["0.01", say("balance loss × 0.01")],
        ["0.1", say("balance loss × 0.1")],
        ["bias", say("a bias in the choice")],
      ],
    }),
    select(scope.value("top_k"), {
      label: say("Experts for each word"),
      options: [
        [1, say("one expert")],
        [2, say("two experts")],
      ],
    }),
  );
}

/** The question before routers without load balancing are shown. @param {Scope} scope */
function guess(scope) {
  const { card, tell } = questionCard(
    "r-guess",
    say(
      "These routers were trained without load balancing. How many experts, if all were equally busy, would " +
        "have the same entropy on new words? Guess first:",
    ),
    Array.from({ length: EXPERTS }, (_, i) => [i + 1, String(i + 1), say("{n} experts", { n: i + 1 })]),
    (many) => scope.write("guess", many),
  );
  scope.when([...TRAINED, "guess"], () => {
    const said = scope.read("guess");
    card.hidden = scope.read("balance") !== "none";
    const [first, ...others] = recorded(scope).map((all) => fixed(inEffect(all), 1));
    tell(
      said
        ? say(
            "You said {said}. In this layer {n} new words are spread over the eight as over {first} " +
              "equally busy experts; with other seeds, as over {others}.",
            { said, n: HELD_OUT.toLocaleString("en"), first, others: others.join(say(" and ")) },
          )
        : "",
    );
  });
  return card;
}

/** The controls for the number of words, the query and the capacity. @param {Scope} scope @param {State} state */
function calls(scope, { story, query }) {
  return html(
    "div",
    { class: "x-settings x-controls" },
    slider(scope.value("words"), { label: say("Words in the call"), min: 2, max: LENGTH, step: 1 }),
    mappedSlider(scope.value("capacity"), {
      label: say("Capacity c"),
      min: CAPACITIES[0],
      max: EXPERTS,
      step: 1,
      show: (c) => (c === EXPERTS ? say("no limit") : String(c)),
      toPlace: (c) => CAPACITIES.indexOf(c),
      toValue: (place) => CAPACITIES[place],
    }),
    querySlider(scope, ["words", "story"], {
      label: say("Selected word"),
      count: () => scope.read("words"),
      query,
      show: (i) => story()[i],
      key: () => `${scope.read("words")} ${scope.read("story")}`,
    }),
  );
}

const [WIDE, TOP, HIGH, LEFT, RIGHT] = [330, 34, 14, 84, 206];
const PITCH = (HIGH * LENGTH) / EXPERTS;

/** Words on the left, experts on the right. @param {Scope} scope @param {State} state */
function joined(scope, { story, query, now, hidden }) {
  const frame = html("div");
  scope.when(EVERYTHING, () => {
    const drawing = picture(WIDE, TOP + HIGH * LENGTH, say("words joined to their chosen experts"));
    frame.replaceChildren(drawing);
    if (hidden()) return;
    const { probabilities, experts: chosen, weights, dropped, asked, load, capacity } = now();
    const q = query();
    drawing.append(named(say("word"), LEFT, 12, "", "end"), named(say("expert: kept of routed"), WIDE, 12, "", "end"));
    drawing.append(named(say("gate of {word}", { word: story()[q] }), WIDE, 28, "", "end"));
    const y = (/** @type {number} */ word) => TOP + HIGH * (word + 0.5);
    const door = (/** @type {number} */ expert) => TOP + PITCH * (expert + 0.5);
    chosen.forEach((experts, word) =>
      experts.forEach((expert, choice) => {
        const late = dropped[word][choice];
        const [a, b] = [y(word), door(expert)];
        drawing.append(
          svg("path", {
            class: `x-line r-${expert + 1} ${late ? "r-late" : ""} ${word === q ? "r-query" : ""}`,
            d: `M${LEFT + 6} ${a}C${LEFT + 66} ${a} ${RIGHT - 60} ${b} ${RIGHT - 2} ${b}`,
            style: `stroke-width: ${(0.6 + 3 * weights[word][choice]).toFixed(2)}`,
          }),
        );
      }),
    );
    story().forEach((word, i) => {
      const isIn = i < chosen.length;
      const out = isIn && dropped[i].every(Boolean);
      if (isIn)
        drawing.append(
          svg("rect", {
            class: `r-word r-${chosen[i][0] + 1}`,
            x: 0,
            y: y(i) - HIGH / 2 + 1,
            width: LEFT + 4,
            height: HIGH - 2,
            rx: 3,
          }),
        );
      const look = [i === q ? "x-query" : "", out ? "r-out" : "", isIn ? "" : "r-later"].join(" ");
      const name = svg("text", { class: look, x: LEFT, y: y(i) + 4, "text-anchor": "end" }, word);
      name.addEventListener("click", () => isIn && scope.write("query", i));
      drawing.append(name);
    });
    asked.forEach((many, expert) => {
      const b = door(expert);
      const full = many > capacity;
      drawing.append(
        svg("rect", { class: `r-door r-${expert + 1}`, x: RIGHT, y: b - 19, width: 46, height: 38, rx: 4 }),
        svg("text", { class: "r-name", x: RIGHT + 23, y: b - 4, "text-anchor": "middle" }, String(expert + 1)),
        svg(
          "text",
          { class: full ? "r-full" : "", x: RIGHT + 23, y: b + 12, "text-anchor": "middle" },
          full ? say("{n} of {total}", { n: load[expert], total: many }) : String(many),
        ),
      );
      const p = probabilities[q][expert];
      const isOwn = chosen[q].includes(expert);
      drawing.append(
        svg("rect", { class: "x-ground", x: RIGHT + 52, y: b - 5, width: 40, height: 10 }),
        svg("rect", { class: `r-gate r-${expert + 1}`, x: RIGHT + 52, y: b - 5, width: 40 * p, height: 10 }),
        svg("text", { class: isOwn ? "x-query" : "", x: WIDE, y: b + 4, "text-anchor": "end" }, short(p)),
      );
    });
  });
  return panel([frame], "x-tall");
}

/** The dropped choices, the selected and the last word in words, and what is shown. @param {Scope} scope @param {State} state */
function beside(scope, { story, query, now, rows, how, hidden }) {
  const own = html("p", { class: "r-own" });
  const last = html("p", { class: "r-last" });
  scope.when(EVERYTHING, () => {
    own.textContent = hidden() ? "" : told(story(), now(), query());
    last.textContent = hidden() ? "" : toldLast(story(), rows(), how());
  });
  return panel([
    headline(scope, EVERYTHING, () => {
      if (hidden()) return ["–", ""];
      const { dropped, capacity } = now();
      const places = scope.read("capacity") === EXPERTS ? say("no limit") : say("{capacity} places each", { capacity });
      return [
        say("{n} of {total}", { n: count(dropped.flat()), total: dropped.flat().length }),
        say("choices dropped; {places}", { places }),
      ];
    }),
    own,
    last,
    say(
      "A word has the colour of its first choice; the thickness of a line is the weight of the expert's " +
        "output. A dashed line is a dropped choice; no expert processes a word that is struck through.",
    ),
    html(
      "div",
      { class: "r-text" },
      select(scope.value("story"), {
        label: say("Story"),
        options: TEXTS.map((words, i) => [i, `${words.slice(0, 4).join(" ")} …`]),
      }),
      select(scope.value("layer"), {
        label: say("Layer"),
        options: [
          [1, say("first")],
          [2, say("second")],
        ],
      }),
    ),
  ]);
}

const short = (/** @type {number} */ p) => fixed(p).replace(/^0/, "");

/** Two words, or three, or “three and 4 more”. @param {string[]} all */
function listed(all) {
  return all.length > 4
    ? say("{first} and {n} more", { first: all.slice(0, 4).join(say(", ")), n: all.length - 4 })
    : all.join(say(", "));
}

/** The routing of a word, in words. @param {string[]} story @param {Routing} routing @param {number} i */
function told(story, routing, i) {
  const { experts: chosen, weights, dropped } = routing;
  const parts = chosen[i].map((expert, choice) => {
    const known = { word: story[i], expert: expert + 1 };
    if (!dropped[i][choice]) {
      const weight = fixed(weights[i][choice]);
      return choice
        ? say("and expert {expert}, weight {weight}", { expert: expert + 1, weight })
        : say("“{word}” goes to expert {expert}, weight {weight}", { ...known, weight });
    }
    const there = inside(routing, expert).map(({ word, choice: by }) =>
      by ? say("{word} (second choice)", { word: story[word] }) : story[word],
    );
    return choice
      ? say("and expert {expert}, which is full of {words}", { expert: expert + 1, words: listed(there) })
      : say("“{word}” goes to expert {expert}, which is full of {words}", { ...known, words: listed(there) });
  });
  return say("{parts}.", { parts: parts.join(say("; ")) });
}

/** The effect of the last word on the words before it, in words. @param {string[]} story @param {number[][]} rows @param {import("./routing.math.js").How} how */
function toldLast(story, rows, how) {
  if (how.capacity === EXPERTS) return say("Without a limit no choice is dropped.");
  const { out, back, places } = lastWord(rows, how);
  const who = (/** @type {typeof out} */ all) =>
    listed(
      all.map(({ word, choice, expert }) =>
        say(choice ? mark("{word} (second choice, {expert})") : mark("{word} (first choice, {expert})"), {
          word: story[word],
          expert: expert + 1,
        }),
      ),
    );
  const done = [
    places > 0 && say("gives each expert one more place"),
    back.length > 0 && say("lets in {words}", { words: who(back) }),
    out.length > 0 && say("pushes out {words}", { words: who(out) }),
  ].filter((clause) => clause !== false);
  const word = story[rows.length - 1];
  return done.length
    ? say("The last word of the call, “{word}”, {done}.", { word, done: clauses(done) })
    : say("The last word of the call, “{word}”, changes nothing for those before it.", { word });
}

/** A row for each expert: its bias, and the number of words that select it. @param {Scope} scope @param {State} state */
function experts(scope, { now, hidden }) {
  const parts = Array.from({ length: EXPERTS }, (_, i) => ({
    here: html("div", { class: `x-bar r-${i + 1}` }),
    recorded: html("div", { class: "x-bar x-second" }),
    shown: html("span", { class: "x-value" }),
  }));
  scope.when(EVERYTHING, () => {
    const { asked, load } = now();
    const heldOut = recorded(scope)[0];
    parts.forEach(({ here, recorded: bar, shown }, i) => {
      here.style.width = hidden() ? "0" : `${(100 * asked[i]) / scope.read("words")}%`;
      bar.style.width = hidden() ? "0" : `${(100 * heldOut[i]) / HELD_OUT}%`;
      shown.textContent = hidden()
        ? "–"
        : asked[i] > load[i]
          ? say("{n} of {total}", { n: load[i], total: asked[i] })
          : String(asked[i]);
    });
  });
  const step = button(say("Move biases by {RATE}", { RATE }), () =>
    scope.write("bias", rebalanced(added(scope), now().asked, RATE)),
  );
  const none = button(say("All to 0"), () => scope.write("bias", []));
  return panel([
    html(
      "div",
      {
        class: "x-grid r-experts",
        style: "--columns: 1rem 1fr 2.75rem 1fr 3.25rem; --narrow: 1rem 1fr 3.25rem",
      },
      html("span"),
      ...[say("bias added"), ""].map((head) => html("span", { class: "x-head x-own" }, head)),
      ...[say("share of words"), ""].map((head) => html("span", { class: "x-head" }, head)),
      ...parts.flatMap(({ here, recorded: bar, shown }, i) => [
        html("span", { class: "x-name", "aria-hidden": "true" }, String(i + 1)),
        slider(entry({ ...scope.value("bias"), get: () => added(scope) }, i), {
          label: say("bias of expert {i}", { i: i + 1 }),
          min: -1,
          max: 1,
          step: 0.02,
          show: (b) => fixed(b),
          plain: true,
        }),
        html("div", { class: "x-track" }, here, bar),
        shown,
      ]),
    ),
    html("div", { class: "x-bench" }, step, none),
  ]);
}

/** How evenly the experts are used, here and as trained. @param {Scope} scope @param {State} state */
function balance(scope, { now, hidden }) {
  const shown = (/** @type {() => string} */ of) => () => (hidden() ? "–" : of());
  return panel([
    headline(scope, EVERYTHING, () => [
      shown(() => say("{n} of {total}", { n: fixed(inEffect(now().asked)), total: EXPERTS }))(),
      say("experts in effect, this call"),
    ]),
    say(
      "Upper bars: the words of the call; striped: {n} new words, as trained. The first " +
        "button lowers the bias of each expert with more words than the average and raises the others’. The " +
        "model’s predictions are not recomputed.",
      { n: HELD_OUT.toLocaleString("en") },
    ),
    numbers(scope, EVERYTHING, [
      [say("balance loss, this call"), shown(() => fixed(now().balanceLoss))],
      [
        say("in effect, new words, as trained"),
        shown(() =>
          recorded(scope)
            .map((all) => fixed(inEffect(all), 1))
            .join(", "),
        ),
      ],
      [
        say("nats above the grammar"),
        shown(() =>
          above(scope)
            .map((x) => fixed(x, 3))
            .join(", "),
        ),
      ],
      [say("you said, without balance"), () => (scope.read("guess") ? String(scope.read("guess")) : "–")],
    ]),
  ]);
}

/** The recorded load of the experts on held-out words, for each seed. @param {Scope} scope */
function recorded(scope) {
  return router(scope.read("balance"), scope.read("top_k")).layers[scope.read("layer") - 1].asked;
}

/** @param {Scope} scope */
function above(scope) {
  return router(scope.read("balance"), scope.read("top_k")).above;
}

export default { render };
