/** The width of a text in Latin letters; a full-width character, such as a Chinese one, counts double. @param {string} text */
export const letters = (text) => text.replace(/[\u2e80-\uffef]/g, "  ").length;
