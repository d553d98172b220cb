/** Names and controls of sparse attention patterns, for the explorers that use them. */

import { button, checkbox, html, slider } from "./kit.js";
import { N } from "./sparse.math.js";
import { mark, say } from "./words.js";

/**
 * @typedef {import("./sparse.math.js").Pattern} Pattern
 * @typedef {"window" | "step" | "n_global" | "n_random"} Budget
 */

/** The patterns with their names and budgets. @type {Record<string, [string, Budget[]]>} */
export const PATTERNS = {
  window: [mark("window"), ["window"]],
  dilated: [mark("dilated window"), ["window", "step"]],
  longformer: [mark("Longformer"), ["window", "n_global"]],
  bigbird: [mark("BigBird"), ["window", "n_global", "n_random"]],
};
/** @type {Record<Budget, [string, number, number]>} */
export const BUDGETS = {
  window: [mark("Window"), 1, N],
  step: [mark("Step between keys"), 1, 8],
  n_global: [mark("Global words"), 0, 8],
  n_random: [mark("Random words"), 0, 16],
};

/** The sliders of a pattern. @param {import("./kit.js").Scope<Pattern>} scope @param {string} way */
export function patternSliders(scope, way) {
  return PATTERNS[way][1].map((budget) => {
    const [label, min, max] = BUDGETS[budget];
    return slider(scope.value(budget), { label: say(label), min, max, step: 1 });
  });
}

/**
 * The tick of the causal mask, and a button that draws again what a method draws at random.
 * @param {import("./kit.js").Scope<Pattern>} scope @param {{ masked: boolean, drawn: boolean }} method
 *   `masked` methods can have a causal mask; `drawn` ones have random parts
 */
export function maskAndDraws(scope, { masked, drawn }) {
  const causal = checkbox(scope.value("causal"), { label: say("causal mask") });
  const [tick] = causal.getElementsByTagName("input");
  tick.disabled = !masked;
  if (!masked) scope.when(["causal"], () => (tick.checked = false));
  const again = button(say("Draw again"), () => scope.write("seed", (scope.read("seed") + 1) % 1000));
  return html("div", { class: "x-bench" }, causal, drawn ? again : "");
}
