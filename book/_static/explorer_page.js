/** The page of one explorer: copy a link to its present state, and the line that embeds it. */

(() => {
  /** Return a text in the language of the page (book/_ext/script_words.py). @param {string} text */
  const gettext = (text) => /** @type {any} */ (window).bookWords?.[text] ?? text;

  const { xFragment } = /** @type {{ xFragment: (card: Element) => string }} */ (/** @type {unknown} */ (window));
  const find = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (document.querySelector(selector));
  const [card, said, share] = [find("div.explorer"), find(".copied"), find(".share")];
  const line = /** @type {HTMLTextAreaElement} */ (find(".share textarea"));
  const canonical = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=canonical]"));

  /** The state as a fragment, empty where the reader has changed nothing. */
  const state = () => {
    const fragment = xFragment(card);
    return fragment.includes("&") ? fragment : "";
  };

  /** The address of this page; a page that was opened from a file has the published one, if there is one. */
  const address = () => {
    const own = location.href.split(/[?#]/)[0];
    return location.protocol === "file:" && canonical ? canonical.href : own;
  };

  /** The line that embeds the explorer in its present state, in a frame as high as the explorer is here. */
  function writeLine() {
    const frame = /** @type {HTMLIFrameElement} */ (
      new DOMParser().parseFromString(line.defaultValue, "text/html").querySelector("iframe")
    );
    frame.setAttribute("src", String(frame.getAttribute("src")) + state());
    if (card.offsetHeight) frame.height = String(Math.ceil(card.offsetHeight / 10) * 10 + 10);
    line.value = frame.outerHTML;
  }

  /** @param {string} text @param {string} done what is said afterwards */
  async function copy(text, done) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // without permission, or on a page that is not from a secure address
      const field = document.createElement("textarea");
      field.value = text;
      share.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    said.textContent = done;
  }

  find(".copy-link").addEventListener("click", () =>
    copy(
      address() + state(),
      state() ? gettext("Copied: a link to the explorer as it is set now.") : gettext("Copied: a link to this page."),
    ),
  );
  find(".copy-code").addEventListener("click", () => {
    writeLine();
    copy(line.value, gettext("Copied: the line that embeds the explorer."));
  });
  find(".share details").addEventListener("toggle", writeLine);
  document.addEventListener("explorer-saved", () => {
    said.textContent = "";
    writeLine();
  });
})();
