/** The colours of lessons_lib.page.palette, for what is counted: the first key, the second, the third. */

export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];

/** Red, green and blue, each from 0 to 255. @param {string} colour */
export function rgb(colour) {
  return [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
}
