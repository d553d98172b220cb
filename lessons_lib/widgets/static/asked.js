/** What an explorer asks before it shows something: a button for each answer, and in their place what came of it. */

import { button, html } from "./kit.js";

/**
 * The card, and `tell` to fill it: with what there is to say once a guess is made, with nothing as long as it is asked.
 * @template V
 * @param {string} look @param {string} words @param {[V, string, string?][]} options value, label, name if not this
 * @param {(value: V) => void} guess
 */
export function question(look, words, options, guess) {
  const answer = html("p", { tabindex: -1 });
  const buttons = options.map(([value, label, name]) =>
    button(
      label,
      () => {
        guess(value);
        answer.focus(); // what was pressed is gone
      },
      name,
    ),
  );
  const group = html(
    "div",
    { role: "group", "aria-label": "your guess" },
    html("p", {}, words),
    html("div", { class: "x-bench" }, ...buttons),
  );
  return {
    card: html("div", { class: look }, group, answer),
    tell(/** @type {string} */ said) {
      group.hidden = said !== "";
      answer.hidden = said === "";
      answer.textContent = said;
    },
  };
}
