/** Two language models: a text that is typed or generated, next-token probabilities, heads; stories beside their grammar. */

import { arcs } from "./arcs.math.js";
import { sum } from "./arithmetic.js";
import { HEADS, STAGES, opened, parse, run } from "./gpt.math.js";
import { MODEL } from "./gpt_model.js";
import {
  button,
  checkbox,
  fixed,
  headline,
  html,
  named,
  numbers,
  oncePerFrame,
  panel,
  picture,
  slider,
  stage,
  svg,
} from "./kit.js";
import { memberSwitch, not, querySlider } from "./query_slider.js";
import { firstError, nextWord } from "./stories.math.js";
import { tabs } from "./tabs.js";
import { draw, followers, nextTokenProbs, write } from "./writing.math.js";
import { clauses } from "./clauses.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ words: string, query: number, off: string[], temperature: number, top_k: number, top_p: number,
 *   seed: number, model: string, text: string }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./gpt.math.js").Model} Model
 * @typedef {{ name: "words" | "text", title: string, label: string, writes: "words" | "characters", known: RegExp }} Tab
 * @typedef {{ tab: Tab, model: Model, inputs: (keyof Traits)[], all: (keyof Traits)[], tokens(): string[],
 *   query(): number, ran(): ReturnType<typeof run>, logits(): number[], drawn(): ReturnType<typeof nextTokenProbs>,
 *   exact(): number[] | null, beside(): number[] | null, error(tokens: string[]): number | null,
 *   how(): { temperature: number, topK: number, topP: number }, go(tokens: string[]): void,
 *   take(tokens: string[]): void }} State
 */

/** @type {Record<string, Model>} */
const MODELS = { stories: opened(MODEL) };
const LONGEST = 240; // characters of English
/** The differences between the models: the trait with the text, its name, and its rules. @type {Record<string, Tab>} */
const TABS = {
  stories: {
    name: "words",
    title: mark("Stories"),
    label: mark("Story"),
    writes: "words",
    known: /^\S+( \S+){0,95}$/,
  },
  english: {
    name: "text",
    title: mark("English"),
    label: mark("Text"),
    writes: "characters",
    known: /^[ %'(),\-.:;a-z\d]{1,240}$/i,
  },
};
const SHOWN = 10; // next tokens with a bar
const SEEN = 12; // tokens with a row beside the arcs

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  scope.when(["words", "text"], () => {
    const { words, text } = { words: scope.read("words"), text: scope.read("text") };
    const isKnown =
      TABS.stories.known.test(words) && words.split(" ").every((w) => MODELS.stories.vocabulary.includes(w));
    if (!isKnown) throw new RangeError(`words must be 1 to 96 that the model knows, got ${words}`);
    if (!TABS.english.known.test(text))
      throw new RangeError(`text must be 1 to ${LONGEST} plain characters, got ${text}`);
  });
  const tabPanel = html(
    "div",
    { role: "tabpanel" },
    scope.rebuild(
      ["model"],
      () => scope.read("model"),
      (part) => {
        const name = scope.read("model");
        const show = () => explored(part, context.el, TABS[name], MODELS[name], scope.announce);
        if (MODELS[name]) return show();
        const waiting = html("p", { class: "x-facts" }, say("Loading the model, 180 kB …"));
        brought().then(
          () => waiting.isConnected && waiting.replaceWith(show()),
          () => (waiting.textContent = say("The model could not be fetched.")),
        );
        return waiting;
      },
    ),
  );
  scope.add(models(scope, tabPanel), tabPanel);
  return scope.dispose;
}

/** The English model, which is fetched when its tab is opened. */
async function brought() {
  const { MODEL: carried } = await import("./gpt_english.js");
  MODELS.english ??= opened(carried);
}

/** One tab for each model. @param {Scope} scope @param {HTMLElement} tabPanel */
function models(scope, tabPanel) {
  const names = Object.keys(TABS);
  const open = (/** @type {string} */ name) => {
    const text = scope.read(TABS[name].name);
    scope.change({ model: name, query: (name === "english" ? text : text.split(" ")).length - 1 });
  };
  const all = names.map((name) => {
    const tab = button(say(TABS[name].title), () => open(name));
    tab.setAttribute("role", "tab");
    tab.addEventListener("keydown", ({ key }) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
      const to = { Home: 0, End: names.length - 1 }[key] ?? (step && names.indexOf(name) + step + names.length);
      if (to === undefined) return;
      open(names[to % names.length]);
      all[to % names.length].focus();
    });
    return tab;
  });
  scope.when(["model"], () => {
    tabPanel.setAttribute("aria-label", say(TABS[scope.read("model")].title));
    all.forEach((tab, i) => {
      const isOpen = names[i] === scope.read("model");
      tab.setAttribute("aria-selected", String(isOpen));
      tab.tabIndex = isOpen ? 0 : -1;
    });
  });
  return html("div", { class: "g-tabs", role: "tablist", "aria-label": say("Model") }, ...all);
}

