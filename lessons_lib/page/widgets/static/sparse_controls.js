/** Names and controls of sparse attention patterns, for the explorers that use them. */

import { button, checkbox, html, slider } from "./kit.js";
import { N } from "./sparse.math.js";

/**
 * @typedef {import("./sparse.math.js").Pattern} Pattern
 * @typedef {"window" | "step" | "n_global" | "n_random"} Budget
 */

/** The patterns with their names and budgets. @type {Record<string, [string, Budget[]]>} */
export const PATTERNS = {
  window: ["window", ["window"]],
  dilated: ["dilated window", ["window", "step"]],
  longformer: ["Longformer", ["window", "n_global"]],
  bigbird: ["BigBird", ["window", "n_global", "n_random"]],
};
/** @type {Record<Budget, [string, number, number]>} */
export const BUDGETS = {
  window: ["Window", 1, N],
  step: ["Step between keys", 1, 8],
  n_global: ["Global words", 0, 8],
  n_random: ["Random words", 0, 16],
};

/** The sliders of a pattern. @param {import("./kit.js").Scope<Pattern>} scope @param {string} way */
export function patternSliders(scope, way) {
  return PATTERNS[way][1].map((budget) => {
    const [label, min, max] = BUDGETS[budget];
    return slider(scope.value(budget), { label, min, max, step: 1 });
  });
}

/**
 * The tick of the causal mask, and a button that draws again what a method draws at random.
 * @param {import("./kit.js").Scope<Pattern>} scope @param {{ masked: boolean, drawn: boolean }} method
 *   `masked` methods can have a causal mask; `drawn` ones have random parts
 */
export function maskAndDraws(scope, { masked, drawn }) {
  const causal = checkbox(scope.value("causal"), { label: "causal mask" });
  const [tick] = causal.getElementsByTagName("input");
  tick.disabled = !masked;
  if (!masked) scope.when(["causal"], () => (tick.checked = false));
  const again = button("Draw again", () => scope.write("seed", (scope.read("seed") + 1) % 1000));
  return html("div", { class: "x-bench" }, causal, drawn ? again : "");
}
