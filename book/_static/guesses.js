/**
 * What a rendered page does in the place of a kernel: it remembers what the reader said, covers what gives an answer
 * away, and hands it over. A guess finds what it asks about by reading on: the next `.g-truth` with its key.
 *
 * The script stands in the head of pages with guesses, so that nothing shows before it is covered. What is answered
 * stays in this browser.
 */
(() => {
  /** @typedef {{ get(name: string): any, set(name: string, value: any): void, on(event: string, f: () => void): void }} Model */
  /** @typedef {{ el: HTMLElement, model: Model, cell: Element | null, truth: HTMLElement | null, blocks: HTMLElement[] }} Guess */

  const place = `guess ${location.pathname}`;
  /** @type {Guess[]} */
  const all = [];
  const kept = recall();
  /** The open guesses about a block, and whether the block is the first that they cover. @type {Map<HTMLElement, Map<Guess, boolean>>} */
  const about = new Map();
  const tally = document.createElement("p");

  const isOpen = (/** @type {Guess} */ { model }) => (model.get("value") ?? null) === null && !model.get("skipped");

  document.addEventListener("guess-asked", (event) => {
    const { target: el, detail: model } = /** @type {CustomEvent} */ (event);
    if (!(el instanceof HTMLElement)) return;
    model.set("on_page", true);
    for (const [trait, value] of Object.entries(kept[model.get("key")] ?? {})) model.set(trait, value);
    /** @type {Guess} */
    const guess = { el, model, cell: el.closest(".cell"), truth: null, blocks: [] };
    for (const trait of ["value", "skipped"]) model.on(`change:${trait}`, () => queueMicrotask(() => changed(guess)));
    el.addEventListener("explorer-saved", (event) => event.stopPropagation()); // it is not for the address
    all.push(guess);
    if (document.readyState !== "loading") finish(guess);
    else if (isOpen(guess)) guess.cell?.classList.add("g-hold");
  });
  document.addEventListener("guess-drawn", () => document.readyState !== "loading" && count());
  document.addEventListener("DOMContentLoaded", () => {
    for (const guess of all) finish(guess);
    count();
  });

  /** @param {Guess} guess */
  function finish(guess) {
    try {
      look(guess);
      settle(guess);
    } finally {
      guess.cell?.classList.remove("g-hold"); // whatever happened: nothing stays hidden
    }
  }

  /**
   * Which outputs give the answer away: those from the question to the reveal, those right behind it, and the words that
   * follow. What the reader moves stays, for it shows nothing before it is moved. Folded cells between a reveal and its
   * words are passed over.
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
    /** @type {NodeListOf<HTMLElement>} */
    const outputs = document.querySelectorAll(".cell_output");
    const between = [...outputs].filter(
      (out) =>
        after(cell, out) &&
        !cell.contains(out) &&
        (last.contains(out) || after(out, last)) &&
        !out.querySelector(".guess, .explorer"),
    );
    const shown = [];
    const told = [];
    for (let next = last.nextElementSibling; next; next = next.nextElementSibling) {
      if (next.matches(".tag_hide-cell")) continue;
      if (next.matches(".cell") && !told.length && !next.querySelector(".guess, .explorer, .g-truth")) {
        /** @type {NodeListOf<HTMLElement>} */
        const made = next.querySelectorAll(".cell_output");
        shown.push(...made);
        continue;
      }
      if (next.matches(".cell, section, h1, h2, h3, h4, hr, .only-print")) break;
      if (next instanceof HTMLElement && !next.matches("script, style")) told.push(next);
    }
    guess.blocks = [...between, ...shown, ...told];
  }

  /** @param {Guess} guess */
  function settle(guess) {
    if (!guess.truth) return;
    const open = isOpen(guess);
    guess.model.set("answer", open ? null : JSON.parse(guess.truth.dataset.answer ?? "null"));
    guess.blocks.forEach((block, i) => cover(block, guess, open, i === 0));
  }

  /** @param {Guess} guess */
  function changed(guess) {
    const { model } = guess;
    if (isOpen(guess)) delete kept[model.get("key")];
    else kept[model.get("key")] = { value: model.get("value"), skipped: model.get("skipped") };
    remember();
    settle(guess);
  }

  /**
   * A block is covered as long as one guess about it is open.
   * @param {HTMLElement} block @param {Guess} guess @param {boolean} open @param {boolean} first
   */
  function cover(block, guess, open, first) {
    const owners = about.get(block) ?? new Map();
    about.set(block, owners);
    if (open) owners.set(guess, first);
    else owners.delete(guess);
    const was = block.classList.contains("g-covered");
    const now = owners.size > 0;
    block.classList.toggle("g-covered", now);
    block.classList.toggle("g-fresh", was && !now);
    block.querySelector(":scope > .g-veil")?.remove();
    const output = block.classList.contains("cell_output");
    for (const child of output ? block.children : [block]) /** @type {HTMLElement} */ (child).inert = now;
    if (!now || !output) return;
    const veil = document.createElement("div");
    veil.className = "g-veil";
    const leading = [...owners].find(([, leads]) => leads)?.[0];
    if (leading) veil.append(...ways(block, leading));
    block.append(veil);
  }

  /** What one can do about a cover: go to the question, or do without. @param {HTMLElement} block @param {Guess} guess */
  function ways(block, { el }) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    return [
      press("Guess first ↑", () => {
        el.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
        const first = el.querySelector("button, input, [tabindex]");
        if (first instanceof HTMLElement) first.focus({ preventScroll: true });
      }),
      press("Show me without guessing", () => {
        for (const guess of about.get(block)?.keys() ?? []) guess.model.set("skipped", true);
        block.tabIndex = -1;
        queueMicrotask(() => block.focus({ preventScroll: true }));
      }),
    ];
  }

  /** At the end of the page: how often the reader was right, and a way to begin afresh. */
  function count() {
    const asked = all.filter(({ truth }) => truth);
    if (!asked.length) return;
    const open = asked.filter(isOpen);
    const made = asked.filter((guess) => !isOpen(guess) && !guess.model.get("skipped"));
    const right = made.filter(({ el }) => el.querySelector(".g-right"));
    const score = made.length ? `You were right in ${right.length} of ${made.length}` : "You have made none";
    const words = `This page asks ${asked.length} ${asked.length === 1 ? "guess" : "guesses"}. ${score}; only this device knows. `;
    tally.className = "g-tally";
    tally.replaceChildren(words);
    if (open.length)
      tally.append(
        press("Show everything", () => open.forEach(({ model }) => model.set("skipped", true))),
        " ",
      );
    if (open.length < asked.length)
      tally.append(
        press("Forget my answers", () => {
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
      return JSON.parse(localStorage.getItem(place) ?? "{}") ?? {};
    } catch {
      return {};
    }
  }

  function remember() {
    try {
      if (Object.keys(kept).length) localStorage.setItem(place, JSON.stringify(kept));
      else localStorage.removeItem(place);
    } catch {
      // it forgets
    }
  }
})();
