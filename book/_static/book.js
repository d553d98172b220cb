/** Additions to the theme: menu buttons, lazy loading of models, explorers' state in the address, printing. */

(() => {
  /** @typedef {import("../../lessons_lib/page/widgets/static/page_model.js").Explorer} Explorer */
  /** @typedef {import("../../lessons_lib/page/widgets/static/page_model.js").Rule} Rule */
  /** @typedef {HTMLElement & { explorer?: Explorer }} Framed an element with an explorer, set by lessons_lib/page/widgets/static/page_model.js */

  // The theme handles only the first button of each kind, which is in a bar that the book hides.
  for (const kind of ["primary-toggle", "secondary-toggle"]) {
    const [first, ...shown] = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`.${kind}`));
    for (const button of shown) {
      button.removeAttribute("data-bs-toggle"); // the title suffices: the theme's tooltip stays open after a tap
      button.addEventListener("click", (event) => {
        event.stopPropagation();
        first.click();
      });
    }
  }

  // On a phone the buttons that start the book are below the switch of the hero's head: in the page, too, so that Tab
  // reaches them in the order in which they are seen.
  const [start, act] = [document.querySelector(".start"), document.querySelector(".hero .h-act")];
  if (start && act) {
    const home = document.createComment("the buttons that start the book");
    start.before(home);
    const phone = matchMedia("(max-width: 576px)");
    const place = () => (phone.matches ? act : home).after(start);
    place();
    phone.addEventListener("change", place);
  }

  /**
   * The address `#explore=scaling&width=1024` has the values that the reader changed in the page's first scaling
   * explorer; `#explore=scaling.2&...` those in the second.
   */
  const cards = () =>
    /** @type {Framed[]} */ ([...document.querySelectorAll("div.explorer")]).filter((card) => card.explorer);
  const nameOf = (/** @type {Framed} */ card) => {
    const kind = card.explorer?.name;
    const place = cards()
      .filter((one) => one.explorer?.name === kind)
      .indexOf(card);
    return place ? `${kind}.${place + 1}` : String(kind);
  };
  /** The element of the explorer that an address names, even if its scripts wait. @param {URLSearchParams} wanted */
  const elementOf = (wanted) => {
    const [kind, place = 1] = (wanted.get("explore") ?? "").split(".");
    if (!kind) return undefined;
    /** @type {NodeListOf<Framed>} */
    const alike = document.querySelectorAll(`div.explorer.x-${CSS.escape(kind)}`);
    return alike[Number(place) - 1];
  };

  // Large files are fetched when the reader scrolls near; scripts that need one are inactive and carry its address
  // (book/_ext/lazy_weights.py).
  const inactive = () => /** @type {HTMLScriptElement[]} */ ([...document.querySelectorAll("script[data-later]")]);
  /** @type {Map<string, Promise<unknown>>} */
  const fetched = new Map();
  const load = (/** @type {string} */ address) => {
    const pending = fetched.get(address);
    if (pending) return pending;
    const script = document.createElement("script");
    script.src = address;
    const done = new Promise((end) => {
      script.onload = () => end(true);
      script.onerror = () => end(fetched.delete(address) && false); // so that it can be tried again
    });
    fetched.set(address, done);
    document.head.append(script);
    return done;
  };

  // Return a part that an explorer requests itself (lessons_lib/page/widgets/assemble.py), or undefined if that fails.
  const parts = /** @type {{ xParts?: Record<string, unknown> }} */ (/** @type {unknown} */ (window));
  const xLater = async (/** @type {string} */ key, /** @type {string | undefined} */ address) => {
    if (address) await load(address);
    return parts.xParts?.[key];
  };
  Object.assign(window, { xLater });

  /**
   * Fetch the files that an inactive script needs, then run all scripts with the same needs, in their order.
   * @param {HTMLScriptElement} script
   */
  async function activate({ dataset: { later = "" } }) {
    for (const address of later.split(" ")) if (!(await load(address))) return;
    for (const script of inactive().filter(({ dataset }) => dataset.later === later)) {
      const active = document.createElement("script");
      active.textContent = script.textContent;
      script.replaceWith(active);
    }
  }

  /** Activate the scripts of explorers that come into the window, enlarged by a margin. @param {string} rootMargin */
  function watch(rootMargin) {
    const near = new IntersectionObserver(
      (seen) => {
        for (const { target, isIntersecting } of seen)
          if (isIntersecting) {
            near.unobserve(target);
            for (const script of inactive()) if (target.contains(script)) activate(script);
          }
      },
      { rootMargin },
    );
    for (const script of inactive()) if (script.parentElement) near.observe(script.parentElement);
  }
  // What shows only its first lines at the lower edge of the window waits until the reader scrolls, clicks or types.
  watch("0px 0px -25% 0px");
  for (const kind of ["scroll", "pointerdown", "keydown"])
    window.addEventListener(kind, () => watch("200px"), { once: true, passive: true });

  /** The fragment with the values of an explorer that the reader changed. @param {Framed} card */
  function fragmentOf(card) {
    if (!card.explorer) return "";
    const { start, model } = card.explorer;
    const short = (/** @type {string} */ _, /** @type {unknown} */ x) =>
      typeof x === "number" && !Number.isInteger(x) ? Number(x.toPrecision(6)) : x;
    const written = new URLSearchParams({ explore: nameOf(card) });
    for (const name of Object.keys(start)) {
      const [now, then] = [model.get(name), start[name]].map((value) => JSON.stringify(value, short));
      if (now !== then) written.set(name, typeof start[name] === "string" ? String(model.get(name)) : now);
    }
    return `#${written}`;
  }

  Object.assign(window, { xFragment: fragmentOf }); // for explorer_page.js

  /** Write a fragment into the page's address. @param {string} hash @param {"replaceState" | "pushState"} how */
  function writeAddress(hash, how = "replaceState") {
    try {
      history[how](history.state, "", hash);
    } catch {
      // the address stays as it is where a page may not change it
    }
  }

  /**
   * Set the explorer that a fragment names: traits that it does not name get their first values, except the reader's
   * guess. Return the explorer's element, or undefined if there is none.
   * @param {string} hash
   */
  async function setExplorer(hash) {
    const wanted = new URLSearchParams(hash.slice(1));
    const card = elementOf(wanted);
    if (!card) return undefined;
    if (!card.explorer) await Promise.all(inactive().map((script) => card.contains(script) && activate(script)));
    if (!card.explorer) return undefined;
    const { start, rules, model } = card.explorer;
    const before = Object.fromEntries(Object.keys(start).map((name) => [name, model.get(name)]));
    try {
      for (const name of Object.keys(start)) {
        const text = wanted.get(name);
        const given = typeof start[name] === "string" ? text : parsed(text ?? "");
        const value = text === null ? undefined : validated(given, rules[name], start[name]);
        if (value !== undefined) model.set(name, value);
        else if (name !== "guess") model.set(name, start[name]);
      }
      if (/NaN|Infinity|undefined/.test(String(card.querySelector(".x-body")?.innerHTML))) throw new Error("no figure");
    } catch {
      // values that cannot be drawn: restore the previous ones
      for (const name of Object.keys(before))
        try {
          model.set(name, before[name]);
        } catch {
          // fails until all values are restored; the last one draws the figure again
        }
    }
    card.dispatchEvent(new CustomEvent("open-around", { bubbles: true })); // folds.js
    return card;
  }

  /** Set the explorer that the page's address names, and scroll to it. */
  async function readAddress() {
    (await setExplorer(location.hash))?.scrollIntoView();
  }

  /** Whether at least half of an element, or of the window, shows the element. @param {Element} element */
  function inView(element) {
    const { top, bottom, height } = element.getBoundingClientRect();
    return Math.min(bottom, innerHeight) - Math.max(top, 0) >= Math.min(height, innerHeight) / 2;
  }

  // A link in the text that sets an explorer: the page stays where it is if the reader sees the explorer; otherwise it
  // scrolls there, and the browser's back button returns to the link.
  document.addEventListener("click", async (event) => {
    const link = event.target instanceof Element && event.target.closest('a[href^="#explore="]');
    if (!(link instanceof HTMLAnchorElement) || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey)
      return;
    event.preventDefault();
    const card = await setExplorer(link.hash);
    if (!card) return;
    const seen = inView(card);
    writeAddress(link.hash, seen ? "replaceState" : "pushState");
    if (!seen) card.scrollIntoView();
  });

  /** Parse JSON; return undefined if it is invalid. @param {string} text */
  function parsed(text) {
    try {
      return /** @type {unknown} */ (JSON.parse(text));
    } catch {
      return undefined;
    }
  }

  /**
   * Return a value from the address if its trait allows it, or undefined. A number is clipped to its bounds; a list of
   * numbers must have as many items as at the start.
   * @param {unknown} value @param {Rule | null | undefined} rule @param {unknown} start
   * @returns {unknown}
   */
  function validated(value, rule, start) {
    if (!rule) return undefined;
    if (typeof rule === "string") return typeof value === rule ? value : undefined;
    if (Array.isArray(rule)) {
      const [least, most, whole] = rule;
      if (typeof value !== "number" || (whole && !Number.isInteger(value))) return undefined;
      return Math.min(most ?? 1e9, Math.max(least ?? -1e9, value));
    }
    if ("options" in rule) return rule.options.includes(value) ? value : undefined;
    if (!Array.isArray(value) || value.length > rule.most) return undefined;
    const given = Array.isArray(start) && start.length && typeof start[0] !== "string" ? start : undefined;
    if (value.length < rule.least || (given && value.length !== given.length)) return undefined;
    const all = value.map((one, i) => validated(one, rule.each, given?.[i]));
    return all.includes(undefined) ? undefined : all;
  }

  /** @type {Map<Framed, ReturnType<typeof setTimeout>>} */
  const waiting = new Map();
  document.addEventListener("explorer-saved", ({ target }) => {
    const card = /** @type {Framed} */ (target);
    clearTimeout(waiting.get(card));
    waiting.set(
      card,
      setTimeout(() => writeAddress(fragmentOf(card)), 300),
    );
  });
  window.addEventListener("hashchange", readAddress);
  readAddress();

  // On a phone, reduce the font size of formulas that are too wide, but not below what is legible.
  const fitFormulas = () => {
    if (window.innerWidth > 576) return;
    const formulas = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("mjx-container[display]")]);
    const widths = formulas.map((one) => [
      one.clientWidth,
      one.scrollWidth,
      parseFloat(getComputedStyle(one).fontSize),
    ]);
    formulas.forEach((one, i) => {
      const [room, wide, size] = widths[i];
      if (wide > room) one.style.fontSize = `${Math.max(0.65, (0.99 * room) / wide) * size}px`;
    });
  };
  window.addEventListener("load", async () => {
    const { MathJax } = /** @type {{ MathJax?: { startup?: { promise: Promise<void> } } }} */ (
      /** @type {unknown} */ (window)
    );
    await MathJax?.startup?.promise;
    fitFormulas();
    document.addEventListener("unfolded", fitFormulas); // folds.js, guesses.js
  });

  // A page in the dark theme is printed in the light theme.
  const root = document.documentElement;
  /** @type {string | undefined} */
  let theme;
  const print = (/** @type {boolean} */ printing) => {
    if (printing && root.dataset.theme === "dark") [theme, root.dataset.theme] = [root.dataset.theme, "light"];
    else if (!printing && theme) [root.dataset.theme, theme] = [theme, undefined];
  };
  window.addEventListener("beforeprint", () => {
    for (const figure of document.images) figure.loading = "eager";
    print(true);
  });
  window.addEventListener("afterprint", () => print(false));
  window.matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
})();
