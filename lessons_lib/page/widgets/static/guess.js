/** The entry point of a guess; the card is a separate file, so that the guesses of a page share it. */

import { render } from "./guess.card.js";

export default { render };