/**
 * The panel of one model.
 * @param {Scope} scope @param {HTMLElement} el @param {Tab} tab @param {Model} model @param {(words: string) => void} announce
 */
function explored(scope, el, tab, model, announce) {
  const tokens = () => scope.read(tab.name).split(model.between);
  const query = () => Math.min(scope.read("query"), tokens().length - 1);
  const how = () => ({
    temperature: scope.read("temperature"),
    topK: scope.read("top_k"),
    topP: scope.read("top_p"),
  });
  /** @type {(keyof Traits)[]} */
  const inputs = [tab.name, "query", "off"];
  /** @type {(keyof Traits)[]} */
  const all = [...inputs, "temperature", "top_k", "top_p"];
  /** @type {ReturnType<typeof run>} */
  let ran;
  /** @type {number[] | null} */
  let exact;
  scope.when(inputs, () => {
    const story = tokens().slice(0, query() + 1);
    ran = run(model, story, scope.read("off"));
    exact = model.pairs ? null : nextWord(story, model.vocabulary);
  });
  const logits = () => ran.lens[ran.lens.length - 1];
  /** @type {ReturnType<typeof nextTokenProbs>} */
  let drawn;
  scope.when(all, () => (drawn = nextTokenProbs(logits(), how())));
  /** @type {State} */
  const state = {
    tab,
    model,
    inputs,
    all,
    tokens,
    query,
    ran: () => ran,
    logits,
    drawn: () => drawn,
    exact: () => exact,
    beside: () => (model.pairs ? followers(model, tokens()[query()]) : exact),
    error: (given) => (model.pairs ? null : firstError(given)),
    how,
    go(story) {
      scope.change({ [tab.name]: story.join(model.between), query: story.length - 1 });
    },
    take(story) {
      state.go(story);
      if (story.length >= model.longest) el.querySelector("input")?.focus(); // the pressed button is disabled now
    },
  };
  scope.when(all, () => {
    const best = byLogit(state)[0];
    const said = (/** @type {number[]} */ p) => fixed(p[best]);
    const error = state.error(tokens());
    const beside = state.beside();
    announce(
      say(
        !beside
          ? mark("After {query} the model takes {next} with probability {p}, the grammar has no next word.")
          : model.pairs
            ? mark("After {query} the model takes {next} with probability {p}, counting pairs with {other}.")
            : mark("After {query} the model takes {next} with probability {p}, the grammar with {other}."),
        {
          query: shown(tokens()[query()]),
          next: shown(model.vocabulary[best]),
          p: said(drawn.p),
          other: beside ? said(beside) : "",
        },
      ) +
        (error === null
          ? ""
          : say(" The first word that the grammar could not have written is {word}.", { word: tokens()[error] })),
    );
  });
  return html(
    "div",
    { class: "g-explored" },
    typed(scope, state),
    html(
      "div",
      { class: "x-panel x-controls" },
      querySlider(scope, [tab.name], {
        label: of(tab, mark("Query word"), mark("Query character")),
        count: () => tokens().length,
        query,
        show: (i) => tokens()[i] && shown(tokens()[i]),
      }),
      html(
        "div",
        { class: "g-written" },
        writing(scope, state),
        headline(scope, all, () => mostProbable(state)),
      ),
    ),
    tabs(
      [say("Write"), [[of(tab, mark("Next word"), mark("Next character")), expected(scope, state)]]],
      [
        say("Look inside"),
        [
          [say("Heads"), looks(scope, state)],
          [say("Layers"), layers(scope, state)],
          ["", switches(scope, state)],
        ],
      ],
    ).element,
  );
}

