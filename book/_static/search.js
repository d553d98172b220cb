/**
 * Search by section, in the dialog of the search and on the page of its results.
 *
 * `search-index.js` holds an entry for each section (book/_ext/search.py). Lunr ranks them. Both scripts are loaded when
 * a reader opens the search. The arrow keys choose a result, Enter opens it; without a choice Enter shows all results.
 *
 * Chinese is written without spaces: each two neighbouring characters count as a word, so that 注意力 is found in any text
 * that contains it.
 */

(() => {
  /**
   * @typedef {{ address: string, page: string, heading: string, body: string, snippet: string, kind: string,
   *   place: string, phrases: string, words: string }} Entry
   * @typedef {{ entries: Entry[], find: (words: string) => Entry[] }} Search
   */

  const ROOT = document.documentElement.dataset.content_root || "./";
  const FIELDS = { heading: 8, phrases: 10, words: 6, page: 3, body: 1 };
  const KINDS = { chapter: 3, question: 1, page: 1.2, exercise: 0.7, library: 0.5 };
  const PLACES = { top: 1.5, section: 1, deeper: 0.6 };
  const BETWEEN = /[\s\-–_.,;:!?()[\]/'"“”’=|`*+^{}<>&]+/;
  const CHINESE = /\p{Script=Han}+/gu;
  const ONE_CHARACTER = /^\p{Script=Han}$/u;
  const CHINESE_MARKS = /[\u2014\u2026\u3000-\u303f]/g; // NFKC makes an ASCII mark of the others
  const IN_DIALOG = 8;
  const ON_PAGE = 60;

  /** Load a script once. @param {string} path @returns {Promise<void>} */
  function load(path) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `${ROOT}_static/${path}`;
      script.onload = () => resolve();
      script.onerror = () => reject(new Error(`${path} cannot be loaded`));
      document.head.append(script);
    });
  }

  /** Return a text in small letters, with plain letters for Unicode ones. @param {string} text */
  const normalised = (text) => text.replaceAll("√", " sqrt ").normalize("NFKC").toLowerCase();

  /** Return a text in the language of the page (book/_ext/script_words.py). @param {string} text */
  const gettext = (text) => /** @type {any} */ (window).bookWords?.[text] ?? text;

  const names = { question: gettext("question"), exercise: gettext("exercises"), library: gettext("library") };

  /** Replace each Chinese part of a text. @param {string} text @param {(part: string) => string[]} words */
  const withChinese = (text, words) =>
    text.replace(CHINESE_MARKS, " ").replace(CHINESE, (part) => ` ${words(part).join(" ")} `);

  /** Return each character of a Chinese text with the next one; the last is alone. @param {string} part */
  const pairs = (part) => [...part].map((one, i, all) => one + (all[i + 1] ?? ""));

  /** Return a text as it is indexed. @param {string} text */
  const indexed = (text) => withChinese(normalised(text), pairs);

  /** Return the words of what was typed; for Chinese its pairs of characters, or its only character. @param {string} text */
  const wordsOf = (text) =>
    withChinese(normalised(text), (part) => pairs(part).filter((pair, i) => i === 0 || [...pair].length === 2))
      .split(BETWEEN)
      .filter(Boolean);

  /** Index all entries with Lunr. @param {any} lunr @param {Entry[]} entries @returns {Search} */
  function makeSearch(lunr, entries) {
    const stem = (/** @type {string} */ word) => lunr.stemmer(new lunr.Token(word)).toString();
    /** Index a word as it is, for the beginning of a word that is being typed, and its stem. @param {any} token */
    function withStem(token) {
      const stemmed = stem(token.toString());
      return stemmed === token.toString() ? token : [token, token.clone(() => stemmed)];
    }
    lunr.Pipeline.registerFunction(withStem, "withStem");
    lunr.tokenizer.separator = BETWEEN;
    const index = lunr((/** @type {any} */ builder) => {
      builder.pipeline.reset();
      builder.pipeline.add(lunr.stopWordFilter, withStem);
      for (const [field, boost] of Object.entries(FIELDS)) builder.field(field, { boost });
      for (const [i, entry] of entries.entries()) {
        const { kind, place } = entry;
        const texts = Object.fromEntries(
          Object.keys(FIELDS).map((field) => [field, indexed(entry[/** @type {keyof Entry} */ (field)])]),
        );
        const ofKind = KINDS[/** @type {keyof typeof KINDS} */ (kind)];
        const ofPlace = PLACES[/** @type {keyof typeof PLACES} */ (place)];
        builder.add({ id: i, ...texts }, { boost: ofKind * ofPlace });
      }
    });
    const { REQUIRED } = lunr.Query.presence;
    const { TRAILING } = lunr.Query.wildcard;

    /** Add a word that an entry must have; a word that no entry has stands for those that differ by one letter. */
    function require(/** @type {any} */ query, /** @type {string} */ word) {
      const exact = { presence: REQUIRED, usePipeline: false };
      const known = index.query((/** @type {any} */ one) => one.term(stem(word), exact)).length > 0;
      if (ONE_CHARACTER.test(word)) query.term(word, { ...exact, wildcard: TRAILING });
      else if (known || word.length < 4) query.term(stem(word), exact);
      else query.term(word, { ...exact, editDistance: 1 });
    }

    /** Return what was typed, or one of an entry's phrases, as words with single spaces. @param {string} text */
    const asPhrase = (text) => normalised(text).split(BETWEEN).filter(Boolean).join(" ");
    const phrases = entries.map((entry) => entry.phrases.split(",").map(asPhrase));

    /** Return the entries with this phrase, those with all words, those with the last word begun, those with some. */
    function find(/** @type {string} */ text) {
      const typed = wordsOf(text);
      const words = typed.filter((word) => lunr.stopWordFilter(new lunr.Token(word)));
      const named = [...phrases.keys()].filter((i) => phrases[i].includes(asPhrase(text)));
      const last = words.at(-1);
      if (last === undefined) return named.map((i) => entries[i]);
      const begun = index.query((/** @type {any} */ query) => {
        for (const word of words.slice(0, -1)) require(query, word);
        query.term(last, { presence: REQUIRED, usePipeline: false, wildcard: TRAILING });
      });
      const all = index.query((/** @type {any} */ query) => {
        for (const word of words) require(query, word);
      });
      const some = index.query((/** @type {any} */ query) => {
        for (const word of words) query.term(stem(word), { usePipeline: false });
      });
      const isWhole = index.query((/** @type {any} */ query) =>
        query.term(stem(last), { presence: REQUIRED, usePipeline: false }),
      ).length;
      const found = isWhole ? [...all, ...begun, ...some] : [...begun, ...all, ...some];
      return [...new Set([...named, ...found.map(({ ref }) => Number(ref))])].map((i) => entries[i]);
    }
    return { entries, find };
  }

  /** @type {Promise<Search> | null} */
  let loading = null;
  function search() {
    const w = /** @type {any} */ (window);
    loading ??= Promise.all([load("vendor/lunr/lunr.js"), load("search-index.js")]).then(() =>
      makeSearch(w.lunr, w.SEARCH_INDEX),
    );
    return loading;
  }

  /** Return a text with the words that were typed marked. @param {string} text @param {string[]} words */
  function marked(text, words) {
    const part = document.createElement("span");
    const escaped = words.map((word) => word.replace(/[^\p{L}\p{N}]/gu, "\\$&"));
    const pattern = escaped.map((word) => (/^\p{Script=Han}/u.test(word) ? word : `\\b${word}`)).join("|");
    const pieces = pattern ? text.split(new RegExp(`(${pattern})`, "i")) : [text];
    for (const [i, piece] of pieces.entries()) {
      if (i % 2 === 0) part.append(piece);
      else part.append(Object.assign(document.createElement("mark"), { textContent: piece }));
    }
    return part;
  }

  /** Return a result as an item of the list. @param {Entry} entry @param {string[]} words @param {string} id */
  function item(entry, words, id) {
    const link = document.createElement("a");
    link.href = ROOT + entry.address;
    link.tabIndex = -1;
    const heading = Object.assign(marked(entry.heading, words), { className: "search-heading" });
    const kind = names[/** @type {keyof typeof names} */ (entry.kind)];
    const page = document.createElement("span");
    page.className = "search-page";
    page.textContent = [entry.page === entry.heading ? "" : entry.page, kind].filter(Boolean).join(" · ");
    const snippet = Object.assign(marked(entry.snippet, words), { className: "search-snippet" });
    link.append(heading, page, snippet);
    const li = document.createElement("li");
    li.id = id;
    li.setAttribute("role", "option");
    li.append(link);
    return li;
  }

  /**
   * Show results under a field while a reader types.
   * @param {HTMLInputElement} input @param {HTMLElement} place @param {number} most
   */
  function connect(input, place, most) {
    const name = `search-${most}`;
    const list = document.createElement("ul");
    list.id = name;
    list.className = "search-found";
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", gettext("Results"));
    const note = Object.assign(document.createElement("p"), { className: "search-note" });
    note.setAttribute("role", "status");
    place.append(list, note);
    input.setAttribute("role", "combobox");
    input.setAttribute("aria-controls", name);
    input.setAttribute("aria-expanded", "false");
    let chosen = -1;

    /** @param {number} next */
    function choose(next) {
      chosen = next;
      for (const [i, one] of [...list.children].entries()) one.setAttribute("aria-selected", String(i === chosen));
      if (chosen < 0) input.removeAttribute("aria-activedescendant");
      else input.setAttribute("aria-activedescendant", list.children[chosen].id);
      list.children[chosen]?.scrollIntoView({ block: "nearest" });
    }

    async function show() {
      const typed = input.value;
      if (!typed.trim()) {
        list.replaceChildren();
        note.textContent = "";
        return;
      }
      const found = (await search()).find(typed);
      if (typed !== input.value) return;
      const whole = normalised(typed).match(CHINESE) ?? []; // marked as a whole where a text contains it
      const words = [...whole, ...wordsOf(typed).filter((word) => word.length > 1)];
      list.replaceChildren(...found.slice(0, most).map((entry, i) => item(entry, words, `${name}-${i}`)));
      input.setAttribute("aria-expanded", String(found.length > 0));
      const more = gettext("{count} results. Enter shows more.").replace("{count}", String(found.length));
      const none = gettext("Nothing was found. Try another word, or fewer words.");
      note.textContent = found.length > most ? more : found.length ? "" : none;
      choose(-1);
    }

    input.addEventListener("focus", () => void search());
    input.addEventListener("input", () => void show());
    input.addEventListener("keydown", (event) => {
      const n = list.children.length;
      if ((event.key === "ArrowDown" || event.key === "ArrowUp") && n) {
        event.preventDefault();
        const step = event.key === "ArrowDown" ? 1 : -1;
        choose(chosen < 0 && step < 0 ? n - 1 : (chosen + step + n) % n);
      } else if (event.key === "Enter" && chosen >= 0) {
        event.preventDefault();
        list.children[chosen].querySelector("a")?.click();
      }
    });
    list.addEventListener("click", () => input.closest("dialog")?.close()); // the target may be on this page
    return show;
  }

  const dialog = document.querySelector("#pst-search-dialog");
  const field = dialog?.querySelector("input");
  if (dialog instanceof HTMLElement && field instanceof HTMLInputElement) connect(field, dialog, IN_DIALOG);

  const results = document.getElementById("search-results");
  const asked = results?.parentElement?.querySelector("input");
  if (results && asked instanceof HTMLInputElement) {
    const show = connect(asked, results, ON_PAGE);
    asked.value = new URLSearchParams(location.search).get("q") ?? "";
    asked.focus();
    void show();
    asked.addEventListener("input", () => history.replaceState(null, "", `?q=${encodeURIComponent(asked.value)}`));
  }
})();
