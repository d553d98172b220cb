/** A lower bound on the time of prefill or decoding by part, and the point on the roofline. */

import { DEVICES, LEVERS, MODELS, atIntensity, cost, intensity, least, modelOf, seconds } from "./cost.math.js";
import { draggable } from "./drag.js";
import {
  fixed,
  headline,
  html,
  linear,
  mappedSlider,
  named,
  numbers,
  panel,
  picture,
  select,
  setAttributes,
  stage,
  svg,
} from "./kit.js";
import { mark, say } from "./words.js";

/**
 * @typedef {import("./cost.math.js").Mode} Mode
 * @typedef {import("./cost.math.js").Cost} Cost
 * @typedef {{ model: string, device: string, mode: Mode, tokens: number, texts: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ cost: Cost, seconds: Cost, least: number, device: import("./cost.math.js").Device }} Task
 */

/** @type {(keyof Traits)[]} */
const EVERYTHING = ["model", "device", "mode", "tokens", "texts"];
/** @type {[string, [keyof Cost, string][]][]} */
const BARS = [
  [
    mark("arithmetic"),
    [
      ["matrices", mark("products with weights")],
      ["pairs", mark("pairs of tokens")],
    ],
  ],
  [
    mark("memory"),
    [
      ["weights", mark("weights")],
      ["caches", mark("KV caches")],
    ],
  ],
];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  /** @type {Task} */
  let task;
  scope.when(EVERYTHING, () => {
    const device = DEVICES[scope.read("device")];
    const of = cost(modelOf(scope.read("model")), scope.read("mode"), scope.read("tokens"), scope.read("texts"));
    const took = seconds(of, device);
    task = { cost: of, seconds: took, least: least(took), device };
  });
  const now = () => task;
  const inUse = () => (task.seconds.matrices + task.seconds.pairs) / task.least;
  const waitsForMemory = () => inUse() < 1;
  const made = () => (scope.read("mode") === "read" ? scope.read("tokens") : 1) * scope.read("texts");
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      html(
        "div",
        { class: "x-bench" },
        select(scope.value("model"), { label: say("Model"), options: MODELS.map((name) => [name, name]), plain: true }),
        select(scope.value("device"), {
          label: say("Device"),
          options: Object.keys(DEVICES).map((name) => [name, name]),
          plain: true,
        }),
        select(scope.value("mode"), {
          label: say("Task"),
          options: [
            ["read", say("prefill")],
            ["write", say("decoding")],
          ],
          plain: true,
        }),
      ),
      html(
        "div",
        { class: "x-settings" },
        steps("tokens", say("Sequence length"), LEVERS.read.most),
        steps("texts", say("Batch size"), LEVERS.write.most),
      ),
      headline(scope, EVERYTHING, () => [
        time(task.least),
        waitsForMemory() ? say("at least; waits for memory") : say("at least; waits for arithmetic"),
      ]),
    ),
    html("div", { class: "x-panels" }, bars(scope, now), roofline(scope, now)),
    numbers(scope, EVERYTHING, [
      [say("tokens a second, at most"), () => short(made() / task.least)],
      [say("FLOPs per byte"), () => short(intensity(task.cost))],
      [say("the device needs"), () => short(task.device.flops / task.device.bytes)],
      [say("share of the peak, at most"), () => percentage(inUse())],
    ]),
  );
  scope.when(EVERYTHING, () =>
    scope.announce(
      say(
        waitsForMemory()
          ? mark("At least {time}, waiting for memory; {share} of the peak.")
          : mark("At least {time}, waiting for arithmetic; {share} of the peak."),
        { time: time(task.least), share: percentage(inUse()) },
      ),
    ),
  );
  return scope.dispose;

  /** @param {"tokens" | "texts"} trait @param {string} label @param {number} max */
  function steps(trait, label, max) {
    return mappedSlider(scope.value(trait), {
      label,
      min: 1,
      max,
      step: 1,
      show: (value) => value.toLocaleString("en"),
      toPlace: Math.log2,
      toValue: (place) => Math.round(2 ** place),
    });
  }
}

const [SHORTEST, LONGEST] = [1e-9, 1e4]; // seconds, the ends of the axis of times
const THIN = 2; // the least width of a bar

