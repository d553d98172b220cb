/** A digit that is drawn and cut into patches: attention weights of eight heads, and the predicted digit. */

import { softmax } from "./arithmetic.js";
import { questionCard } from "./question.js";
import {
  button,
  fixed,
  headline,
  html,
  named,
  numbers,
  oncePerFrame,
  panel,
  picture,
  select,
  slider,
  stage,
  svg,
} from "./kit.js";
import {
  DIGITS,
  FULL,
  HEADS,
  RECORD,
  SIDE,
  counted,
  inside,
  placed,
  recorded,
  right,
  run,
  way,
} from "./patches.math.js";
import { querySlider } from "./query_slider.js";
import { tabs } from "./tabs.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ digit: number, size: number, pixels: string, query: number, ink: number[], guess: string }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ ink(): number[], shown(): number[], query(): number, count(): number, ran(): import("./patches.math.js").Run,
 *   p(): number[], label(): number, hidden(): boolean }} State
 */

/** @type {(keyof Traits)[]} */
const RUN = ["digit", "size", "pixels", "ink"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...RUN, "query", "guess"];
const TEST = RECORD.digits.test;
/** @type {[string, string][]} */
const GUESSES = [
  ["few", mark("about one in ten, as by chance")],
  ["fewer", mark("something in between")],
  ["alike", mark("about as many, within 20")],
];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const ink = () => {
    const drawn = scope.read("ink");
    return drawn.length === SIDE * SIDE ? drawn : DIGITS[scope.read("digit")].ink;
  };
  /** @type {import("./patches.math.js").Run} */
  let ran;
  let answered = ""; // another digit may change two traits, but the model runs once
  scope.when(RUN, () => {
    const [size, pixels] = [scope.read("size"), scope.read("pixels")];
    const question = `${ink()} ${size} ${pixels}`;
    if (question !== answered) ran = run(ink(), size, pixels);
    answered = question;
  });
  const count = () => (SIDE / scope.read("size")) ** 2;
  /** @type {State} */
  const state = {
    ink,
    shown: () => placed(ink(), scope.read("pixels")),
    query: () => Math.min(scope.read("query"), count()),
    count,
    ran: () => ran,
    p: () => softmax(ran.logits),
    label: () => DIGITS[scope.read("digit")].label,
    hidden: () => scope.read("pixels") === "shuffled" && !scope.read("guess"),
  };
  const question = guess(scope);
  const shown = tabs(
    [say("Draw"), [[say("Draw"), drawn(scope, state)]]],
    [say("Attention maps"), [[say("Attention maps"), looks(scope, state)]]],
  ).element;
  scope.add(html("div", { class: "v-all" }, question, shown, choices(scope), facts(scope, state)));
  // The question stands in the place of the figures until it is answered.
  scope.when(["pixels", "guess"], () => {
    shown.hidden = state.hidden();
    question.hidden = !state.hidden() && !scope.read("guess");
  });
  scope.when(EVERYTHING, () => {
    if (state.hidden()) return scope.announce(say("First guess how many shuffled digits are classified correctly."));
    const most = HEADS.map((head, i) =>
      say("{head} at {token}", { head, token: token(best(ran.weights[i][state.query()]), scope.read("size")) }),
    );
    scope.announce(
      say("Probability {verdict}. The {token} has its largest weights: {most}.", {
        verdict: verdict(scope, state).join(" "),
        token: token(state.query(), scope.read("size")),
        most: most.join(say(", ")),
      }),
    );
  });
  return scope.dispose;
}

/** The index of the largest entry. @param {number[]} all */
const best = (all) => all.indexOf(Math.max(...all));

/** The name of a token by its position. @param {number} i @param {number} size */
function token(i, size) {
  if (!i) return say("summary token");
  const [row, column] = spot(i, size);
  return say("patch in row {row}, column {column}", { row, column });
}

/** The row and the column of a patch, from 1. @param {number} i @param {number} size */
function spot(i, size) {
  const across = SIDE / size;
  return [Math.floor((i - 1) / across) + 1, ((i - 1) % across) + 1];
}

