/** Rotary frequencies beyond the training length: bars for all clocks, one clock in detail, and recorded losses. */

import { questionCard } from "./question.js";
import {
  checkbox,
  fixed,
  headline,
  html,
  linear,
  logSlider,
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
import { withPlayButton } from "./play.js";
import {
  FACTORS,
  LENGTHS,
  LONGEST,
  TRAINED,
  WIDTHS,
  clocks,
  means,
  nearest,
  recorded,
  temperature,
  unseen,
} from "./stretch.math.js";
import { tabs } from "./tabs.js";
import { mark, say } from "./words.js";

/**
 * @typedef {import("./stretch.math.js").Method} Method
 * @typedef {import("./stretch.math.js").Setting} Setting
 * @typedef {import("./stretch.math.js").Clock} Clock
 * @typedef {Setting & { clock: number, practised: boolean, guess: "" | Method }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ all(): Clock[], chosen(): number, heat(): number, words(): string }} Now
 */

/** @type {(keyof Setting)[]} */
const SETTING = ["base", "width", "method", "factor", "length"];
/** @type {(keyof Traits)[]} */
const CLOSELY = [...SETTING, "clock"];
/** @type {Record<Method, string>} */
const NAMES = {
  none: mark("as trained"),
  interpolation: mark("interpolation"),
  ntk: mark("NTK-aware"),
  yarn: mark("YaRN"),
};
/** The methods with their names. */
const methods = () =>
  /** @type {[Method, string][]} */ (Object.entries(NAMES).map(([method, words]) => [method, say(words)]));
const TURN = 2 * Math.PI;

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const setting = () => /** @type {Setting} */ (Object.fromEntries(SETTING.map((name) => [name, scope.read(name)])));
  /** @type {Clock[]} */
  let all;
  scope.when(SETTING, () => (all = clocks(setting())));
  /** @type {Now} */
  const now = {
    all: () => all,
    chosen: () => Math.min(scope.read("clock"), all.length) - 1,
    heat: () => temperature(setting()),
    words: () => {
      const method = scope.read("method");
      const words = say(NAMES[method]);
      if (method === "none") return words;
      return say("{method} by {factor}", { method: words, factor: fixed(scope.read("factor"), 1) });
    },
  };
  const many = () => all.filter(({ isNew }) => isNew).length;
  const stretch = mappedSlider(scope.value("factor"), {
    label: say("by the factor"),
    min: 1,
    max: 128,
    step: 0.125,
    show: (f) => fixed(f, 1),
    toPlace: Math.log2,
    toValue: (place) => Number((2 ** place).toPrecision(3)),
  });
  const [input] = stretch.getElementsByTagName("input");
  scope.when(["method"], () => (input.disabled = scope.read("method") === "none"));
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(
        scope,
        mappedSlider(scope.value("length"), {
          label: say("Tokens read"),
          min: 16,
          max: LONGEST,
          step: 0.125,
          toPlace: Math.log2,
          toValue: (place) => Math.round(2 ** place),
        }),
        150,
      ),
      html(
        "div",
        { class: "x-settings" },
        select(scope.value("method"), { label: say("Method"), options: methods() }),
        stretch,
      ),
      headline(scope, SETTING, () => [
        say("{n} of {total}", { n: many(), total: all.length }),
        say("clocks reach new angles"),
      ]),
    ),
    tabs(
      [
        say("Clocks"),
        [
          [say("All clocks"), bars(scope, now)],
          [say("One clock"), dial(scope, now)],
          ["", more(scope, now)],
        ],
      ],
      [say("Loss"), [[say("Loss"), losses(scope)]]],
    ).element,
  );
  scope.when(SETTING, () =>
    scope.announce(
      say(
        "{length} tokens read, {method}: {many} of {count} clocks show angles that {TRAINED} tokens never " +
          "showed; neighbours are {degrees} apart on the fastest.",
        {
          length: scope.read("length"),
          method: now.words(),
          many: many(),
          count: all.length,
          TRAINED,
          degrees: degrees(all[0].now),
        },
      ),
    ),
  );
  return scope.dispose;
}

