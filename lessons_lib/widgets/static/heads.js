// @ts-check
/** A trained model on a sentence of the reader's: where its heads look, what it expects next, and without which head. */

import { softmax, sum } from "./arithmetic.js";
import { MODEL } from "./heads_model.js";
import { button, checkbox, fixed, html, picture, select, slider, stage, svg } from "./kit.js";

/** @typedef {number[][]} Matrix one row for each position, or for each output of a projection */

const VOCABULARY = MODEL.vocabulary.split(" ");
const LONGEST = 16;
const HEADS = [1, 2].flatMap((layer) => [1, 2, 3, 4].map((head) => `${layer}.${head}`));

/** Rows of numbers from bytes between -127 and 127. @returns {Matrix} a vector is one row */
function unpack({ shape, step, base64 }) {
  const width = shape[shape.length - 1];
  const numbers = [...atob(base64)].map((byte) => step * ((byte.charCodeAt(0) << 24) >> 24));
  return Array.from({ length: numbers.length / width }, (_, i) => numbers.slice(i * width, (i + 1) * width));
}

const PARAMETERS = Object.fromEntries(Object.entries(MODEL.parameters).map(([name, packed]) => [name, unpack(packed)]));

const dot = (/** @type {number[]} */ a, /** @type {number[]} */ b) => sum(a.map((x, i) => x * b[i]));
const add = (/** @type {number[]} */ a, /** @type {number[]} */ b) => a.map((x, i) => x + b[i]);
const project = (/** @type {Matrix} */ x, /** @type {Matrix} */ w) => x.map((row) => w.map((out) => dot(row, out)));

/** Divide each row by its root mean square, then scale each coordinate. @param {Matrix} x @param {Matrix} gain */
function norm(x, [gain]) {
  return x.map((row) => row.map((entry, i) => (entry * gain[i]) / Math.sqrt(dot(row, row) / row.length + 1e-5)));
}

/**
 * What one head brings back, and its weights. Rows of the projections from `from` to `to` are its own.
 * @param {Matrix} x @param {string} layer @param {number} from @param {number} to
 */
function attend(x, layer, from, to) {
  const [q, k, v] = ["q", "k", "v"].map((name) => project(x, PARAMETERS[`${layer}.w_${name}.weight`].slice(from, to)));
  const weights = q.map((query, i) => {
    const seen = softmax(k.slice(0, i + 1).map((key) => dot(query, key) / Math.sqrt(to - from)));
    return q.map((_, j) => seen[j] ?? 0);
  });
  const out = weights.map((row) => v[0].map((_, c) => sum(row.map((weight, j) => weight * v[j][c]))));
  return { weights, out };
}

/**
 * The weights of the eight heads, and the probabilities of the word after each word, with some heads switched off.
 * @param {string[]} words @param {string[]} off
 */
export function run(words, off) {
  const embedding = PARAMETERS["embedding.weight"];
  let x = words.map((word, i) => add(embedding[VOCABULARY.indexOf(word)], PARAMETERS["positions.weight"][i]));
  /** @type {Matrix[]} */
  const weights = [];
  for (const layer of [0, 1]) {
    const at = `blocks.${layer}.attention`;
    const normed = norm(x, PARAMETERS[`${at}.norm.weight`]);
    const width = x[0].length / MODEL.n_heads;
    const heads = Array.from({ length: MODEL.n_heads }, (_, head) => {
      const { weights: own, out } = attend(normed, `${at}.sublayer`, head * width, (head + 1) * width);
      weights.push(own);
      return off.includes(`${layer + 1}.${head + 1}`) ? out.map((row) => row.map(() => 0)) : out;
    });
    const joined = words.map((_, i) => heads.flatMap((head) => head[i]));
    x = project(joined, PARAMETERS[`${at}.sublayer.w_o.weight`]).map((row, i) => add(row, x[i]));
  }
  const logits = project(norm(x, PARAMETERS["norm.weight"]), embedding);
  return { weights, next: logits.map((row) => softmax(row)) };
}

