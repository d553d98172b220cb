/** Eight heads before a verb: attention maps, pattern scores, ablation, and the agreement of the verb. */

import { HEADS, parse, run } from "./gpt.math.js";
import {
  button,
  checkbox,
  fixed,
  headline,
  html,
  named,
  oncePerFrame,
  panel,
  picture,
  select,
  setAttributes,
  stage,
  svg,
} from "./kit.js";
import { HELD_OUT, LONGEST, PREPARED, STORIES, VOCABULARY, agreement, scores, subject } from "./reader.math.js";
import { memberSwitch, not, querySlider } from "./query_slider.js";
import { tabs } from "./tabs.js";
import { mark, say, sayWith } from "./words.js";

/**
 * @typedef {{ words: string, query: number, off: string[], head: string, guess: string }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ words(): string[], query(): number, subject(): number | null, weights(): number[][][],
 *   agreement(): ReturnType<typeof agreement>, go(words: string[]): void }} State
 */

/** @type {(keyof Traits)[]} */
const RUN = ["words", "query", "off"];
const OWN = "own";

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const words = () => scope.read("words").split(" ");
  const query = () => Math.min(scope.read("query"), words().length - 1);
  /** @type {ReturnType<typeof run>} */
  let ran;
  /** @type {number | null} */
  let place;
  /** @type {ReturnType<typeof agreement>} */
  let found;
  scope.when(RUN, () => {
    const isKnown = words().length <= LONGEST && words().every((word) => VOCABULARY.includes(word));
    if (!isKnown)
      throw new RangeError(`words must be 1 to ${LONGEST} that the model knows, got ${scope.read("words")}`);
    const story = words().slice(0, query() + 1);
    ran = run(STORIES, story, scope.read("off"));
    place = subject(story);
    found = agreement(ran.lens[ran.lens.length - 1], story);
  });
  /** @type {State} */
  const state = {
    words,
    query,
    subject: () => place,
    weights: () => ran.weights,
    agreement: () => found,
    go(story) {
      scope.change({ words: story.join(" "), query: story.length - 1 });
    },
  };
  const enlarged = large(scope, state);
  const enlarge = () => {
    shown.open(enlarged);
    const open = /** @type {NodeListOf<HTMLElement>} */ (shown.element.querySelectorAll("[aria-pressed='true']"));
    [...open].find((tab) => tab.offsetParent)?.focus({ preventScroll: true }); // the pressed map is hidden now
  };
  const shown = tabs(
    [say("All heads"), [[say("Heads"), tiles(scope, state, enlarge)]]],
    [
      say("One head, and scores"),
      [
        [say("One head"), enlarged],
        [say("Scores"), table(scope, state)],
      ],
    ],
  );
  scope.add(
    guess(scope),
    html("div", { class: "x-settings p-settings" }, prepared(scope, state), typed(scope, state)),
    html(
      "div",
      { class: "x-controls x-settings" },
      querySlider(scope, ["words"], {
        label: say("Query word"),
        count: () => words().length,
        query,
        show: (i) => words()[i],
      }),
      headline(scope, RUN, () =>
        found && place !== null
          ? [fixed(found.right, 3), say("agreement with “{word}”", { word: words()[place] })]
          : ["–", say("no verb follows this word")],
      ),
    ),
    shown.element,
  );
  scope.when([...RUN, "guess"], () => {
    const [off, said] = [scope.read("off"), scope.read("guess")];
    const verb =
      found && place !== null
        ? say("After {query} the verb is about {subject}; it has the right number with probability {p}.", {
            query: words()[query()],
            subject: words()[place],
            p: fixed(found.right, 3),
          })
        : say("After {query} the grammar has no verb.", { query: words()[query()] });
    const without = off.length ? say("Off: {heads}.", { heads: off.join(say(", ")) }) : "";
    const guessed = said ? say("Your guess is {said}.", { said }) : say("First guess a head.");
    scope.announce(`${without} ${verb} ${guessed}`.trim());
  });
  return scope.dispose;
}

