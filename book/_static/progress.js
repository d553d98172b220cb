/**
 * Mark chapters as read, in this browser only. A chapter is read when its summary *Remember* has been on the screen, or
 * when all its guesses are answered (guesses.js). The first page shows a tick on the card of each chapter that was read.
 */
(() => {
  /** Return a text in the language of the page (book/_ext/script_words.py). @param {string} text */
  const gettext = (text) => /** @type {any} */ (window).bookWords?.[text] ?? text;

  const keyOf = (/** @type {string} */ path) => `read ${path.replace(/\.html$/, "")}`;
  const mark = () => store(keyOf(location.pathname), "yes");

  const summary = document.querySelector(".container.remember");
  if (summary) {
    const watch = new IntersectionObserver((seen) => {
      if (!seen.some(({ isIntersecting }) => isIntersecting)) return;
      watch.disconnect();
      mark();
    });
    watch.observe(summary);
    document.addEventListener("guesses-answered", mark);
  }

  const cards = /** @type {HTMLAnchorElement[]} */ ([...document.querySelectorAll(".gallery.of-chapters a")]);
  const note = document.createElement("p");
  note.className = "gallery-note";
  const forget = document.createElement("button");
  Object.assign(forget, { type: "button", textContent: gettext("Forget this") });
  forget.addEventListener("click", () => {
    for (const { pathname } of cards) store(keyOf(pathname), null);
    show();
  });

  /** Show the ticks, and below the cards the number of chapters that were read. */
  function show() {
    const read = cards.filter(({ pathname }) => stored(keyOf(pathname)) !== null);
    for (const card of cards) {
      const tick = card.querySelector(".tick");
      if (!read.includes(card)) tick?.remove();
      else if (!tick)
        card.append(Object.assign(document.createElement("em"), { className: "tick", textContent: gettext("Read") }));
    }
    const words = gettext(
      "You have read {read} of {all} chapters: you saw their summary or answered their guesses. Only this device knows.",
    );
    const filled = words.replace("{read}", String(read.length)).replace("{all}", String(cards.length));
    note.replaceChildren(`${filled} `, forget);
    if (read.length) cards[0].closest(".gallery")?.after(note);
    else note.remove();
  }
  if (cards.length) {
    show();
    window.addEventListener("pageshow", show); // also after the button Back
    window.addEventListener("storage", show);
  }

  // A browser may refuse its store, in private windows or for files; then nothing is marked.

  /** @param {string} key */
  function stored(key) {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  }

  /** @param {string} key @param {string | null} value */
  function store(key, value) {
    try {
      if (value === null) localStorage.removeItem(key);
      else localStorage.setItem(key, value);
    } catch {
      // refused: nothing is stored
    }
  }
})();
