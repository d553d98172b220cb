/** Query, keys and values in the plane: the region of each key, the effect of lengths and angles, the output. */

import { softmax, sum } from "./arithmetic.js";
import { draggable, keepApart } from "./drag.js";
import {
  entry,
  fixed,
  html,
  linear,
  logSlider,
  mappedSlider,
  named,
  panel,
  panels,
  select,
  setAttributes,
  stage,
  svg,
} from "./kit.js";
import { COLOURS, rgb } from "./palette.js";
import { angle, average, hull, scores, stretched } from "./plane.math.js";
import { say } from "./words.js";

/**
 * @typedef {number[]} Point two coordinates
 * @typedef {{ query: Point, key: Point[], value: Point[] | null, temperature: number, similarity: string }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./kit.js").Value<Point>} PointValue
 * @typedef {import("./drag.js").Name} Name
 * @typedef {(query: Point) => number[]} WeightsAt the weights that a query at a place would give
 */

const [SHORTEST, LONGEST] = [0.1, 3];
const [SIZE, REACH] = [300, 3.3];
const x = linear([-REACH, REACH], [0, SIZE]);
const y = linear([REACH, -REACH], [0, SIZE]);

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const values = () => scope.read("value") ?? scope.read("key");
  const weightsAt = (/** @type {Point} */ query) =>
    softmax(scores(query, scope.read("key"), scope.read("similarity")), scope.read("temperature"));
  const weights = () => weightsAt(scope.read("query"));
  /** @type {(keyof Traits)[]} */
  const all = ["key", "query", "value", "temperature", "similarity"];
  scope.add(
    html(
      "div",
      { class: "x-panels x-loose" },
      html("div", { class: "x-panel x-controls", style: "gap: 0" }, queryLength(scope), queryDirection(scope)),
      html(
        "div",
        { class: "x-panel", style: "gap: 0" },
        logSlider(scope.value("temperature"), {
          label: say("Temperature T"),
          min: 0.05,
          max: 20,
          show: (t) => fixed(t),
        }),
        select(scope.value("similarity"), {
          label: say("Score"),
          options: [
            ["dot", say("dot product")],
            ["cosine", say("cosine alone")],
          ],
        }),
      ),
    ),
    scope.rebuild(
      ["key", "value"],
      () => `${scope.read("key").length}, ${values().length}`,
      (part) =>
        panels(
          [say("Query and keys"), queryPlane(part, weightsAt)],
          [say("Values and output"), valuePlane(part, values, weights)],
          ["", table(part, weights)],
        ),
    ),
  );
  scope.when(all, () => {
    const p = weights();
    const best = p.indexOf(Math.max(...p));
    scope.announce(
      say("Key {best} wins with weight {p}; the query is {length} long; output at {output}.", {
        best: best + 1,
        p: fixed(p[best]),
        length: fixed(Math.hypot(...scope.read("query"))),
        output: spoken(average(p, values())),
      }),
    );
  });
  return scope.dispose;
}

const spoken = (/** @type {Point} */ v) => `${fixed(v[0])}, ${fixed(v[1])}`;

/** @param {Scope} scope */
function queryLength(scope) {
  return lengthSlider(scope.value("query"), say("Length of query"));
}

/** @param {Scope} scope */
function queryDirection(scope) {
  const degrees = (/** @type {Point} */ v) => (Math.atan2(v[1], v[0]) * 180) / Math.PI;
  const vector = (/** @type {number} */ d) => [Math.cos((d * Math.PI) / 180), Math.sin((d * Math.PI) / 180)];
  return mappedSlider(scope.value("query"), {
    label: say("Angle of query"),
    min: vector(-179),
    max: vector(180),
    step: 1,
    show: (v) => `${fixed(degrees(v), 0)}°`,
    toPlace: (v) => Math.round(degrees(v)),
    toValue: (d) => stretched(vector(d), Math.hypot(...scope.read("query"))),
  });
}

/** A slider for the length of a vector with a fixed direction. @param {PointValue} value @param {string} label */
function lengthSlider(value, label, plain = false) {
  return mappedSlider(value, {
    label,
    min: [SHORTEST, 0],
    max: [LONGEST, 0],
    step: 0.1,
    plain,
    show: (v) => fixed(Math.hypot(...v)),
    toPlace: (v) => Number(Math.hypot(...v).toFixed(6)),
    toValue: (length) => stretched(value.get(), length),
  });
}