/** The guess of the most important head, before any head is ablated. @param {Scope} scope */
function guess(scope) {
  const own = html("b");
  const text = html("p", { class: "x-facts", tabindex: -1 });
  const shares = HEADS.map((head) => fixed(HELD_OUT.without[head], 3));
  const buttons = HEADS.map((head, i) => {
    const made = button(head, () => {
      scope.write("guess", head);
      text.focus(); // the pressed button is disabled now
    });
    const share = html("span", { class: "x-facts" });
    scope.when(["guess"], () => {
      const said = scope.read("guess");
      made.setAttribute("aria-pressed", String(said === head));
      made.disabled = said !== "";
      share.textContent = said ? shares[i] : "–";
    });
    return html("div", {}, made, share);
  });
  scope.when(["guess"], () => {
    const said = scope.read("guess");
    own.textContent = said ? say("You said {said}.", { said }) : say("Say first:");
    const { ofPlural, ofSingular, byItsMean } = HELD_OUT;
    text.textContent = said
      ? say(
          "Under each head: the mean agreement without it, before {verbs} verbs of new stories that have a noun " +
            "of the other number between them and their subject; with all heads {whole}. With the head’s mean at " +
            "that place instead of zero: 1.2 {mean}, 2.4 {other}. Without 2.4 it is plural subjects " +
            "that suffer, {plural}, and not singular ones, {singular}; without 2.3 as well, plural ones are " +
            "at {both}.",
          {
            verbs: HELD_OUT.verbs,
            whole: fixed(HELD_OUT.whole, 3),
            mean: fixed(byItsMean["1.2"], 3),
            other: fixed(byItsMean["2.4"], 3),
            plural: fixed(ofPlural["2.4"], 3),
            singular: fixed(ofSingular["2.4"], 3),
            both: fixed(ofPlural.both, 3),
          },
        )
      : say("Read the maps and the scores before you choose. The switches wait for it.");
  });
  return html(
    "div",
    { class: "p-guess" },
    html(
      "p",
      {},
      ...sayWith(
        "Where new stories have a noun of the other number between subject and verb: which head, switched off, harms " +
          "the agreement most? {answer}",
        { answer: own },
      ),
    ),
    html("div", { class: "p-heads", role: "group", "aria-label": say("your guess") }, ...buttons),
    text,
  );
}

/** The prepared sentences. @param {Scope} scope @param {State} state */
function prepared(scope, { go }) {
  /** @type {[string, string][]} */
  const options = PREPARED.map((words) => [words, `${words} …`]);
  return select(
    {
      get: () => (PREPARED.includes(scope.read("words")) ? scope.read("words") : OWN),
      set: (words) => words !== OWN && go(words.split(" ")),
      watch: (draw) => scope.when(["words"], draw),
    },
    { label: say("Sentence"), options: [...options, [OWN, say("your own, typed")]] },
  );
}

