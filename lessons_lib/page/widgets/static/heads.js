/** A trained model on the reader's sentence: attention weights, next-word probabilities, and ablation of heads. */

import { button, checkbox, fixed, html, named, panel, picture, select, stage, svg } from "./kit.js";
import { HEADS, LONGEST, VOCABULARY, agreement, best, parse, run } from "./heads.math.js";
import { memberSwitch, not, querySlider } from "./query_slider.js";
import { say } from "./words.js";

/**
 * @typedef {{ words: string, query: number, off: string[] }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ words(): string[], query(): number, now(): ReturnType<typeof run>,
 *   full(): ReturnType<typeof run> }} State
 */

/** @type {(keyof Traits)[]} */
const EVERYTHING = ["words", "query", "off"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const words = () => scope.read("words").split(" ");
  const query = () => Math.min(scope.read("query"), words().length - 1);
  let full = run(words(), []);
  let now = full;
  scope.when(["words", "off"], () => {
    full = run(words(), []);
    now = scope.read("off").length ? run(words(), scope.read("off")) : full;
  });
  const state = { words, query, now: () => now, full: () => full };
  scope.add(
    typed(scope, state),
    html(
      "div",
      { class: "x-panel x-controls", style: "gap: 0" },
      querySlider(scope, ["words"], {
        label: say("Query"),
        count: () => words().length,
        query,
        show: (i) => words()[i],
      }),
      replacement(scope, state),
    ),
    html(
      "div",
      { class: "x-panels" },
      looks(scope, state),
      html("div", { class: "x-panel" }, expected(scope, state), verbs(scope, state)),
    ),
    html(
      "details",
      { class: "x-facts" },
      html("summary", {}, say("The {n} words of the vocabulary", { n: VOCABULARY.length })),
      VOCABULARY.join(" "),
    ),
  );
  scope.when(EVERYTHING, () => {
    const p = now.next[query()];
    const most = HEADS.map((head, i) =>
      say("{head} to {word}", { head, word: words()[best(now.weights[i][query()])] }),
    );
    scope.announce(
      say("From the query {word} the heads attend most: {most}. Next is most likely {next}, {p}.", {
        word: words()[query()],
        most: most.join(say(", ")),
        next: VOCABULARY[best(p)],
        p: fixed(p[best(p)]),
      }),
    );
  });
  return scope.dispose;
}

