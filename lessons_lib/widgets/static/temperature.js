/** Weights softmax(scores / T), and why they are these: no others have more of expected score + T times entropy. */

import { effectiveCount, entropy, softmax } from "./arithmetic.js";
import { entry, fixed, html, linear, logSlider, picture, setAttributes, slider, stage, svg } from "./kit.js";
import { expectedScore, freeEnergy, otherWeights } from "./temperature.math.js";

/**
 * @typedef {{ scores: number[], labels: string[] | null, temperature: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 */

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const label = (/** @type {number} */ i) => scope.read("labels")?.[i] ?? String(i + 1);
  const weights = () => softmax(scope.read("scores"), scope.read("temperature"));
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      logSlider(scope.value("temperature"), { label: "Temperature T", min: 0.05, max: 20, show: (t) => fixed(t, 2) }),
    ),
    html(
      "div",
      { class: "x-panels" },
      html(
        "div",
        { class: "x-panel" },
        choices(scope, label, weights),
        indecision(scope, weights),
        balance(scope, weights),
      ),
      frontier(scope, weights),
    ),
  );
  scope.when(["scores", "labels", "temperature"], () => {
    const p = weights();
    const best = p.indexOf(Math.max(...p));
    scope.announce(
      `Temperature ${fixed(scope.read("temperature"))}: the largest weight is ${fixed(p[best])}, on ${label(best)}; ` +
        `${fixed(effectiveCount(p), 1)} of ${p.length} choices in effect; ` +
        `free energy ${fixed(freeEnergy(scope.read("scores"), scope.read("temperature")))}.`,
    );
  });
  return scope.dispose;
}

/**
 * One row for each score: its slider, and the bar of its weight.
 * @param {Scope} scope @param {(i: number) => string} label @param {() => number[]} weights
 */
function choices(scope, label, weights) {
  let reach = 5; // the sliders' range; it may grow, but not under the reader's hand
  return scope.rebuild(
    ["scores", "labels"],
    () => {
      reach = Math.max(reach, ...scope.read("scores").map((s) => Math.ceil(Math.abs(s))));
      return JSON.stringify([scope.read("scores").length, scope.read("labels"), reach]);
    },
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
        ...["score", ""].map((head) => html("span", { class: "x-head x-own" }, head)),
        ...["weight", ""].map((head) => html("span", { class: "x-head" }, head)),
        ...bars.flatMap((bar, i) => [
          html("span", { class: "x-name", "aria-hidden": "true" }, label(i)),
          slider(entry(part.value("scores"), i), {
            label: `score of ${label(i)}`,
            min: -reach,
            max: reach,
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
      "entropy ",
      html("b", {}, fixed(entropy(p))),
      " nats, as if among ",
      html("b", {}, fixed(effectiveCount(p))),
      " equals",
    );
  });
  return facts;
}

/**
 * Entropy against expected score: the softmax at every temperature, others, and the line it has reached.
 * @param {Scope} scope @param {() => number[]} weights
 */
function frontier(scope, weights) {
  const [width, height, left, right, top, bottom] = [320, 236, 34, 308, 12, 196];
  const drawing = picture(width, height, "entropy against expected score");
  const axes = svg("g");
  const line = svg("path", { class: "x-line x-second x-dashed" });
  const here = svg("circle", { class: "x-dot x-first", r: 5 });
  drawing.append(axes, line, here);
  let [low, high, most] = [0, 1, 1];
  let [x, y] = [linear([0, 1], [left, right]), linear([0, 1], [bottom, top])];

  scope.when(["scores"], () => {
    const scores = scope.read("scores");
    const [least, largest] = [Math.min(...scores), Math.max(...scores)];
    const range = largest - least || 1;
    [low, high, most] = [least - 0.06 * range, largest + 0.06 * range, Math.log(scores.length) * 1.06 || 1];
    x = linear([low, high], [left, right]);
    y = linear([0, most], [bottom, top]);
    const at = (/** @type {number[]} */ p) => `${x(expectedScore(p, scores)).toFixed(1)} ${y(entropy(p)).toFixed(1)}`;
    const sharpness = Array.from({ length: 161 }, (_, i) => (Math.sinh((i - 80) / 12) / range) * 0.5);
    axes.replaceChildren(
      svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
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
      svg("text", { x: x(least), y: bottom + 15, "text-anchor": "middle" }, fixed(least, 1)),
      svg("text", { x: x(largest), y: bottom + 15, "text-anchor": "middle" }, largest > least ? fixed(largest, 1) : ""),
      svg("text", { x: (left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, "expected score"),
      svg(
        "text",
        { x: left - 5, y: y(Math.log(scores.length)) + 4, "text-anchor": "end" },
        fixed(Math.log(scores.length), 1),
      ),
      svg("text", { x: left - 5, y: bottom + 4, "text-anchor": "end" }, "0"),
      svg("text", { x: -(top + bottom) / 2, y: 12, "text-anchor": "middle", transform: "rotate(-90)" }, "entropy"),
    );
  });
  scope.when(["scores", "temperature"], () => {
    const [scores, t, p] = [scope.read("scores"), scope.read("temperature"), weights()];
    const f = freeEnergy(scores, t);
    const [from, to] = [Math.max(low, f - t * most), Math.min(high, f)];
    line.setAttribute("d", `M${x(from)} ${y((f - from) / t)}L${x(to)} ${y((f - to) / t)}`);
    setAttributes(here, { cx: x(expectedScore(p, scores)), cy: y(entropy(p)) });
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "Curve: the softmax at every temperature; ring: at this one. Specks: other weights. " +
        "None lies above the dashed line, on which score + T × entropy is as large as at the ring.",
    ),
  );
}

/**
 * Expected score and T times entropy end to end: together they are the free energy.
 * @param {Scope} scope @param {() => number[]} weights
 */
function balance(scope, weights) {
  const parts = [
    ["expected score", "x-bar"],
    ["+ T × entropy", "x-bar x-second"],
    ["= free energy", "x-bar x-whole"],
  ].map(([name, look]) => ({ name, bar: html("div", { class: look }), shown: html("span", { class: "x-value" }) }));
  const zeros = parts.map(() => html("div", { class: "x-zero" }));
  scope.when(["scores", "temperature"], () => {
    const [scores, t, p] = [scope.read("scores"), scope.read("temperature"), weights()];
    const score = expectedScore(p, scores);
    const whole = score + t * entropy(p);
    const share = linear([Math.min(0, score, whole), Math.max(0, score, whole) || 1], [0, 100]);
    for (const zero of zeros) zero.style.left = `min(${share(0)}%, 100% - 1px)`;
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
  );
}

export default { render };
