/** A multiple-choice question above an explorer; once it is answered, the result replaces the buttons. */

import { button, html } from "./kit.js";
import { say } from "./words.js";

/**
 * The card of a question, and the function `tell`, which shows a result, or the buttons again if the text is empty.
 * @template V
 * @param {string} look @param {string} words @param {[V, string, string?][]} options value, label, and the accessible name if it differs
 * @param {(value: V) => void} guess
 */
export function questionCard(look, words, options, guess) {
  const answer = html("p", { tabindex: -1 });
  const buttons = options.map(([value, label, name]) =>
    button(
      label,
      () => {
        guess(value);
        answer.focus(); // the pressed button is hidden now
      },
      name,
    ),
  );
  const group = html(
    "div",
    { role: "group", "aria-label": say("your guess") },
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