/** The input for the sentence. @param {Scope} scope @param {State} state */
function typed(scope, { words }) {
  const input = html("textarea", { rows: 1, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const grown = html("span", { class: "x-grown" }, input); // grows with the sentence
  const message = html("p", { class: "x-facts" });
  const fit = () => {
    grown.dataset.words = input.value;
  };
  input.addEventListener("input", fit);
  input.addEventListener("change", () => {
    const { words: given, unknown } = parse(input.value);
    if (unknown.length) message.textContent = say("The model does not know “{word}”.", { word: unknown[0] });
    else if (given.length < 2 || given.length > LONGEST)
      message.textContent = say("The model takes 2 to {LONGEST} words.", { LONGEST });
    else {
      scope.change({ query: given.length - 1, words: given.join(" ") });
    }
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    input.dispatchEvent(new Event("change"));
  });
  scope.when(["words"], () => {
    input.value = words().join(" ");
    message.textContent = "";
    fit();
  });
  return html(
    "div",
    { class: "x-panel", style: "gap: 0.35rem" },
    html("label", { class: "x-typed" }, html("span", {}, say("Sentence")), grown),
    message,
  );
}

/** A control that replaces the query word. @param {Scope} scope @param {State} state */
function replacement(scope, { words, query }) {
  const own = {
    get: () => words()[query()],
    set: (/** @type {string} */ word) =>
      scope.write(
        "words",
        words()
          .map((old, i) => (i === query() ? word : old))
          .join(" "),
      ),
    watch: (/** @type {() => void} */ draw) => scope.when(["words", "query"], draw),
  };
  return select(own, { label: say("Replace it by"), options: VOCABULARY.map((word) => [word, word]) });
}

const [LEFT, TOP, SIDE, HIGH] = [88, 34, 27, 20];

/** The attention weights at the query: a row for each word, a column for each head. @param {Scope} scope @param {State} state */
function looks(scope, { words, query, now }) {
  const frame = html("div");
  scope.when(EVERYTHING, () => {
    const n = words().length;
    const drawing = picture(310, TOP + HIGH * n, say("weights of the eight heads on each word"));
    const place = (/** @type {number} */ i) => LEFT + SIDE * i + (i < 4 ? 0 : 6);
    for (const i of [0, 4])
      drawing.append(
        svg("rect", { class: "x-ground", x: place(i) - 1, y: TOP - 1, width: 4 * SIDE, height: HIGH * n }),
        named(say("layer {layer}", { layer: 1 + i / 4 }), place(i), 12),
      );
    drawing.append(named(say("word"), LEFT - 8, 28, "", "end"));
    words().forEach((word, j) =>
      drawing.append(
        svg(
          "text",
          { class: j === query() ? "x-query" : "", x: LEFT - 8, y: TOP + HIGH * j + 13, "text-anchor": "end" },
          word,
        ),
      ),
    );
    HEADS.forEach((head, i) => {
      const x = place(i);
      const dead = scope.read("off").includes(head);
      drawing.append(svg("text", { class: dead ? "x-dead" : "", x: x + 12, y: 28, "text-anchor": "middle" }, head));
      now()
        .weights[i][query()].slice(0, query() + 1)
        .forEach((share, j) =>
          drawing.append(
            svg("rect", {
              class: dead ? "x-off" : "x-solid",
              x,
              y: TOP + HIGH * j,
              width: SIDE - 2,
              height: HIGH - 2,
              "fill-opacity": share.toFixed(3),
            }),
          ),
        );
    });
    frame.replaceChildren(drawing);
  });
  return panel([
    frame,
    say("The stronger the colour, the larger the attention weight of the query (in bold) on a word."),
    switches(scope),
  ]);
}

/**
 * The most probable next words; a button appends one after the query.
 * @param {Scope} scope @param {State} state
 */
function expected(scope, { words, query, now }) {
  const rows = Array.from({ length: 6 }, () => {
    const take = button("", () => {
      const story = words().slice(0, query() + 1);
      if (story.length === LONGEST) return;
      scope.change({ query: story.length, words: [...story, take.textContent].join(" ") });
      if (take.disabled) take.closest(".x-body")?.querySelector("input")?.focus();
    });
    return { take, bar: html("div", { class: "x-bar" }), shown: html("span", { class: "x-value" }) };
  });
  scope.when(EVERYTHING, () => {
    const p = now().next[query()];
    const order = p.map((_, token) => token).sort((a, b) => p[b] - p[a]);
    rows.forEach(({ take, bar, shown }, i) => {
      take.textContent = VOCABULARY[order[i]];
      take.disabled = query() === LONGEST - 1;
      bar.style.width = `${100 * p[order[i]]}%`;
      shown.textContent = fixed(p[order[i]]);
    });
  });
  return html(
    "div",
    { class: "x-grid", style: "--columns: 7rem 1fr 2.75rem" },
    ...[say("next word"), say("probability"), ""].map((head) => html("span", { class: "x-head" }, head)),
    ...rows.flatMap(({ take, bar, shown }) => [take, html("div", { class: "x-track" }, bar), shown]),
  );
}

/** The probability of a singular and of a plural verb. @param {Scope} scope @param {State} state */
function verbs(scope, { query, now, full }) {
  const cells = Array.from({ length: 4 }, () => html("td"));
  scope.when(EVERYTHING, () => {
    const shares = [full(), now()].map(({ next }) => agreement(next[query()]));
    [0, 1].forEach((k) => shares.forEach((of, i) => (cells[2 * k + i].textContent = fixed(of[k]))));
  });
  const line = (/** @type {string} */ name, /** @type {number} */ k) =>
    html("tr", {}, html("th", { scope: "row" }, name), cells[2 * k], cells[2 * k + 1]);
  return html(
    "table",
    { class: "x-table" },
    html(
      "tr",
      {},
      ...[say("next is a verb"), say("all heads"), say("now")].map((head) => html("th", { scope: "col" }, head)),
    ),
    line(say("singular: sees"), 0),
    line(say("plural: see"), 1),
  );
}

/** A checkbox for each head, which ablates it. @param {Scope} scope */
function switches(scope) {
  const boxes = HEADS.map((head) => checkbox(not(memberSwitch(scope.value("off"), head, HEADS)), { label: head }));
  return html(
    "div",
    { class: "x-bench", role: "group", "aria-label": say("heads that are switched on") },
    html("span", { class: "x-head" }, say("Heads switched on")),
    ...boxes,
  );
}

export default { render };
