/** A text cut into byte-pair tokens: the tokens with their numbers, and their count against the merges. */

import { fixed, html, linear, mappedSlider, named, numbers, oncePerFrame, panel, picture, stage, svg } from "./kit.js";
import { withPlayButton } from "./play.js";
import { LONGEST, MERGES, reached, spelled, stages } from "./merges.math.js";
import { say } from "./words.js";

/**
 * @typedef {{ text: string, merges: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ all(): ReturnType<typeof stages>, at(): number, tokens(): number[], bytes(): number }} State
 */

/** @type {(keyof Traits)[]} */
const EVERYTHING = ["text", "merges"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  /** @type {ReturnType<typeof stages>} */
  let all;
  scope.when(["text"], () => (all = stages(scope.read("text"))));
  const at = () => reached(all, scope.read("merges"));
  /** @type {State} */
  const state = { all: () => all, at, tokens: () => all[at()].tokens, bytes: () => all[0].tokens.length };
  scope.add(
    typed(scope),
    html("div", { class: "x-controls" }, withPlayButton(scope, slider(scope, state))),
    pieces(scope, state),
    html("div", { class: "x-panels" }, curve(scope, state), html("div", { class: "x-panel" }, counts(scope, state))),
  );
  scope.when(EVERYTHING, () => {
    const shown = state.tokens();
    scope.announce(
      say("After {merges} merges: {count} tokens, {tokens}.", {
        merges: scope.read("merges"),
        count: shown.length,
        tokens: shown.map(spelled).join(" | "),
      }),
    );
  });
  return scope.dispose;
}

/** The input for the text. @param {Scope} scope */
function typed(scope) {
  const input = html("input", { type: "text", maxlength: LONGEST, autocomplete: "off", spellcheck: "false" });
  const set = oncePerFrame(() => {
    if (input.value) scope.write("text", input.value);
  });
  input.addEventListener("input", set.later);
  input.addEventListener("change", set.flush);
  scope.when(["text"], () => {
    if (input.value !== scope.read("text")) input.value = scope.read("text");
  });
  return html("label", { class: "m-typed" }, html("span", {}, say("Text")), input);
}

/** A slider with one place for each merge that changes the text. @param {Scope} scope @param {State} state */
function slider(scope, { all }) {
  return scope.rebuild(
    ["text"],
    () => scope.read("text"),
    (part) =>
      mappedSlider(part.value("merges"), {
        label: say("Merges applied"),
        min: 0,
        max: all()[all().length - 1].merges,
        step: 1,
        toPlace: (merges) => reached(all(), merges),
        toValue: (place) => all()[place].merges,
      }),
  );
}

/** The tokens in a line, each above its number. @param {Scope} scope @param {State} state */
function pieces(scope, { all, at, tokens }) {
  const row = html("div", { class: "m-tokens" });
  const last = html("p", { class: "x-facts" });
  scope.when(EVERYTHING, () => {
    row.replaceChildren(
      ...tokens().map((token) =>
        html("span", { class: "m-token" }, html("span", { class: "m-text" }, spelled(token)), String(token)),
      ),
    );
    const { merges } = all()[at()];
    const [left, right] = merges ? MERGES[merges - 1].map(spelled) : ["", ""];
    last.textContent = merges
      ? say("The last change: merge {merges} joins {left} and {right}. A space is shown as ␣.", { merges, left, right })
      : say("No merge: the tokens are the bytes of the text. A space is shown as ␣.");
  });
  return html("div", { class: "x-panel" }, row, last);
}

/** The number of tokens after each number of merges. @param {Scope} scope @param {State} state */
function curve(scope, { all, tokens, bytes }) {
  const [left, right, top, bottom] = [30, 310, 26, 126];
  const drawing = picture(320, 162, say("tokens of the text against the merges applied"));
  const place = linear([0, Math.log(1 + MERGES.length)], [left, right]);
  const x = (/** @type {number} */ merges) => place(Math.log(1 + merges)).toFixed(1);
  scope.when(EVERYTHING, () => {
    const y = linear([0, bytes()], [bottom, top]);
    const steps = all().map((stage) => `H${x(stage.merges)}V${y(stage.tokens.length).toFixed(1)}`);
    drawing.replaceChildren(
      svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
      svg("path", { class: "x-line x-first", d: `M${left} ${y(bytes())}${steps.join("")}H${right}` }),
      svg("circle", { class: "x-dot x-first", r: 5, cx: x(scope.read("merges")), cy: y(tokens().length) }),
      named(say("tokens"), 0, 12),
      ...[0, bytes()].map((many) => named(String(many), left - 5, y(many) + 4, "", "end")),
      ...[0, 10, 100, 1000].map((many) => named(String(many), Number(x(many)), bottom + 16, "", "middle")),
      named(say("merges applied"), right, bottom + 34, "", "end"),
    );
  });
  return panel([drawing]);
}

/** The length of the text in bytes and in tokens. @param {Scope} scope @param {State} state */
function counts(scope, { tokens, bytes }) {
  return numbers(scope, EVERYTHING, [
    [say("bytes"), () => String(bytes())],
    [say("tokens"), () => String(tokens().length)],
    [say("bytes a token"), () => fixed(bytes() / tokens().length)],
    [say("tokens in the vocabulary"), () => String(256 + scope.read("merges"))],
  ]);
}

export default { render };
