/** What a model reads on the way to its next token, as arcs. */

import { HEADS } from "./gpt.math.js";

/**
 * A weight that is large enough to be drawn: `to` reads `from` in this head, tokens counted in view. `share` is how much
 * of it arrives at the last token: 1 in layer 2; in layer 1 as much as layer 2 reads its reader, 1 if that is the last.
 * @typedef {{ head: string, from: number, to: number, weight: number, share: number }} Arc
 */

/** The arcs on the way to the last token, of heads that are on. @param {number[][][]} weights @param {string[]} off */
export function arcs(weights, off) {
  const last = weights[0].length - 1;
  const on = HEADS.map((head, i) => ({ head, rows: weights[i] })).filter(({ head }) => !off.includes(head));
  const above = on.filter(({ head }) => head[0] === "2");
  const share = (/** @type {string} */ head, /** @type {number} */ to) => {
    if (to === last) return 1;
    return head[0] === "2" ? 0 : Math.max(0, ...above.map(({ rows }) => rows[last][to]));
  };
  return on
    .flatMap(({ head, rows }) =>
      rows.flatMap((row, to) => row.map((weight, from) => ({ head, from, to, weight, share: share(head, to) }))),
    )
    .filter(({ weight, share }) => weight >= 0.1 && share >= 0.1);
}