/** What the method changes in numbers, and the controls of the clocks. @param {Scope} scope @param {Now} now */
function more(scope, now) {
  const ends = () => [now.all()[0], now.all()[now.all().length - 1]];
  return html(
    "div",
    { class: "x-panel s-more" },
    numbers(scope, SETTING, [
      [
        say("slower, fastest … slowest"),
        () =>
          ends()
            .map((clock) => fixed(clock.trained / clock.now))
            .join(" … "),
      ],
      [say("neighbours, fastest clock"), () => `${degrees(ends()[0].trained)} → ${degrees(ends()[0].now)}`],
      [say("temperature of the scores"), () => fixed(now.heat())],
    ]),
    html(
      "div",
      { class: "x-settings" },
      scope.rebuild(
        ["width"],
        () => String(scope.read("width")),
        (part) =>
          slider(
            { ...part.value("clock"), get: () => now.chosen() + 1 },
            { label: say("Clock shown"), min: 1, max: scope.read("width") / 2, step: 1 },
          ),
      ),
      logSlider(scope.value("base"), { label: say("Base"), min: 10, max: 1e6, show: short }),
      mappedSlider(scope.value("width"), {
        label: say("Width of a head"),
        min: WIDTHS[0],
        max: WIDTHS[WIDTHS.length - 1],
        step: 1,
        toPlace: (width) => WIDTHS.indexOf(width),
        toValue: (place) => WIDTHS[place],
      }),
    ),
  );
}

/** Three digits at most, thousands as k, millions as M. @param {number} x */
function short(x) {
  const [over, unit] = x >= 999_500 ? [1e6, " M"] : x >= 9995 ? [1e3, " k"] : [1, ""];
  return `${Number((x / over).toPrecision(3))}${unit}`;
}

/** An angle, with enough digits to differ from zero. @param {number} angle */
function degrees(angle) {
  const x = (angle * 180) / Math.PI;
  return `${x < 0.01 ? "<0.01" : x < 10 ? fixed(x) : short(Number(fixed(x, 1)))}°`;
}

/** A number of turns, with enough digits to differ from zero. @param {number} angle */
function turns(angle) {
  const x = angle / TURN;
  return x < 0.001 ? "<0.001" : x < 0.1 ? fixed(x, 3) : fixed(x);
}

/** All clocks on a scale of turns: the largest angle in training, and the one reached now. @param {Scope} scope @param {Now} now */
function bars(scope, now) {
  const [left, right, top, bottom] = [34, 314, 26, 206];
  const drawing = picture(320, 244, say("turns of each clock in training and now"));
  const scale = linear([-4, 2], [bottom, top]);
  const y = (/** @type {number} */ angle) => scale(Math.min(2, Math.max(-4, Math.log10(angle / TURN))));
  const grounds = svg("g");
  const chosen = svg("path", { class: "s-chosen" });
  const last = named("", right, bottom + 16, "", "end");
  drawing.append(
    grounds,
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    svg("path", { class: "s-once", d: `M${left} ${y(TURN)}H${right}` }),
    named(say("once round"), right, y(TURN) - 4, "s-name", "end"),
    ...["10²", "1", "10⁻²", "10⁻⁴"].map((t, i) => named(t, left - 5, scale(2 - 2 * i) + 4, "", "end")),
    named(say("turns made"), 0, 12),
    named("1", left + 4, bottom + 16),
    named(say("clock, fastest first"), (left + right) / 2, bottom + 34, "", "middle"),
    last,
    chosen,
  );
  drawing.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    const share = linear([left, right], [0, now.all().length])(((event.clientX - box.left) / box.width) * 320);
    scope.write("clock", Math.min(now.all().length, Math.max(1, Math.ceil(share))));
  });
  scope.when(CLOSELY, () => {
    const all = now.all();
    const slot = (right - left) / all.length;
    const [x, wide] = [(/** @type {number} */ i) => left + slot * (i + 0.12), 0.76 * slot];
    grounds.replaceChildren(
      ...all.flatMap((clock, i) => {
        const box = (/** @type {string} */ look, /** @type {number} */ from, /** @type {number} */ to) =>
          svg("rect", { class: look, x: x(i), width: wide, y: y(to), height: Math.max(0, y(from) - y(to)) });
        const level = (/** @type {string} */ look, /** @type {number} */ angle) =>
          svg("path", { class: `x-line ${look}`, d: `M${x(i)} ${y(angle)}h${wide}` });
        const beyond = unseen(clock);
        return [
          box("x-fill", 0, clock.seen),
          ...(beyond ? [box("s-new", beyond[0], beyond[1])] : []),
          ...(scope.read("method") === "none" ? [] : [level("s-plain", clock.plain)]),
          level(clock.isNew ? "x-second" : "x-first", clock.reach),
        ];
      }),
    );
    last.textContent = String(all.length);
    chosen.setAttribute("d", `M${x(now.chosen()) + wide / 2} ${bottom + 3}l5 8h-10z`);
  });
  return panel([
    drawing,
    say(
      "Bar: turns in {TRAINED} tokens of training. Thick line: turns in the tokens read; dotted: the same " +
        "as trained. Orange: new angles. A clock that completed a turn in training has shown all angles. The " +
        "mark: the clock shown in detail.",
      { TRAINED },
    ),
  ]);
}

