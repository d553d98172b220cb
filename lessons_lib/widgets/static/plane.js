// @ts-check
/** Query, keys and values in the plane: who wins where, what length does and what angle, where the average can land. */

import { softmax, sum } from "./arithmetic.js";
import { draggable } from "./drag.js";
import { fixed, html, linear, logSlider, select, slider, stage, svg } from "./kit.js";

/** @typedef {number[]} Point two coordinates */

/** @param {Point} a @param {Point} b */
export function dot(a, b) {
  return a[0] * b[0] + a[1] * b[1];
}

/** The angle between two vectors in degrees, as accurate near 0 and 180 as elsewhere. @param {Point} a @param {Point} b */
export function angle(a, b) {
  return (Math.atan2(Math.abs(a[0] * b[1] - a[1] * b[0]), dot(a, b)) * 180) / Math.PI;
}

/** Dot products of the query with the keys, or their cosines. @param {Point} query @param {Point[]} keys @param {string} similarity */
export function scores(query, keys, similarity) {
  return keys.map((key) => dot(query, key) / (similarity === "cosine" ? Math.hypot(...query) * Math.hypot(...key) : 1));
}

/** The average of points under weights. @param {number[]} p @param {Point[]} points @returns {Point} */
export function average(p, points) {
  return [0, 1].map((axis) => sum(p.map((w, j) => w * points[j][axis])));
}

/** The corners of the smallest convex polygon that holds the points, counter-clockwise. @param {Point[]} points */
export function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (/** @type {Point[]} */ from) => {
    /** @type {Point[]} */
    const chain = [];
    for (const c of from) {
      while (chain.length > 1 && !turnsLeft(chain[chain.length - 2], chain[chain.length - 1], c)) chain.pop();
      chain.push(c);
    }
    return chain.slice(0, -1);
  };
  const corners = [...half(sorted), ...half(sorted.reverse())];
  return corners.length ? corners : sorted.slice(0, 1);
}

/** @param {Point} a @param {Point} b @param {Point} c */
function turnsLeft(a, b, c) {
  return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) > 0;
}

/** The vector of the same direction with another length. @param {Point} v @param {number} length */
export function stretched(v, length) {
  return v.map((x) => (x * length) / Math.hypot(...v));
}

const [SHORTEST, LONGEST] = [0.1, 3];
const COLOURS = [
  [0, 114, 178],
  [213, 94, 0],
  [0, 158, 115],
  [204, 121, 167],
  [86, 180, 233],
  [230, 159, 0],
];
const [SIZE, REACH] = [300, 3.3];
const x = linear([-REACH, REACH], [0, SIZE]);
const y = linear([REACH, -REACH], [0, SIZE]);

function render({ model, el }) {
  const on = stage({ model, el });
  const values = () => on.read("value") ?? on.read("key");
  const weightsAt = (/** @type {Point} */ query) =>
    softmax(scores(query, on.read("key"), on.read("similarity")), on.read("temperature"));
  const weights = () => weightsAt(on.read("query"));
  const all = ["key", "query", "value", "temperature", "similarity"];
  on.add(
    html(
      "div",
      { class: "x-panels" },
      html("div", { class: "x-panel" }, queryLength(on), queryDirection(on)),
      html(
        "div",
        { class: "x-panel" },
        logSlider(on, "temperature", { label: "Temperature T", min: 0.05, max: 20, show: (t) => fixed(t) }),
        select(on, "similarity", {
          label: "Score",
          options: [
            ["dot", "dot product"],
            ["cosine", "cosine alone"],
          ],
        }),
      ),
    ),
    on.anew(
      ["key", "value"],
      () => `${on.read("key").length}, ${values().length}`,
      (part) =>
        html(
          "div",
          { class: "x-panels" },
          queryPlane(part, weightsAt),
          valuePlane(part, values, weights),
          table(part, weights),
        ),
    ),
  );
  on.when(all, () => {
    const p = weights();
    const best = p.indexOf(Math.max(...p));
    on.say(
      `Key ${best + 1} wins with weight ${fixed(p[best])}; the query is ${fixed(Math.hypot(...on.read("query")))} long; output at ${spoken(average(p, values()))}.`,
    );
  });
  return on.leave;
}

