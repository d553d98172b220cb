/** Questions people ask: the link below an answer is copied instead of followed, where the browser allows it. */

(() => {
  /** Return a text in the language of the page (book/_ext/script_words.py). @param {string} text */
  const gettext = (text) => /** @type {any} */ (window).bookWords?.[text] ?? text;

  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("a.question-link")))
    link.addEventListener("click", async (event) => {
      if (!navigator.clipboard || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const words = link.textContent;
      try {
        await navigator.clipboard.writeText(link.href);
        link.textContent = gettext("Link copied");
        setTimeout(() => (link.textContent = words), 2000);
      } catch {
        location.href = link.href;
      }
    });
})();
