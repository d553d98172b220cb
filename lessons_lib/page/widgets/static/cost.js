/** A lower bound on the time of prefill or decoding by part, and the point on the roofline. */

import { DEVICES, MODELS, cost, intensity, least, modelOf, seconds } from "./cost.math.js";
import {
  fixed,
  html,
  linear,
  mappedSlider,
  named,
  numbers,
  picture,
  select,
  setAttributes,
  stage,
  svg,
} from "./kit.js";

/**
 * @typedef {import("./cost.math.js").Mode} Mode
 * @typedef {import("./cost.math.js").Cost} Cost
 * @typedef {{ model: string, device: string, mode: Mode, tokens: number, texts: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 */

/** @type {(keyof Traits)[]} */
const EVERYTHING = ["model", "device", "mode", "tokens", "texts"];
/** @type {[string, [keyof Cost, string][]][]} */
const BARS = [
  [
    "arithmetic",
    [
      ["matrices", "products with weights"],
      ["pairs", "pairs of tokens"],
    ],
  ],
  [
    "memory",
    [
      ["weights", "weights"],
      ["caches", "KV caches"],
    ],
  ],
];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const device = () => DEVICES[scope.read("device")];
  const now = () => cost(modelOf(scope.read("model")), scope.read("mode"), scope.read("tokens"), scope.read("texts"));
  const took = () => seconds(now(), device());
  const inUse = () => (took().matrices + took().pairs) / least(took());
  const made = () => (scope.read("mode") === "read" ? scope.read("tokens") : 1) * scope.read("texts");
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      html(
        "div",
        { class: "x-bench" },
        select(scope.value("model"), { label: "Model", options: MODELS.map((name) => [name, name]) }),
        select(scope.value("device"), { label: "Device", options: Object.keys(DEVICES).map((name) => [name, name]) }),
        select(scope.value("mode"), {
          label: "Task",
          options: [
            ["read", "prefill"],
            ["write", "decoding"],
          ],
        }),
      ),
      steps("tokens", "Sequence length", 1048576),
      steps("texts", "Batch size", 1024),
    ),
    html(
      "div",
      { class: "x-panels" },
      bars(scope, took),
      roofline(scope, device, now),
      numbers(scope, EVERYTHING, [
        ["at least", () => time(least(took()))],
        ["tokens a second, at most", () => short(made() / least(took()))],
        ["FLOPs per byte", () => short(intensity(now()))],
        ["the device needs", () => short(device().flops / device().bytes)],
        ["share of the peak, at most", () => percentage(inUse())],
      ]),
    ),
  );
  scope.when(EVERYTHING, () =>
    scope.announce(
      `At least ${time(least(took()))}, waiting for ${inUse() < 1 ? "memory" : "arithmetic"}; ` +
        `${percentage(inUse())} of the peak.`,
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

/** Two bars on one time axis, with labels for their parts. @param {Scope} scope @param {() => Cost} took */
function bars(scope, took) {
  const [left, right] = [0, 320];
  const drawing = picture(320, 132, "time for arithmetic and for memory");
  const longest = named("", right, 128, "", "end");
  const boxes = BARS.flatMap(([, parts], i) =>
    parts.map(([part]) => ({
      part,
      first: part === parts[0][0],
      box: svg("rect", { class: `x-of-${part}`, y: 16 + 56 * i, height: 28 }),
    })),
  );
  drawing.append(
    ...BARS.map(([words], i) => named(words, left, 11 + 56 * i)),
    ...boxes.map(({ box }) => box),
    svg("path", { class: "x-axis", d: `M${left} 112H${right}` }),
    named("0", left, 128),
    longest,
  );
  const cells = BARS.flatMap(([, parts]) => parts.map(([part, words]) => ({ part, words, shown: html("span") })));
  scope.when(EVERYTHING, () => {
    const all = took();
    const x = linear([0, least(all)], [left, right]);
    let from = 0;
    for (const { part, first, box } of boxes) {
      if (first) from = 0;
      setAttributes(box, { x: x(from).toFixed(2), width: (x(from + all[part]) - x(from)).toFixed(2) });
      from += all[part];
    }
    longest.textContent = time(least(all));
    for (const { part, words, shown } of cells) shown.textContent = `${words} ${time(all[part])}`;
  });
  const legend = cells.map(({ part, shown }) => html("span", {}, html("i", { class: `x-key x-of-${part}` }), shown));
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html("p", { class: "x-legend" }, ...legend),
    html("figcaption", {}, "If arithmetic and memory overlap, the longer bar is the least possible time."),
  );
}

/**
 * The roofline: the peak rate of the device against FLOPs per byte, and the point of this task.
 * @param {Scope} scope @param {() => { flops: number, bytes: number }} device @param {() => Cost} now
 */
function roofline(scope, device, now) {
  const [left, right, top, bottom] = [34, 312, 22, 118];
  const log = (/** @type {[number, number]} */ [a, b], /** @type {[number, number]} */ to) => {
    const line = linear([Math.log10(a), Math.log10(b)], to);
    return (/** @type {number} */ v) => line(Math.log10(Math.min(b, Math.max(a, v))));
  };
  const x = log([0.1, 1e5], [left, right]);
  const y = log([0.1, 2000], [bottom, top]);
  const line = svg("path", { class: "x-line x-first" });
  const point = svg("circle", { class: "x-here", r: 6 });
  const drawing = picture(320, 150, "roofline of the device");
  drawing.append(
    svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
    ...[1, 10, 100, 1000].map((t) => named(String(t), left - 5, y(t) + 4, "", "end")),
    ...[1, 100, 10000].map((t) => named(String(t), x(t), bottom + 14, "", "middle")),
    named("TFLOP/s, at most", 0, 11),
    named("FLOPs per byte", right, bottom + 29, "", "end"),
    line,
    point,
  );
  scope.when(EVERYTHING, () => {
    const { flops, bytes } = device();
    const reach = (/** @type {number} */ i) => Math.min(flops, i * bytes) / 1e12;
    const places = [0.1, flops / bytes, 1e5].map((i) => `${x(i).toFixed(1)} ${y(reach(i)).toFixed(1)}`);
    line.setAttribute("d", `M${places.join("L")}`);
    const here = intensity(now());
    setAttributes(point, { cx: x(here).toFixed(1), cy: y(reach(here)).toFixed(1) });
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "On the slope the device waits for memory, on the level for arithmetic. Points beyond the axes are drawn at the edge.",
    ),
  );
}

/** Three digits at most. @param {number} x */
function short(x) {
  return x < 10 ? fixed(x) : Number(x.toPrecision(3)).toLocaleString("en");
}

/** A time in a suitable unit, three digits. @param {number} s */
function time(s) {
  if (s >= 60) return `${short(s / 60)} min`;
  const [unit, times] = s >= 1 ? ["s", 1] : s >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
  return `${(s * Number(times)).toPrecision(3)} ${unit}`;
}

/** A share in per cent, with one more digit if it is small. @param {number} share */
function percentage(share) {
  return share < 0.0005 ? "<0.1%" : `${fixed(100 * share, share < 0.1 ? 1 : 0)}%`;
}

export default { render };