const spoken = (/** @type {Point} */ v) => `${fixed(v[0])}, ${fixed(v[1])}`;

function queryLength(on) {
  return lengthSlider(on, "query", "Length of query");
}

function queryDirection(on) {
  const degrees = (/** @type {Point} */ v) => (Math.atan2(v[1], v[0]) * 180) / Math.PI;
  const vector = (/** @type {number} */ d) => [Math.cos((d * Math.PI) / 180), Math.sin((d * Math.PI) / 180)];
  return slider(on, "query", {
    label: "Its direction",
    min: vector(-179),
    max: vector(180),
    step: 1,
    show: (v) => `${fixed(degrees(v), 0)}°`,
    place: (v) => Math.round(degrees(v)),
    value: (d) => stretched(vector(d), Math.hypot(...on.read("query"))),
  });
}

/** A slider for the length of a vector; its direction stays. */
function lengthSlider(on, path, label, plain = false) {
  return slider(on, path, {
    label,
    min: [SHORTEST, 0],
    max: [LONGEST, 0],
    step: 0.1,
    plain,
    show: (v) => fixed(Math.hypot(...v)),
    place: (v) => Number(Math.hypot(...v).toFixed(6)),
    value: (length) => stretched(on.read(path), length),
  });
}

/** Keys and query over the colours of whoever wins there. */
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
  const drawing = plane("query and keys", cells, rim, rays, arrow);
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
  part.read("key").forEach((_, j) =>
    handle(
      part,
      drawing,
      `key ${j + 1}`,
      dotFor(j),
      String(j + 1),
      "key",
      () => part.read("key")[j],
      (v) => part.write(["key", j], ofGoodLength(v)),
    ),
  );
  handle(
    part,
    drawing,
    "query",
    ring(),
    "query",
    "query",
    () => part.read("query"),
    (v) => part.write("query", ofGoodLength(v)),
  );
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "Query and keys; drag any. The colour of a place is the mixture of keys that a query there would get. Dashed: the hull of the keys.",
    ),
  );
}