/** One clock with the angles of all distances, and its values. @param {Scope} scope @param {Now} now */
function dial(scope, now) {
  const drawing = picture(200, 200, say("angles of one clock at every distance, in training and now"));
  const sector = svg("path", { class: "x-fill" });
  const beyond = svg("path", { class: "s-new" });
  const [inner, outer, fresh] = ["s-marks", "s-marks s-first", "s-marks s-second"].map((look) =>
    svg("path", { class: look }),
  );
  drawing.append(svg("circle", { class: "x-ground", cx: 100, cy: 100, r: 70 }), sector, beyond, inner, outer, fresh);
  const marks = (/** @type {number[]} */ angles, /** @type {number} */ from) =>
    angles.map((a) => `M${at(from, a)}L${at(from + 9, a)}`).join("");
  const rows = [say("tokens"), say("tokens for a turn"), say("turns made"), say("between neighbours")].map((name) => ({
    name,
    cells: [html("td"), html("td")],
  }));
  const verdict = html("p", { class: "x-facts s-verdict" });
  const title = html("th", { scope: "row" });
  scope.when(CLOSELY, () => {
    const i = now.chosen();
    const clock = now.all()[i];
    const [length, news, slower] = [scope.read("length"), unseen(clock), clock.trained / clock.now];
    sector.setAttribute("d", wedge(0, clock.seen));
    beyond.setAttribute("d", news ? wedge(news[0], news[1]) : "");
    const each = Array.from({ length }, (_, t) => t * clock.now);
    const isFresh = (/** @type {number} */ a) => clock.isNew && a % TURN >= clock.seen;
    inner.setAttribute(
      "d",
      marks(
        Array.from({ length: TRAINED }, (_, t) => t * clock.trained),
        72,
      ),
    );
    outer.setAttribute(
      "d",
      marks(
        each.filter((a) => !isFresh(a)),
        86,
      ),
    );
    fresh.setAttribute("d", marks(each.filter(isFresh), 86));
    title.textContent = say("clock {i}", { i: i + 1 });
    [
      [String(TRAINED), String(length)],
      [short(TURN / clock.trained), short(TURN / clock.now)],
      [turns(clock.seen), turns(clock.reach)],
      [degrees(clock.trained), degrees(clock.now)],
    ].forEach((pair, row) => pair.forEach((words, column) => (rows[row].cells[column].textContent = words)));
    const rest = news
      ? say("{degrees} of its angles are new.", { degrees: degrees(news[1] - news[0]) })
      : say("no new angles.");
    verdict.textContent =
      slower > 1
        ? say("{slower} times slower than in training; {rest}", { slower: fixed(slower), rest })
        : say("As fast as in training; {rest}", { rest });
  });
  return panel(
    [
      drawing,
      html(
        "table",
        { class: "x-table" },
        html("tr", {}, title, html("td", {}, say("in training")), html("td", {}, say("now"))),
        ...rows.map(({ name, cells }) => html("tr", {}, html("th", { scope: "row" }, name), ...cells)),
      ),
      verdict,
      say("Its angle at each distance to a key: inner marks in training, outer marks now."),
    ],
    "s-dial",
  );
}

/** A point by its distance from the centre and its angle, clockwise from twelve. @param {number} r @param {number} angle */
function at(r, angle) {
  return `${(100 + r * Math.sin(angle)).toFixed(2)} ${(100 - r * Math.cos(angle)).toFixed(2)}`;
}

/** A sector between two angles, at most a full turn. @param {number} from @param {number} to */
function wedge(from, to) {
  const end = Math.min(to, TURN);
  const middle = (from + end) / 2; // an SVG arc of a full turn would be empty
  return `M100 100L${at(70, from)}A70 70 0 0 1 ${at(70, middle)}A70 70 0 0 1 ${at(70, end)}Z`;
}

