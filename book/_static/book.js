/** What the book adds to the theme: menus that open, explorers whose state is in the address, and paper that is white. */

(() => {
  /** @typedef {HTMLElement & { explorer?: Explorer }} Framed an element that lessons_lib/widgets/static/host.js filled */

  // The theme listens to the first button of each kind, in a bar that the book does not show.
  for (const kind of ["primary-toggle", "secondary-toggle"]) {
    const [first, ...shown] = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`.${kind}`));
    for (const button of shown) {
      button.removeAttribute("data-bs-toggle"); // a title is enough: the theme's stays over other buttons after a tap
      button.addEventListener("click", (event) => {
        event.stopPropagation();
        first.click();
      });
    }
  }

  /**
   * `#explore=scaling&width=1024` is the first scaling explorer of the page as far as the reader changed it;
   * `#explore=scaling.2&...` the second.
   */
  const cards = () =>
    /** @type {Framed[]} */ ([...document.querySelectorAll("div.explorer")]).filter((card) => card.explorer);
  const asked = () => new URLSearchParams(location.hash.slice(1));
  const nameOf = (/** @type {Framed} */ card) => {
    const kind = card.explorer?.name;
    const place = cards()
      .filter((one) => one.explorer?.name === kind)
      .indexOf(card);
    return place ? `${kind}.${place + 1}` : String(kind);
  };

  // What is heavy is fetched when the reader comes near; the scripts that wait for it name its address (_ext/later.py).
  const asleep = () => /** @type {HTMLScriptElement[]} */ ([...document.querySelectorAll("script[data-later]")]);
  /** @type {Map<string, Promise<unknown>>} */
  const fetched = new Map();
  const brought = (/** @type {string} */ address) => {
    const known = fetched.get(address);
    if (known) return known;
    const script = document.createElement("script");
    script.src = address;
    const done = new Promise((end) => {
      script.onload = () => end(true);
      script.onerror = () => end(fetched.delete(address) && false); // and may be tried again
    });
    fetched.set(address, done);
    document.head.append(script);
    return done;
  };

  // What an explorer asks for by itself (lessons_lib/widgets/assemble.py): nothing, where it cannot be fetched.
  const parts = /** @type {{ xParts?: Record<string, unknown> }} */ (/** @type {unknown} */ (window));
  const xLater = async (/** @type {string} */ key, /** @type {string | undefined} */ address) => {
    if (address) await brought(address);
    return parts.xParts?.[key];
  };
  Object.assign(window, { xLater });

  /** Fetch what a script needs, then run all that needed the same, in their order. @param {HTMLScriptElement} sleeper */
  async function wake({ dataset: { later = "" } }) {
    for (const address of later.split(" ")) if (!(await brought(address))) return;
    for (const script of asleep().filter(({ dataset }) => dataset.later === later)) {
      const awake = document.createElement("script");
      awake.textContent = script.textContent;
      script.replaceWith(awake);
    }
  }

  const near = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen)
        if (isIntersecting) {
          near.unobserve(target);
          for (const script of asleep()) if (target.contains(script)) wake(script);
        }
    },
    { rootMargin: "1000px" },
  );
  for (const script of asleep()) if (script.parentElement) near.observe(script.parentElement);

  /** @param {Framed} card */
  function intoAddress(card) {
    if (!card.explorer) return;
    const { start, model } = card.explorer;
    const short = (/** @type {string} */ _, /** @type {unknown} */ x) =>
      typeof x === "number" && !Number.isInteger(x) ? Number(x.toPrecision(6)) : x;
    const written = new URLSearchParams({ explore: nameOf(card) });
    for (const name of Object.keys(start)) {
      const [now, then] = [model.get(name), start[name]].map((value) => JSON.stringify(value, short));
      if (now !== then) written.set(name, typeof start[name] === "string" ? String(model.get(name)) : now);
    }
    try {
      history.replaceState(history.state, "", `#${written}`);
    } catch {
      // where a page may not change its address, it keeps it
    }
  }

  async function fromAddress() {
    const wanted = asked();
    const named = () => cards().find((one) => nameOf(one) === wanted.get("explore"));
    if (wanted.has("explore") && !named()) await Promise.all(asleep().map(wake));
    const card = named();
    if (!card?.explorer) return;
    const { start, rules, model } = card.explorer;
    const before = Object.fromEntries(Object.keys(start).map((name) => [name, model.get(name)]));
    try {
      for (const name of Object.keys(start)) {
        const text = wanted.get(name);
        if (text === null) continue;
        const value = inside(typeof start[name] === "string" ? text : parsed(text), rules[name], start[name]);
        if (value !== undefined) model.set(name, value);
      }
      if (/NaN|Infinity|undefined/.test(String(card.querySelector(".x-body")?.innerHTML))) throw new Error("no figure");
    } catch {
      // what nobody can draw
      for (const name of Object.keys(before))
        try {
          model.set(name, before[name]);
        } catch {
          // what is not back yet will draw it again
        }
    }
    card.scrollIntoView();
  }

  /** @param {string} text */
  function parsed(text) {
    try {
      return /** @type {unknown} */ (JSON.parse(text));
    } catch {
      return undefined;
    }
  }

  /**
   * A value from the address as the trait may have it: a number within its bounds, numbers as many as at the start;
   * nothing where it cannot be.
   * @param {unknown} value @param {Rule | null | undefined} rule @param {unknown} start
   * @returns {unknown}
   */
  function inside(value, rule, start) {
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
    const all = value.map((one, i) => inside(one, rule.each, given?.[i]));
    return all.includes(undefined) ? undefined : all;
  }

  /** @type {Map<Framed, ReturnType<typeof setTimeout>>} */
  const waiting = new Map();
  document.addEventListener("explorer-saved", ({ target }) => {
    const card = /** @type {Framed} */ (target);
    clearTimeout(waiting.get(card));
    waiting.set(
      card,
      setTimeout(() => intoAddress(card), 300),
    );
  });
  window.addEventListener("hashchange", fromAddress);
  fromAddress();

  // On a phone a formula that is a little too wide is set smaller, until it fits or would be hard to read.
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
      if (wide > room) one.style.fontSize = `${Math.max(0.7, (0.99 * room) / wide) * size}px`;
    });
  };
  window.addEventListener("load", async () => {
    const { MathJax } = /** @type {{ MathJax?: { startup?: { promise: Promise<void> } } }} */ (
      /** @type {unknown} */ (window)
    );
    await MathJax?.startup?.promise;
    fitFormulas();
  });

  // Paper is white: a page in the dark theme is printed in the light one.
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
