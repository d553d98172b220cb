/** A question to the reader: a choice, a number or a drawn curve. The result is shown after the answer. */

import { button, html, keepKeys, linear, svg } from "./kit.js";
import { curveScore, mend, numberScore, sampled, scale, show, stroke, ticks } from "./guess.math.js";
import { letters } from "./letters.js";
import { learn, mark, say, sayWith } from "./words.js";

/**
 * The result as the card shows it: `at` is an option, a number or a curve, or null if the reader could not have given
 * it; `told` is the result in words, `note` a remark.
 * @typedef {{ at: any, told: string, note: string }} Answer
 * @typedef {{ kind: "choice" | "number" | "curve", key: string, question: string, about: any, value: any,
 *   answer: Answer | null, skipped: boolean, on_page?: boolean }} Traits
 * @typedef {(value: any) => void} Commit
 * @typedef {import("./guess.math.js").Score} Score
 * @typedef {{
 *   ask(body: HTMLElement, foot: HTMLElement, commit: Commit): (() => void) | void,
 *   show(body: HTMLElement, value: any, at: any): (() => void) | void,
 *   said?: (value: any) => string,
 *   line?: (value: any, at: any, remark: string) => string,
 *   words?: boolean,
 *   judge(value: any, at: any): Score,
 * }} Kind
 * @typedef {{ low: number, high: number, log: boolean, unit: string }} Range
 * @typedef {{ x: [number, number], y: [number, number], log: string, xlabel: string, ylabel: string }} Axes
 */

