/** A look-up by vectors: the soft answer and the best key's, for every direction of the query. */

import { softmax } from "./arithmetic.js";
import { draggable } from "./drag.js";
import { entry, fixed, html, linear, mappedSlider, slider, stage, svg } from "./kit.js";
import { COLOURS } from "./palette.js";
import { answer, best, directionOf, lengthOf, perDegree, pointing, scores } from "./retrieval.math.js";

/**
 * @typedef {number[]} Point two coordinates
 * @typedef {{ query: Point, key: Point[], value: number[], labels: string[] }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./kit.js").Value<Point>} PointValue
 */

const [SHORTEST, LONGEST, FARTHEST] = [0.1, 20, 2];
const [SIZE, REACH, RIM] = [300, 2.7, 2.2];
const x = linear([-REACH, REACH], [0, SIZE]);
const y = linear([REACH, -REACH], [0, SIZE]);
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 296, 16, 262];
const across = linear([-180, 180], [LEFT, RIGHT]);
/** @type {(keyof Traits)[]} */
const ALL = ["query", "key", "value", "labels"];

const at = (/** @type {Point} */ v) => `${x(v[0]).toFixed(1)} ${y(v[1]).toFixed(1)}`;

/**
 * A trait's entries, of which there may for a moment be more than of another's.
 * @template {"key" | "value" | "labels"} K
 * @param {Scope} scope @param {K} trait
 */
function entries(scope, trait) {
  const least = Math.min(scope.read("key").length, scope.read("value").length, scope.read("labels").length);
  return /** @type {Traits[K]} */ (scope.read(trait).slice(0, least));
}

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context, "A look-up by vectors");
  scope.add(
    html("div", { class: "x-panels" }, direction(scope), length(scope)),
    scope.rebuild(
      ["key", "value", "labels"],
      () => entries(scope, "labels").join(),
      (part) => html("div", { class: "x-panels" }, dial(part), curve(part), table(part)),
    ),
  );
  const facts = html("p", { class: "x-facts" });
  scope.add(facts);
  scope.when(ALL, () => {
    const [q, k, v] = looked(scope);
    const soft = fixed(answer(q, k, v));
    const slope = fixed(perDegree(q, k, v), 3);
    facts.replaceChildren(
      "Soft answer ",
      html("b", {}, soft),
      "; one degree more changes it by ",
      html("b", {}, slope),
      ". The best key alone says ",
      html("b", {}, fixed(best(q, k, v))),
      ", and one degree changes nothing, or everything.",
    );
    scope.announce(
      `The soft answer is ${soft}, the best key alone says ${fixed(best(q, k, v))}; one degree changes the soft answer by ${slope}.`,
    );
  });
  return scope.dispose;
}

/** Query, keys and values. @param {Scope} scope @returns {[Point, Point[], number[]]} */
function looked(scope) {
  return [scope.read("query"), entries(scope, "key"), entries(scope, "value")];
}

/** @param {Scope} scope */
function direction(scope) {
  return mappedSlider(scope.value("query"), {
    label: "Direction",
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
    label: "Length of query",
    min: [SHORTEST, 0],
    max: [LONGEST, 0],
    step: Math.log(LONGEST / SHORTEST) / 100,
    show: (q) => fixed(lengthOf(q)),
    toPlace: (q) => Math.log(lengthOf(q)),
    toValue: (l) => pointing(directionOf(scope.read("query")), Math.max(SHORTEST, Math.min(LONGEST, Math.exp(l)))),
  });
}

/** Keys to drag, and the query as a hand that turns. @param {Scope} part */
function dial(part) {
  const hand = svg("path", { class: "x-line x-first" });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group", "aria-label": "query and keys" },
    svg("circle", { class: "x-axis", cx: x(0), cy: y(0), r: x(RIM) - x(0) }),
    svg("path", { class: "x-axis", d: `M${x(-RIM)} ${y(0)}H${x(RIM)}M${x(0)} ${y(RIM)}V${y(-RIM)}` }),
    hand,
  );
  const tip = () => pointing(directionOf(part.read("query")), RIM);
  part.when(["query"], () => hand.setAttribute("d", `M${at([0, 0])}L${at(tip())}`));
  entries(part, "labels").forEach((label, j) =>
    handle(
      drawing,
      `key ${label}`,
      svg("circle", { r: 6, fill: COLOURS[j] }),
      label,
      onDial(entry(part.value("key"), j)),
    ),
  );
  handle(drawing, "query", svg("circle", { r: 7, class: "x-dot x-first" }), "query", {
    get: tip,
    set(v) {
      if (lengthOf(v)) part.write("query", pointing(directionOf(v), lengthOf(part.read("query"))));
    },
    watch: (draw) => part.when(["query"], draw),
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html("figcaption", {}, "Turn the query by its hand; drag the keys."),
  );
}