/** Values, their hull, and the output. */
function valuePlane(part, values, weights) {
  const rim = svg("path", { style: "fill: var(--ground); stroke: var(--quiet); stroke-linejoin: round" });
  const output = svg("circle", { r: 7, class: "x-dot", style: "stroke: var(--ink)" });
  const name = svg("text", { style: "fill: var(--ink)" }, "output");
  const drawing = plane("values and output", rim);
  part.when(["key", "value"], () => rim.setAttribute("d", outline(values())));
  values().forEach((_, j) =>
    handle(
      part,
      drawing,
      `value ${j + 1}`,
      dotFor(j),
      String(j + 1),
      ["key", "value"],
      () => values()[j],
      (v) =>
        part.write(
          "value",
          values().map((old, i) => (i === j ? v.map((c) => Math.max(-LONGEST, Math.min(LONGEST, c))) : old)),
        ),
    ),
  );
  drawing.append(output, name);
  part.when(["key", "query", "value", "temperature", "similarity"], () => {
    const o = average(weights(), values());
    output.setAttribute("cx", x(o[0]));
    output.setAttribute("cy", y(o[1]));
    name.setAttribute("x", x(o[0]) + 11);
    name.setAttribute("y", y(o[1]) + 4);
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html("figcaption", {}, "Values; drag any. The output is their average, and never leaves the hull."),
  );
}

/** A row for each key: its length, its angle with the query, its score, its weight. */
function table(part, weights) {
  const rows = part.read("key").map((_, j) => ({
    bar: html("div", { class: "x-bar", style: `background: rgb(${COLOURS[j]})` }),
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
    { class: "x-grid", style: "--columns: auto 1fr 2.5rem 2.5rem 3rem 1fr 2.75rem; grid-column: 1 / -1" },
    ...["key", "length", "", "angle", "score", "weight", ""].map((head) => html("span", { class: "x-head" }, head)),
    ...rows.flatMap(({ bar, shown, angle: turned, score }, j) => [
      html("span", { class: "x-name", "aria-hidden": "true" }, String(j + 1)),
      lengthSlider(part, ["key", j], `length of key ${j + 1}`, true),
      turned,
      score,
      html("div", { class: "x-track" }, bar),
      shown,
    ]),
  );
}

/** An empty plane with its axes. */
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
    ...nodes.slice(1),
  );
}

const at = (/** @type {Point} */ v) => `${x(v[0]).toFixed(1)} ${y(v[1]).toFixed(1)}`;
const outline = (/** @type {Point[]} */ points) => `M${hull(points).map(at).join("L")}Z`;
const dotFor = (/** @type {number} */ j) => svg("circle", { r: 6, fill: `rgb(${COLOURS[j]})` });
const ring = () => svg("circle", { r: 7, class: "x-dot", style: "stroke: var(--ink)" });

function ofGoodLength(/** @type {Point} */ v) {
  const length = Math.hypot(...v);
  return length === 0 ? [SHORTEST, 0] : stretched(v, Math.max(SHORTEST, Math.min(LONGEST, length)));
}

/** A picture of the disc of queries: every place in the mixture of colours that a query there gets. */
function painted(weightsAt, pixels = 96) {
  const canvas = html("canvas", { width: pixels, height: pixels });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(pixels, pixels);
  const place = linear([0, pixels], [-LONGEST, LONGEST]);
  for (let row = 0; row < pixels; row++) {
    for (let column = 0; column < pixels; column++) {
      const query = [place(column + 0.5), -place(row + 0.5)];
      const p = weightsAt(query);
      const inside = ((LONGEST - Math.hypot(...query)) / (2 * LONGEST)) * pixels;
      const start = 4 * (row * pixels + column);
      for (let c = 0; c < 3; c++) picture.data[start + c] = sum(p.map((w, j) => w * COLOURS[j][c]));
      picture.data[start + 3] = 100 * Math.max(0, Math.min(1, inside));
    }
  }
  context.putImageData(picture, 0, 0);
  return canvas.toDataURL();
}

/** A point to take hold of, with a finger, a mouse, or the arrow keys. */
function handle(part, drawing, name, mark, label, traits, read, write) {
  const words = svg("text", { "text-anchor": "middle", style: "fill: var(--ink)", "aria-hidden": "true" }, label);
  const grip = svg(
    "g",
    {
      tabindex: 0,
      role: "slider",
      "aria-label": name,
      "aria-valuemin": -LONGEST,
      "aria-valuemax": LONGEST,
      style: "cursor: grab; touch-action: none",
    },
    svg("circle", { r: 14, fill: "transparent" }),
    mark,
    words,
  );
  const [right, up] = [linear([0, SIZE], [-REACH, REACH]), linear([0, SIZE], [REACH, -REACH])];
  draggable(grip, drawing, (place) => [right(place.x), up(place.y)], read, write);
  drawing.append(grip);
  part.when([traits].flat(), () => {
    const v = read();
    const out = stretched(Math.hypot(...v) ? v : [0, 1], 16);
    grip.setAttribute("transform", `translate(${at(v)})`);
    grip.setAttribute("aria-valuenow", v[0].toFixed(2));
    grip.setAttribute("aria-valuetext", spoken(v));
    words.setAttribute("x", out[0] * (label.length > 1 ? 1.6 : 1));
    words.setAttribute("y", 4 - out[1]);
  });
}

export default { render };
