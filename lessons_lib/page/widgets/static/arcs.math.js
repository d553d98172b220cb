/** The attention weights on the paths to the next token, as arcs. */

import { HEADS } from "./gpt.math.js";

/**
 * An attention weight that is large enough to be drawn: query `to` attends to key `from` in this head; positions are
 * counted in the visible part. `share` is the part that reaches the last token: 1 in layer 2; in layer 1 the largest
 * weight with which layer 2 attends to `to`, and 1 if `to` is the last token.
 * @typedef {{ head: string, from: number, to: number, weight: number, share: number }} Arc
 */

/** The arcs on the paths to the last token, without ablated heads. @param {number[][][]} weights @param {string[]} off */
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
