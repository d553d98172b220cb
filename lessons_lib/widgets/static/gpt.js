/** A language model in the page: a story that is typed or written, its next words beside the grammar's, its heads. */

import { sum } from "./arithmetic.js";
import { HEADS, LONGEST, STAGES, VIEW, VOCABULARY, arcs, chances, parse, run, write } from "./gpt.math.js";
import { button, checkbox, fixed, html, named, numbers, panels, picture, slider, stage, svg } from "./kit.js";
import { asking, member, not } from "./sequence.js";
import { firstError, nextWord } from "./stories.math.js";

/**
 * @typedef {{ words: string, query: number, off: string[], temperature: number, top_k: number, top_p: number,
 *   seed: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ words(): string[], query(): number, ran(): ReturnType<typeof run>, logits(): number[],
 *   drawn(): ReturnType<typeof chances>, exact(): number[] | null, how(): { temperature: number, topK: number,
 *   topP: number }, go(words: string[]): void, take(words: string[]): void }} State
 */

/** @type {(keyof Traits)[]} */
const ASKED = ["words", "query", "off"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...ASKED, "temperature", "top_k", "top_p"];
const SHOWN = 10; // next words that have a bar
const SEEN = 14; // words that have a row beside the arcs

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const words = () => scope.read("words").split(" ");
  const query = () => Math.min(scope.read("query"), words().length - 1);
  const how = () => ({
    temperature: scope.read("temperature"),
    topK: scope.read("top_k"),
    topP: scope.read("top_p"),
  });
  /** @type {ReturnType<typeof run>} */
  let ran;
  /** @type {number[] | null} */
  let exact;
  let answered = ""; // a word that is added changes two traits, and asks once
  scope.when(ASKED, () => {
    const isTold = words().length <= LONGEST && words().every((word) => VOCABULARY.includes(word));
    if (!isTold) throw new RangeError(`words must be 1 to ${LONGEST} that the model knows, got ${scope.read("words")}`);
    const story = words().slice(0, query() + 1);
    const question = `${story} ${scope.read("off")}`;
    if (question === answered) return;
    ran = run(story, scope.read("off"));
    exact = nextWord(story, VOCABULARY);
    answered = question;
  });
  const logits = () => ran.lens[ran.lens.length - 1];
  /** @type {ReturnType<typeof chances>} */
  let drawn;
  scope.when(EVERYTHING, () => (drawn = chances(logits(), how())));
  /** @type {State} */
  const state = {
    words,
    query,
    ran: () => ran,
    logits,
    drawn: () => drawn,
    exact: () => exact,
    how,
    go(story) {
      scope.write("words", story.join(" "));
      scope.write("query", story.length - 1);
    },
    take(story) {
      state.go(story);
      if (story.length >= LONGEST) context.el.querySelector("input")?.focus(); // what was pressed is disabled
    },
  };
  scope.add(
    typed(scope, state),
    html(
      "div",
      { class: "x-panel x-controls" },
      asking(scope, ["words"], {
        label: "Word that asks",
        count: () => words().length,
        query,
        show: (i) => words()[i],
      }),
      writing(scope, state),
    ),
    panels(
      ["Next word", expected(scope, state)],
      ["Heads", looks(scope, state)],
      ["Layers", layers(scope, state)],
      ["All words", everyWord(scope, state)],
    ),
  );
  scope.when(EVERYTHING, () => {
    const best = VOCABULARY[byLogit(state)[0]];
    const said = (/** @type {number[]} */ p) => fixed(p[VOCABULARY.indexOf(best)]);
    const error = firstError(words());
    scope.announce(
      `After ${words()[query()]} the model takes ${best} with probability ${said(drawn.p)}, ` +
        (exact ? `the grammar with ${said(exact)}.` : "the grammar has no next word.") +
        (error === null ? "" : ` The first word that the grammar could not have written is ${words()[error]}.`),
    );
  });
  return scope.dispose;
}

/** The words from the likeliest to the least likely. @param {State} state */
function byLogit({ logits }) {
  const z = logits();
  return z.map((_, token) => token).sort((a, b) => z[b] - z[a]);
}

