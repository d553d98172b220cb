/** A query and a key as clocks: each pair of coordinates is a hand that turns with the position at its own frequency. */

import { fixed, html, linear, logSlider, named, panel, panels, picture, select, slider, stage, svg } from "./kit.js";
import { withPlayButton } from "./play.js";
import { CLOCKS, REACH, TRAINED, between, frequencies, score, seen } from "./clocks.math.js";
import { say } from "./words.js";

/**
 * @typedef {{ query: number, key: number, shift: number, back: number, base: number, scaling: string,
 *   factor: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ omega(): number[], trained(): number[], distance(): number, angles(): number[] }} Now
 */

/** @type {(keyof Traits)[]} */
const RATES = ["base", "scaling", "factor"];
/** @type {(keyof Traits)[]} */
const PLACES = ["query", "key", "shift", "back"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const now = {
    omega: () => frequencies(scope.read("base"), scope.read("scaling"), scope.read("factor")),
    trained: () => frequencies(scope.read("base"), "none", 1),
    distance: () => scope.read("key") - scope.read("query"),
    angles: () => between(now.omega(), now.trained(), now.distance(), scope.read("back")),
  };
  const stretch = slider(scope.value("factor"), {
    label: say("by the factor"),
    min: 1,
    max: 8,
    step: 0.5,
    show: (f) => fixed(f, 1),
  });
  const [input] = stretch.getElementsByTagName("input");
  scope.when(["scaling"], () => {
    input.disabled = scope.read("scaling") === "none";
  });
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      withPlayButton(
        scope,
        slider(scope.value("shift"), { label: say("Both later by"), min: 0, max: 1000, step: 1 }),
        120,
      ),
    ),
    panels([say("Clocks"), clocks(scope, now)], [say("Score"), curve(scope, now)]),
    html(
      "div",
      { class: "x-settings" },
      html(
        "div",
        {},
        slider(scope.value("query"), { label: say("Query at"), min: 0, max: REACH, step: 1 }),
        slider(scope.value("key"), { label: say("Key at"), min: 0, max: REACH, step: 1 }),
        slider(scope.value("back"), { label: say("Looks back by"), min: 0, max: 20, step: 1 }),
      ),
      html(
        "div",
        {},
        logSlider(scope.value("base"), { label: say("Base"), min: 10, max: 1e6, show: thousands }),
        select(scope.value("scaling"), {
          label: say("Stretched"),
          options: [
            ["none", say("not at all")],
            ["interpolation", say("interpolation")],
            ["ntk", say("NTK-aware")],
          ],
        }),
        stretch,
      ),
    ),
  );
  scope.when([...PLACES, ...RATES], () => {
    const distance = now.distance();
    const where =
      distance === 0
        ? say("The key is at the query.")
        : distance < 0
          ? say("The key is {n} before the query.", { n: -distance })
          : say("The key is {n} after the query.", { n: distance });
    const known = seen(now.omega(), now.trained(), distance).filter(Boolean).length;
    scope.announce(
      say("{where} The score is {score}; {known} of {CLOCKS} clocks show an angle known from training.", {
        where,
        score: fixed(score(now.angles())),
        known,
        CLOCKS,
      }),
    );
  });
  return scope.dispose;
}

/** Three digits at most, thousands as k, millions as M. @param {number} x */
function thousands(x) {
  if (x >= 999_500) return `${Number((x / 1e6).toPrecision(3))} M`;
  if (x >= 9995) return `${Number((x / 1e3).toPrecision(3))} k`;
  return String(Number(x.toPrecision(3)));
}

/** The clocks, fastest first, each with its values below. @param {Scope} scope @param {Now} now */
function clocks(scope, now) {
  const dials = Array.from({ length: CLOCKS }, (_, i) => dial(i));
  const rows = [say("a turn takes"), say("angle between"), say("its cosine"), say("in training")].map((name) => ({
    name,
    cells: dials.map(() => html("td")),
  }));
  scope.when([...PLACES, ...RATES], () => {
    const [omega, angles] = [now.omega(), now.angles()];
    const known = seen(omega, now.trained(), now.distance());
    omega.forEach((w, i) => {
      const at = (scope.read("query") + scope.read("shift")) * w;
      dials[i].point(at, at + angles[i]);
      const degrees = (((((angles[i] * 180) / Math.PI) % 360) + 540) % 360) - 180;
      [
        thousands((2 * Math.PI) / w),
        `${degrees >= 0.5 ? "+" : ""}${fixed(degrees, 0)}°`,
        fixed(Math.cos(angles[i])),
        known[i] ? say("seen") : say("new"),
      ].forEach((words, row) => {
        rows[row].cells[i].textContent = words;
      });
      rows[3].cells[i].style.color = known[i] ? "" : "var(--second)";
    });
  });
  return panel([
    html(
      "table",
      { class: "x-table" },
      html(
        "tr",
        {},
        html("th", { scope: "row" }, say("clock")),
        ...dials.map(({ drawing }) => html("td", {}, drawing)),
      ),
      ...rows.map(({ name, cells }) => html("tr", {}, html("th", { scope: "row" }, name), ...cells)),
    ),
    say(
      "Thick hand: the query. Thin hand with a ring: the key; a negative angle means that it is behind. A " +
        'turn is counted in tokens. "new": training on {TRAINED} tokens, each attending to those before it, ' +
        "did not show this angle.",
      { TRAINED },
    ),
  ]);
}

