/**
 * Guesses on a page without a kernel: store the reader's guesses, hide the results until a guess is made, and give the
 * card its answer, which is the next `.g-truth` with the key of the guess.
 *
 * Hidden results take no room; one bar stands in their place. The switch at the top of the page, *Guess first* or *Just
 * read*, applies to the whole site. The script is loaded in the head, so that results are hidden before they are drawn.
 * Guesses and the switch are stored in this browser.
 */
(() => {
  /** @typedef {{ get(name: string): any, set(name: string, value: any): void, on(event: string, f: () => void): void }} Model */
  /** @typedef {{ el: HTMLElement, model: Model, cell: Element | null, truth: HTMLElement | null, blocks: HTMLElement[], lifted: boolean }} Guess */
  /** @typedef {{ el: HTMLElement, guesses: Guess[] }} Bar */

  /** Return a text in the language of the page (book/_ext/script_words.py). @param {string} text */
  const gettext = (text) => /** @type {any} */ (window).bookWords?.[text] ?? text;

  const MODE = "reading";
  const place = `guess ${location.pathname}`;
  const root = document.documentElement;
  const findable = "onbeforematch" in root ? "until-found" : ""; // the browser's search finds hidden blocks, where supported
  const fromSearch = /\/search\.html/.test(document.referrer);
  /** @type {Guess[]} */
  const all = [];
  const kept = recall();
  /** The guesses that hide a block. @type {Map<HTMLElement, Guess[]>} */
  const about = new Map();
  /** The bars by the first block that they stand for; guesses with the same first block share a bar. @type {Map<HTMLElement, Bar>} */
  const bars = new Map();
  const tally = document.createElement("p");
  root.dataset.reading = stored(MODE) === "read" ? "read" : "guess";

  const isOpen = (/** @type {Guess} */ { model }) => (model.get("value") ?? null) === null && !model.get("skipped");
  const hides = (/** @type {Guess} */ guess) => root.dataset.reading === "guess" && isOpen(guess) && !guess.lifted;

  document.addEventListener("guess-asked", (event) => {
    const { target: el, detail: model } = /** @type {CustomEvent} */ (event);
    if (!(el instanceof HTMLElement)) return;
    model.set("on_page", true);
    for (const [trait, value] of Object.entries(kept[model.get("key")] ?? {})) model.set(trait, value);
    /** @type {Guess} */
    const guess = { el, model, cell: el.closest(".cell"), truth: null, blocks: [], lifted: fromSearch };
    for (const trait of ["value", "skipped"]) model.on(`change:${trait}`, () => queueMicrotask(() => changed(guess)));
    el.addEventListener("explorer-saved", (event) => event.stopPropagation()); // a guess is not part of the page's address
    all.push(guess);
    if (document.readyState !== "loading") finish(guess);
    else if (hides(guess)) guess.cell?.classList.add("g-hold");
  });
  document.addEventListener("guess-drawn", () => document.readyState !== "loading" && count());
  // On the window: one after another (book/_ext/one_by_one.py) would be too late, since results are hidden here.
  window.addEventListener("DOMContentLoaded", () => {
    for (const guess of all) finish(guess);
    for (const input of modes()) {
      input.checked = input.value === root.dataset.reading;
      input.addEventListener("change", () => choose(input.value));
    }
    arrive(location.hash, true);
    count();
  });
  window.addEventListener("hashchange", () => arrive(location.hash));
  document.addEventListener("click", ({ target }) => {
    const link = target instanceof Element && target.closest("a[href^='#']");
    if (link instanceof HTMLAnchorElement) arrive(link.hash);
  });

  const modes = () => /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll(".g-mode input")]);

  /** @param {string} mode */
  function choose(mode) {
    root.dataset.reading = mode;
    store(MODE, mode);
    update();
    count();
  }

  /** @param {Guess} guess */
  function finish(guess) {
    try {
      look(guess);
      settle(guess);
    } finally {
      guess.cell?.classList.remove("g-hold"); // also after an error: nothing stays hidden
    }
  }

  /**
   * Find the blocks that give the answer away: the outputs from the question to the reveal, the outputs directly after
   * it, and the next paragraph. Explorers, other questions, cells tagged `keep-visible`, headings, boxes and paragraphs
   * with the class `so` stay visible.
   * @param {Guess} guess
   */
  function look(guess) {
    const { el, model, cell } = guess;
    const after = (/** @type {Element} */ a, /** @type {Element} */ b) => Boolean(a.compareDocumentPosition(b) & 4);
    /** @type {NodeListOf<HTMLElement>} */
    const truths = document.querySelectorAll(`.g-truth[data-guess="${model.get("key")}"]`);
    guess.truth = [...truths].find((truth) => after(el, truth)) ?? null;
    const last = guess.truth?.closest(".cell");
    if (!guess.truth || !cell || !last || last === cell) return;
    guess.truth.classList.add("g-told");
    const tells = (/** @type {HTMLElement} */ out) =>
      !out.querySelector(".guess, .explorer") &&
      !out.closest(".tag_keep-visible") &&
      out.querySelector("img, svg, table, pre, .drawing") !== null;
    /** @type {NodeListOf<HTMLElement>} */
    const outputs = document.querySelectorAll(".cell_output");
    guess.blocks = [...outputs].filter(
      (out) => after(cell, out) && !cell.contains(out) && (last.contains(out) || after(out, last)) && tells(out),
    );
    for (let next = last.nextElementSibling; next; next = next.nextElementSibling) {
      if (next.matches(".g-bar, .tag_hide-cell, script, style")) continue;
      if (next.matches("p:not(.so, .only-print)")) guess.blocks.push(/** @type {HTMLElement} */ (next));
      if (!next.matches(".cell") || next.querySelector(".guess, .explorer, .g-truth")) break;
      /** @type {NodeListOf<HTMLElement>} */
      const made = next.querySelectorAll(".cell_output");
      guess.blocks.push(...[...made].filter(tells));
    }
    for (const block of guess.blocks) {
      about.set(block, [...(about.get(block) ?? []), guess]);
      block.addEventListener("beforematch", () => lift(block)); // the browser's search has found text in it
    }
    const [first] = guess.blocks;
    if (!first) return;
    const bar = bars.get(first);
    if (bar) bar.guesses.push(guess);
    else bars.set(first, stand(first, [guess]));
  }

  /** Insert the bar that stands in the place of hidden blocks. @param {HTMLElement} first @param {Guess[]} guesses @returns {Bar} */
  function stand(first, guesses) {
    const el = document.createElement("p");
    el.className = "g-bar";
    el.hidden = true;
    el.append(
      gettext("Answer: "),
      press(gettext("guess above"), () => {
        const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
        const asks = (guesses.find(hides) ?? guesses[0]).el;
        asks.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
        const control = asks.querySelector("button, input, [tabindex]");
        if (control instanceof HTMLElement) control.focus({ preventScroll: true });
      }),
      gettext(", or "),
      press(gettext("show it"), () => {
        for (const guess of guesses.filter(isOpen)) guess.model.set("skipped", true);
        first.tabIndex = -1;
        queueMicrotask(() => first.focus({ preventScroll: true }));
      }),
    );
    first.before(el);
    return { el, guesses };
  }

  /** @param {Guess} guess */
  function settle(guess) {
    if (!guess.truth) return;
    guess.model.set("answer", isOpen(guess) ? null : JSON.parse(guess.truth.dataset.answer ?? "null"));
    update();
  }

  /** @param {Guess} guess */
  function changed(guess) {
    const { model } = guess;
    if (isOpen(guess)) delete kept[model.get("key")];
    else kept[model.get("key")] = { value: model.get("value"), skipped: model.get("skipped") };
    store(place, Object.keys(kept).length ? JSON.stringify(kept) : null);
    settle(guess);
  }

  /** Hide each block as long as one of its guesses is open, and show the others. */
  function update() {
    for (const [block, guesses] of about) {
      const [was, now] = [block.hasAttribute("hidden"), guesses.some(hides)];
      if (was === now) continue;
      block.classList.toggle("g-away", now);
      block.classList.toggle("g-fresh", was);
      if (now) block.setAttribute("hidden", findable);
      else block.removeAttribute("hidden");
      if (was) block.dispatchEvent(new CustomEvent("unfolded", { bubbles: true }));
    }
    for (const { el, guesses } of bars.values()) el.hidden = !guesses.some(hides);
  }

  /** Show a block for this visit without answering its guesses. @param {HTMLElement} block */
  function lift(block) {
    for (const guess of about.get(block) ?? []) guess.lifted = true;
    update();
  }

  /**
   * Show a hidden block that a link leads into; after a link to a section from another page, show the whole section.
   * @param {string} hash @param {boolean} fromElsewhere
   */
  function arrive(hash, fromElsewhere = false) {
    const target = hash && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!target) return;
    const section = fromElsewhere && target.matches("section section") ? target : null;
    const shown = [...about.keys()].filter((block) => block.contains(target) || section?.contains(block));
    for (const block of shown) lift(block);
    if (shown.length) queueMicrotask(() => target.scrollIntoView());
  }

  /** Write at the end of the page how often the reader was right, with a button that deletes the guesses. */
  function count() {
    const asked = all.filter(({ truth }) => truth);
    if (!asked.length) return;
    const made = asked.filter((guess) => !isOpen(guess) && !guess.model.get("skipped"));
    if (made.length === asked.length) document.dispatchEvent(new CustomEvent("guesses-answered")); // progress.js
    const right = made.filter(({ el }) => el.querySelector(".g-right"));
    const asks =
      asked.length === 1 ? gettext("This page asks for 1 guess.") : gettext("This page asks for {count} guesses.");
    const score = made.length
      ? gettext("You were right in {right} of {made}; only this device knows.")
      : gettext("You have made none; only this device knows.");
    const counts = { "{count}": asked.length, "{right}": right.length, "{made}": made.length };
    let words = `${asks} ${score} `;
    for (const [field, value] of Object.entries(counts)) words = words.replace(field, String(value));
    tally.className = "g-tally";
    tally.replaceChildren(words);
    if (asked.some((guess) => !isOpen(guess)))
      tally.append(
        press(gettext("Forget my answers"), () => {
          for (const { model } of asked) {
            model.set("value", null);
            model.set("skipped", false);
          }
        }),
      );
    if (!tally.isConnected) (all[0].el.closest("article") ?? document.body).append(tally);
  }

  /** @param {string} words @param {() => void} act */
  function press(words, act) {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", className: "g-press", textContent: words });
    made.addEventListener("click", act);
    return made;
  }

  // A browser may refuse its store, in private windows or for files; then the page forgets when it is left.

  /** @returns {Record<string, { value: any, skipped: boolean }>} */
  function recall() {
    try {
      return JSON.parse(stored(place) ?? "{}") ?? {};
    } catch {
      return {};
    }
  }

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