/** The question before the losses are shown, and the result. @param {Scope} scope */
function guess(scope) {
  const { card, tell } = questionCard(
    "s-guess",
    say(
      "A small model was trained for 300 steps on 64 characters at a time, and is not trained further. With " +
        "which method is its loss lowest when 512 are given?",
    ),
    methods(),
    (method) => scope.write("guess", method),
  );
  scope.when(["guess"], () => {
    const said = scope.read("guess");
    const found = methods().map(([method, words]) => {
      const all = means(recorded(method, LONGEST / TRAINED, false));
      return `${words} ${fixed(all[all.length - 1])}`;
    });
    tell(
      said &&
        say("You said {method}. Mean losses with 512 characters, base 10 000, factor 8: {found} nats.", {
          method: say(NAMES[said]),
          found: found.join(say(", ")),
        }),
    );
  });
  return card;
}

/** Recorded losses by length, with the seeds of the selected method. @param {Scope} scope */
function losses(scope) {
  const [left, right, top, bottom] = [34, 232, 26, 196];
  const drawing = picture(320, 234, say("recorded losses by the number of characters read"));
  const x = linear([5, 9], [left, right]);
  const y = linear([3.2, 1.8], [top, bottom]);
  const place = (/** @type {number} */ loss, /** @type {number} */ i) =>
    `${x(Math.log2(LENGTHS[i]))} ${y(loss).toFixed(1)}`;
  const path = (/** @type {number[]} */ all) => "M" + all.map(place).join("L");
  const here = svg("path", { class: "x-axis" });
  const shown = svg("g");
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    ...LENGTHS.map((n) => named(String(n), x(Math.log2(n)), bottom + 16, "", "middle")),
    ...[2, 2.5, 3].map((loss) => named(fixed(loss, 1), left - 5, y(loss) + 4, "", "end")),
    named(say("loss in nats"), 0, 12),
    named(say("characters read"), (left + right) / 2, bottom + 34, "", "middle"),
    here,
    shown,
  );
  const about = html("p", { class: "x-facts" });
  scope.when(["length"], () =>
    here.setAttribute("d", `M${x(Math.log2(Math.max(32, scope.read("length"))))} ${top}V${bottom}`),
  );
  scope.when(["method", "factor", "practised", "guess"], () => {
    if (!scope.read("guess")) return shown.replaceChildren();
    const factor = nearest(scope.read("practised") ? [8] : FACTORS, scope.read("factor"));
    const all = [...methods(), /** @type {["window", string]} */ (["window", say("window of 64")])].map(
      ([method, words]) => {
        const seeds = recorded(method, factor, scope.read("practised"));
        const mean = means(seeds);
        return { method, words, seeds, mean, at: y(mean[mean.length - 1]) + 4 };
      },
    );
    all.sort((a, b) => a.at - b.at);
    all.forEach((line, i) => i && (line.at = Math.max(line.at, all[i - 1].at + 13)));
    shown.replaceChildren(
      ...all.flatMap(({ method, words, seeds, mean, at }) => {
        const chosen = method === scope.read("method");
        return [
          ...(chosen ? seeds.map((seed) => svg("path", { class: "x-line x-first s-seed", d: path(seed) })) : []),
          svg("path", {
            class: `x-line ${chosen ? "x-first" : method === "window" ? "s-plain" : "s-other"}`,
            d: path(mean),
          }),
          named(words, right + 5, at, chosen ? "x-of-first" : ""),
        ];
      }),
    );
    about.textContent = say(
      "Recorded after 300 steps with base 10 000, width 16, factor {factor}. The same characters are " +
        "scored, with more text before them: means of three seeds; thin: each seed, with its own characters. " +
        "Dotted: frequencies as trained, and each layer sees a window of 64 keys.",
      { factor },
    );
  });
  const more = html(
    "div",
    { class: "x-panel" },
    checkbox(scope.value("practised"), { label: say("40 more steps at 512") }),
    about,
  );
  const curves = panel([drawing]);
  scope.when(["guess"], () => (more.hidden = curves.hidden = !scope.read("guess")));
  return html("div", { class: "x-panel s-losses" }, html("div", { class: "x-panel" }, guess(scope), more), curves);
}

export default { render };