/** One clock with two hands that start at twelve and turn clockwise. @param {number} i */
function dial(i) {
  const drawing = picture(100, 100, say("clock {i} of {CLOCKS}", { i: i + 1, CLOCKS }));
  const query = svg("path", { class: "x-line x-first", style: "stroke-width: 5; stroke-linecap: round" });
  const key = svg("path", { class: "x-line x-second" });
  const ring = svg("circle", { class: "x-dot", r: 5, style: "stroke: var(--second)" });
  drawing.append(
    svg("circle", { class: "x-ground", cx: 50, cy: 50, r: 46 }),
    svg("path", { class: "x-axis", d: "M50 4v8M96 50h-8M50 96v-8M4 50h8" }),
    query,
    key,
    ring,
  );
  const tip = (/** @type {number} */ angle, /** @type {number} */ length) => [
    50 + length * Math.sin(angle),
    50 - length * Math.cos(angle),
  ];
  return {
    drawing,
    point(/** @type {number} */ q, /** @type {number} */ k) {
      const [end, mark] = [tip(k, 35), tip(k, 40)];
      query.setAttribute(
        "d",
        `M50 50L${tip(q, 30)
          .map((c) => c.toFixed(2))
          .join(" ")}`,
      );
      key.setAttribute("d", `M50 50L${end.map((c) => c.toFixed(2)).join(" ")}`);
      ring.setAttribute("cx", mark[0].toFixed(2));
      ring.setAttribute("cy", mark[1].toFixed(2));
    },
  };
}

/** The score at every distance, with the distances of training marked. @param {Scope} scope @param {Now} now */
function curve(scope, now) {
  const [left, right, top, bottom] = [24, 312, 14, 190];
  const drawing = picture(320, 230, say("score against the distance from query to key"));
  const x = linear([-REACH, REACH], [left, right]);
  const y = linear([-CLOCKS, CLOCKS], [bottom, top]);
  const line = svg("path", { class: "x-line x-first" });
  const before = svg("path", { class: "x-line x-second x-dashed" });
  const earlier = named(say("before stretching, dashed"), right, 6, "x-of-second", "end");
  const here = svg("circle", { class: "x-dot x-first", r: 6 });
  const shown = svg("text", { x: left + 6, y: bottom - 8, style: "fill: var(--ink)" });
  const spots = Array.from({ length: 2 * REACH + 1 }, (_, i) => i - REACH);
  const path = (/** @type {number[]} */ omega) =>
    spots
      .map((d, i) => {
        const angles = between(omega, now.trained(), d, scope.read("back"));
        return `${i ? "L" : "M"}${x(d).toFixed(1)} ${y(score(angles)).toFixed(1)}`;
      })
      .join("");
  drawing.append(
    svg("rect", {
      class: "x-ground",
      x: x(1 - TRAINED),
      width: x(0) - x(1 - TRAINED),
      y: top,
      height: bottom - top,
    }),
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}M${left} ${y(0)}H${right}` }),
    ...[-CLOCKS, 0, CLOCKS].map((s) => svg("text", { x: left - 6, y: y(s) + 4, "text-anchor": "end" }, fixed(s, 0))),
    ...[-100, -50, 0, 50, 100].map((d) =>
      svg(
        "text",
        { x: x(d), y: bottom + 16, "text-anchor": Math.abs(d) === REACH ? (d < 0 ? "start" : "end") : "middle" },
        fixed(d, 0),
      ),
    ),
    svg(
      "text",
      { x: (left + right) / 2, y: bottom + 34, "text-anchor": "middle" },
      say("key's position minus query's"),
    ),
    named(say("score"), 0, 6),
    svg("text", { x: x(0) + 4, y: bottom - 8 }, say("← in training")),
    earlier,
    before,
    line,
    here,
    shown,
  );
  scope.when(["back", ...RATES], () => {
    line.setAttribute("d", path(now.omega()));
    const stretched = scope.read("scaling") !== "none";
    before.setAttribute("d", stretched ? path(now.trained()) : "");
    earlier.setAttribute("visibility", stretched ? "visible" : "hidden");
  });
  scope.when(["query", "key", "back", ...RATES], () => {
    const s = score(now.angles());
    here.setAttribute("cx", x(now.distance()).toFixed(1));
    here.setAttribute("cy", y(s).toFixed(1));
    shown.textContent = say("score {score}", { score: fixed(s) });
  });
  return panel([
    drawing,
    say(
      "The sum of the {CLOCKS} cosines; ring: this query and key. Shaded: the distances that training on " +
        "{TRAINED} tokens shows a causal model.",
      { CLOCKS, TRAINED },
    ),
  ]);
}

export default { render };