/** The probability of the most probable token, and that of the reference. @param {State} state @returns {[string, string]} */
function mostProbable(state) {
  const { model, drawn, beside } = state;
  const [best] = byLogit(state);
  const other = beside();
  const next = shown(model.vocabulary[best]);
  if (!other) return [fixed(drawn().p[best]), say("for “{next}”", { next })];
  const words = model.pairs ? mark("for “{next}”; pairs: {p}") : mark("for “{next}”; the grammar: {p}");
  return [fixed(drawn().p[best]), say(words, { next, p: fixed(other[best]) })];
}

/** One of two texts, by what the model writes. @param {Tab} tab @param {string} words @param {string} characters @param {Record<string, string | number>} [fields] */
const of = (tab, words, characters, fields) => say(tab.writes === "words" ? words : characters, fields);

/** A token as visible text. @param {string} token */
const shown = (token) => (token === " " ? "␣" : token);

/** The tokens by descending probability. @param {State} state */
function byLogit({ logits }) {
  const z = logits();
  return z.map((_, token) => token).sort((a, b) => z[b] - z[a]);
}

/** The input for the text; invalid and truncated parts are marked. @param {Scope} scope @param {State} state */
function typed(scope, { tab, model, tokens, query, error: firstWrong, go }) {
  const { vocabulary, view, longest, between } = model;
  const input = html("textarea", { rows: 1, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const marks = html("span", { class: "g-marks", "aria-hidden": "true" });
  const message = html("p", { class: "x-facts g-message" });
  const marked = () => {
    const given = parse(model, input.value);
    const error = firstWrong(given);
    const last = Math.min(query(), given.length - 1);
    let place = -1;
    const pieces = between ? (input.value.match(/[^\s.]+|\.|\s+/g) ?? []) : [...input.value];
    marks.replaceChildren(
      ...pieces.map((piece) => {
        if (between && !piece.trim()) return piece;
        place += 1;
        const isUnknown = !vocabulary.includes(given[place]);
        const isAway = isUnknown || place > last || place < last + 1 - view;
        const look = [place === last ? "g-query" : "", isAway ? "g-away" : "", place === error ? "g-wrong" : ""];
        return html("span", { class: look.filter(Boolean).join(" ") }, piece);
      }),
      " ",
    );
    return { given, error };
  };
  /** The message about the typed text; `done` if the last word is complete. @param {boolean} done */
  const judge = (done) => {
    const { given, error } = marked();
    const unknown = given.find((word) => !vocabulary.includes(word));
    const begun = vocabulary.filter(
      (word) => unknown && given.indexOf(unknown) === given.length - 1 && word.startsWith(unknown),
    );
    if (unknown && begun.length && !done)
      return say("Known words that begin so: {begun}.", { begun: begun.join(say(", ")) });
    if (unknown)
      return of(
        tab,
        mark("The model does not know “{unknown}”; its {n} words are under “All words”."),
        mark("The model does not know “{unknown}”; its {n} characters are under “All characters”."),
        { unknown, n: vocabulary.length },
      );
    if (!given.length || given.length > longest)
      return of(tab, mark("The model takes 1 to {n} words."), mark("The model takes 1 to {n} characters."), {
        n: longest,
      });
    if (given.join(between) !== scope.read(tab.name)) go(given);
    if (error !== null)
      return say("“{word}” is the first word that the grammar could not have written.", { word: given[error] });
    return given.length > view
      ? of(
          tab,
          mark("The model reads only the last {n} words; it was trained on rows of {trained}."),
          mark("The model reads only the last {n} characters; it was trained on rows of {trained}."),
          { n: view, trained: view + 1 },
        )
      : "";
  };
  const judging = oncePerFrame((/** @type {boolean} */ done) => (message.textContent = judge(done)));
  input.addEventListener("input", () => judging.later(false));
  const finish = () => {
    judging.later(true);
    judging.flush();
  };
  input.addEventListener("change", finish);
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    finish();
  });
  scope.when([tab.name, "query"], () => {
    if (parse(model, input.value).join(between) !== scope.read(tab.name)) input.value = tokens().join(between);
    message.textContent = judge(true);
  });
  return html(
    "div",
    { class: "x-panel", style: "gap: 0.35rem" },
    html(
      "label",
      { class: "x-typed" },
      html("span", {}, say(tab.label)),
      html("span", { class: "x-grown" }, input, marks),
    ),
    message,
  );
}

/**
 * Generate a continuation after the query, or generate the last one again with other random numbers. Words appear at
 * once; characters appear one by one, since a sentence takes a second or two, and any input stops the generation.
 * @param {Scope} scope @param {State} state
 */
