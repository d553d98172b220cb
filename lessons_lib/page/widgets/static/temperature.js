/** The weights softmax(scores / T), which maximise expected score + T times entropy. */

import { effectiveCount, entropy, softmax, sum } from "./arithmetic.js";
import {
  entry,
  fixed,
  html,
  linear,
  logSlider,
  named,
  panel,
  picture,
  setAttributes,
  slider,
  stage,
  svg,
} from "./kit.js";
import { expectedScore, freeEnergy, otherWeights } from "./temperature.math.js";
import { say, sayWith } from "./words.js";

/**
 * @typedef {{ scores: number[], labels: string[] | null, temperature: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 */

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const label = (/** @type {number} */ i) => scope.read("labels")?.[i] ?? String(i + 1);
  const weights = () => softmax(scope.read("scores"), scope.read("temperature"));
  let most = 5; // the range of sliders and axes; it does not grow while the reader drags
  const reach = () => (most = Math.max(most, ...scope.read("scores").map((s) => Math.ceil(Math.abs(s)))));
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      logSlider(scope.value("temperature"), {
        label: say("Temperature T"),
        min: 0.05,
        max: 20,
        show: (t) => fixed(t, 2),
      }),
    ),
    html(
      "div",
      { class: "x-panels" },
      html(
        "div",
        { class: "x-panel" },
        choices(scope, label, weights, reach),
        indecision(scope, weights),
        balance(scope, weights, reach),
      ),
      frontier(scope, weights, reach),
    ),
  );
  scope.when(["scores", "labels", "temperature"], () => {
    const p = weights();
    const best = p.indexOf(Math.max(...p));
    scope.announce(
      say(
        "Temperature {temperature}: the largest weight is {p}, on {best}; effective count {effective} of " +
          "{count}; free energy {energy}.",
        {
          temperature: fixed(scope.read("temperature")),
          p: fixed(p[best]),
          best: label(best),
          effective: fixed(effectiveCount(p), 1),
          count: p.length,
          energy: fixed(freeEnergy(scope.read("scores"), scope.read("temperature"))),
        },
      ),
    );
  });
  return scope.dispose;
}

/**
 * One row for each score: its slider, and the bar of its weight.
 * @param {Scope} scope @param {(i: number) => string} label @param {() => number[]} weights
 * @param {() => number} reach
 */
function choices(scope, label, weights, reach) {
  return scope.rebuild(
    ["scores", "labels"],
    () => JSON.stringify([scope.read("scores").length, scope.read("labels"), reach()]),
    (part) => {
      const bars = scope.read("scores").map(() => html("div", { class: "x-bar" }));
      const shown = scope.read("scores").map(() => html("span", { class: "x-value" }));
      part.when(["scores", "temperature"], () => {
        weights().forEach((p, i) => {
          bars[i].style.width = `${100 * p}%`;
          shown[i].textContent = fixed(p, 3);
        });
      });
      return html(
        "div",
        {
          class: "x-grid",
          style: "--columns: minmax(1.5rem, auto) 1fr 3rem 1fr 2.75rem; --narrow: minmax(3rem, auto) 1fr 2.75rem",
        },
        html("span"),
        ...[say("score"), ""].map((head) => html("span", { class: "x-head x-own" }, head)),
        ...[say("weight"), ""].map((head) => html("span", { class: "x-head" }, head)),
        ...bars.flatMap((bar, i) => [
          html("span", { class: "x-name", "aria-hidden": "true" }, label(i)),
          slider(entry(part.value("scores"), i), {
            label: say("score of {label}", { label: label(i) }),
            min: -reach(),
            max: reach(),
            step: 0.1,
            show: (s) => fixed(s),
            plain: true,
          }),
          html("div", { class: "x-track" }, bar),
          shown[i],
        ]),
      );
    },
  );
}

/** The entropy in words. @param {Scope} scope @param {() => number[]} weights */
function indecision(scope, weights) {
  const facts = html("p", { class: "x-facts" });
  scope.when(["scores", "temperature"], () => {
    const p = weights();
    facts.replaceChildren(
      ...sayWith("entropy {entropy} nats, effective count {count}", {
        entropy: html("b", {}, fixed(entropy(p))),
        count: html("b", {}, fixed(effectiveCount(p))),
      }),
    );
  });
  return facts;
}

/**
 * Entropy against expected score: the softmax at every temperature, other weights, and the tangent line at the softmax.
 * @param {Scope} scope @param {() => number[]} weights @param {() => number} reach
 */