/** The probability of the predicted digit, and in words the prediction and the label. @param {Scope} scope @param {State} state @returns {[string, string]} */
function verdict(scope, { p, label }) {
  const said = best(p());
  const was = scope.read("ink").length
    ? say("before the drawing: {digit}", { digit: label() })
    : said === label()
      ? say("correct")
      : say("the digit is {digit}", { digit: label() });
  return [fixed(p()[said]), say("that it is a {digit}; {was}", { digit: said, was })];
}

/** The ink of the pixels, quantised to a number of greys, one path each. @param {number[]} ink @param {number} greys @param {(place: number) => string} square */
function inked(ink, greys, square) {
  return Array.from({ length: greys }, (_, k) => {
    const places = ink.flatMap((level, i) => (Math.ceil((greys * level) / FULL) === k + 1 ? [i] : []));
    return svg("path", { class: "v-ink", "fill-opacity": (k + 1) / greys, d: places.map(square).join("") });
  });
}

/** Thirty test digits; the slider below selects among them too. @param {Scope} scope */
function strip(scope) {
  const all = DIGITS.map(({ ink }, i) => {
    const drawing = svg(
      "svg",
      { viewBox: `0 0 ${SIDE} ${SIDE}` },
      ...inked(ink, 4, (place) => `M${place % SIDE} ${Math.floor(place / SIDE)}h1v1h-1z`),
    );
    const made = button("", () => choose(scope, i));
    made.append(drawing);
    made.className = "v-digit";
    made.tabIndex = -1;
    return made;
  });
  scope.when(["digit"], () => all.forEach((one, i) => one.toggleAttribute("data-chosen", i === scope.read("digit"))));
  return html("div", { class: "v-strip", "aria-hidden": "true" }, ...all);
}

/** A digit of the data. @param {Scope} scope @param {number} i */
function choose(scope, i) {
  scope.change({ digit: i, ink: [] });
}

/** The controls for patch size and order of the pixels. @param {Scope} scope */
function choices(scope) {
  return html(
    "div",
    { class: "x-settings" },
    select(scope.value("size"), {
      label: say("Patches"),
      options: [
        [1, say("64 of one pixel")],
        [2, say("16 of 2 × 2 pixels")],
        [4, say("4 of 4 × 4 pixels")],
      ],
    }),
    select(scope.value("pixels"), {
      label: say("Pixels"),
      options: [
        ["in order", say("in order")],
        ["shuffled", say("shuffled, all digits in one way")],
      ],
    }),
  );
}

const listed = (/** @type {number[]} */ all) =>
  say("{first} and {last}", { first: all.slice(0, -1).join(say(", ")), last: all[all.length - 1] });

/** The question before shuffled digits are shown. @param {Scope} scope */
function guess(scope) {
  const { card, tell } = questionCard(
    "v-guess",
    say(
      "Three models with patches of 2 × 2, from three seeds, classify {numbers} of {TEST} test digits " +
        "correctly. Now every pixel moves to another position, the same for all digits, and three models are " +
        "trained on such digits. How many shuffled test digits do they classify correctly?",
      { numbers: listed(recorded(2, "in order")), TEST },
    ),
    GUESSES.map(([value, words]) => [value, say(words)]),
    (said) => scope.write("guess", said),
  );
  scope.when(["guess"], () => {
    const said = GUESSES.find(([name]) => name === scope.read("guess"));
    const both = (/** @type {number} */ size) =>
      say("{shuffled} shuffled, {ordered} in order", {
        shuffled: listed(recorded(size, "shuffled")),
        ordered: listed(recorded(size, "in order")),
      });
    tell(
      said
        ? say(
            "You said {said}. Of {TEST}, with patches of 2 × 2: {two}. Of 4 × 4: {four}. With patches of one " +
              "pixel both are the same model, its positions in another order: nothing in it says which pixels are " +
              "neighbours. Here are the first seed’s models, rounded.",
            { said: say(said[1]), TEST, two: both(2), four: both(4) },
          )
        : "",
    );
  });
  return card;
}