function writing(scope, { tab, model, tokens, query, logits, how, take }) {
  let last = { text: "", from: 0, ends: ["."] };
  const remember = (/** @type {string[]} */ story, /** @type {number} */ from, /** @type {string[]} */ ends) => {
    last = { text: story.join(model.between), from, ends };
    take(story);
  };
  let turn = 0;
  const go = async (/** @type {number} */ from, /** @type {string[]} */ ends) => {
    const own = (turn += 1);
    const story = tokens().slice(0, from);
    if (model.between)
      return remember(write(model, story, scope.read("off"), how(), scope.read("seed"), ends), from, ends);
    remember(story, from, ends);
    do {
      story.push(draw(model, logits(), how(), scope.read("seed"), story.length));
      remember(story, from, ends);
      await new Promise(requestAnimationFrame);
      if (own !== turn || scope.read(tab.name) !== last.text || !bench.isConnected) return;
    } while (!ends.includes(story[story.length - 1]) && story.length < model.longest);
  };
  const makers = [
    button(say("Write a word"), () => go(query() + 1, model.between ? model.vocabulary : [" ", "."])),
    button(say("Write a sentence"), () => go(query() + 1, ["."])),
  ];
  const from = () => (last.text === scope.read(tab.name) ? last.from : query() + 1);
  const anew = button(say("Once more"), () => {
    scope.write("seed", (scope.read("seed") + 1) % 2 ** 31);
    go(from(), last.ends);
  });
  const seed = html("span", { class: "x-facts" });
  scope.when([tab.name, "query"], () => {
    for (const one of makers) one.disabled = query() + 1 >= model.longest;
    anew.disabled = from() >= model.longest;
  });
  scope.when(["seed"], () => (seed.textContent = say("seed {seed}", { seed: scope.read("seed") })));
  const bench = html("div", { class: "x-bench" }, ...makers, anew, seed);
  return bench;
}

/** Bars of the model and of the reference, with the tokens that sampling excludes. @param {Scope} scope @param {State} state */
function expected(scope, state) {
  const { tab, model, all, tokens, query, drawn, exact, beside, take: next } = state;
  const rows = Array.from({ length: SHOWN }, (_, i) => {
    const take = button("", () => next([...tokens().slice(0, query() + 1), model.vocabulary[byLogit(state)[i]]]));
    return {
      take,
      bars: [html("div", { class: "x-bar" }), html("div", { class: "x-bar x-second" })],
      values: [html("span", { class: "x-value" }), html("span", { class: "x-value" })],
    };
  });
  scope.when(all, () => {
    const order = byLogit(state);
    const other = beside();
    rows.forEach(({ take, bars, values }, i) => {
      const token = order[i];
      take.textContent = shown(model.vocabulary[token]);
      take.disabled = query() + 1 >= model.longest;
      struck(take, drawn().kept[token], exact()?.[token]);
      [drawn().p, other].forEach((p, k) => {
        bars[k].style.width = `${100 * Math.sqrt(p?.[token] ?? 0)}%`;
        values[k].textContent = p ? fixed(p[token], 3) : "–";
      });
    });
  });
  /** @type {[string, () => string][]} */
  const beyond = [
    [say("impossible words, probability"), () => share(exact(), (token) => (exact()?.[token] ? 0 : drawn().p[token]))],
    [
      say("true probability cut away"),
      () => share(exact(), (token) => (drawn().kept[token] ? 0 : (exact()?.[token] ?? 0))),
    ],
    [say("KL divergence from the grammar, nats"), () => distance(exact(), drawn().p)],
  ];
  return panel(
    [
      sampling(scope, model),
      html(
        "div",
        { class: "x-grid g-next", style: "--columns: 6.5rem 1fr 3rem 3.9rem" },
        ...[
          of(tab, mark("next word"), mark("next character")),
          "",
          say("model"),
          model.pairs ? say("pairs") : say("grammar"),
        ].map((head) => html("span", { class: "x-head" }, head)),
        ...rows.flatMap(({ take, bars, values }) => [take, html("div", { class: "x-track" }, ...bars), ...values]),
      ),
      html(
        "div",
        { class: "x-panel" },
        html(
          "figcaption",
          {},
          of(
            tab,
            mark(
              "The ten most probable words; each is a button. A bar is as long as the square root of the probability.",
            ),
            mark(
              "The ten most probable characters; each is a button. A bar is as long as the square root of the " +
                "probability. The true probabilities of English characters are unknown. Striped: how often the " +
                "character followed the same character in the training text.",
            ),
          ),
        ),
        numbers(scope, all, [
          [of(tab, mark("words kept"), mark("characters kept")), () => String(drawn().kept.filter(Boolean).length)],
          ...(model.pairs ? [] : beyond),
        ]),
      ),
      everyToken(scope, state),
    ],
    "g-writes",
  );
}