/** The probability of a verb for one, and of a verb for several. @param {number[]} p over the vocabulary */
export function agreement(p) {
  const verbs = MODEL.verbs.split(" ");
  const share = (/** @type {boolean} */ one) =>
    sum(verbs.filter((verb) => verb.endsWith("s") === one).map((verb) => p[VOCABULARY.indexOf(verb)]));
  return [share(true), share(false)];
}

/** What was typed as words of the model, and what it does not know. @param {string} typed */
export function parse(typed) {
  const words = typed.toLowerCase().replaceAll(".", " . ").split(/\s+/).filter(Boolean);
  return { words, unknown: words.filter((word) => !VOCABULARY.includes(word)) };
}

const EVERYTHING = ["words", "query", "off"];

function render({ model, el }) {
  const on = stage({ model, el });
  const words = () => on.read("words").split(" ");
  const query = () => Math.min(on.read("query"), words().length - 1);
  let full = run(words(), []);
  let now = full;
  on.when(["words", "off"], () => {
    full = run(words(), []);
    now = on.read("off").length ? run(words(), on.read("off")) : full;
  });
  const state = { words, query, now: () => now, full: () => full };
  on.add(
    typed(on, state),
    html(
      "div",
      { class: "x-panel", style: "gap: 0" },
      on.anew(
        ["words"],
        () => String(words().length),
        (part) =>
          slider({ ...part, read: query }, "query", {
            label: "Word that asks",
            min: 0,
            max: words().length - 1,
            step: 1,
            show: (i) => words()[i] ?? "",
          }),
      ),
      replacement(on, state),
    ),
    html(
      "div",
      { class: "x-panels" },
      looks(on, state),
      html("div", { class: "x-panel" }, expected(on, state), verbs(on, state)),
    ),
    switches(on),
    html("p", { class: "x-facts" }, `The words it knows: ${VOCABULARY.join(" ")}`),
  );
  on.when(EVERYTHING, () => {
    const p = now.next[query()];
    const most = HEADS.map((head, i) => `${head} at ${words()[best(now.weights[i][query()])]}`);
    on.say(
      `From ${words()[query()]} the heads look most: ${most.join(", ")}. ` +
        `Next is most likely ${VOCABULARY[best(p)]}, ${fixed(p[best(p)])}.`,
    );
  });
  return on.leave;
}

const best = (/** @type {number[]} */ row) => row.indexOf(Math.max(...row));

