/** The hero of the first page: a trained model on a sentence, its attention weights as arcs, and the next word. */

import { HEADS, agreement, run } from "./heads.math.js";
import { MODEL } from "./heads_model.js";
import { LONGEST, arcs, chain, likeliest, onlyNoun, pivot } from "./hero.math.js";
import { html, keepKeys, svg } from "./kit.js";
import { learn, say, sayWith } from "./words.js";

/**
 * @typedef {{ words: string, query: number, off: string[], sentences: string[] }} Traits
 * @typedef {import("./hero.math.js").Arc} Arc
 */

const VERBS = MODEL.verbs.split(" ");
const PACE = 750; // milliseconds for each word of the animation

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render({ model, el }) {
  learn(model);
  const words = () => model.get("words").split(" ");
  const last = () => Math.min(model.get("query"), words().length - 1);
  let reading = -1; // the current word of the animation, -1 at rest
  const query = () => (reading < 0 ? last() : reading);
  let now = run(words(), model.get("off"));
  let key = "1.1"; // the head that the large button ablates, for this sentence and this query:
  let asked = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {Partial<Traits>} values */
  const set = (values) => {
    for (const [name, value] of Object.entries(values)) model.set(/** @type {keyof Traits} */ (name), value);
    model.save_changes();
  };
  const others = (/** @type {string} */ head) => model.get("off").filter((one) => one !== head);

  const stage = sentence((i) => set({ query: i }));
  const benches = [2, 1].map((layer) =>
    bench(layer, stage.only, (head) =>
      set({ off: model.get("off").includes(head) ? others(head) : [...others(head), head].sort() }),
    ),
  );
  const next = expected((word) =>
    set({ words: [...words().slice(0, query() + 1), word].join(" "), query: query() + 1 }),
  );
  const numbers = agreementBars();
  const told = html("p", { class: "h-told", "aria-live": "polite" });
  const cut = button("h-cut", "", () => set({ off: model.get("off").length ? [] : [key] }));
  const another = button("h-quiet", say("Another sentence"), () => {
    const sentences = model.get("sentences");
    const other = sentences[(sentences.indexOf(model.get("words")) + 1) % sentences.length];
    set({ off: [], words: other, query: other.split(" ").length - 1 });
  });
  const again = button("h-quiet", say("Play"), () => play());
  const caption = formula();
  const body = html(
    "div",
    { class: "h-body" },
    html("div", { class: "h-figure" }, benches[0].place, stage.place, benches[1].place),
    html("div", { class: "h-act" }, told, numbers.place, cut, html("div", { class: "h-buttons" }, another, again)),
    next.place,
    html("div", { class: "h-caption" }, caption.place, stage.way, caption.said),
  );
  const leaveKeys = keepKeys(body);
  el.classList.add("hero");
  el.append(body);

  /** This takes eight runs of the model, so it waits until the figure is visible and caches the result. */
  function findKey() {
    const question = `${model.get("words")} ${last()}`;
    if (question !== asked && reading !== 1) [asked, key] = [question, pivot(words(), last()) ?? key];
    return key;
  }

  function draw() {
    const [all, q, off] = [words(), query(), model.get("off")];
    const p = now.next[q];
    stage.draw(all, q, arcs(now.weights, q, off), likeliest(p, 1)[0].word);
    for (const { draw } of benches) draw(off);
    next.draw(all[q], p, q + 1 < LONGEST);
    numbers.draw(all.slice(0, q + 1), p);
    caption.draw(all[q]);
    cut.textContent = off.length ? say("All heads on") : say("Switch off head {head}", { head: findKey() });
    if (reading < 0) told.replaceChildren(...verdict(all.slice(0, q + 1), p, off));
  }

  /** Advance the animation by one word, up to the query. */
  function step() {
    reading += 1;
    if (reading >= last()) return rest();
    draw();
    timer = setTimeout(step, PACE);
  }

  function play() {
    clearTimeout(timer);
    reading = 0;
    if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) rest();
    else step();
  }

  function rest() {
    clearTimeout(timer);
    reading = -1;
    draw();
  }

  /** Any input of the reader ends the animation. */
  function touched() {
    if (reading >= 0) rest();
    stage.calm();
  }

  let waiting = false;
  let left = false;
  const changed = () => {
    if (waiting) return;
    waiting = true;
    queueMicrotask(() => {
      waiting = false;
      if (left) return;
      now = run(words(), model.get("off"));
      rest();
    });
  };
  const followed = ["words", "query", "off"].map((name) => `change:${name}`);
  for (const event of followed) model.on(event, changed);
  for (const event of ["pointerdown", "keydown", "beforeprint"]) window.addEventListener(event, touched, true);
  play();
  const watch = new ResizeObserver(stage.fit);
  watch.observe(stage.place);
  document.fonts.ready.then(stage.fit);

  return () => {
    left = true;
    clearTimeout(timer);
    for (const event of followed) model.off(event, changed);
    for (const event of ["pointerdown", "keydown", "beforeprint"]) window.removeEventListener(event, touched, true);
    watch.disconnect();
    leaveKeys();
    body.remove();
  };
}