/** A probability of the grammar summed over words; null outside the grammar. @param {number[] | null} exact @param {(token: number) => number} of */
function share(exact, of) {
  return exact ? fixed(sum(exact.map((_, token) => of(token))), 4) : "–";
}

/** The KL divergence between the sampling distribution and the grammar. @param {number[] | null} exact @param {number[]} p */
function distance(exact, p) {
  if (!exact) return "–";
  const far = sum(exact.map((share, token) => (share ? share * Math.log(share / p[token]) : 0)));
  return far < Infinity ? fixed(Math.max(0, far), 4) : "∞";
}

/** @param {HTMLButtonElement} word @param {boolean} isKept @param {number} [p] of the grammar */
function struck(word, isKept, p) {
  word.classList.toggle("g-cut", !isKept);
  word.classList.toggle("g-impossible", p === 0);
  const said = [!isKept && say("cut"), p === 0 && say("impossible")].filter((one) => one !== false);
  word.setAttribute("aria-label", clauses([word.textContent?.replace("␣", say("space")) ?? "", ...said]));
}

/** @param {Scope} scope @param {Model} model */
function sampling(scope, { vocabulary }) {
  return html(
    "div",
    { class: "x-settings" },
    slider(scope.value("temperature"), {
      label: say("Temperature"),
      min: 0,
      max: 2,
      step: 0.05,
      show: (t) => t.toFixed(2),
    }),
    slider(scope.value("top_k"), {
      label: say("top-k"),
      min: 1,
      max: vocabulary.length,
      step: 1,
      show: (k) => (k === vocabulary.length ? say("all") : String(k)),
    }),
    slider(scope.value("top_p"), {
      label: say("top-p"),
      min: 0.05,
      max: 1,
      step: 0.005,
      show: (p) => (p === 1 ? say("all") : p.toFixed(3)),
    }),
  );
}

const [HIGH, LEFT, RIGHT, WIDE] = [20, 112, 198, 310];

/** The attention weights on the paths to the query: layer 1 on the left, layer 2 on the right. @param {Scope} scope @param {State} state */
function looks(scope, state) {
  const { tab, inputs, tokens, query, ran } = state;
  const frame = html("div");
  scope.when(inputs, () => {
    const [all, q, { first, weights }] = [tokens(), query(), ran()];
    const n = Math.min(SEEN, all.length);
    const top = Math.max(0, q - n + 1); // the first row also stands for the earlier words
    const y = (/** @type {number} */ place) => 34 + HIGH * Math.max(0, place - top);
    const drawing = picture(
      WIDE,
      28 + HIGH * n,
      say("attention weights of the query {query} in each layer", { query: shown(all[q]) }),
    );
    drawing.append(named(say("layer 1"), LEFT, 12, "", "end"), named(say("layer 2"), RIGHT, 12));
    for (const { head, from, to, weight, share } of arcs(weights, scope.read("off"))) {
      if (first + to <= top && first + to !== q) continue;
      const [layer, k] = head.split(".").map(Number);
      const lane = 2 * (k - 2.5);
      const [a, b] = [y(first + to) + lane, y(first + from) + lane + (from === to ? 5 : 0)];
      const [x, side] = layer === 1 ? [LEFT, -1] : [RIGHT, 1];
      const tip = x + side * Math.min(140, 16 + 3 * k + 0.48 * Math.abs(a - b));
      drawing.append(
        svg("path", {
          class: `x-line g-${k}`,
          d: `M${x} ${a}C${tip} ${a} ${tip} ${b} ${x} ${b}`,
          style: `stroke-width: ${(0.75 + 3.5 * weight).toFixed(2)}; stroke-opacity: ${share.toFixed(2)}`,
        }),
      );
    }
    all.slice(top, top + n).forEach((word, i) => {
      const place = top + i;
      const look = place === q ? "x-query" : place > q || place < first ? "g-later" : "";
      const written = i === 0 && place > 0 ? say("… earlier") : shown(word);
      drawing.append(
        svg("text", { class: look, x: (LEFT + RIGHT) / 2, y: y(place) + 4, "text-anchor": "middle" }, written),
      );
    });
    frame.replaceChildren(drawing);
  });
  return panel(
    [
      frame,
      of(
        tab,
        mark(
          "A wider arc is a larger weight. Right: the weights of the query, in bold, in layer 2. Left: the " +
            "weights in layer 1 of the query and of the words that it attends to. Weights below 0.1 are not drawn.",
        ),
        mark(
          "A wider arc is a larger weight. Right: the weights of the query, in bold, in layer 2. Left: the " +
            "weights in layer 1 of the query and of the characters that it attends to. Weights below 0.1 are not drawn.",
        ),
      ),
    ],
    "x-tall",
  );
}