/** The answer for every direction of the query. @param {Scope} part */
function curve(part) {
  const soft = svg("path", { class: "x-line x-first" });
  const hard = svg("path", { class: "x-line x-second x-dashed" });
  const here = svg("circle", { r: 6, class: "x-dot x-first" });
  const names = entries(part, "labels").map((label) => svg("text", { "text-anchor": "middle", y: 278 }, label));
  const marks = svg("path", { class: "x-axis", style: "stroke-dasharray: 2 4" });
  const [bottom, top] = [
    svg("text", { x: LEFT - 5, y: BOTTOM + 4, "text-anchor": "end" }),
    svg("text", { x: LEFT - 5, y: TOP + 4, "text-anchor": "end" }),
  ];
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": "the answer against the direction of the query" },
    svg("path", { class: "x-axis", d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}` }),
    marks,
    hard,
    soft,
    here,
    ...names,
    bottom,
    top,
  );
  const height = () => {
    const v = entries(part, "value");
    const [low, high] = [Math.min(...v), Math.max(...v)];
    return linear([low, high === low ? low + 1 : high], [BOTTOM, TOP]);
  };
  part.when(ALL, () => {
    const [q, k, v] = looked(part);
    const up = height();
    const degrees = Array.from({ length: 361 }, (_, i) => i - 180);
    const line = (/** @type {typeof answer} */ f) => {
      const places = degrees.map((d) => [across(d), up(f(pointing(d, lengthOf(q)), k, v))]);
      return `M${places.map((place) => place.map((c) => c.toFixed(1)).join(" ")).join("L")}`;
    };
    soft.setAttribute("d", line(answer));
    hard.setAttribute("d", line(best));
    here.setAttribute("cx", across(directionOf(q)).toFixed(1));
    here.setAttribute("cy", up(answer(q, k, v)).toFixed(1));
    bottom.textContent = fixed(Math.min(...v), 0);
    top.textContent = fixed(Math.max(...v), 0);
  });
  part.when(["key"], () => {
    const places = entries(part, "key").map((key) => across(directionOf(key)));
    names.forEach((name, j) => {
      name.setAttribute("x", Math.max(LEFT + 8, Math.min(RIGHT - 12, places[j])).toFixed(1));
      const crowd = places.slice(0, j).filter((p) => Math.abs(p - places[j]) < 40).length;
      name.setAttribute("y", String(278 + 13 * (crowd % 2)));
    });
    marks.setAttribute("d", places.map((p) => `M${p.toFixed(1)} ${TOP}V${BOTTOM}`).join(""));
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html("figcaption", {}, "The answer against the direction of the query. Solid: soft. Dashed: the best key alone."),
  );
}

/** A row for each key: its score, its weight, its value. @param {Scope} part */
function table(part) {
  const rows = entries(part, "labels").map((label, j) => ({
    label,
    bar: html("div", { class: "x-bar", style: `background: ${COLOURS[j]}` }),
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
    { class: "x-grid", style: "--columns: auto 3.25rem 1fr 2.75rem 1fr 3.25rem; grid-column: 1 / -1" },
    ...["key", "score", "weight", "", "value", ""].map((head) => html("span", { class: "x-head" }, head)),
    ...rows.flatMap(({ label, bar, shown, score }, j) => [
      html("span", { class: "x-name", "aria-hidden": "true" }, label),
      score,
      html("div", { class: "x-track" }, bar),
      shown,
      slider(entry(part.value("value"), j), {
        label: `value of ${label}`,
        min: -50,
        max: 50,
        step: 0.5,
        plain: true,
        show: (v) => fixed(v, 1),
      }),
    ]),
  );
}

/** A vector that is moved anywhere, and set to one within the dial. @param {PointValue} value */
function onDial(value) {
  const fit = (/** @type {Point} */ v) => (lengthOf(v) > FARTHEST ? pointing(directionOf(v), FARTHEST) : v);
  return { ...value, set: (/** @type {Point} */ v) => value.set(fit(v)) };
}

/**
 * A point to take hold of, with a finger, a mouse, or the arrow keys.
 * @param {SVGSVGElement} drawing @param {string} name @param {SVGElement} mark @param {string} label
 * @param {PointValue} value
 */
function handle(drawing, name, mark, label, value) {
  const words = svg("text", { "text-anchor": "middle", style: "fill: var(--ink)", "aria-hidden": "true" }, label);
  const grip = svg(
    "g",
    {
      tabindex: 0,
      role: "slider",
      "aria-label": name,
      "aria-valuemin": -180,
      "aria-valuemax": 180,
      style: "cursor: grab; touch-action: none",
    },
    svg("circle", { r: 14, fill: "transparent" }),
    mark,
    words,
  );
  const [right, up] = [linear([0, SIZE], [-REACH, REACH]), linear([0, SIZE], [REACH, -REACH])];
  draggable(grip, drawing, (place) => [right(place.x), up(place.y)], value);
  drawing.append(grip);
  value.watch(() => {
    const v = value.get();
    const out = pointing(lengthOf(v) ? directionOf(v) : 90, 18);
    grip.setAttribute("transform", `translate(${at(v)})`);
    grip.setAttribute("aria-valuenow", directionOf(v).toFixed(0));
    grip.setAttribute("aria-valuetext", `${fixed(directionOf(v), 0)}°, ${fixed(lengthOf(v))} long`);
    words.setAttribute("x", (out[0] * 1.5).toFixed(1));
    words.setAttribute("y", (4 - out[1]).toFixed(1));
  });
}

export default { render };