/** The sentence, as one types it. */
function typed(on, { words }) {
  const input = html("input", { type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const told = html("p", { class: "x-facts" });
  input.addEventListener("change", () => {
    const { words: given, unknown } = parse(input.value);
    if (unknown.length) told.textContent = `The model does not know “${unknown[0]}”.`;
    else if (given.length < 2 || given.length > LONGEST) told.textContent = `It takes 2 to ${LONGEST} words.`;
    else {
      on.write("query", given.length - 1);
      on.write("words", given.join(" "));
    }
  });
  on.when(["words"], () => {
    input.value = words().join(" ");
    told.textContent = "";
  });
  return html(
    "div",
    { class: "x-panel", style: "gap: 0.35rem" },
    html("label", { class: "x-typed" }, html("span", {}, "Sentence"), input),
    told,
  );
}

/** Another word in the place of the one that asks. */
function replacement(on, { words, query }) {
  const own = {
    ...on,
    read: () => words()[query()],
    write: (_, word) =>
      on.write(
        "words",
        words()
          .map((old, i) => (i === query() ? word : old))
          .join(" "),
      ),
    when: (_, draw) => on.when(["words", "query"], draw),
  };
  return select(own, "words", { label: "Replace it by", options: VOCABULARY.map((word) => [word, word]) });
}

const [LEFT, TOP, SIDE, HIGH] = [92, 18, 27, 20];

/** One row for each word, one column for each head: the stronger the colour, the more of its weight. */
function looks(on, { words, query, now }) {
  const place = html("div");
  on.when(EVERYTHING, () => {
    const n = words().length;
    const drawing = picture(308, TOP + HIGH * n, "weights of the eight heads on each word");
    drawing.append(
      svg("rect", { class: "x-ground", x: LEFT - 1, y: TOP - 1, width: HEADS.length * SIDE, height: HIGH * n }),
    );
    words().forEach((word, j) =>
      drawing.append(
        svg(
          "text",
          { class: j === query() ? "x-asks" : "", x: LEFT - 8, y: TOP + HIGH * j + 13, "text-anchor": "end" },
          word,
        ),
      ),
    );
    HEADS.forEach((head, i) => {
      const x = LEFT + SIDE * i;
      const dead = on.read("off").includes(head);
      drawing.append(svg("text", { class: dead ? "x-dead" : "", x: x + 12, y: 12, "text-anchor": "middle" }, head));
      now()
        .weights[i][query()].slice(0, query() + 1)
        .forEach((share, j) =>
          drawing.append(
            svg("rect", {
              class: dead ? "x-off" : "x-solid",
              x,
              y: TOP + HIGH * j,
              width: SIDE - 2,
              height: HIGH - 2,
              "fill-opacity": share.toFixed(3),
            }),
          ),
        );
    });
    place.replaceChildren(drawing);
  });
  return html(
    "figure",
    { class: "x-panel" },
    place,
    html(
      "figcaption",
      {},
      "Columns: the heads of layer 1 and of layer 2. Rows: the words. Colour: the weight that the word in bold gives.",
    ),
  );
}

/** The likeliest next words; a button takes one and puts it behind the word that asks. */
function expected(on, { words, query, now }) {
  const rows = Array.from({ length: 6 }, () => {
    const take = button("", () => {
      const told = words().slice(0, query() + 1);
      if (told.length === LONGEST) return;
      on.write("query", told.length);
      on.write("words", [...told, take.textContent].join(" "));
    });
    return { take, bar: html("div", { class: "x-bar" }), shown: html("span", { class: "x-value" }) };
  });
  on.when(EVERYTHING, () => {
    const p = now().next[query()];
    const order = p.map((_, token) => token).sort((a, b) => p[b] - p[a]);
    rows.forEach(({ take, bar, shown }, i) => {
      take.textContent = VOCABULARY[order[i]];
      take.disabled = query() === LONGEST - 1;
      bar.style.width = `${100 * p[order[i]]}%`;
      shown.textContent = fixed(p[order[i]]);
    });
  });
  return html(
    "div",
    { class: "x-grid", style: "--columns: 7rem 1fr 2.75rem" },
    ...["expected next", "", ""].map((head) => html("span", { class: "x-head" }, head)),
    ...rows.flatMap(({ take, bar, shown }) => [take, html("div", { class: "x-track" }, bar), shown]),
  );
}

/** Does the model know whether one acts, or several? */
function verbs(on, { query, now, full }) {
  const cells = Array.from({ length: 4 }, () => html("td"));
  on.when(EVERYTHING, () => {
    const shares = [full(), now()].map(({ next }) => agreement(next[query()]));
    [0, 1].forEach((k) => shares.forEach((of, i) => (cells[2 * k + i].textContent = fixed(of[k]))));
  });
  const line = (name, k) => html("tr", {}, html("th", { scope: "row" }, name), cells[2 * k], cells[2 * k + 1]);
  return html(
    "table",
    { class: "x-table" },
    html("tr", {}, ...["next is a verb", "all heads", "now"].map((head) => html("th", { scope: "col" }, head))),
    line("for one: sees", 0),
    line("for several: see", 1),
  );
}

/** A box for each head: without the tick it adds nothing. */
function switches(on) {
  const others = (head) => on.read("off").filter((one) => one !== head);
  const boxes = HEADS.map((head) =>
    checkbox(
      {
        ...on,
        read: () => !on.read("off").includes(head),
        write: (_, kept) => on.write("off", kept ? others(head) : [...others(head), head].sort()),
        when: (_, draw) => on.when(["off"], draw),
      },
      "off",
      { label: head },
    ),
  );
  return html(
    "div",
    { class: "x-bench", role: "group", "aria-label": "heads that are switched on" },
    html("span", { class: "x-head" }, "Heads at work"),
    ...boxes,
  );
}

export default { render };
