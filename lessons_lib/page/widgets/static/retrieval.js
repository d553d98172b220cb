/** Attention as a soft look-up, beside the value of the best key, for every direction of the query. */

import { softmax } from "./arithmetic.js";
import { draggable, keepApart } from "./drag.js";
import {
  entry,
  fixed,
  html,
  linear,
  mappedSlider,
  named,
  panel,
  picture,
  setAttributes,
  slider,
  stage,
  svg,
} from "./kit.js";
import { answer, best, directionOf, lengthOf, perDegree, pointing, scores } from "./retrieval.math.js";
import { letters } from "./letters.js";
import { say, sayWith } from "./words.js";

/**
 * @typedef {number[]} Point two coordinates
 * @typedef {{ query: Point, key: Point[], value: number[], labels: string[] }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./kit.js").Value<Point>} PointValue
 * @typedef {import("./drag.js").Name} Name
 */

const [SHORTEST, LONGEST, FARTHEST] = [0.1, 20, 2];
const [SIZE, REACH, RIM] = [270, 2.7, 2.2];
const x = linear([-REACH, REACH], [0, SIZE]);
const y = linear([REACH, -REACH], [0, SIZE]);
const [LEFT, RIGHT, TOP, BOTTOM] = [40, 308, 22, 164];
const across = linear([-180, 180], [LEFT, RIGHT]);
/** @type {(keyof Traits)[]} */
const ALL = ["query", "key", "value", "labels"];

const at = (/** @type {Point} */ v) => `${x(v[0]).toFixed(1)} ${y(v[1]).toFixed(1)}`;

/**
 * The entries of a trait, whose number may differ from that of another trait for a moment.
 * @template {"key" | "value" | "labels"} K
 * @param {Scope} scope @param {K} trait
 */
function entries(scope, trait) {
  const least = Math.min(scope.read("key").length, scope.read("value").length, scope.read("labels").length);
  return /** @type {Traits[K]} */ (scope.read(trait).slice(0, least));
}

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const facts = html("p", { class: "x-facts" });
  /** @type {number[]} */
  let range = [];
  scope.add(
    html("div", { class: "x-panels x-controls" }, direction(scope), length(scope)),
    scope.rebuild(
      ["key", "value", "labels"],
      () => {
        range = around(entries(scope, "value"), range);
        return [...entries(scope, "labels"), ...range].join();
      },
      (part) => html("div", { class: "x-panels" }, dial(part), curve(part, range, facts), table(part, range)),
    ),
  );
  scope.when(ALL, () => {
    const [q, k, v] = looked(scope);
    const soft = fixed(answer(q, k, v));
    const slope = fixed(perDegree(q, k, v), 3);
    facts.replaceChildren(
      ...sayWith("Soft answer {soft}, changing by {slope} with each degree. The hard answer is {hard}.", {
        soft: html("b", {}, soft),
        slope: html("b", {}, slope),
        hard: html("b", {}, fixed(best(q, k, v))),
      }),
    );
    scope.announce(
      say("The soft answer is {soft}, the hard answer is {hard}; one degree changes the soft answer by {slope}.", {
        soft,
        hard: fixed(best(q, k, v)),
        slope,
      }),
    );
  });
  return scope.dispose;
}

/**
 * The ends of the value axis, shared by the sliders: multiples of ten with room on both sides. They change only if a
 * value lies beyond them, so that a rising answer is seen to rise.
 * @param {number[]} values @param {number[]} before
 */
function around(values, before) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (before.length && least >= before[0] && most <= before[1]) return before;
  return [Math.max(-50, 10 * Math.floor(least / 10) - 10), Math.min(50, 10 * Math.ceil(most / 10) + 10)];
}

/** Query, keys and values. @param {Scope} scope @returns {[Point, Point[], number[]]} */
function looked(scope) {
  return [scope.read("query"), entries(scope, "key"), entries(scope, "value")];
}

/** @param {Scope} scope */
function direction(scope) {
  return mappedSlider(scope.value("query"), {
    label: say("Direction"),
    min: pointing(-179, 1),
    max: pointing(180, 1),
    step: 1,
    show: (q) => `${fixed(directionOf(q), 0)}°`,
    toPlace: (q) => Math.round(directionOf(q)),
    toValue: (d) => pointing(d, lengthOf(scope.read("query"))),
  });
}

/** @param {Scope} scope */
function length(scope) {
  return mappedSlider(scope.value("query"), {
    label: say("Length of query"),
    min: [SHORTEST, 0],
    max: [LONGEST, 0],
    step: Math.log(LONGEST / SHORTEST) / 100,
    show: (q) => fixed(lengthOf(q)),
    toPlace: (q) => Math.log(lengthOf(q)),
    toValue: (l) => pointing(directionOf(scope.read("query")), Math.max(SHORTEST, Math.min(LONGEST, Math.exp(l)))),
  });
}

