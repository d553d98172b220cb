/** A guess; the card is a file of its own, so that the guesses of a page share it. */

import { render } from "./guess.card.js";

export default { render };
