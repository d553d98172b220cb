/** Texts in the language of the page, found by their English words; all explorers of a page share the table. */

/** @type {Record<string, string>} */
const table = Object.create(null);

/** Take in an explorer's table, which is empty in English. @param {{ get(name: any): any }} model */
export function learn(model) {
  Object.assign(table, model.get("_words"));
}

/** A text with its fields filled: `say("{n} of {total}", { n, total })`. @param {string} text @param {Record<string, string | number>} [fields] */
export function say(text, fields) {
  return fields ? sayWith(text, fields).join("") : (table[text] ?? text);
}

/** The pieces of a text whose fields are elements. @template V @param {string} text @param {Record<string, V>} fields */
export function sayWith(text, fields) {
  return (table[text] ?? text).split(/\{(\w+)\}/).map((piece, i) => (i % 2 ? fields[piece] : piece));
}

/** A text that is given to `say` where it is shown. @template {string} T @param {T} text */
export function mark(text) {
  return text;
}

/** How many zeros each name of a large number adds: three, or four in Chinese, if the table says so. */
export const zeros = () => Number(table[""] ?? 3);