/** Draggable keys, and the query as a hand that turns. @param {Scope} part */
function dial(part) {
  const way = svg("path", { class: "x-axis", style: "stroke: var(--query)" });
  const hand = svg("path", { class: "x-line", style: "stroke: var(--query); stroke-width: 5; stroke-linecap: round" });
  const drawing = svg(
    "svg",
    { class: "x-dial", viewBox: `0 10 ${SIZE} ${SIZE - 20}`, role: "group", "aria-label": say("query and keys") },
    svg("circle", { class: "x-axis", cx: x(0), cy: y(0), r: x(RIM) - x(0) }),
    svg("path", { class: "x-axis", d: `M${x(-RIM)} ${y(0)}H${x(RIM)}M${x(0)} ${y(RIM)}V${y(-RIM)}` }),
    way,
    hand,
  );
  /** @type {Name[]} */
  const names = [];
  const tip = () => pointing(directionOf(part.read("query")), RIM);
  part.when(["query"], () => {
    const q = part.read("query");
    way.setAttribute("d", `M${at([0, 0])}L${at(tip())}`);
    const shown = (RIM * Math.log(1 + lengthOf(q))) / Math.log(1 + LONGEST);
    hand.setAttribute("d", `M${at([0, 0])}L${at(pointing(directionOf(q), shown))}`);
  });
  entries(part, "labels").forEach((label, j) =>
    handle(
      drawing,
      names,
      say("key {label}", { label }),
      svg("circle", { r: 6, style: "fill: var(--key)" }),
      label,
      onDial(entry(part.value("key"), j)),
    ),
  );
  const query = {
    get: tip,
    set(/** @type {Point} */ v) {
      if (lengthOf(v)) part.write("query", pointing(directionOf(v), lengthOf(part.read("query"))));
    },
    watch: (/** @type {() => void} */ draw) => part.when(["query"], draw),
  };
  const ring = svg("circle", { r: 7, class: "x-dot", style: "stroke: var(--query)" });
  const said = handle(drawing, names, say("query"), ring, "", query, {
    said: () => part.read("query"),
    // up and down turn it by five degrees, left and right by one
    moved: (v, [right, up]) => pointing(directionOf(v) + 50 * up + 10 * right, RIM),
  });
  part.when(["key", "query"], () => {
    const [q, way] = [part.read("query"), tip()];
    said.textContent = say("query, {length} long", { length: fixed(lengthOf(q), 1) });
    keepApart(
      names,
      SIZE,
      [0.2, 0.35, 0.5, 0.65, 0.8].map((share) => [x(share * way[0]), y(share * way[1])]),
    );
  });
  return panel([
    drawing,
    say("Turn the query by its ring; drag the keys. Thick: the query's length, up to 20 at the rim."),
  ]);
}

/**
 * The answer for every direction of the query, and in words for the current one.
 * @param {Scope} part @param {number[]} range @param {Node} facts
 */