/** Keys and query on a background with the colours of the winning keys. @param {Scope} part @param {WeightsAt} weightsAt */
function queryPlane(part, weightsAt) {
  const cells = svg("image", {
    x: x(-LONGEST),
    y: y(LONGEST),
    width: x(LONGEST) - x(-LONGEST),
    height: x(LONGEST) - x(-LONGEST),
  });
  const rim = svg("path", { class: "x-axis x-dashed" });
  const rays = svg("path", { class: "x-axis", style: "stroke: var(--quiet)" });
  const arrow = svg("path", { class: "x-line", style: "stroke: var(--ink)" });
  const drawing = plane(say("query and keys"), cells, rim, rays, arrow);
  part.when(["key", "temperature", "similarity"], () => cells.setAttribute("href", painted(weightsAt)));
  part.when(["key"], () => {
    rays.setAttribute(
      "d",
      part
        .read("key")
        .map((k) => `M${at([0, 0])}L${at(k)}`)
        .join(""),
    );
    rim.setAttribute("d", outline(part.read("key")));
  });
  part.when(["query"], () => arrow.setAttribute("d", `M${at([0, 0])}L${at(part.read("query"))}`));
  /** @type {Name[]} */
  const names = [];
  part
    .read("key")
    .forEach((_, j) =>
      handle(
        drawing,
        names,
        say("key {j}", { j: j + 1 }),
        dotFor(j),
        String(j + 1),
        ofGoodLength(entry(part.value("key"), j)),
      ),
    );
  handle(drawing, names, say("query"), ring(), say("query"), ofGoodLength(part.value("query")));
  part.when(["key", "query"], () => {
    const q = part.read("query");
    keepApart(
      names,
      SIZE,
      [0.2, 0.4, 0.6, 0.8].map((share) => [x(share * q[0]), y(share * q[1])]),
      AXES,
    );
  });
  return panel([
    drawing,
    say(
      "Drag a key or the query. Colour: the keys, mixed by the weights of a query at that point. Dashed: " +
        "their convex hull.",
    ),
  ]);
}

/**
 * Values, their hull, and the output.
 * @param {Scope} part @param {() => Point[]} values @param {() => number[]} weights
 */
function valuePlane(part, values, weights) {
  const rim = svg("path", { style: "fill: var(--ground); stroke: var(--quiet); stroke-linejoin: round" });
  /** @type {Name[]} */
  const names = [];
  const name = named(say("output"), 0, 0, "x-over", "middle");
  const output = ring();
  const label = svg("g", {}, name);
  const drawing = plane(say("values and output"), rim);
  part.when(["key", "value"], () => rim.setAttribute("d", outline(values())));
  values().forEach((_, j) =>
    handle(drawing, names, say("value {j}", { j: j + 1 }), dotFor(j), String(j + 1), {
      get: () => values()[j],
      set: (v) =>
        part.write(
          "value",
          values().map((old, i) => (i === j ? v.map((c) => Math.max(-LONGEST, Math.min(LONGEST, c))) : old)),
        ),
      watch: (draw) => part.when(["key", "value"], draw),
    }),
  );
  drawing.append(output, label);
  names.push({ words: name, at: () => [x, y].map((place, axis) => place(average(weights(), values())[axis])) });
  part.when(["key", "query", "value", "temperature", "similarity"], () => {
    const o = average(weights(), values());
    setAttributes(output, { cx: x(o[0]), cy: y(o[1]) });
    label.setAttribute("transform", `translate(${at(o)})`);
    keepApart(names, SIZE, [], AXES);
  });
  return panel([
    drawing,
    say("Drag a value. The output is the weighted average of the values and stays inside their convex hull."),
  ]);
}

/** A row for each key: its length, its angle with the query, its score, its weight. @param {Scope} part @param {() => number[]} weights */
function table(part, weights) {
  const rows = part.read("key").map((_, j) => ({
    bar: html("div", { class: "x-bar", style: `background: ${COLOURS[j]}` }),
    shown: html("span", { class: "x-value" }),
    angle: html("span", { class: "x-value" }),
    score: html("span", { class: "x-value" }),
  }));
  part.when(["key", "query", "temperature", "similarity"], () => {
    const [query, keys, p] = [part.read("query"), part.read("key"), weights()];
    const s = scores(query, keys, part.read("similarity"));
    rows.forEach(({ bar, shown, angle: turned, score }, j) => {
      bar.style.width = `${100 * p[j]}%`;
      shown.textContent = fixed(p[j], 3);
      turned.textContent = `${fixed(angle(query, keys[j]), 0)}°`;
      score.textContent = fixed(s[j]);
    });
  });
  return html(
    "div",
    {
      class: "x-grid",
      style:
        "--columns: auto 1fr 2.5rem 2.5rem 3rem 1fr 2.75rem; --narrow: auto 2.5rem 3rem 1fr 2.75rem; grid-column: 1 / -1",
    },
    html("span", { class: "x-head" }, say("key")),
    ...[say("length"), ""].map((head) => html("span", { class: "x-head x-own" }, head)),
    ...[say("angle"), say("score"), say("weight"), ""].map((head) => html("span", { class: "x-head" }, head)),
    ...rows.flatMap(({ bar, shown, angle: turned, score }, j) => [
      html("span", { class: "x-name", "aria-hidden": "true" }, String(j + 1)),
      lengthSlider(entry(part.value("key"), j), say("length of key {j}", { j: j + 1 }), true),
      turned,
      score,
      html("div", { class: "x-track" }, bar),
      shown,
    ]),
  );
}

