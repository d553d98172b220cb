// @ts-check
/** Weights softmax(scores / T), and why they are these: no others have more of expected score + T times entropy. */

import { effectiveCount, entropy, logSumExp, softmax, sum, uniform } from "./arithmetic.js";
import { fixed, html, linear, logSlider, picture, slider, stage, svg } from "./kit.js";

/** The average score under weights p. @param {number[]} p @param {number[]} scores */
export function expectedScore(p, scores) {
  return sum(p.map((w, i) => w * scores[i]));
}

/** T log sum exp(scores / T): the largest value that expected score + T * entropy can have. */
export function freeEnergy(/** @type {number[]} */ scores, /** @type {number} */ temperature) {
  return temperature * logSumExp(scores.map((s) => s / temperature));
}

/** Other ways to share out one unit of weight, even and uneven ones. @param {number} n @param {number} count */
export function otherWeights(n, count) {
  const random = uniform(1);
  return Array.from({ length: count }, (_, i) => {
    const shares = Array.from({ length: n }, () => (-Math.log(random())) ** (1 + (i % 4)));
    return shares.map((share) => share / sum(shares));
  });
}

function render({ model, el }) {
  const on = stage({ model, el });
  const label = (/** @type {number} */ i) => on.read("labels")?.[i] ?? String(i + 1);
  const weights = () => softmax(on.read("scores"), on.read("temperature"));
  on.add(
    logSlider(on, "temperature", { label: "Temperature T", min: 0.05, max: 20, show: (t) => fixed(t, 2) }),
    html(
      "div",
      { class: "x-panels" },
      html("div", { class: "x-panel" }, choices(on, label, weights), indecision(on, weights), balance(on, weights)),
      frontier(on, weights),
    ),
  );
  on.when(["scores", "labels", "temperature"], () => {
    const p = weights();
    const best = p.indexOf(Math.max(...p));
    on.say(
      `Temperature ${fixed(on.read("temperature"))}: the largest weight is ${fixed(p[best])}, on ${label(best)}; ` +
        `${fixed(effectiveCount(p), 1)} of ${p.length} choices in effect; ` +
        `free energy ${fixed(freeEnergy(on.read("scores"), on.read("temperature")))}.`,
    );
  });
  return on.leave;
}

/** One row for each score: its slider, and the bar of its weight. */
function choices(on, label, weights) {
  let reach = 5; // the sliders' range; it may grow, but not under the reader's hand
  return on.anew(
    ["scores", "labels"],
    () => {
      reach = Math.max(reach, ...on.read("scores").map((s) => Math.ceil(Math.abs(s))));
      return JSON.stringify([on.read("scores").length, on.read("labels"), reach]);
    },
    (part) => {
      const bars = on.read("scores").map(() => html("div", { class: "x-bar" }));
      const shown = on.read("scores").map(() => html("span", { class: "x-value" }));
      part.when(["scores", "temperature"], () => {
        weights().forEach((p, i) => {
          bars[i].style.width = `${100 * p}%`;
          shown[i].textContent = fixed(p, 3);
        });
      });
      return html(
        "div",
        { class: "x-grid", style: "--columns: minmax(1.5rem, auto) 1fr 3rem 1fr 2.75rem" },
        ...["", "score", "", "weight", ""].map((head) => html("span", { class: "x-head" }, head)),
        ...bars.flatMap((bar, i) => [
          html("span", { class: "x-name", "aria-hidden": "true" }, label(i)),
          slider(part, ["scores", i], {
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

/** The entropy in words. */
function indecision(on, weights) {
  const facts = html("p", { class: "x-facts" });
  on.when(["scores", "temperature"], () => {
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

/** Entropy against expected score: the softmax at every temperature, others, and the line it has reached. */
function frontier(on, weights) {
  const [width, height, left, right, top, bottom] = [320, 236, 34, 308, 12, 196];
  const drawing = picture(width, height, "entropy against expected score");
  const axes = svg("g");
  const line = svg("path", { class: "x-line x-second x-dashed" });
  const here = svg("circle", { class: "x-dot x-first", r: 5 });
  drawing.append(axes, line, here);
  let x, y, low, high, most;

  on.when(["scores"], () => {
    const scores = on.read("scores");
    const [least, largest] = [Math.min(...scores), Math.max(...scores)];
    const range = largest - least || 1;
    [low, high, most] = [least - 0.06 * range, largest + 0.06 * range, Math.log(scores.length) * 1.06 || 1];
    x = linear([low, high], [left, right]);
    y = linear([0, most], [bottom, top]);
    const at = (p) => `${x(expectedScore(p, scores)).toFixed(1)} ${y(entropy(p)).toFixed(1)}`;
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
  on.when(["scores", "temperature"], () => {
    const [scores, t, p] = [on.read("scores"), on.read("temperature"), weights()];
    const f = freeEnergy(scores, t);
    const [from, to] = [Math.max(low, f - t * most), Math.min(high, f)];
    line.setAttribute("d", `M${x(from)} ${y((f - from) / t)}L${x(to)} ${y((f - to) / t)}`);
    here.setAttribute("cx", x(expectedScore(p, scores)));
    here.setAttribute("cy", y(entropy(p)));
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

/** Expected score and T times entropy end to end: together they are the free energy. */
function balance(on, weights) {
  const parts = [
    ["expected score", "x-bar"],
    ["+ T × entropy", "x-bar x-second"],
    ["= free energy", "x-bar x-whole"],
  ].map(([name, look]) => ({ name, bar: html("div", { class: look }), shown: html("span", { class: "x-value" }) }));
  on.when(["scores", "temperature"], () => {
    const [scores, t, p] = [on.read("scores"), on.read("temperature"), weights()];
    const score = expectedScore(p, scores);
    const whole = score + t * entropy(p);
    const share = linear([Math.min(0, score, whole), Math.max(0, score, whole) || 1], [0, 100]);
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
    ...parts.flatMap(({ name, bar, shown }) => [
      html("span", { class: "x-name" }, name),
      html("div", { class: "x-track" }, bar),
      shown,
    ]),
  );
}

export default { render };