/** @param {string} look @param {string} words @param {() => void} press */
function button(look, words, press) {
  const made = html("button", { type: "button", class: look }, words);
  made.addEventListener("click", press);
  return made;
}

const bold = (/** @type {string} */ words) => html("b", {}, words);

/** @param {number} p */
function percent(p) {
  return `${(100 * p).toFixed(p > 0.095 && p < 0.995 ? 0 : 1)}\u00a0%`;
}

/**
 * Who acts next, in words: the only noun of that number, or just the number of the verb.
 * @param {string[]} read the words up to the query @param {boolean} isSingular
 */
function answer(read, isSingular) {
  const noun = onlyNoun(read, isSingular);
  if (noun === null) return isSingular ? say("a singular verb") : say("a plural verb");
  return isSingular ? say("the {noun} acts", { noun }) : say("the {noun} act", { noun });
}

/**
 * The subject of the next verb according to the model, and the most probable verb.
 * @param {string[]} read the words up to the query @param {number[]} p over the vocabulary @param {string[]} off
 */
function verdict(read, p, off) {
  const heads = !off.length
    ? say("All heads on")
    : off.length > 1
      ? say("Without heads {heads}", { heads: off.join(say(", ")) })
      : say("Without head {head}", { head: off[0] });
  const [one, several] = agreement(p);
  const [most] = likeliest(p, 1);
  if (one + several < 0.2)
    return sayWith("{heads}: the next word is {word}, {share}.", {
      heads,
      word: bold(most.word),
      share: percent(most.p),
    });
  const isSingular = one > several;
  if (Math.max(one, several) < 2 * Math.min(one, several))
    return sayWith("{heads}: {undecided}: {one}, or {several}.", {
      heads,
      undecided: bold(say("undecided")),
      one: answer(read, true),
      several: answer(read, false),
    });
  const verbs = VERBS.filter((verb) => verb.endsWith("s") === isSingular);
  const [verb] = likeliest(p, 1, verbs);
  const [share, its] = [Math.max(one, several), verb.p].map(percent);
  return sayWith("{heads}: {actor}, {share}. Most likely verb: {verb}, {its}.", {
    heads,
    actor: bold(answer(read, isSingular)),
    share,
    verb: bold(verb.word),
    its,
  });
}

/**
 * The sentence, the arcs above and below it, and the strongest path in words.
 * @param {(word: number) => void} ask
 */