/** An empty plane with its axes. @param {string} label @param {SVGElement[]} nodes */
function plane(label, ...nodes) {
  const axes = svg("path", {
    class: "x-axis",
    d: `M${x(-REACH)} ${y(0)}H${x(REACH)}M${x(0)} ${y(REACH)}V${y(-REACH)}`,
  });
  return svg(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group", "aria-label": label },
    ...nodes.slice(0, 1),
    axes,
    ...[-3, 3].flatMap((v) => [
      named(fixed(v, 0), x(v), y(0) + 14, "", "middle"),
      named(fixed(v, 0), x(0) - 5, y(v) + 4, "", "end"),
    ]),
    named(say("→ first coordinate"), SIZE, SIZE - 2, "", "end"),
    named(say("↑ second coordinate"), 0, 10),
    ...nodes.slice(1),
  );
}

// The positions of the labels and numbers of the axes.
const AXES = [
  [0, 0, 128, 13],
  [SIZE - 115, SIZE - 14, SIZE, SIZE],
  ...[-3, 3].flatMap((v) => [
    [x(v) - 9, y(0) + 3, x(v) + 9, y(0) + 17],
    [x(0) - 22, y(v) - 7, x(0) - 4, y(v) + 7],
  ]),
];
const at = (/** @type {Point} */ v) => `${x(v[0]).toFixed(1)} ${y(v[1]).toFixed(1)}`;
const outline = (/** @type {Point[]} */ points) => `M${hull(points).map(at).join("L")}Z`;
const dotFor = (/** @type {number} */ j) => svg("circle", { r: 6, fill: COLOURS[j] });
const ring = () => svg("circle", { r: 7, class: "x-dot", style: "stroke: var(--ink)" });

/** The vector as a draggable value, with its length clamped. @param {PointValue} value */
function ofGoodLength(value) {
  const fit = (/** @type {Point} */ v) => {
    const length = Math.hypot(...v);
    return length === 0 ? [SHORTEST, 0] : stretched(v, Math.max(SHORTEST, Math.min(LONGEST, length)));
  };
  return { ...value, set: (/** @type {Point} */ v) => value.set(fit(v)) };
}

/** A picture of the disc of queries: each point has the colours of the keys, mixed by the weights of a query there. @param {WeightsAt} weightsAt */
function painted(weightsAt, pixels = 96) {
  const canvas = html("canvas", { width: pixels, height: pixels });
  const context = canvas.getContext("2d");
  if (!context) return "";
  const colours = COLOURS.map(rgb);
  const picture = context.createImageData(pixels, pixels);
  const place = linear([0, pixels], [-LONGEST, LONGEST]);
  for (let row = 0; row < pixels; row++) {
    for (let column = 0; column < pixels; column++) {
      const query = [place(column + 0.5), -place(row + 0.5)];
      const p = weightsAt(query);
      const inside = ((LONGEST - Math.hypot(...query)) / (2 * LONGEST)) * pixels;
      const start = 4 * (row * pixels + column);
      for (let c = 0; c < 3; c++) picture.data[start + c] = sum(p.map((w, j) => w * colours[j][c]));
      picture.data[start + 3] = 100 * Math.max(0, Math.min(1, inside));
    }
  }
  context.putImageData(picture, 0, 0);
  return canvas.toDataURL();
}

/**
 * A point that can be moved by touch, by mouse and by the arrow keys.
 * @param {SVGSVGElement} drawing @param {Name[]} names @param {string} name @param {SVGElement} mark
 * @param {string} label @param {PointValue} value
 */
function handle(drawing, names, name, mark, label, value) {
  const words = svg("text", { "text-anchor": "middle", class: "x-over", "aria-hidden": "true" }, label);
  const grip = svg(
    "g",
    {
      tabindex: 0,
      role: "slider",
      "aria-label": name,
      "aria-valuemin": -LONGEST,
      "aria-valuemax": LONGEST,
      style: "cursor: grab",
    },
    svg("circle", { r: 14, fill: "transparent" }),
    mark,
    words,
  );
  const [right, up] = [linear([0, SIZE], [-REACH, REACH]), linear([0, SIZE], [REACH, -REACH])];
  draggable(grip, drawing, (place) => [right(place.x), up(place.y)], value);
  drawing.append(grip);
  names.push({ words, at: () => [x(value.get()[0]), y(value.get()[1])] });
  value.watch(() => {
    const v = value.get();
    setAttributes(grip, {
      transform: `translate(${at(v)})`,
      "aria-valuenow": v[0].toFixed(2),
      "aria-valuetext": spoken(v),
    });
  });
}

export default { render };