/** The input for words. @param {Scope} scope @param {State} state */
function typed(scope, { words, go }) {
  const input = html("input", { type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const message = html("p", { class: "x-facts p-message" });
  const judge = () => {
    const given = parse(STORIES, input.value);
    const unknown = given.find((word) => !VOCABULARY.includes(word));
    const begun = unknown ? VOCABULARY.filter((word) => word.startsWith(unknown)) : [];
    if (begun.length) return say("Known words that begin so: {begun}.", { begun: begun.join(say(", ")) });
    if (unknown)
      return say("The model does not know “{unknown}”. Begin a word to see the known words that begin so.", {
        unknown,
      });
    if (!given.length || given.length > LONGEST) return say("The model takes 1 to {LONGEST} words.", { LONGEST });
    if (given.join(" ") !== words().join(" ")) go(given);
    return "";
  };
  const judging = oncePerFrame(() => (message.textContent = judge()));
  input.addEventListener("input", judging.later);
  input.addEventListener("change", judging.flush);
  scope.when(["words"], () => {
    if (parse(STORIES, input.value).join(" ") !== words().join(" ")) input.value = words().join(" ");
    message.textContent = judge();
  });
  return html("div", {}, html("label", { class: "p-typed" }, html("span", {}, say("Words")), input), message);
}

/**
 * The cells of a head's attention map, which follow the state.
 * @param {Scope} scope @param {State} state @param {SVGElement} drawing @param {() => number} head
 * @param {{ left: number, top: number, side: number, gap: number }} place
 */
function cells(scope, { query, weights }, drawing, head, { left, top, side, gap }) {
  const group = svg("g");
  drawing.append(group);
  /** @type {(keyof Traits)[]} */
  const traits = [...RUN, "head"];
  scope.when(traits, () => {
    const rows = weights()[head()];
    const steps = rows.map((_, i) => `V${top + side * i}h${side}`).join("");
    group.replaceChildren(
      svg("path", { class: "x-ground", d: `M${left} ${top}${steps}V${top + side * (query() + 1)}H${left}Z` }),
      ...rows.flatMap((row, i) =>
        row.map((weight, j) =>
          svg("rect", {
            class: "x-solid",
            x: left + side * j + gap / 2,
            y: top + side * i + gap / 2,
            width: side - gap,
            height: side - gap,
            "fill-opacity": weight.toFixed(3),
          }),
        ),
      ),
    );
  });
}

/** A map and a switch for each head, and the agreement. @param {Scope} scope @param {State} state @param {() => void} enlarge */
function tiles(scope, state, enlarge) {
  const { words, subject: place, agreement: found } = state;
  const all = HEADS.map((head, i) => {
    const map = scope.rebuild(
      ["words"],
      () => scope.read("words"),
      (part) => {
        const drawing = picture(64, 64, say("map of head {head}", { head }));
        cells(part, state, drawing, () => i, { left: 0, top: 0, side: 64 / words().length, gap: 0.5 });
        return drawing;
      },
    );
    const choose = () => {
      scope.write("head", head);
      enlarge();
    };
    const press = button("", choose, say("head {head}, large", { head }));
    press.className = "p-map";
    press.append(map);
    const tick = checkbox(not(memberSwitch(scope.value("off"), head, HEADS)), { label: head });
    scope.when(["head", "off", "guess"], () => {
      press.setAttribute("aria-pressed", String(scope.read("head") === head));
      press.classList.toggle("p-off", scope.read("off").includes(head));
      const input = tick.querySelector("input");
      if (input) input.disabled = !scope.read("guess");
    });
    return html("div", { class: "p-tile" }, press, tick);
  });
  const rows = [say("singular"), say("plural")].map((name) => ({
    name: html("span", { class: "x-name" }, name),
    bar: html("div", { class: "x-bar" }),
    shown: html("span", { class: "x-value" }),
    mark: html("span", { class: "x-facts" }),
  }));
  const said = html("p", { class: "x-facts p-said" });
  scope.when(RUN, () => {
    const now = found();
    const i = place();
    const total = now ? now.singular + now.plural : 1;
    [now?.singular, now?.plural].forEach((p, k) => {
      rows[k].bar.style.width = `${(100 * (p ?? 0)) / total}%`;
      rows[k].shown.textContent = p === undefined ? "–" : fixed(p / total, 3);
      rows[k].mark.textContent = now && now.isPlural === Boolean(k) ? say("right") : "";
    });
    said.textContent =
      now && i !== null
        ? say(
            "The subject of the next verb is “{word}”. The next word is a verb with probability {total}; the bars " +
              "are shares of it.",
            { word: words()[i], total: fixed(total) },
          )
        : say("After this word the grammar has no verb.");
  });
  return panel(
    [
      html("div", { class: "p-tiles", role: "group", "aria-label": say("heads, and whether each is on") }, ...all),
      html(
        "div",
        { class: "x-panel" },
        html(
          "div",
          { class: "x-grid", style: "--columns: 4rem 1fr 3rem 2.5rem" },
          ...rows.flatMap(({ name, bar, shown, mark }) => [name, html("div", { class: "x-track" }, bar), shown, mark]),
        ),
        said,
        html(
          "figcaption",
          {},
          say(
            "A row for each query, the last one of the query word; a column for each key. Select a map to enlarge " +
              "it. A head without its tick is ablated: its output is zero.",
          ),
        ),
      ),
    ],
    "p-all",
  );
}

const [LEFT, TOP, SIDE] = [84, 92, 232];

/** The map of one head with its words; a frame marks the subject in the row of the query. @param {Scope} scope @param {State} state */
function large(scope, state) {
  const { words, query, subject: place } = state;
  const frame = scope.rebuild(
    ["words"],
    () => scope.read("words"),
    (part) => {
      const side = SIDE / words().length;
      const drawing = picture(320, TOP + SIDE + 4, say("attention weights of the selected head, a row for each query"));
      const title = named("", 0, 12, "p-title");
      drawing.append(title, named(say("key"), LEFT, 12), named(say("query"), LEFT - 8, TOP - 8, "", "end"));
      cells(part, state, drawing, () => HEADS.indexOf(scope.read("head")), { left: LEFT, top: TOP, side, gap: 1 });
      const row = svg("rect", { class: "p-row" });
      const target = svg("rect", { class: "p-target" });
      const names = words().map((word, i) => {
        const middle = side * (i + 0.5) + 4;
        return [
          svg("text", { x: LEFT - 8, y: TOP + middle, "text-anchor": "end" }, word),
          svg("text", { transform: `translate(${LEFT + middle} ${TOP - 6}) rotate(-90)` }, word),
        ];
      });
      drawing.append(row, target, ...names.flat());
      part.when(["head"], () => (title.textContent = say("head {head}", { head: scope.read("head") })));
      part.when(RUN, () => {
        const last = query();
        const y = TOP + side * last;
        setAttributes(row, { x: LEFT - 1, y: y - 1, width: side * (last + 1) + 2, height: side + 2 });
        const at = place();
        const shown = at === null ? 0 : side - 1;
        setAttributes(target, { x: LEFT + side * (at ?? 0) + 0.5, y: y + 0.5, width: shown, height: shown });
        names.forEach(([left, above], i) => {
          left.setAttribute("class", i === last ? "p-query" : i > last ? "p-later" : "");
          above.setAttribute("class", i === at ? "p-query" : i > last ? "p-later" : "");
        });
      });
      return drawing;
    },
  );
  return panel(
    [
      frame,
      say(
        "The stronger the colour, the larger the weight. Outlined: the row of the query word; framed in it: " +
          "the subject of the verb.",
      ),
    ],
    "p-one",
  );
}

/** @type {("previous" | "first" | "itself" | "diffuse" | "subject")[]} */
const SCORES = [mark("previous"), mark("first"), mark("itself"), mark("diffuse"), mark("subject")];

/** The pattern scores of each head. @param {Scope} scope @param {State} state */
function table(scope, { weights, subject: place }) {
  const rows = HEADS.map((head) => {
    const values = SCORES.map(() => html("td"));
    const name = html("th", { scope: "row" }, head);
    return { name, values, row: html("tr", {}, name, ...values) };
  });
  scope.when(RUN, () =>
    rows.forEach(({ values }, i) => {
      const now = scores(weights()[i], place());
      SCORES.forEach((name, k) => {
        const score = now[name];
        values[k].textContent = score === null ? "–" : fixed(score);
        values[k].classList.toggle("p-most", score !== null && score >= 0.5);
      });
    }),
  );
  scope.when(["off"], () =>
    rows.forEach(
      ({ name }, i) =>
        (name.textContent = scope.read("off").includes(HEADS[i]) ? say("{head} off", { head: HEADS[i] }) : HEADS[i]),
    ),
  );
  return panel([
    html(
      "table",
      { class: "x-table p-scores" },
      html(
        "tr",
        {},
        ...[say("head"), ...SCORES.map((name) => say(name))].map((name) => html("th", { scope: "col" }, name)),
      ),
      ...rows.map(({ row }) => row),
    ),
    say(
      "Weight on the previous word, on the first, on the word itself, and spread evenly, over all rows up " +
        "to the query word: 0 is chance or less, 1 is all the weight. Subject: the weight of the query word " +
        "on the subject of its verb. Bold from 0.5.",
    ),
  ]);
}

export default { render };