function sentence(ask) {
  const picture = svg("svg", { role: "img" });
  const line = html("div", {
    class: "h-line",
    role: "group",
    "aria-label": say("the sentence: choose the query word"),
  });
  const ghost = html("span", { class: "h-ghost", "aria-hidden": "true" });
  const place = html("div", { class: "h-stage" }, picture, line);
  const way = html("p", { class: "h-way" });
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  let shown = "";
  let query = -1;
  let wide = 0;
  /** @type {Arc[]} */
  let drawn = [];

  /** @param {string[]} words @param {number} q @param {Arc[]} all @param {string} likely */
  function draw(words, q, all, likely) {
    const written = words.join(" ");
    const moves = written !== shown || q !== query;
    if (written !== shown) {
      const focused = buttons.findIndex((word) => word.matches(":focus"));
      buttons = words.map((word, i) => button("h-word", word, () => ask(i)));
      line.replaceChildren(...buttons, ghost);
      buttons[Math.min(focused, words.length - 1)]?.focus();
    }
    [shown, query, drawn] = [written, q, all];
    buttons.forEach((word, i) => {
      word.classList.toggle("h-later", i > q);
      word.setAttribute("aria-pressed", String(i === q));
    });
    ghost.textContent = likely;
    ghost.classList.toggle("h-later", q < words.length - 1);
    const strongest = chain(all, q);
    way.replaceChildren(...(strongest ? inWords(words, strongest) : []));
    picture.setAttribute(
      "aria-label",
      say("attention weights on the paths to {word}. {way}", { word: words[q], way: way.textContent ?? "" }),
    );
    fit();
    picture.classList.toggle("h-moves", moves);
  }

  /** Lay out the words as large as the width allows, then the arcs between the centres of words. */
  function fit() {
    wide = place.clientWidth;
    line.style.fontSize = "";
    const size = parseFloat(getComputedStyle(line).fontSize);
    line.style.fontSize = `${Math.max(9, Math.min(1, line.clientWidth / line.scrollWidth) * size).toFixed(1)}px`;
    const height = place.clientHeight;
    const middle = buttons.map((word) => word.offsetLeft + word.offsetWidth / 2);
    const tops = [0, line.offsetTop + line.offsetHeight, line.offsetTop];
    const reach = Math.max(1, middle[middle.length - 1] - middle[0]);
    const apart = wide > 520 ? 6 : 4;
    /** @type {Arc[]} */
    const strongest = chain(drawn, query) ?? [];
    /** @type {SVGElement[]} */
    const faint = [];
    /** @type {SVGElement[]} */
    const clear = [];
    for (const arc of drawn) {
      const lane = Number(arc.head[2]) - 2.5;
      const [from, to] = [arc.from, arc.to].map((word) => middle[word] + apart * lane);
      const base = tops[arc.layer];
      const room = arc.layer === 2 ? -base : height - base;
      const isLoop = arc.from === arc.to;
      const far = Math.abs(middle[arc.from] - middle[arc.to]) / reach;
      const tip = base + (isLoop ? 0.3 : Math.min(1.2, (0.55 + 0.65 * far) * (1 + 0.08 * lane))) * room;
      const aside = isLoop ? 2 * apart : 0;
      const isClear = strongest.includes(arc);
      const opacity = isClear ? 1 : 0.35 * arc.share;
      const path = svg("path", {
        d: `M${from} ${base}C${from - aside} ${tip} ${to + aside} ${tip} ${to} ${base}`,
        class: `h-arc h-of-${arc.layer}`,
        pathLength: 1,
        "stroke-width": (0.5 + 4.5 * arc.weight).toFixed(1),
        "stroke-opacity": opacity.toFixed(2),
        "data-head": arc.head,
      });
      const foot = svg("circle", {
        class: "h-foot",
        cx: from,
        cy: base,
        r: (1 + 3 * arc.weight).toFixed(1),
        "fill-opacity": opacity.toFixed(2),
      });
      (isClear ? clear : faint).push(path, foot);
      if (isClear) {
        const y = base + 0.75 * (tip - base) + (arc.layer === 2 ? -8 : 17);
        clear.push(svg("text", { x: (from + to) / 2, y, "text-anchor": "middle" }, arc.head));
      }
    }
    picture.setAttribute("viewBox", `0 0 ${wide} ${height}`);
    picture.replaceChildren(...faint, ...clear);
    picture.classList.remove("h-moves");
  }

  return {
    place,
    way,
    draw,
    fit: () => {
      if (place.clientWidth !== wide) fit();
    },
    calm: () => picture.classList.remove("h-moves"),
    /** Show the arcs of one head alone, or all if it has no name. @param {string} head */
    only(head) {
      for (const path of picture.querySelectorAll("path"))
        path.classList.toggle("h-dim", head !== "" && path.dataset.head !== head);
    },
  };
}

/** @param {string[]} words @param {[first: Arc, second: Arc]} way */
function inWords(words, [first, second]) {
  const by = (/** @type {Arc} */ { head, weight }) => say("head {head}, {weight}", { head, weight: weight.toFixed(2) });
  return sayWith("{to} attends to {between} in layer 2 ({second}), which attends to {from} in layer 1 ({first}).", {
    to: bold(words[second.to]),
    between: bold(words[second.from]),
    second: by(second),
    from: bold(words[first.from]),
    first: by(first),
  });
}

/**
 * The heads of a layer, each with a switch; a head under the pointer is shown alone.
 * @param {number} layer @param {(head: string) => void} only @param {(head: string) => void} flip
 */
function bench(layer, only, flip) {
  const chips = HEADS.filter((head) => Number(head[0]) === layer).map((head) => {
    const chip = button("h-head", head, () => flip(head));
    chip.setAttribute("aria-label", say("head {head}", { head }));
    chip.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && only(head));
    chip.addEventListener("focus", () => chip.matches(":focus-visible") && only(head));
    for (const event of ["pointerleave", "blur"]) chip.addEventListener(event, () => only(""));
    return chip;
  });
  return {
    place: html(
      "div",
      { class: "h-bench", role: "group", "aria-label": say("heads of layer {layer}", { layer }) },
      html("span", {}, say("Layer {layer}", { layer })),
      ...chips,
    ),
    /** @param {string[]} off */
    draw(off) {
      for (const chip of chips) chip.setAttribute("aria-pressed", String(!off.includes(String(chip.textContent))));
    },
  };
}