const KINDS = { choice, number, curve };
/** @type {("value" | "answer" | "skipped")[]} */
const HEARD = ["value", "answer", "skipped"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
export function render({ model, el }) {
  learn(model);
  const question = model.get("question");
  /** @type {Kind} */
  const kind = KINDS[model.get("kind")](model.get("about"));
  const set = (/** @type {any} */ value, skipped = false) => {
    model.set("value", value);
    model.set("skipped", skipped);
    model.save_changes();
  };
  const tag = html("p", { class: "g-tag" });
  const body = html("div", { class: "g-ask" });
  const verdict = html("p", { class: "g-verdict", "aria-live": "polite" });
  const foot = html("div", { class: "g-foot" });
  const asked = html("p", { class: "g-question" }, question);
  const card = html("section", { "aria-label": question }, tag, asked, body, verdict, foot);
  const leaveKeys = keepKeys(card);
  el.classList.add("guess");
  el.append(card);

  let before = "";
  /** @type {(() => void) | void} */
  let leave;
  function draw() {
    const [value, answer, skipped] = [model.get("value") ?? null, model.get("answer"), model.get("skipped")];
    const open = value === null && !skipped;
    const now = JSON.stringify([value, answer, skipped]);
    if (now === before) return;
    const again = before !== "" && card.contains(document.activeElement);
    const score = value !== null && answer && answer.at !== null ? kind.judge(value, answer.at) : null;
    card.className = `g-card g-${open ? "open" : "done"}${before && answer ? " g-moves" : ""}${score?.good ? " g-right" : ""}`;
    before = now;
    leave?.();
    tag.textContent = open ? say("Guess first") : skipped ? say("Not guessed") : say("Your guess");
    body.replaceChildren();
    foot.replaceChildren();
    verdict.replaceChildren(...(open ? [] : words(kind, value, answer, score)));
    if (open) {
      leave = kind.ask(body, foot, set);
      if (model.get("on_page")) foot.append(link(say("Show me without guessing"), () => set(null, true), "g-skip"));
    } else {
      leave = kind.show(body, value, answer && answer.at);
      foot.append(link(say("Guess again"), () => set(null)));
    }
    const next = open ? body.querySelector("button, input, [tabindex]") : foot.lastElementChild;
    if (again && next instanceof HTMLElement) next.focus({ preventScroll: true });
    el.dispatchEvent(new CustomEvent("guess-drawn", { bubbles: true }));
  }
  const heard = () => queueMicrotask(draw);
  for (const name of HEARD) model.on(`change:${name}`, heard);
  // This event tells a rendered page, which has no kernel, of the question.
  el.dispatchEvent(new CustomEvent("guess-asked", { bubbles: true, detail: model }));
  draw();
  return () => {
    for (const name of HEARD) model.off(`change:${name}`, heard);
    leave?.();
    leaveKeys();
    card.remove();
  };
}

/**
 * The sentence "You said X; it is Y", and how near the guess is.
 * @param {Kind} kind @param {any} value @param {Answer | null} answer @param {Score | null} score
 */
function words(kind, value, answer, score) {
  const strong = (/** @type {string} */ text) => html("strong", {}, text);
  const quoted = (/** @type {string} */ text) => (kind.words ? ["“", strong(text), "”"] : [strong(text)]);
  const mine = kind.said && value !== null ? quoted(kind.said(value)) : [];
  if (!answer)
    return mine.length
      ? sayWith("You said {mine}. Run on, and it will be compared here.", { mine }).flat()
      : [say("Your curve is kept. Run on, and it will be compared here.")];
  const note = answer.note && ` ${answer.note}`;
  const told = quoted(answer.told);
  // An option in words need not be a noun.
  const is = kind.words ? mark("The answer is {told}.") : mark("It is {told}.");
  const both = kind.words ? mark("You said {mine}; the answer is {told}.") : mark("You said {mine}; it is {told}.");
  if (!score) return [...(mine.length ? sayWith(both, { mine, told }) : sayWith(is, { told })).flat(), note];
  const tick = score.good ? [html("span", { class: "g-tick", "aria-hidden": "true" }, "✓")] : [];
  if (kind.line) return [...tick, kind.line(value, answer.at, score.remark) + note];
  const compared = score.remark
    ? sayWith("You said {mine}; it is {told}, {remark}.", { mine, told, remark: [score.remark] })
    : sayWith(score.good ? mark("You said {mine}: right.") : both, { mine, told });
  return [...tick, ...compared.flat(), note];
}

/** @param {string} label @param {() => void} press */
function link(label, press, more = "") {
  const made = button(label, press);
  made.className = `g-link ${more}`;
  return made;
}

/** @param {string} label @param {() => void} press */
function committing(label, press) {
  const made = button(label, press);
  made.className = "g-commit";
  made.disabled = true;
  return made;
}

/**
 * Enter commits the guess. The default action would press the button that has the focus by then, "Guess again".
 * @param {KeyboardEvent} event @param {HTMLButtonElement} done
 */
function enter(event, done) {
  if (event.key !== "Enter" || done.disabled) return;
  event.preventDefault();
  done.click();
}

/** A choice among a few options. @param {{ options: string[] }} about @returns {Kind} */
function choice({ options }) {
  const row = `g-options${options.some((label) => letters(label) > 12) ? " g-long" : ""}`;
  return {
    ask(body, _, commit) {
      const buttons = options.map((label, i) => {
        const made = button(label, () => commit(i));
        made.className = "g-option";
        return made;
      });
      body.append(html("div", { class: row, role: "group", "aria-label": say("answers") }, ...buttons));
    },
    show(body, value, at) {
      const items = options.map((label, i) => {
        const note =
          i === value
            ? i === at
              ? say("your guess, and the answer")
              : say("your guess")
            : i === at
              ? say("the answer")
              : "";
        const names = `g-option${i === value ? " g-mine" : ""}${i === at ? " g-true" : ""}`;
        return html("li", { class: names }, label, ...(note ? [html("small", {}, note)] : []));
      });
      body.append(html("ul", { class: row }, ...items));
    },
    said: (value) => options[value],
    words: options.some((label) => /\p{L}/u.test(label)),
    judge: (value, at) => ({ good: value === at, remark: "" }),
  };
}

/** A number on a scale. @param {Range} about @returns {Kind} */
function number(about) {
  const { low, high, log, unit } = about;
  const { place, value: at } = scale(low, high, log);
  const full = (/** @type {number} */ x) => show(x) + (unit && ` ${unit}`);
  const rounded = (/** @type {number} */ p) => Number(at(p).toPrecision(log ? 2 : 3));
  const marks = () => {
    const spans = ticks(low, high, log).map((x) => html("span", { style: `--at: ${place(x)}` }, show(x)));
    return html("div", { class: "g-marks", "aria-hidden": "true" }, ...spans);
  };
  return {
    ask(body, foot, commit) {
      const input = html("input", {
        type: "range",
        min: 0,
        max: 1,
        step: 0.005,
        value: 0.5,
        class: "g-range g-untouched",
        "aria-label": say("your guess, from {low} to {high}", { low: full(low), high: full(high) }),
        "aria-valuetext": say("not set yet"),
      });
      const done = committing(say("Move the slider"), () => commit(rounded(input.valueAsNumber)));
      const moved = () => {
        const text = full(rounded(input.valueAsNumber));
        input.classList.remove("g-untouched");
        input.setAttribute("aria-valuetext", text);
        done.replaceChildren(...sayWith("I say {guess}", { guess: html("b", {}, text) }));
        done.disabled = false;
      };
      input.addEventListener("input", moved);
      input.addEventListener("click", moved); // the reader may mean the middle
      input.addEventListener("keydown", (event) => enter(event, done));
      body.append(html("div", { class: "g-scale" }, input, marks()));
      foot.append(done);
    },
    show(body, value, answer) {
      const pin = (/** @type {number} */ x, /** @type {string} */ name, /** @type {string} */ text) =>
        html("span", { class: `g-pin ${name}`, style: `--at: ${place(x)}` }, html("i"), html("em", {}, text));
      const pins = [
        ...(value === null ? [] : [pin(value, "g-mine", say("you: {value}", { value: show(value) }))]),
        ...(answer === null ? [] : [pin(answer, "g-true", say("it is {answer}", { answer: show(answer) }))]),
      ];
      const [a, b] = [value ?? answer ?? low, answer ?? value ?? low].map(place).sort((p, q) => p - q);
      const gap = html("span", { class: "g-gap", style: `--from: ${a}; --to: ${b}` });
      const line = html("div", { class: "g-line" }, gap, ...pins);
      body.append(html("div", { class: "g-scale", "aria-hidden": "true" }, line, marks()));
    },
    said: full,
    judge: (value, answer) => numberScore(value, answer, about),
  };
}

const LAST = 48; // a drawn curve has a height in each of the columns 0 to 48
const EDGE = 4;
/** A number for ARIA, without an exponent. @param {number} x */
const decimal = (x) => x.toLocaleString("en", { useGrouping: false, maximumSignificantDigits: 3 });

/** A curve on labelled axes. @param {Axes} about @returns {Kind} */
function curve(about) {
  const X = scale(...about.x, about.log.includes("x"));
  const Y = scale(...about.y, about.log.includes("y"));
  const height = (/** @type {number} */ v) => show(Number(Y.value(v).toPrecision(2)));
  const label = (/** @type {number} */ u, /** @type {number} */ v) =>
    `${about.xlabel} ${show(X.value(u))}: ${height(v)}`;

  /** The axes, in pixels, so that text keeps its size on a phone. @param {number} wide the place for them, 0 if unknown */
  function frame(wide, /** @type {string} */ aria) {
    const width = Math.max(240, Math.min(wide || 560, 720));
    const tall = Math.round(Math.max(210, Math.min(320, width * 0.52)));
    const box = { left: 44, right: width - 14, top: 30, bottom: tall - 42 };
    const px = linear([0, 1], [box.left, box.right]);
    const py = linear([0, 1], [box.bottom, box.top]);
    const drawing = svg("svg", {
      width,
      height: tall,
      viewBox: `0 0 ${width} ${tall}`,
      role: "img",
      "aria-label": aria,
    });
    const text = (/** @type {string} */ words, /** @type {any} */ at) => drawing.append(svg("text", at, words));
    const grid = (/** @type {any} */ at) => drawing.append(svg("line", { class: "g-grid", ...at }));
    for (const y of ticks(...about.y, about.log.includes("y"))) {
      const at = py(Y.place(y));
      grid({ x1: box.left, x2: box.right, y1: at, y2: at });
      text(show(y), { x: box.left - 7, y: at + 4, "text-anchor": "end" });
    }
    for (const x of ticks(...about.x, about.log.includes("x"))) {
      const at = px(X.place(x));
      grid({ x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 });
      text(show(x), { x: at, y: box.bottom + 17, "text-anchor": "middle" });
    }
    text(about.ylabel, { class: "g-axis", x: 2, y: 14 });
    text(about.xlabel, { class: "g-axis", x: box.right, y: tall - 5, "text-anchor": "end" });
    return { drawing, box, px, py };
  }

  /** @typedef {ReturnType<typeof frame>} View */
  /** @typedef {[number, number | null]} Spot */

  const path = (/** @type {Spot[]} */ points, /** @type {View} */ { px, py }) =>
    points
      .map(([u, v], i) => {
        const on = i && points[i - 1][1] !== null ? "L" : "M";
        return v === null ? "" : `${on}${px(u).toFixed(1)} ${py(v).toFixed(1)}`;
      })
      .join("");
  const columns = (/** @type {(number | null)[]} */ heights) =>
    heights.map((v, i) => /** @type {Spot} */ ([i / LAST, v]));
  const found = (/** @type {[number[], number[]]} */ [xs, ys]) =>
    xs.map((x, i) => /** @type {[number, number]} */ ([X.place(x), Y.place(ys[i])]));
  const even = (/** @type {any} */ at) => sampled(found(at), LAST);

  /**
   * Draw now, and again when the width changes. While a page is being read its layout is not asked for, since that would
   * lay out all that was read so far: the observer tells the width before the first frame.
   * @param {HTMLElement} body @param {(wide: number) => void} draw
   */
  function asWide(body, draw) {
    let wide = document.readyState === "loading" ? 0 : body.clientWidth;
    draw(wide);
    const watch = new ResizeObserver(([{ contentRect }]) => {
      const now = Math.round(contentRect.width);
      if (now === wide) return;
      if (wide) body.parentElement?.classList.remove("g-moves"); // animated once, not at every rotation of a phone
      wide = now;
      draw(wide);
    });
    watch.observe(body);
    return () => watch.disconnect();
  }

  return {
    ask(body, foot, commit) {
      /** @type {(number | null)[]} */
      const mine = Array(LAST + 1).fill(null);
      const pad = html("div", { class: "g-pad" });
      const hint = html("p", { class: "g-hint" });
      const pen = html("div", {
        class: "g-pen",
        tabindex: 0,
        role: "slider",
        "aria-label": say("pen: {label}", { label: about.ylabel }),
        "aria-valuemin": decimal(about.y[0]),
        "aria-valuemax": decimal(about.y[1]),
      });
      const call = html("span", { class: "g-call", "aria-hidden": "true" }, say("draw from here →"));
      const line = svg("path", { class: "g-mine-line" });
      /** @type {[number, number]} */
      let at = [0, 0.5];
      /** @type {View} */
      let view;
      const done = committing(say("That is my curve"), () => commit(mine.map((v) => Number((v ?? 0).toFixed(3)))));
      const wipe = link(say("Wipe"), () => {
        mine.fill(null);
        at = [0, 0.5];
        follow();
        pen.focus({ preventScroll: true });
      });

      function lay(/** @type {number} */ wide) {
        view = frame(wide, say("empty axes, to be drawn on"));
        view.drawing.append(line);
        pad.replaceChildren(view.drawing, pen, call);
        follow();
      }
      function follow() {
        const begun = mine.some((v) => v !== null);
        const [x, y] = [view.px(at[0] / LAST), view.py(at[1])];
        line.setAttribute("d", path(columns(mine), view));
        pen.style.transform = `translate(${x - 22}px, ${y - 22}px)`;
        call.style.transform = `translate(${x + 20}px, ${y - 12}px)`;
        call.hidden = begun;
        pen.classList.toggle("g-waits", !begun);
        pen.setAttribute("aria-valuenow", decimal(Y.value(at[1])));
        const spot = label(at[0] / LAST, at[1]);
        pen.setAttribute("aria-valuetext", begun ? spot : say("{spot}, nothing drawn yet", { spot }));
        done.disabled = mine.includes(null);
        wipe.hidden = !begun;
        if (!begun) hint.textContent = say("Draw the curve with a finger, the mouse, or the pen and the arrow keys.");
        else if (!done.disabled) hint.textContent = say("Draw over it to change it.");
        else hint.textContent = mine[LAST] === null ? say("Go on to the right edge.") : say("Now from the left edge.");
      }
      const put = (/** @type {[number, number]} */ spot, /** @type {[number, number] | null} */ from) => {
        stroke(mine, from ?? spot, spot);
        at = spot;
      };
      /** @param {PointerEvent} event @returns {[number, number]} */
      const where = (event) => {
        const edge = pad.getBoundingClientRect();
        const { left, right, top, bottom } = view.box;
        const within = (/** @type {number} */ share) => Math.min(1, Math.max(0, share));
        const u = within((event.clientX - edge.left - left) / (right - left));
        return [Math.round(LAST * u), within((edge.top + bottom - event.clientY) / (bottom - top))];
      };
      /** @type {[number, number] | null} */
      let hand = null;
      let held = false;
      let kept = { mine: [...mine], at };
      const draw = (/** @type {PointerEvent} */ event) => {
        const events = event.getCoalescedEvents?.() ?? [];
        for (const one of events.length ? events : [event]) {
          const spot = where(one);
          put(spot, hand);
          hand = spot;
        }
        follow();
      };
      pad.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        hand = event.target === pen && mine[at[0]] !== null ? at : null;
        held = true;
        kept = { mine: [...mine], at };
        pad.setPointerCapture(event.pointerId);
        if (event.pointerType === "mouse") draw(event);
      });
      pad.addEventListener("pointermove", (event) => {
        if (held) draw(event);
      });
      pad.addEventListener("pointerup", () => {
        if (!held) return;
        held = false;
        mend(mine, EDGE);
        follow();
        pen.focus({ preventScroll: true });
      });
      pad.addEventListener("pointercancel", () => {
        if (!held) return;
        held = false;
        mine.splice(0, mine.length, ...kept.mine); // it was a scroll
        at = kept.at;
        follow();
      });
      pad.addEventListener("mousedown", (event) => event.preventDefault()); // selects no text
      pen.addEventListener("keydown", (event) => {
        enter(event, done);
        const far = event.shiftKey ? 4 : 1;
        /** @type {Record<string, [number, number]>} */
        const steps = {
          ArrowLeft: [-far, 0],
          ArrowRight: [far, 0],
          ArrowUp: [0, 0.02 * far],
          ArrowDown: [0, -0.02 * far],
          PageUp: [0, 0.1],
          PageDown: [0, -0.1],
          Home: [-LAST, 0],
          End: [LAST, 0],
        };
        if (!(event.key in steps)) return;
        event.preventDefault();
        const [dx, dy] = steps[event.key];
        const column = Math.min(LAST, Math.max(0, at[0] + dx));
        const there = mine[column];
        if (dx && there !== null) at = [column, there];
        else put([column, Math.min(1, Math.max(0, at[1] + dy))], dx && mine[at[0]] !== null ? at : null);
        follow();
      });
      body.append(pad, hint);
      foot.append(done, wipe);
      return asWide(body, lay);
    },

    show(body, value, answer) {
      const pad = html("div", { class: "g-pad g-shown" });
      const truth = answer && even(answer);
      body.append(pad);
      return asWide(body, (wide) => {
        const said = [];
        if (value)
          said.push(
            say("your curve from {first} to {last}", { first: label(0, value[0]), last: label(1, value[LAST]) }),
          );
        if (truth) said.push(say("the curve that came out"));
        const view = frame(wide, said.join(say(", and ")));
        const line = (/** @type {string} */ name, /** @type {string} */ d, more = {}) =>
          view.drawing.append(svg("path", { class: name, d, ...more }));
        if (value && truth) line("g-between", `${path([...columns(value), ...columns(truth).reverse()], view)}Z`);
        if (value) line("g-mine-line", path(columns(value), view));
        if (truth) line("g-true-line", path(found(answer), view), { pathLength: 1 });
        // Each line is labelled at the end where the two lines are farther apart.
        const apart = (/** @type {number} */ i) => (value && truth ? Math.abs(value[i] - truth[i]) : 0);
        const right = apart(LAST - 1) >= apart(1);
        const i = right ? LAST - 1 : 1;
        const above = !truth || !value || value[i] >= truth[i];
        const tell = (/** @type {number[]} */ heights, /** @type {string} */ text, name = "", up = true) => {
          const y = view.py(heights[i]) + (up ? -9 : 18);
          const at = {
            class: `g-name ${name}`,
            x: view.px(right ? 1 : 0) + (right ? -4 : 6),
            y: Math.min(view.box.bottom - 5, Math.max(view.box.top - 4, y)),
            "text-anchor": right ? "end" : "start",
          };
          view.drawing.append(svg("text", at, text));
        };
        if (value) tell(value, say("you"), "g-mine", above);
        if (truth) tell(truth, say("it is"), "g-true", !value || !above);
        pad.replaceChildren(view.drawing);
      });
    },

    line(value, answer, remark) {
      const truth = even(answer);
      const gaps = truth.map((v, i) => Math.abs(v - value[i]));
      const worst = gaps.indexOf(Math.max(...gaps));
      return say("{remark}, most at {xlabel} {x}: there you said {mine}; it is {told}.", {
        remark,
        xlabel: about.xlabel,
        x: show(X.value(worst / LAST)),
        mine: height(value[worst]),
        told: height(truth[worst]),
      });
    },
    judge: (value, answer) => curveScore(value, even(answer)),
  };
}