/** A checkbox for each head, which ablates it, and the token with its largest weight. @param {Scope} scope @param {State} state */
function switches(scope, { inputs, tokens, ran }) {
  const rows = HEADS.map((head, i) => {
    const most = html("span", { class: "x-facts" });
    scope.when(inputs, () => {
      const { first, weights } = ran();
      const row = weights[i][weights[i].length - 1];
      const best = row.indexOf(Math.max(...row));
      most.textContent = `${shown(tokens()[first + best])} ${fixed(row[best])}`;
    });
    const tick = checkbox(not(memberSwitch(scope.value("off"), head, HEADS)), { label: head });
    return html("div", { class: "g-head" }, tick, html("i", { class: `g-${head[2]}` }), most);
  });
  return html(
    "div",
    {
      class: "g-heads",
      role: "group",
      "aria-label": say("heads that are not ablated, and the largest weight of each"),
    },
    ...rows,
  );
}

/** The next-token probabilities if the model ended after this sublayer (logit lens). @param {Scope} scope @param {State} state */
function layers(scope, { tab, model, inputs, ran, exact }) {
  const { vocabulary, pairs } = model;
  const rows = STAGES.map((name) => {
    const cells = [html("td"), html("td")];
    return { cells, row: html("tr", {}, html("th", { scope: "row" }, say(name)), ...cells) };
  });
  scope.when(inputs, () =>
    rows.forEach(({ cells }, i) => {
      const { p } = nextTokenProbs(ran().lens[i], { temperature: 1, topK: vocabulary.length, topP: 1 });
      const order = p.map((_, token) => token).sort((a, b) => p[b] - p[a]);
      cells[0].textContent = order
        .slice(0, 3)
        .map((token) => shown(vocabulary[token]))
        .join(pairs ? "  " : ", ");
      cells[1].textContent = pairs
        ? fixed(p[order[0]], 4)
        : share(exact(), (token) => (exact()?.[token] ? p[token] : 0));
    }),
  );
  return panel([
    html(
      "table",
      { class: "x-table g-lens" },
      html(
        "tr",
        {},
        ...[say("after"), say("most probable"), pairs ? say("the first") : say("possible")].map((head) =>
          html("th", { scope: "col" }, head),
        ),
      ),
      ...rows.map(({ row }) => row),
    ),
    pairs
      ? say(
          "The residual stream of the query after each sublayer, decoded as if it were the last: the three most " +
            "probable characters, and the probability of the first of them.",
        )
      : say(
          "The residual stream of the query after each sublayer, decoded as if it were the last: the three most " +
            "probable words, and the probability of all that the grammar allows.",
        ),
  ]);
}

/** The vocabulary; a word is appended after the query. @param {Scope} scope @param {State} state */
function everyToken(scope, { tab, model, all, tokens, query, drawn, exact, take }) {
  const chips = model.vocabulary.map((one) => button(shown(one), () => take([...tokens().slice(0, query() + 1), one])));
  scope.when(all, () =>
    chips.forEach((chip, token) => {
      chip.disabled = query() + 1 >= model.longest;
      struck(chip, drawn().kept[token], exact()?.[token]);
    }),
  );
  return html(
    "details",
    { class: "g-every" },
    html("summary", {}, of(tab, mark("All words"), mark("All characters"))),
    html(
      "div",
      { class: "g-chips", role: "group", "aria-label": of(tab, mark("all words"), mark("all characters")) },
      ...chips,
    ),
    html(
      "p",
      { class: "x-facts" },
      model.pairs
        ? say("Struck through: cut by top-k or top-p.")
        : say("Grey: impossible according to the grammar. Struck through: cut by top-k or top-p."),
    ),
  );
}

export default { render };