/**
 * The time of arithmetic and of memory, and of their parts, on one logarithmic axis that does not move.
 * @param {Scope} scope @param {() => Task} now
 */
function bars(scope, now) {
  const [left, right, bottom] = [1, 316, 148];
  const line = linear([Math.log10(SHORTEST), Math.log10(LONGEST)], [left, right]);
  const x = (/** @type {number} */ s) => line(Math.log10(Math.min(LONGEST, Math.max(SHORTEST, s))));
  const drawing = picture(320, 170, say("time for arithmetic and for memory, on a logarithmic axis"));
  const mark = svg("path", { class: "x-axis x-dashed" });
  const rows = BARS.flatMap(([words, parts], i) => {
    const top = 70 * i;
    const total = { of: parts.map(([part]) => part), box: bar("c-total", top + 16, 16) };
    const shown = named("", right, top + 11, "", "end");
    drawing.append(named(say(words), left - 1, top + 11), shown);
    const own = parts.map(([part], k) => ({ of: [part], box: bar(`x-of-${part}`, top + 35 + 12 * k, 9) }));
    return [{ ...total, shown }, ...own];
  });
  const ticks = /** @type {[number, string][]} */ ([
    [1e-9, "1 ns"],
    [1e-6, "1 µs"],
    [1e-3, "1 ms"],
    [1, "1 s"],
    [1e3, "1000 s"],
  ]);
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${bottom}H${right}` }),
    ...ticks.map(([s, words]) => svg("path", { class: "x-axis", d: `M${x(s)} ${bottom}v4` })),
    ...ticks.map(([s, words], i) => named(words, x(s), bottom + 16, "", i ? "middle" : "start")),
    mark,
    ...rows.map(({ box }) => box),
  );
  const cells = BARS.flatMap(([, parts]) => parts.map(([part, words]) => ({ part, words, shown: html("span") })));
  scope.when(EVERYTHING, () => {
    const { seconds: took, least: longest } = now();
    for (const row of rows) {
      const all = row.of.reduce((sum, part) => sum + took[part], 0);
      row.box.setAttribute("width", Math.max(THIN, x(all) - left).toFixed(2));
      if ("shown" in row) row.shown.textContent = time(all);
    }
    mark.setAttribute("d", `M${x(longest).toFixed(2)} 16V${bottom}`);
    for (const { part, words, shown } of cells) shown.textContent = `${say(words)} ${time(took[part])}`;
  });
  const legend = cells.map(({ part, shown }) => html("span", {}, html("i", { class: `x-key x-of-${part}` }), shown));
  return panel([
    drawing,
    html("p", { class: "x-legend" }, ...legend),
    say(
      "Each mark of the axis is a thousand times the one before. If arithmetic and memory overlap, the " +
        "longer bar is the least possible time.",
    ),
  ]);

  /** @param {string} look @param {number} y @param {number} height */
  function bar(look, y, height) {
    return svg("rect", { class: look, x: left, y, height });
  }
}

/**
 * The roofline: the peak rate of the device against FLOPs per byte, and the point of this task, which can be dragged:
 * that changes the sequence length in prefill and the batch size in decoding.
 * @param {Scope} scope @param {() => Task} now
 */
function roofline(scope, now) {
  const [left, right, top, bottom] = [34, 312, 22, 150];
  const log = (/** @type {[number, number]} */ [a, b], /** @type {[number, number]} */ to) => {
    const line = linear([Math.log10(a), Math.log10(b)], to);
    return (/** @type {number} */ v) => line(Math.log10(Math.min(b, Math.max(a, v))));
  };
  const x = log([0.1, 1e5], [left, right]);
  const y = log([0.1, 2000], [bottom, top]);
  const line = svg("path", { class: "x-line x-first" });
  const grip = svg(
    "g",
    { class: "c-grip", role: "slider", tabindex: 0, "aria-label": say("point on the roofline") },
    svg("circle", { class: "c-reach", r: 17 }),
    svg("circle", { class: "x-here", r: 7 }),
  );
  const arrow = named(say("drag"), 0, 0, "c-drag", "middle");
  const [memory, arithmetic] = [
    named(say("waits for memory"), 0, 0),
    named(say("waits for arithmetic"), 0, 0, "", "end"),
  ];
  const drawing = picture(320, 182, say("roofline of the device"));
  drawing.setAttribute("role", "group"); // it contains a control
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    ...[1, 10, 100, 1000].map((t) => named(String(t), left - 5, y(t) + 4, "", "end")),
    ...[1, 100, 10000].map((t) => named(String(t), x(t), bottom + 14, "", "middle")),
    named(say("TFLOP/s, at most"), 0, 11),
    named(say("FLOPs per byte"), right, bottom + 29, "", "end"),
    memory,
    arithmetic,
    line,
    arrow,
    grip,
  );
  const lever = () => LEVERS[scope.read("mode")];
  draggable(
    grip,
    drawing,
    (place) => [
      atIntensity(
        modelOf(scope.read("model")),
        scope.read("mode"),
        scope.read("tokens"),
        scope.read("texts"),
        10 ** linear([left, right], [-1, 5])(place.x),
      ),
    ],
    {
      get: () => [scope.read(lever().trait)],
      set([value]) {
        const { trait, most } = lever();
        const whole = Math.max(1, Math.min(most, Math.round(value)));
        if (whole !== scope.read(trait)) scope.write(trait, whole);
      },
      watch: (draw) => scope.when(EVERYTHING, draw),
    },
    ([value], step) => [step.some((s) => s > 0) ? 2 * value : value / 2],
  );
  scope.when(EVERYTHING, () => {
    const { cost: of, device } = now();
    const reach = (/** @type {number} */ i) => Math.min(device.flops, i * device.bytes) / 1e12;
    const ridge = device.flops / device.bytes;
    const places = [0.1, ridge, 1e5].map((i) => `${x(i).toFixed(1)} ${y(reach(i)).toFixed(1)}`);
    line.setAttribute("d", `M${places.join("L")}`);
    setAttributes(memory, { x: (x(ridge / 30) + 14).toFixed(1), y: (y(reach(ridge / 30)) + 14).toFixed(1) });
    setAttributes(arithmetic, { x: right, y: (y(reach(1e5)) + 18).toFixed(1) });
    const here = intensity(of);
    const { trait, most } = lever();
    const [cx, cy] = [x(here), y(reach(here))];
    const count = scope.read(trait).toLocaleString("en");
    setAttributes(grip, {
      transform: `translate(${cx.toFixed(1)} ${cy.toFixed(1)})`,
      "aria-valuemin": 1,
      "aria-valuemax": most,
      "aria-valuenow": scope.read(trait),
      "aria-valuetext":
        trait === "tokens"
          ? say("{x} FLOPs per byte, sequence length {n}", { x: short(here), n: count })
          : say("{x} FLOPs per byte, batch size {n}", { x: short(here), n: count }),
    });
    setAttributes(arrow, { x: cx.toFixed(1), y: (cy + (cy > bottom - 30 ? -14 : 24)).toFixed(1) });
  });
  return panel([
    drawing,
    say(
      "Drag the point along the roofline: in decoding the batch size changes, in prefill the sequence " +
        "length. Points beyond the axes are drawn at the edge.",
    ),
  ]);
}

/** Three digits at most. @param {number} x */
function short(x) {
  return x < 10 ? fixed(x) : Number(x.toPrecision(3)).toLocaleString("en");
}

/** A time in a suitable unit, three digits. @param {number} s */
function time(s) {
  if (s >= 3600) return `${short(s / 3600)} h`;
  if (s >= 60) return say("{n} min", { n: short(s / 60) });
  const [unit, times] = s >= 1 ? ["s", 1] : s >= 1e-3 ? ["ms", 1e3] : s >= 1e-6 ? ["µs", 1e6] : ["ns", 1e9];
  return `${(s * Number(times)).toPrecision(3)} ${unit}`;
}

/** A share in per cent, with one more digit if it is small. @param {number} share */
function percentage(share) {
  return share < 0.0005 ? "<0.1%" : `${fixed(100 * share, share < 0.1 ? 1 : 0)}%`;
}

export default { render };