const PIXEL = 30;

/** The drawing pad, for mouse, touch, arrow keys and space bar; and the prediction. @param {Scope} scope @param {State} state */
function drawn(scope, state) {
  let at = 0; // the pixel that Tab reaches
  const pixels = Array.from({ length: SIDE * SIDE }, (_, i) =>
    svg("rect", {
      role: "gridcell",
      class: "v-ink",
      x: (i % SIDE) * PIXEL + 0.75,
      y: Math.floor(i / SIDE) * PIXEL + 0.75,
      width: PIXEL - 1.5,
      height: PIXEL - 1.5,
    }),
  );
  const rows = Array.from({ length: SIDE }, (_, r) =>
    svg("g", { role: "row" }, ...pixels.slice(r * SIDE, (r + 1) * SIDE)),
  );
  const paper = svg(
    "svg",
    {
      class: "v-paper",
      viewBox: `0 0 ${SIDE * PIXEL} ${SIDE * PIXEL}`,
      role: "grid",
      "aria-label": say("paper to draw on"),
    },
    svg("rect", { class: "v-page", width: SIDE * PIXEL, height: SIDE * PIXEL }),
    ...rows,
  );
  const go = (/** @type {number} */ place) => {
    at = place;
    pixels.forEach((pixel, i) => pixel.setAttribute("tabindex", i === at ? "0" : "-1"));
  };
  go(at);
  scope.when(["digit", "ink"], () =>
    pixels.forEach((pixel, i) => {
      pixel.setAttribute("fill-opacity", (state.ink()[i] / FULL).toFixed(4));
      pixel.setAttribute(
        "aria-label",
        say("row {row}, column {column}: ink {ink}", {
          row: Math.floor(i / SIDE) + 1,
          column: (i % SIDE) + 1,
          ink: state.ink()[i],
        }),
      );
    }),
  );
  const paint = (/** @type {number[]} */ places, /** @type {number} */ level) =>
    scope.write(
      "ink",
      state.ink().map((old, i) => (places.includes(i) ? level : old)),
    );
  const other = (/** @type {number} */ place) => (state.ink()[place] < FULL / 2 ? FULL : 0);
  /** @type {{ level: number, place: number } | null} */
  let stroke = null;
  const placeAt = (/** @type {PointerEvent} */ event) => {
    const box = paper.getBoundingClientRect();
    const [column, row] = [event.clientX - box.left, event.clientY - box.top].map((far) =>
      Math.floor((far / box.width) * SIDE),
    );
    return [column, row].every((k) => k >= 0 && k < SIDE) ? row * SIDE + column : null;
  };
  paper.addEventListener("pointerdown", (event) => {
    const place = placeAt(event);
    if (event.button !== 0 || !event.isPrimary || place === null) return;
    paper.setPointerCapture(event.pointerId);
    stroke = { level: other(place), place };
    go(place);
    paint([place], stroke.level);
  });
  /** The pixels that the stroke has crossed since the last frame. @type {number[]} */
  const crossed = [];
  const painting = oncePerFrame((/** @type {number} */ level) => paint(crossed.splice(0), level));
  paper.addEventListener("pointermove", (event) => {
    const place = placeAt(event);
    if (!stroke || place === null || place === stroke.place) return;
    crossed.push(...way(stroke.place, place));
    painting.later(stroke.level);
    stroke.place = place;
  });
  for (const end of ["pointerup", "pointercancel"])
    paper.addEventListener(end, () => {
      painting.flush();
      stroke = null;
    });
  // Browsers ignore touch-action inside an SVG.
  paper.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  paper.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -SIDE, ArrowDown: SIDE, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const isEdge = Math.abs(step) === 1 && Math.floor((at + step) / SIDE) !== Math.floor(at / SIDE);
      if (pixels[at + step] && !isEdge) go(at + step);
      pixels[at].focus();
    } else if (event.key === " " || event.key === "Enter") paint([at], other(at));
    else return;
    event.preventDefault();
  });
  const back = button(say("As it was written"), () => {
    scope.write("ink", []);
    pixels[at].focus(); // the button is disabled now
  });
  const clear = button(say("Empty paper"), () => scope.write("ink", Array(SIDE * SIDE).fill(0)));
  scope.when(["ink"], () => (back.disabled = !scope.read("ink").length));
  return panel(
    [
      html(
        "div",
        { class: "x-panel" },
        paper,
        html("figcaption", {}, say("Draw here: click or drag. Ink is wiped off.")),
        html("div", { class: "x-bench" }, clear, back),
      ),
      classes(scope, state),
    ],
    "v-draws",
  );
}

