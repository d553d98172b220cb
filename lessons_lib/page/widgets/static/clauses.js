import { say } from "./words.js";

/** Clauses in a row; items of a list are joined by `say(", ")`, and some languages part the two. @param {string[]} all */
export function clauses(all) {
  return all.map((clause, i) => (i < all.length - 1 ? say("{clause}, ", { clause }) : clause)).join("");
}