/** The most probable words, each with a button that appends it. @param {(word: string) => void} take */
function expected(take) {
  const lead = html("p");
  const rows = Array.from({ length: 5 }, () => {
    const row = bar("button", { type: "button", class: "h-next" });
    row.place.addEventListener("click", () => take(row.name.textContent));
    return row;
  });
  return {
    place: html("div", { class: "h-side" }, lead, ...rows.map(({ place }) => place)),
    /** @param {string} word @param {number[]} p @param {boolean} goesOn */
    draw(word, p, goesOn) {
      lead.replaceChildren(...sayWith("After {word} the model expects", { word: bold(word) }));
      const likely = likeliest(p, rows.length);
      rows.forEach(({ place, name, fill, share }, i) => {
        const { word: one, p: its } = likely[i];
        name.textContent = one;
        fill.className = !VERBS.includes(one) ? "" : one.endsWith("s") ? "h-one" : "h-several";
        fill.style.width = `${100 * its}%`;
        share.textContent = percent(its);
        place.disabled = !goesOn;
        place.setAttribute(
          "aria-label",
          say("{next}, {share}: put it after {word}", { next: one, share: percent(its), word }),
        );
      });
    },
  };
}

/** The probabilities of all singular and of all plural verbs together, on the scale of the words' bars. */
function agreementBars() {
  const rows = ["h-one", "h-several"].map((look) => {
    const row = bar("div", { class: "h-next h-verb" });
    row.fill.className = look;
    return row;
  });
  return {
    place: html("div", { class: "h-verbs" }, ...rows.map(({ place }) => place)),
    /** @param {string[]} read the words up to the query @param {number[]} p over the vocabulary */
    draw(read, p) {
      agreement(p).forEach((its, i) => {
        const { name, fill, share } = rows[i];
        name.textContent = answer(read, i === 0);
        fill.style.width = `${100 * its}%`;
        share.textContent = percent(its);
      });
    },
  };
}

/**
 * A name, a bar and a number.
 * @template {"button" | "div"} K
 * @param {K} tag @param {import("./kit.js").Attributes} attributes
 */
function bar(tag, attributes) {
  const [name, fill, share] = [html("span"), html("i"), html("span", { class: "h-share" })];
  const place = html(tag, attributes, name, html("span", { class: "h-track" }, fill), share);
  return { place, name, fill, share };
}

/** The formula; its letters explain what they are in this sentence. */
function formula() {
  const said = html("p", { class: "h-said" });
  let asked = "";
  let lit = "";
  /** @type {[sign: string, name: string, called: string, words: string][]} */
  const letters = [
    [
      say("output"),
      "output",
      say("output"),
      say(
        "Output: the sum of the weighted values. It is added to the vector of the word; after layer 2 this " +
          "vector predicts the next word.",
      ),
    ],
    ["Q", "query", say("Q, the query"), say("Q, the queries: what each word looks for. The framed word is the query.")],
    [
      "K",
      "key",
      say("K, the key"),
      say("K, the keys: what each query is compared with. A larger dot means a larger attention weight on its word."),
    ],
    [
      "V",
      "value",
      say("V, the value"),
      say("V, the values: what a word passes on along each arc, in proportion to the arc's width."),
    ],
  ];
  const signs = letters.map(([sign, name, called]) => {
    const made = button(`h-sign h-${name}`, sign, () => {
      lit = lit === name ? "" : name;
      show();
    });
    made.setAttribute("aria-label", called);
    return made;
  });
  const [output, q, k, v] = signs;
  const place = html(
    "div",
    { class: "h-formula", role: "group", "aria-label": say("the formula: choose a letter") },
    output,
    html("span", {}, "="),
    html("span", { class: "h-softmax" }, "softmax"),
    html("span", { class: "h-bracket" }, "("),
    html(
      "span",
      { class: "h-over" },
      html("span", {}, q, k, html("sup", {}, "⊤")),
      html("span", { class: "h-root" }, "√", html("span", {}, html("i", {}, "d"), html("sub", {}, "k"))),
    ),
    html("span", { class: "h-bracket" }, ")"),
    v,
  );
  function show() {
    letters.forEach(([, name], i) => signs[i].setAttribute("aria-pressed", String(name === lit)));
    const body = /** @type {HTMLElement | null} */ (place.closest(".h-body"));
    if (body) body.dataset.lit = lit;
    said.textContent =
      letters.find(([, name]) => name === lit)?.[3] ??
      say(
        "Each arc is an attention weight; a wider arc is a larger weight. Above the sentence are the weights " +
          "of “{asked}” in layer 2, below it the weights in layer 1 of this word and of the words that it " +
          "attends to. Weights below 0.1 are not drawn. The bars of singular and plural verbs add up all such " +
          "verbs. Switch off a head to see its effect.",
        { asked },
      );
  }
  return {
    place,
    said,
    /** @param {string} word */
    draw(word) {
      asked = word;
      show();
    },
  };
}

export default { render };