/** A bar for each class. @param {Scope} scope @param {State} state */
function classes(scope, state) {
  const rows = Array.from({ length: 10 }, () => ({
    name: html("span", { class: "x-value" }),
    bar: html("div", { class: "x-bar" }),
    p: html("span", { class: "x-value" }),
    logit: html("span", { class: "x-value" }),
  }));
  scope.when(RUN, () => {
    const { logits } = state.ran();
    const p = state.p();
    rows.forEach(({ name, bar, p: share, logit }, i) => {
      const isRight = i === state.label();
      name.textContent = `${isRight ? "✓ " : ""}${i}`;
      name.classList.toggle("v-right", isRight);
      bar.style.width = `${100 * p[i]}%`;
      share.textContent = fixed(p[i], 3);
      logit.textContent = fixed(logits[i], 1);
    });
  });
  return html(
    "div",
    { class: "x-panel v-classes" },
    headline(scope, RUN, () => verdict(scope, state)),
    html(
      "div",
      { class: "x-grid", style: "--columns: 2rem 1fr 3rem 3rem; row-gap: 0.05rem" },
      ...["", say("probability"), ""].map((head) => html("span", { class: "x-head" }, head)),
      html("span", { class: "x-head", style: "text-align: right" }, say("logit")),
      ...rows.flatMap(({ name, bar, p, logit }) => [name, html("div", { class: "x-track" }, bar), p, logit]),
    ),
    strip(scope),
    slider(
      { ...scope.value("digit"), set: (i) => choose(scope, i) },
      {
        label: say("Test digit"),
        min: 0,
        max: DIGITS.length - 1,
        step: 1,
        show: (i) => say("{n}: shows {digit}", { n: i + 1, digit: DIGITS[i].label }),
      },
    ),
  );
}

const GAPS = [0, 0.12, 0.3, 0, 0.5]; // between patches of 1, 2 and 4 pixels, in pixels

/**
 * The layout of pixels and tokens in a picture of a given width; the summary token is a smaller square to the left.
 * @param {number} size @param {number} wide @param {number} left @param {number} top @param {number} x @param {number} side
 */
function layout(size, wide, left, top, x, side) {
  const gap = GAPS[size];
  const unit = wide / (SIDE + gap * (SIDE / size - 1));
  const along = (/** @type {number} */ k) => unit * (k + gap * Math.floor(k / size));
  const pixel = (/** @type {number} */ place) => [left + along(place % SIDE), top + along(Math.floor(place / SIDE))];
  return {
    unit,
    pixel,
    count: (SIDE / size) ** 2 + 1,
    /** Corner and width of a token. @param {number} i */
    token: (i) => (i ? [...pixel(inside(i - 1, size)[0]), unit * size] : [x, top, side]),
  };
}

/** @typedef {ReturnType<typeof layout>} Layout */

const [MAP, SPACE, HIGH] = [52, 74, 86];

