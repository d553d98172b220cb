/** The parameters of a GPT as areas, its FLOPs for a token, and the bytes of its keys and values. */

import {
  GROUPS,
  HEADS,
  HEAD_WIDTHS,
  PRESETS,
  boxes,
  cacheBytes,
  flops,
  keyValueHeads,
  parts,
  weights,
} from "./budget.math.js";
import {
  checkbox,
  fixed,
  html,
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
import { letters } from "./letters.js";
import { mark, say, zeros } from "./words.js";

/**
 * @typedef {import("./budget.math.js").Config} Config
 * @typedef {Config & { tokens: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 */

/** @type {(keyof Config)[]} */
const SIZES = ["kind", "layers", "heads", "head_width", "group", "eighths", "vocab", "tied"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...SIZES, "tokens"];
const OWN = mark("sizes of your own");
/** @type {Record<string, string>} */
const NAMES = {
  embedding: mark("embedding"),
  head: mark("output matrix"),
  rest: mark("positions, norms, biases"),
  queries: mark("queries, outputs"),
  keys: mark("keys, values"),
  feedforward: mark("feed-forward"),
};

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const config = () => /** @type {Config} */ (Object.fromEntries(SIZES.map((name) => [name, scope.read(name)])));
  const published = () =>
    Object.keys(PRESETS).find((name) => SIZES.every((size) => PRESETS[name][size] === scope.read(size))) ?? OWN;
  /** @type {(trait: "heads" | "head_width" | "group", label: string, offered: number[]) => HTMLElement} */
  const stops = (trait, label, offered) =>
    mappedSlider(scope.value(trait), {
      label,
      min: offered[0],
      max: offered[offered.length - 1],
      step: 1,
      toPlace: (value) => offered.indexOf(value),
      toValue: (place) => offered[place],
    });
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      html(
        "div",
        { class: "x-bench" },
        select(
          {
            get: published,
            set: (name) => name in PRESETS && scope.change(PRESETS[name]),
            watch: (draw) => scope.when(SIZES, draw),
          },
          {
            label: say("Model"),
            options: [...Object.keys(PRESETS), OWN].map((name) => [name, name === OWN ? say(OWN) : name]),
          },
        ),
      ),
    ),
    html(
      "div",
      { class: "x-panels" },
      treemap(scope, config),
      numbers(scope, EVERYTHING, [
        [say("weights N"), () => grouped(weights(config()))],
        [say("bytes of the weights"), () => bytes(2 * weights(config()))],
        [say("FLOPs per token"), () => counted(flops(config(), scope.read("tokens")))],
        [say("FLOPs over 2N"), () => fixed(flops(config(), scope.read("tokens")) / (2 * weights(config())))],
        [say("KV cache"), () => bytes(cacheBytes(config(), scope.read("tokens")))],
        [
          say("key/value heads"),
          () => say("{n} of {total}", { n: keyValueHeads(config()), total: scope.read("heads") }),
        ],
      ]),
    ),
    html(
      "div",
      { class: "x-settings" },
      mappedSlider(scope.value("tokens"), {
        label: say("Context length"),
        min: 1,
        max: 131072,
        step: 1,
        show: grouped,
        toPlace: Math.log2,
        toValue: (place) => Math.round(2 ** place),
      }),
      slider(scope.value("layers"), { label: say("Blocks"), min: 1, max: 128, step: 1 }),
      stops("heads", say("Heads"), HEADS),
      stops("head_width", say("Width of a head"), HEAD_WIDTHS),
      stops("group", say("Heads sharing keys"), GROUPS),
      slider(scope.value("eighths"), {
        label: say("Feed-forward"),
        min: 4,
        max: 64,
        step: 1,
        show: (eighths) => `${eighths / 8} d`,
      }),
      slider(scope.value("vocab"), { label: say("Vocabulary"), min: 1000, max: 300000, step: 1000, show: grouped }),
      html(
        "div",
        { class: "x-bench" },
        select(scope.value("kind"), {
          label: say("Kind"),
          options: [
            ["gpt2", "GPT-2"],
            ["llama", "Llama"],
            ["qwen3", "Qwen3"],
          ],
        }),
        checkbox(scope.value("tied"), { label: say("output matrix = embedding") }),
      ),
    ),
  );
  scope.when(EVERYTHING, () => {
    const [largest] = Object.entries(parts(config())).sort(([, a], [, b]) => b - a);
    const share = fixed((100 * largest[1]) / weights(config()), 0);
    scope.announce(
      say(
        "{model}: {weights} weights, {share} percent of them in {part}; {flops} FLOPs per token, " +
          "{bytes} of KV cache.",
        {
          model: say(published()),
          weights: counted(weights(config())),
          share,
          part: say(NAMES[largest[0]]),
          flops: counted(flops(config(), scope.read("tokens"))),
          bytes: bytes(cacheBytes(config(), scope.read("tokens"))),
        },
      ),
    );
  });
  return scope.dispose;
}

const grouped = (/** @type {number} */ x) => x.toLocaleString("en");

/** A large number with its name, three digits. @param {number} x */
function counted(x) {
  const names =
    zeros() === 4
      ? [mark("{n} ten thousand"), mark("{n} hundred million"), mark("{n} trillion")]
      : [mark("{n} thousand"), mark("{n} million"), mark("{n} billion"), mark("{n} trillion")];
  const step = Math.min(names.length, Math.max(0, Math.floor(Math.log10(x) / zeros())));
  if (!step) return String(x);
  const digits = (x / 10 ** (zeros() * step)).toPrecision(3);
  return say(names[step - 1], { n: digits.includes("e") ? String(Number(digits)) : digits });
}

/** A number of bytes with its unit, in powers of ten. @param {number} x */
function bytes(x) {
  const step = Math.min(4, Math.max(0, Math.floor(Math.log10(x) / 3)));
  return `${step ? (x / 1000 ** step).toPrecision(3) : x} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

/** A box for each part, whose area is the share of the part. @param {Scope} scope @param {() => Config} config */
function treemap(scope, config) {
  const [width, height] = [320, 200];
  const drawing = picture(width, height, say("shares of the weights as areas"));
  drawing.setAttribute("class", "x-boxes");
  const legend = html("p", { class: "x-legend" });
  scope.when(SIZES, () => {
    const all = boxes(config()).filter(({ share }) => share > 0);
    drawing.replaceChildren(
      ...all.flatMap(({ name, share, x, y, width: w, height: h }) => {
        const [left, top, wide, high] = [x * width, y * height, w * width, h * height];
        const box = svg("rect", { class: `x-of-${name}`, x: left, y: top, width: wide, height: high });
        if (wide < 40 || high < 22) return [box];
        const fits = wide > 6.6 * letters(say(NAMES[name])) + 12 && high > 38;
        const lines = fits ? [say(NAMES[name]), percentage(share)] : [percentage(share)];
        return [box, ...lines.map((words, i) => named(words, left + 6, top + 16 * (i + 1)))];
      }),
    );
    legend.replaceChildren(
      ...all.map(({ name, share }) =>
        html("span", {}, html("i", { class: `x-key x-of-${name}` }), `${say(NAMES[name])} ${percentage(share)}`),
      ),
    );
  });
  return panel([
    drawing,
    legend,
    say("The area is all weights: embedding and output matrix, attention, feed-forward."),
  ]);
}

/** A share in per cent, with one more digit if it is small. @param {number} share */
function percentage(share) {
  return share < 0.0005 ? "<0.1%" : `${fixed(100 * share, share < 0.1 ? 1 : 0)}%`;
}

export default { render };