function frontier(scope, weights, reach) {
  const [width, height, left, right, top, bottom] = [320, 258, 30, 308, 34, 218];
  const drawing = picture(width, height, say("entropy against expected score"));
  const axes = svg("g");
  const line = svg("path", { class: "x-line x-second x-dashed" });
  const here = svg("circle", { class: "x-dot x-first", r: 5 });
  const [ring, equals, all] = ["", say("as good as the ring"), say("softmax, any T")].map((words, i) =>
    named(words, 0, top - 6, `x-over${i === 1 ? " x-of-second" : ""}`, i === 2 ? "end" : "start"),
  );
  drawing.append(axes, line, here, ring, equals, all);
  let [x, y] = [linear([0, 1], [left, right]), linear([0, 1], [bottom, top])];
  let most = 1;

  scope.when(["scores"], () => {
    const scores = scope.read("scores");
    const range = Math.max(...scores) - Math.min(...scores) || 1;
    const [far, even] = [reach(), Math.log(scores.length)];
    most = even * 1.2 || 1;
    x = linear([-far, far], [left, right]);
    y = linear([0, most], [bottom, top]);
    const at = (/** @type {number[]} */ p) => `${x(expectedScore(p, scores)).toFixed(1)} ${y(entropy(p)).toFixed(1)}`;
    const sharpness = Array.from({ length: 161 }, (_, i) => (Math.sinh((i - 80) / 12) / range) * 0.5);
    const apex = x(sum(scores) / scores.length);
    // beside the left arm of the curve, where no dashed line runs, or above the curve if there is no room
    const arm = softmax(scores.map((s) => (-3 * s) / range));
    const beside = x(expectedScore(arm, scores)) - 10;
    setAttributes(
      all,
      beside > left + 96
        ? { x: beside.toFixed(1), y: y(entropy(arm)).toFixed(1) }
        : { x: Math.max(left + 96, apex - 16).toFixed(1), y: (y(even) - 6).toFixed(1) },
    );
    axes.replaceChildren(
      svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}M${x(0)} ${top}V${bottom}` }),
      svg("path", {
        class: "x-specks",
        d: otherWeights(scores.length, 160)
          .map((p) => `M${at(p)}h0`)
          .join(""),
      }),
      svg("path", {
        class: "x-line x-first",
        d: `M${sharpness.map((b) => at(softmax(scores.map((s) => b * s)))).join("L")}`,
      }),
      ...[-far, 0, far].map((s) => named(fixed(s, 0), x(s), bottom + 16, "", "middle")),
      named(say("expected score"), right, bottom + 31, "", "end"),
      ...(even ? [named(fixed(even, 1), left - 5, y(even) + 4, "", "end")] : []),
      named("0", left - 5, bottom + 4, "", "end"),
      named(say("entropy"), 0, 10),
    );
  });
  scope.when(["scores", "temperature"], () => {
    const [scores, t, p] = [scope.read("scores"), scope.read("temperature"), weights()];
    const f = freeEnergy(scores, t);
    const [from, to] = [Math.max(-reach(), f - t * most), Math.min(reach(), f)];
    line.setAttribute("d", `M${x(from)} ${y((f - from) / t)}L${x(to)} ${y((f - to) / t)}`);
    const [cx, cy] = [x(expectedScore(p, scores)), y(entropy(p))];
    setAttributes(here, { cx, cy });
    const near = cx > right - 66; // no room to the right of the ring
    ring.textContent = `T = ${fixed(t)}`;
    setAttributes(ring, { x: near ? cx - 12 : cx + 10, y: cy - 6, "text-anchor": near ? "end" : "start" });
    equals.setAttribute("x", Math.max(left + 40, Math.min(right - 118, x(from) - 40)).toFixed(1));
  });
  return panel([
    drawing,
    say(
      "Dots: other weights. None lies above the dashed line, on which score + T × entropy equals its value " +
        "at the ring.",
    ),
  ]);
}

/**
 * Expected score and T times entropy end to end: together they are the free energy.
 * @param {Scope} scope @param {() => number[]} weights @param {() => number} reach
 */
function balance(scope, weights, reach) {
  const parts = [
    [say("expected score"), "x-bar"],
    [say("+ T × entropy"), "x-bar x-second"],
    [say("= free energy"), "x-bar x-whole"],
  ].map(([name, look]) => ({ name, bar: html("div", { class: look }), shown: html("span", { class: "x-value" }) }));
  const zeros = parts.map(() => html("div", { class: "x-zero" }));
  const scale = html("div", { class: "x-head", style: "position: relative; height: 1.2rem", "aria-hidden": "true" });
  // larger values are clipped by the frame
  const share = (/** @type {number} */ s) => (40 * (s + reach())) / reach();
  scope.when(["scores"], () => {
    for (const zero of zeros) zero.style.left = `${share(0)}%`;
    scale.replaceChildren(
      ...[-1, 0, 1].map((k) =>
        html(
          "span",
          { style: `position: absolute; left: ${share(k * reach())}%; transform: translateX(${-40 * (k + 1)}%)` },
          fixed(k * reach(), 0),
        ),
      ),
    );
  });
  scope.when(["scores", "temperature"], () => {
    const [scores, t, p] = [scope.read("scores"), scope.read("temperature"), weights()];
    const score = expectedScore(p, scores);
    const whole = score + t * entropy(p);
    [
      [0, score],
      [score, whole],
      [0, whole],
    ].forEach(([from, to], i) => {
      parts[i].bar.style.left = `${share(Math.min(from, to))}%`;
      parts[i].bar.style.width = `${Math.abs(share(to) - share(from))}%`;
      parts[i].shown.textContent = fixed(to - from);
    });
  });
  return html(
    "div",
    { class: "x-grid", style: "--columns: max-content 1fr 2.75rem" },
    ...parts.flatMap(({ name, bar, shown }, i) => [
      html("span", { class: "x-name" }, name),
      html("div", { class: "x-track" }, bar, zeros[i]),
      shown,
    ]),
    html("span"),
    scale,
  );
}

export default { render };