/** The input of the model, and the attention maps of eight heads at the query. @param {Scope} scope @param {State} state */
function looks(scope, state) {
  const cut = html("div", { class: "v-cut" });
  const maps = html("div", { class: "v-maps" });
  for (const frame of [cut, maps])
    frame.addEventListener("click", ({ target }) => {
      const found = target instanceof Element ? target.getAttribute("data-token") : null;
      if (found) scope.write("query", Number(found));
    });
  const own = html("p", { class: "x-facts v-said" });
  scope.when(EVERYTHING, () => {
    const size = scope.read("size");
    const [shown, query, { weights }] = [state.shown(), state.query(), state.ran()];
    const large = picture(
      278,
      222,
      say("the input of the model: {n} patches and the summary token", { n: state.count() }),
    );
    const at = layout(size, 200, 76, 20, 10, 34);
    large.append(named(say("summary"), 0, 12), named(say("patches"), 76, 12), ...tokens(at, "v-page", () => 1));
    large.append(...inkOf(shown, FULL, at, 1), ring(query, at));
    cut.replaceChildren(large);
    const small = picture(4 * SPACE, 2 * HIGH, say("the weights of the eight heads on each patch"));
    HEADS.forEach((head, i) => {
      const row = weights[i][query];
      const most = Math.max(...row);
      const [x, y] = [SPACE * (i % 4) + 16, HIGH * Math.floor(i / 4) + 22];
      const at = layout(size, MAP, x, y, x - 14, 11);
      small.append(named(head, x - 14, y - 7), named(fixed(most), x + MAP, y - 7, "", "end"));
      small.append(...tokens(at, "x-ground", () => 1), ...tokens(at, "v-looks", (j) => row[j] / most));
      small.append(...inkOf(shown, 4, at, 0.4), ring(query, at));
    });
    maps.replaceChildren(small);
    own.textContent = say("Query: {token}.", { token: token(query, size) });
  });
  const chosen = querySlider(scope, ["size"], {
    label: say("Query"),
    count: () => state.count() + 1,
    query: state.query,
    show: (i) => (i ? spot(i, scope.read("size")).join(", ") : say("summary")),
  });
  return panel(
    [
      html(
        "div",
        { class: "x-panel" },
        chosen,
        cut,
        html(
          "figcaption",
          {},
          say("Click a patch to make it the query, or the summary token, from which the digit is predicted."),
        ),
        own,
      ),
      html(
        "div",
        { class: "x-panel" },
        maps,
        html(
          "figcaption",
          {},
          say(
            "Heads of layers 1 and 2. The strongest colour of a map has its largest weight, the number. The small " +
              "square is the summary token, dots are ink.",
          ),
        ),
      ),
    ],
    "v-reads",
  );
}

/** A square for each token. @param {Layout} at @param {string} look @param {(token: number) => number} opacity */
function tokens(at, look, opacity) {
  return Array.from({ length: at.count }, (_, i) => {
    const [x, y, width] = at.token(i).map((k) => k.toFixed(1));
    return svg("rect", {
      class: look,
      x,
      y,
      width,
      height: width,
      "fill-opacity": opacity(i).toFixed(3),
      "data-token": i,
    });
  });
}

/** The pixels with their ink, each a square that fills a share of its cell. @param {number[]} shown @param {number} greys @param {Layout} at @param {number} share */
function inkOf(shown, greys, { unit, pixel }, share) {
  const side = (unit * share).toFixed(2);
  return inked(shown, greys, (place) => {
    const [x, y] = pixel(place).map((k) => (k + (unit * (1 - share)) / 2).toFixed(1));
    return `M${x} ${y}h${side}v${side}h-${side}z`;
  });
}

/** A frame around the query. @param {number} query @param {Layout} at */
function ring(query, at) {
  const [x, y, width] = at.token(query);
  return svg("rect", { class: "v-query", x: x - 1, y: y - 1, width: width + 2, height: width + 2, rx: 2 });
}

/** The cost of the patch size, and the accuracy of the models. @param {Scope} scope @param {State} state */
function facts(scope, { count }) {
  const of = (/** @type {string} */ pixels) =>
    say("{n} of {total}", { n: right(scope.read("size"), pixels), total: TEST });
  return numbers(scope, EVERYTHING, [
    [say("pairs of tokens in a head"), () => `${count() + 1}² = ${((count() + 1) ** 2).toLocaleString("en")}`],
    [say("parameters of the model"), () => counted(scope.read("size")).toLocaleString("en")],
    [say("test digits correct, in order"), () => of("in order")],
    [say("test digits correct, shuffled"), () => (scope.read("guess") ? of("shuffled") : "–")],
  ]);
}

export default { render };