/** The story, as one types it; what is wrong in it, or not seen, is marked on it. @param {Scope} scope @param {State} state */
function typed(scope, { words, query, go }) {
  const input = html("textarea", { rows: 1, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const marks = html("span", { class: "g-marks", "aria-hidden": "true" });
  const message = html("p", { class: "x-facts g-message" });
  const mark = () => {
    const given = parse(input.value);
    const error = firstError(given);
    const asks = Math.min(query(), given.length - 1);
    let place = -1;
    const pieces = input.value.match(/[^\s.]+|\.|\s+/g) ?? [];
    marks.replaceChildren(
      ...pieces.map((piece) => {
        if (!piece.trim()) return piece;
        place += 1;
        const isUnknown = !VOCABULARY.includes(piece.toLowerCase());
        const isAway = isUnknown || place > asks || place < asks + 1 - VIEW;
        const look = [place === asks ? "g-asks" : "", isAway ? "g-away" : "", place === error ? "g-wrong" : ""];
        return html("span", { class: look.filter(Boolean).join(" ") }, piece);
      }),
      " ",
    );
    return { given, error };
  };
  /** What can be said of what stands there; `done` if the last word is no beginning of one. @param {boolean} done */
  const judge = (done) => {
    const { given, error } = mark();
    const unknown = given.find((word) => !VOCABULARY.includes(word));
    const begun = VOCABULARY.filter(
      (word) => unknown && given.indexOf(unknown) === given.length - 1 && word.startsWith(unknown),
    );
    if (unknown && begun.length && !done) return `Its words that begin so: ${begun.join(", ")}.`;
    if (unknown) return `The model does not know “${unknown}”; its ${VOCABULARY.length} words are under “All words”.`;
    if (!given.length || given.length > LONGEST) return `It takes 1 to ${LONGEST} words.`;
    if (given.join(" ") !== words().join(" ")) go(given);
    if (error !== null) return `“${given[error]}” is the first word that the grammar could not have written.`;
    return given.length > VIEW ? `The model is shown ${VIEW} words, the last; it never saw more than ${VIEW + 1}.` : "";
  };
  input.addEventListener("input", () => (message.textContent = judge(false)));
  input.addEventListener("change", () => (message.textContent = judge(true)));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    message.textContent = judge(true);
  });
  scope.when(["words", "query"], () => {
    if (parse(input.value).join(" ") !== words().join(" ")) input.value = words().join(" ");
    message.textContent = judge(true);
  });
  return html(
    "div",
    { class: "x-panel", style: "gap: 0.35rem" },
    html("label", { class: "x-typed" }, html("span", {}, "Story"), html("span", { class: "x-grown" }, input, marks)),
    message,
  );
}

/**
 * The model goes on after the word that asks; or once more, from where it last began, by other chances.
 * @param {Scope} scope @param {State} state
 */
function writing(scope, { words, query, how, take }) {
  let last = { text: "", from: 0, toStop: true };
  const go = (/** @type {number} */ from, /** @type {boolean} */ toStop) => {
    const story = write(words().slice(0, from), scope.read("off"), how(), scope.read("seed"), toStop);
    last = { text: story.join(" "), from, toStop };
    take(story);
  };
  const makers = [
    button("Write a word", () => go(query() + 1, false)),
    button("Write a sentence", () => go(query() + 1, true)),
  ];
  const from = () => (last.text === scope.read("words") ? last.from : query() + 1);
  const anew = button("Once more", () => {
    scope.write("seed", (scope.read("seed") + 1) % 2 ** 31);
    go(from(), last.toStop);
  });
  const seed = html("span", { class: "x-facts" });
  scope.when(["words", "query"], () => {
    for (const one of makers) one.disabled = query() + 1 >= LONGEST;
    anew.disabled = from() >= LONGEST;
  });
  scope.when(["seed"], () => (seed.textContent = `seed ${scope.read("seed")}`));
  return html("div", { class: "x-bench" }, ...makers, anew, seed);
}

