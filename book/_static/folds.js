/** Open the folded section that a link leads into, and all folded sections in print. A fold itself needs no script. */

(() => {
  const folds = () => /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll("details.fold")]);

  /** Open every fold around an element, and the fold of a section if it is the target. @param {Element} target */
  function open(target) {
    const around = folds().filter((fold) => fold.contains(target) || fold.parentElement === target);
    const closed = around.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
    return closed.length > 0;
  }

  /** Return the element with the id in the address. Explorers are found by book.js. @param {string} hash */
  function named(hash) {
    const name = decodeURIComponent(hash.slice(1));
    return name ? document.getElementById(name) : null;
  }

  /** Open and scroll to the target. @param {string} hash @param {boolean} again scroll even if no fold was closed */
  function go(hash, again = false) {
    const target = named(hash);
    if (target && (open(target) || again)) target.scrollIntoView();
  }

  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("a[href*='#']");
    if (!(link instanceof HTMLAnchorElement) || link.origin + link.pathname !== location.origin + location.pathname)
      return;
    if (link.closest("summary")) event.stopPropagation(); // a click on the permalink of a heading must not close the fold
    queueMicrotask(() => go(link.hash));
  });
  window.addEventListener("hashchange", () => go(location.hash));
  document.addEventListener("open-around", ({ target }) => target instanceof Element && open(target));

  // Formulas can be measured once their fold is open: book.js fits wide ones to a phone.
  document.addEventListener(
    "toggle",
    ({ target }) => target instanceof Element && target.dispatchEvent(new CustomEvent("unfolded", { bubbles: true })),
    true,
  );

  /** @type {HTMLDetailsElement[]} */
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = folds().filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const fold of closed) fold.open = false;
  });

  // Typesetting formulas moves the target: scroll again afterwards, unless the reader has scrolled meanwhile.
  if (location.hash && named(location.hash)) {
    go(location.hash);
    let moved = false;
    for (const kind of ["wheel", "touchmove", "keydown"])
      window.addEventListener(kind, () => (moved = true), { once: true, passive: true });
    window.addEventListener("load", async () => {
      const { MathJax } = /** @type {{ MathJax?: { startup?: { promise: Promise<void> } } }} */ (
        /** @type {unknown} */ (window)
      );
      await MathJax?.startup?.promise;
      if (!moved) go(location.hash, true);
    });
  }
})();