function curve(part, range, facts) {
  const soft = svg("path", { class: "x-line", style: "stroke: var(--output)" });
  const hard = svg("path", { class: "x-line x-dashed", style: "stroke: var(--quiet)" });
  const here = svg("circle", { r: 6, class: "x-dot", style: "stroke: var(--output)" });
  const values = svg("path", { style: "stroke: var(--value); stroke-width: 9; stroke-linecap: round" });
  const names = entries(part, "labels").map((label) => named(label, 0, 0, "", "middle"));
  const lines = [say("soft answer"), say("hard answer")].map((words) => named(words, 0, 0, "x-over"));
  const up = linear(range, [BOTTOM, TOP]);
  const step = range[1] - range[0] > 50 ? 20 : 10;
  const ticks = Array.from({ length: 11 }, (_, i) => (i - 5) * step).filter((v) => v >= range[0] && v <= range[1]);
  const marks = svg("path", { class: "x-axis", style: "stroke-dasharray: 2 4" });
  const drawing = picture(320, 214, say("the answer against the direction of the query"));
  drawing.append(
    svg("path", { class: "x-axis", d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}` }),
    marks,
    hard,
    soft,
    values,
    here,
    ...names,
    ...lines,
    ...ticks.map((v) => named(fixed(v, 0), LEFT - 5, up(v) + 4, "", "end")),
    named(say("answer"), 0, 10),
    named(say("direction of the query"), RIGHT, 210, "", "end"),
  );
  part.when(ALL, () => {
    const [q, k, v] = looked(part);
    const degrees = Array.from({ length: 361 }, (_, i) => i - 180);
    const line = (/** @type {typeof answer} */ f) => {
      const places = degrees.map((d) => [across(d), up(f(pointing(d, lengthOf(q)), k, v))]);
      return `M${places.map((place) => place.map((c) => c.toFixed(1)).join(" ")).join("L")}`;
    };
    soft.setAttribute("d", line(answer));
    hard.setAttribute("d", line(best));
    const at = [answer, best].map((f) => up(f(q, k, v)));
    setAttributes(here, { cx: across(directionOf(q)).toFixed(1), cy: at[0].toFixed(1) });
    // the labels of the lines are beside the ring, the higher one above it
    const high = Math.min(...at) - 11;
    const low = Math.max(...at) + 20;
    const heights = low < BOTTOM ? [high, low] : [high - 14, high];
    lines.forEach((name, i) =>
      setAttributes(name, {
        x: Math.max(LEFT + 4, Math.min(RIGHT - 96, across(directionOf(q)) - 40)).toFixed(1),
        y: heights[Number(at[i] > at[1 - i] || (i === 1 && at[0] === at[1]))].toFixed(1),
      }),
    );
  });
  part.when(["key", "value"], () => {
    const places = entries(part, "key").map((key) => across(directionOf(key)));
    const heights = entries(part, "value").map(up);
    /** @type {number[][]} */
    const rows = [[], [], []];
    places.forEach((place, j) => {
      const half = 3.5 * letters(names[j].textContent ?? "") + 3;
      const middle = Math.max(LEFT, Math.min(RIGHT - half + 8, place));
      const row = Math.max(
        0,
        rows.findIndex((row) => row.every((end) => Math.abs(end - middle) > 2 * half)),
      );
      rows[row].push(middle);
      setAttributes(names[j], { x: middle.toFixed(1), y: BOTTOM + 15 + 13 * row });
    });
    marks.setAttribute("d", places.map((p) => `M${p.toFixed(1)} ${TOP}V${BOTTOM}`).join(""));
    values.setAttribute("d", places.map((p, j) => `M${p.toFixed(1)} ${heights[j].toFixed(1)}h0`).join(""));
  });
  return panel([drawing, say("Dots: each value, at its key's direction."), facts]);
}

/** A row for each key: its score, its weight, its value. @param {Scope} part @param {number[]} range */
function table(part, range) {
  const rows = entries(part, "labels").map((label) => ({
    label,
    bar: html("div", { class: "x-bar", style: "background: var(--key)" }),
    shown: html("span", { class: "x-value" }),
    score: html("span", { class: "x-value" }),
  }));
  part.when(["query", "key"], () => {
    const s = scores(part.read("query"), entries(part, "key"));
    const p = softmax(s);
    rows.forEach(({ bar, shown, score }, j) => {
      bar.style.width = `${100 * p[j]}%`;
      shown.textContent = fixed(p[j], 3);
      score.textContent = fixed(s[j]);
    });
  });
  return html(
    "div",
    {
      class: "x-grid",
      style: "--columns: auto 3.25rem 1fr 2.75rem 1fr 3.25rem; --narrow: auto 3.25rem 1fr 2.75rem; grid-column: 1 / -1",
    },
    ...[say("key"), say("score"), say("weight"), ""].map((head) => html("span", { class: "x-head" }, head)),
    ...[say("value"), ""].map((head) => html("span", { class: "x-head x-own" }, head)),
    ...rows.flatMap(({ label, bar, shown, score }, j) => [
      html("span", { class: "x-name", "aria-hidden": "true" }, label),
      score,
      html("div", { class: "x-track" }, bar),
      shown,
      slider(entry(part.value("value"), j), {
        label: say("value of {label}", { label }),
        min: range[0],
        max: range[1],
        step: 0.5,
        plain: true,
        show: (v) => fixed(v, 1),
      }),
    ]),
  );
}

/** The vector as a draggable value, clamped to the dial. @param {PointValue} value */
function onDial(value) {
  const fit = (/** @type {Point} */ v) => (lengthOf(v) > FARTHEST ? pointing(directionOf(v), FARTHEST) : v);
  return { ...value, set: (/** @type {Point} */ v) => value.set(fit(v)) };
}

/**
 * A point that can be moved by touch, by mouse and by the arrow keys.
 * @param {SVGSVGElement} drawing @param {Name[]} names @param {string} name @param {SVGElement} mark
 * @param {string} label @param {PointValue} value
 * @param {{ said?: () => Point, moved?: (now: Point, step: number[]) => Point }} [special]
 *   the vector that is read out, and where arrow keys lead
 */
function handle(drawing, names, name, mark, label, value, { said = value.get, moved } = {}) {
  const words = svg("text", { "text-anchor": "middle", class: "x-over", "aria-hidden": "true" }, label);
  const grip = svg(
    "g",
    {
      tabindex: 0,
      role: "slider",
      "aria-label": name,
      "aria-valuemin": -180,
      "aria-valuemax": 180,
      style: "cursor: grab",
    },
    svg("circle", { r: 14, fill: "transparent" }),
    mark,
    words,
  );
  const [right, up] = [linear([0, SIZE], [-REACH, REACH]), linear([0, SIZE], [REACH, -REACH])];
  draggable(grip, drawing, (place) => [right(place.x), up(place.y)], value, moved);
  drawing.append(grip);
  names.push({ words, at: () => [x(value.get()[0]), y(value.get()[1])] });
  value.watch(() => {
    const v = said();
    grip.setAttribute("transform", `translate(${at(value.get())})`);
    grip.setAttribute("aria-valuenow", directionOf(v).toFixed(0));
    grip.setAttribute(
      "aria-valuetext",
      say("{angle}°, {length} long", { angle: fixed(directionOf(v), 0), length: fixed(lengthOf(v)) }),
    );
  });
  return words;
}

export default { render };