/** Bars of the model and of the grammar, and what is cut. @param {Scope} scope @param {State} state */
function expected(scope, state) {
  const { words, query, drawn, exact, take: next } = state;
  const rows = Array.from({ length: SHOWN }, () => {
    const take = button("", () => next([...words().slice(0, query() + 1), String(take.textContent)]));
    return {
      take,
      bars: [html("div", { class: "x-bar" }), html("div", { class: "x-bar x-second" })],
      shown: [html("span", { class: "x-value" }), html("span", { class: "x-value" })],
    };
  });
  scope.when(EVERYTHING, () => {
    const order = byLogit(state);
    rows.forEach(({ take, bars, shown }, i) => {
      const token = order[i];
      take.textContent = VOCABULARY[token];
      take.disabled = query() + 1 >= LONGEST;
      struck(take, drawn().kept[token], exact()?.[token]);
      [drawn().p, exact()].forEach((p, k) => {
        bars[k].style.width = `${100 * Math.sqrt(p?.[token] ?? 0)}%`;
        shown[k].textContent = p ? fixed(p[token], 3) : "–";
      });
    });
  });
  return html(
    "figure",
    { class: "x-panel" },
    sampling(scope),
    html(
      "div",
      { class: "x-grid g-next", style: "--columns: 6.5rem 1fr 3rem 3.9rem" },
      ...["next word", "", "model", "grammar"].map((head) => html("span", { class: "x-head" }, head)),
      ...rows.flatMap(({ take, bars, shown }) => [take, html("div", { class: "x-track" }, ...bars), ...shown]),
    ),
    html(
      "figcaption",
      {},
      "The ten likeliest; each word is a button. A bar is as long as the root of the probability.",
    ),
    numbers(scope, EVERYTHING, [
      ["words left to draw", () => String(drawn().kept.filter(Boolean).length)],
      ["drawn, but impossible", () => share(exact(), (token) => (exact()?.[token] ? 0 : drawn().p[token]))],
      ["possible, but cut", () => share(exact(), (token) => (drawn().kept[token] ? 0 : (exact()?.[token] ?? 0)))],
      ["from the grammar, nats", () => distance(exact(), drawn().p)],
    ]),
  );
}

/** A probability summed over words, where the grammar has any to say. @param {number[] | null} exact @param {(token: number) => number} of */
function share(exact, of) {
  return exact ? fixed(sum(exact.map((_, token) => of(token))), 4) : "–";
}

/** The divergence of what is drawn from what the grammar says. @param {number[] | null} exact @param {number[]} p */
function distance(exact, p) {
  if (!exact) return "–";
  const far = sum(exact.map((share, token) => (share ? share * Math.log(share / p[token]) : 0)));
  return far < Infinity ? fixed(Math.max(0, far), 4) : "∞";
}

/** @param {HTMLButtonElement} word @param {boolean} isKept @param {number} [p] of the grammar */
function struck(word, isKept, p) {
  word.classList.toggle("g-cut", !isKept);
  word.classList.toggle("g-impossible", p === 0);
  const said = [!isKept && "cut", p === 0 && "impossible"].filter(Boolean);
  word.setAttribute("aria-label", [word.textContent, ...said].join(", "));
}

/** @param {Scope} scope */
function sampling(scope) {
  return html(
    "div",
    { class: "x-settings" },
    slider(scope.value("temperature"), { label: "Temperature", min: 0, max: 2, step: 0.05, show: (t) => t.toFixed(2) }),
    slider(scope.value("top_k"), {
      label: "top-k",
      min: 1,
      max: VOCABULARY.length,
      step: 1,
      show: (k) => (k === VOCABULARY.length ? "all" : String(k)),
    }),
    slider(scope.value("top_p"), {
      label: "top-p",
      min: 0.05,
      max: 1,
      step: 0.005,
      show: (p) => (p === 1 ? "all" : p.toFixed(3)),
    }),
  );
}

const [HIGH, LEFT, RIGHT, WIDE] = [20, 112, 198, 310];

/** Who is read on the way to the word that asks: layer 1 on the left, layer 2 on the right. @param {Scope} scope @param {State} state */
function looks(scope, { words, query, ran }) {
  const frame = html("div");
  scope.when(ASKED, () => {
    const [all, q, { first, weights }] = [words(), query(), ran()];
    const n = Math.min(SEEN, all.length);
    const top = Math.max(0, q - n + 1); // the first row; above it are earlier words, which it stands for
    const y = (/** @type {number} */ place) => 34 + HIGH * Math.max(0, place - top);
    const drawing = picture(WIDE, 28 + HIGH * n, `what ${all[q]} reads in each layer`);
    drawing.append(named("layer 1", LEFT, 12, "", "end"), named("layer 2", RIGHT, 12));
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
      const look = place === q ? "x-asks" : place > q || place < first ? "g-later" : "";
      const written = i === 0 && place > 0 ? "… earlier" : word;
      drawing.append(
        svg("text", { class: look, x: (LEFT + RIGHT) / 2, y: y(place) + 4, "text-anchor": "middle" }, written),
      );
    });
    frame.replaceChildren(drawing);
  });
  return html(
    "figure",
    { class: "x-panel" },
    frame,
    html(
      "figcaption",
      {},
      "The wider an arc, the more weight. On the right what the word in bold reads, on the left what it and the words " +
        "that it reads had read. Weights below 0.1 are not drawn.",
    ),
    switches(scope, { words, query, ran }),
  );
}

/** A box for each head, without the tick it adds nothing; and what it reads most. @param {Scope} scope @param {Pick<State, "words" | "query" | "ran">} state */
function switches(scope, { words, ran }) {
  const rows = HEADS.map((head, i) => {
    const most = html("span", { class: "x-facts" });
    scope.when(ASKED, () => {
      const { first, weights } = ran();
      const row = weights[i][weights[i].length - 1];
      const best = row.indexOf(Math.max(...row));
      most.textContent = `${words()[first + best]} ${fixed(row[best])}`;
    });
    const tick = checkbox(not(member(scope.value("off"), head, HEADS)), { label: head });
    return html("div", { class: "g-head" }, tick, html("i", { class: `g-${head[2]}` }), most);
  });
  return html(
    "div",
    { class: "g-heads", role: "group", "aria-label": "heads that are switched on, and what each reads most" },
    ...rows,
  );
}

/** What the next word would be if the model ended here. @param {Scope} scope @param {State} state */
function layers(scope, { ran, exact }) {
  const rows = STAGES.map((name) => {
    const cells = [html("td"), html("td")];
    return { cells, row: html("tr", {}, html("th", { scope: "row" }, name), ...cells) };
  });
  scope.when(ASKED, () =>
    rows.forEach(({ cells }, i) => {
      const { p } = chances(ran().lens[i], { temperature: 1, topK: VOCABULARY.length, topP: 1 });
      const order = p.map((_, token) => token).sort((a, b) => p[b] - p[a]);
      cells[0].textContent = order
        .slice(0, 3)
        .map((token) => VOCABULARY[token])
        .join(", ");
      cells[1].textContent = share(exact(), (token) => (exact()?.[token] ? p[token] : 0));
    }),
  );
  return html(
    "figure",
    { class: "x-panel" },
    html(
      "table",
      { class: "x-table g-lens" },
      html("tr", {}, ...["after", "it would say", "possible"].map((head) => html("th", { scope: "col" }, head))),
      ...rows.map(({ row }) => row),
    ),
    html(
      "figcaption",
      {},
      "The stream of the word that asks, read off after each part as if it were the last: three likeliest words, and " +
        "the probability of all that the grammar allows.",
    ),
  );
}

/** All that it knows, to be put behind the word that asks. @param {Scope} scope @param {State} state */
function everyWord(scope, { words, query, drawn, exact, take }) {
  const chips = VOCABULARY.map((word) => button(word, () => take([...words().slice(0, query() + 1), word])));
  scope.when(EVERYTHING, () =>
    chips.forEach((chip, token) => {
      chip.disabled = query() + 1 >= LONGEST;
      struck(chip, drawn().kept[token], exact()?.[token]);
    }),
  );
  return html(
    "figure",
    { class: "x-panel" },
    html("div", { class: "g-chips", role: "group", "aria-label": "all words" }, ...chips),
    html("figcaption", {}, "Grey: impossible here, says the grammar. Struck through: cut by top-k or top-p."),
  );
}

export default { render };
