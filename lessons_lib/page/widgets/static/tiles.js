/** FlashAttention's forward pass, tile by tile: contents of fast memory, rescaling factors, and bytes moved. */

import { softmax } from "./arithmetic.js";
import { button, checkbox, fixed, html, panel, panels, picture, select, slider, stage, svg, tiny } from "./kit.js";
import { withPlayButton } from "./play.js";
import {
  BYTES,
  LARGEST,
  REAL,
  WIDTH,
  held,
  largestBlock,
  moved,
  naiveTraffic,
  run,
  schedule,
  scores,
  seen,
  span,
  traffic,
} from "./tiles.math.js";
import { say, sayWith } from "./words.js";

/**
 * @typedef {{ n: number, block_q: number, block_k: number, is_causal: boolean, order: string, rescale: boolean,
 *   memory: number, step: number, seed: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./tiles.math.js").Step} Step
 * @typedef {import("./tiles.math.js").Row} Row
 * @typedef {Step | { doing: "wait", rows: number[], keys: number[] }} Present
 * @typedef {{ at: number, list: Step[], causal: boolean, rescale: boolean, all: number[][], step: Present,
 *   before: Row[], rows: Row[] }} Now
 *   the state before and after the current step; before the first step, the first block of queries is shown
 * @typedef {(draw: (now: Now) => void) => void} Follow draw, and again after each change
 */

/** @type {(keyof Traits)[]} */
const TILES = ["n", "block_q", "block_k", "is_causal"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...TILES, "order", "seed", "rescale", "step"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const steps = () => schedule(scope.read("n"), scope.read("block_q"), scope.read("block_k"), scope.read("is_causal"));
  const all = () => scores(scope.read("n"), scope.read("seed"), scope.read("order"));
  /** @returns {Now} */
  const now = () => {
    const list = steps();
    const at = Math.min(scope.read("step"), list.length);
    const [causal, rescale] = [scope.read("is_causal"), scope.read("rescale")];
    return {
      at,
      list,
      causal,
      rescale,
      all: all(),
      step: at ? list[at - 1] : { doing: "wait", rows: list[0].rows, keys: [] },
      before: run(all(), list.slice(0, Math.max(0, at - 1)), causal, rescale),
      rows: run(all(), list.slice(0, at), causal, rescale),
    };
  };
  /** @type {Follow} */
  const follow = (draw) => scope.when(EVERYTHING, () => draw(now()));
  const words = html("p", { class: "x-words" });
  scope.add(
    walk(scope, steps),
    words,
    panels(
      [say("Matrix"), matrix(follow)],
      [say("Rows"), html("div", { class: "x-panel" }, table(follow), outputs(follow))],
      ["", settings(scope)],
      [say("Bytes"), html("div", { class: "x-panel t-bytes" }, check(follow), bytes(scope, now))],
    ),
  );
  follow((state) => {
    words.textContent = described(state);
    scope.announce(
      say("Step {step} of {total}. {words}", { step: state.at, total: state.list.length, words: described(state) }),
    );
  });
  return scope.dispose;
}

const few = (/** @type {number[]} */ list) =>
  list.length > 1 ? say("{first} to {last}", { first: list[0], last: list[list.length - 1] }) : String(list[0]);

/** The current step, in words. @param {Now} now */
function described({ step: { doing, rows, keys }, rows: after, rescale }) {
  if (doing === "wait") return say("Fast memory is empty. Press Step: queries {rows} come first.", { rows: few(rows) });
  if (doing === "load")
    return say(
      "Queries {rows} are here; keys {keys} and their values come in, and the scores of the tile are " +
        "computed. By which factor will each sum shrink? Say a number, then press Step.",
      { rows: few(rows), keys: few(keys) },
    );
  if (doing === "write")
    return say("Divide by the sum and write: outputs {rows} and their log-sum-exps. The tiles are forgotten.", {
      rows: few(rows),
    });
  if (keys[0] === 0) return say("The first tile: nothing to shrink yet. Each sum is relative to its maximum.");
  if (!rescale) return say("The tile is added, relative to the new maximum; nothing is rescaled.");
  const least = rows.reduce((a, b) => (after[b].factor < after[a].factor ? b : a));
  return after[least].factor < 1
    ? say(
        "Sum and output shrink by e to the old maximum minus the new one; then the tile is added. Query {least} " +
          "shrinks most: × {factor}.",
        { least, factor: fixed(after[least].factor) },
      )
    : say(
        "Sum and output shrink by e to the old maximum minus the new one; then the tile is added. Here nothing shrinks.",
      );
}

/** The controls that move forwards, back, and to any step. @param {Scope} scope @param {() => Step[]} steps */
function walk(scope, steps) {
  const go = (/** @type {number} */ by) => () => {
    const last = steps().length;
    scope.write("step", Math.max(0, Math.min(last, Math.min(last, scope.read("step")) + by)));
  };
  const place = scope.rebuild(
    TILES,
    () => String(steps().length),
    (part) =>
      slider(part.value("step"), {
        label: say("Step, of {total}", { total: steps().length }),
        min: 0,
        max: steps().length,
        step: 1,
        show: (step) => String(Math.min(step, steps().length)),
      }),
  );
  return html(
    "div",
    { class: "x-controls" },
    html(
      "div",
      { class: "x-bench" },
      button(say("Step"), go(1)),
      button(say("Back"), go(-1)),
      button(say("Start again"), () => scope.write("step", 0)),
    ),
    withPlayButton(scope, place, 1200),
  );
}

/** @param {Scope} scope */
function settings(scope) {
  return html(
    "div",
    { class: "t-settings" },
    slider(scope.value("n"), { label: say("Positions n"), min: 2, max: LARGEST, step: 1 }),
    slider(scope.value("block_q"), { label: say("Queries in a tile"), min: 1, max: 8, step: 1 }),
    slider(scope.value("block_k"), { label: say("Keys in a tile"), min: 1, max: 8, step: 1 }),
    html(
      "div",
      { class: "x-bench" },
      select(scope.value("order"), {
        label: say("Scores"),
        options: [
          ["drawn", say("drawn")],
          ["rising", say("rising")],
          ["falling", say("falling")],
        ],
      }),
      button(say("Draw again"), () => scope.write("seed", (scope.read("seed") + 1) % 2 ** 31)),
    ),
    html(
      "div",
      { class: "x-bench" },
      checkbox(scope.value("is_causal"), { label: say("causal") }),
      checkbox(scope.value("rescale"), { label: say("rescale the old sums") }),
    ),
  );
}

const [SIZE, LEFT, TOP, RIGHT] = [264, 44, 54, 24];
const INK = "fill: var(--ink)";

/**
 * Scores, tiles, and the blocks of Q, K, V and O, strong if they are in fast memory, else faint. A merged tile is a plain
 * field: its scores are not stored any more.
 * @param {Follow} follow
 */
function matrix(follow) {
  const drawing = picture(
    LEFT + SIZE + RIGHT,
    TOP + SIZE + 16,
    say("scores, and which tile of them is in fast memory"),
  );
  follow(({ step, list, at, all, causal }) => {
    const side = SIZE / all.length;
    const [low, high] = [Math.min(...all.flat()), Math.max(...all.flat())];
    const within = (/** @type {number} */ i, /** @type {number} */ j) => step.rows.includes(i) && step.keys.includes(j);
    /**
     * @param {number} x @param {number} y @param {number} width @param {number} height
     * @param {import("./kit.js").Attributes} more
     */
    const box = (x, y, width, height, more) => svg("rect", { x, y, width, height, ...more });
    /** @param {string} content @param {number} x @param {number} y @param {string} [anchor] @param {string} [style] */
    const word = (content, x, y, anchor = "middle", style) =>
      svg("text", { x, y, "text-anchor": anchor, style }, content);
    const written = list.slice(0, at).flatMap(({ doing, rows }) => (doing === "write" ? rows : []));
    const here = at && step.doing !== "write" ? step.rows : [];

    const marks = span(0, all.length).flatMap((k) => {
      const start = k * side + 1;
      const named = k % 2 && all.length > 10 ? "" : String(k);
      /** @param {number} x @param {number} y @param {number} width @param {number} height @param {boolean} held */
      const strip = (x, y, width, height, held, is = "x-solid") => [
        box(x, y, width, height, { class: "x-ground" }),
        ...(held ? [box(x, y, width, height, { class: is })] : []),
      ];
      return [
        word(named, LEFT + start + side / 2 - 1, TOP - 40),
        word(named, LEFT - 24, TOP + start + side / 2 + 3, "end"),
        ...strip(LEFT + start, TOP - 35, side - 2, 10, step.keys.includes(k)),
        ...strip(LEFT + start, TOP - 19, side - 2, 10, step.keys.includes(k)),
        ...strip(LEFT - 19, TOP + start, 10, side - 2, here.includes(k)),
        ...strip(
          LEFT + SIZE + 9,
          TOP + start,
          10,
          side - 2,
          here.includes(k) || written.includes(k),
          written.includes(k) ? "x-dead" : "x-solid",
        ),
      ];
    });
    const merged = list.filter(({ doing }, i) => doing === "merge" && i < at - 1);
    const fills = merged.map(({ rows, keys }) => svg("path", { class: "x-fill", d: outline(rows, keys, side, 2) }));
    const cells = all.flatMap((row, i) =>
      row.flatMap((score, j) => {
        const [x, y] = [LEFT + j * side, TOP + i * side];
        const shade = 0.06 + 0.39 * ((score - low) / (high - low || 1));
        if ((causal && j > i) || merged.some(({ rows, keys }) => rows.includes(i) && keys.includes(j))) return [];
        return [
          box(x + 1, y + 1, side - 2, side - 2, { class: "x-solid", "fill-opacity": shade * (within(i, j) ? 1 : 0.3) }),
          ...(side > 26
            ? [word(fixed(score, 1), x + side / 2, y + side / 2 + 4, "middle", within(i, j) ? INK : undefined)]
            : []),
        ];
      }),
    );
    const edges = list.filter(({ doing }) => doing === "load").map(({ rows, keys }) => outline(rows, keys, side));
    const current = step.keys.length ? outline(step.rows, step.keys, side) : "";
    drawing.replaceChildren(
      ...marks,
      word("K", LEFT - 6, TOP - 26, "end"),
      word("V", LEFT - 6, TOP - 10, "end"),
      word("Q", LEFT - 14, TOP + SIZE + 13),
      word("O", LEFT + SIZE + 14, TOP + SIZE + 13),
      ...fills,
      ...cells,
      svg("path", { class: "x-axis", d: edges.join("") }),
      svg("path", { class: "x-line x-second", d: current }),
    );
  });
  return panel([
    drawing,
    html(
      "p",
      { class: "x-legend" },
      html("span", {}, html("span", { class: "x-key x-may" }), say("in fast memory")),
      html(
        "span",
        {},
        html("span", { class: "x-key", style: "background: var(--first); opacity: 0.3" }),
        say("merged"),
      ),
      html("span", {}, html("span", { class: "x-key", style: "background: var(--second)" }), say("written")),
      html("span", {}, say("no frame: never visited")),
    ),
  ]);
}

/** @param {number[]} rows @param {number[]} keys @param {number} side */
function outline(rows, keys, side, inset = 0) {
  const [x, y] = [LEFT + keys[0] * side + inset, TOP + rows[0] * side + inset];
  const [width, height] = [keys.length * side - 2 * inset, rows.length * side - 2 * inset];
  return `M${x} ${y}h${width}v${height}h${-width}z`;
}

/**
 * The running maximum and sum of each query of the block; the reader can predict the factor before it is shown.
 * @param {Follow} follow
 */
function table(follow) {
  const body = html("tbody");
  const heads = [say("query"), say("max"), say("in tile"), say("factor"), say("sum")].map((head) =>
    html("th", { scope: "col" }, head),
  );
  follow(({ step, rows, all, causal }) => {
    const line = (/** @type {number} */ i) => {
      const tile = Math.max(...seen(all[i], i, step.keys, causal));
      const first = step.keys[0] === 0;
      /** @type {Record<string, string>} */
      const factors = first ? { load: "–", merge: "–" } : { load: "?", merge: fixed(rows[i].factor) };
      const factor = factors[step.doing] ?? "";
      return [number(rows[i].peak), step.keys.length ? number(tile) : "", factor, fixed(rows[i].total)];
    };
    body.replaceChildren(
      ...step.rows.map((i) =>
        html("tr", {}, html("th", { scope: "row" }, String(i)), ...line(i).map((text) => html("td", {}, text))),
      ),
    );
  });
  return html("table", { class: "x-table" }, html("thead", {}, html("tr", {}, ...heads)), body);
}

const number = (/** @type {number} */ x) => (x === -Infinity ? "−∞" : fixed(x, 1));

/**
 * The output of each query of the block, one bar for each key; an outline marks the earlier height of a bar.
 * @param {Follow} follow
 */
function outputs(follow) {
  const [left, right, high] = [20, 316, 22];
  const drawing = picture(320, 24, say("outputs so far"));
  follow(({ step, before, rows, all, causal }) => {
    const wide = (right - left) / all.length;
    drawing.setAttribute("viewBox", `0 0 320 ${step.rows.length * (high + 8)}`);
    drawing.replaceChildren(
      ...step.rows.flatMap((i, r) => {
        const foot = (r + 1) * (high + 8) - 3;
        /** @param {number} j @param {number} height @param {import("./kit.js").Attributes} more */
        const bar = (j, height, more) =>
          svg("rect", {
            x: left + (j + 0.15) * wide,
            y: foot - height * high,
            width: 0.7 * wide,
            height: height * high,
            ...more,
          });
        const softmaxes = step.doing === "write" ? softmax(seen(all[i], i, span(0, all.length), causal)) : [];
        return [
          svg("text", { x: left - 6, y: foot, "text-anchor": "end" }, String(i)),
          svg("path", { class: "x-axis", d: `M${left} ${foot}H${right}` }),
          ...rows[i].out.map((o, j) =>
            bar(j, o, { class: step.doing === "merge" && step.keys.includes(j) ? "x-dead" : "x-solid" }),
          ),
          ...(step.doing === "merge" ? before[i].out : []).flatMap((o, j) =>
            high * (o - rows[i].out[j]) > 1 ? [bar(j, o, { class: "x-line x-second", "stroke-opacity": 0.6 })] : [],
          ),
          ...softmaxes.map((p, j) =>
            svg("circle", { class: "x-dot x-first", cx: left + (j + 0.5) * wide, cy: foot - p * high, r: 2.5 }),
          ),
        ];
      }),
    );
  });
  const caption = html("figcaption");
  follow(({ step }) => {
    caption.textContent =
      step.doing === "write"
        ? say(
            "Outputs, divided by the sums and written. The values are the identity: bar j is the weight of key j. " +
              "Outlined: before it shrank; orange: just added; rings: the softmax.",
          )
        : say(
            "Outputs, not yet divided by the sums. The values are the identity: bar j is the weight of key j. " +
              "Outlined: before it shrank; orange: just added; rings: the softmax.",
          );
  });
  return panel([drawing, caption]);
}

/** Whether the written output is the softmax. @param {Follow} follow */
function check(follow) {
  const verdict = html("p", { class: "x-facts" });
  follow(({ list, at, all, causal, rows }) => {
    const written = list.slice(0, at).flatMap((step) => (step.doing === "write" ? step.rows : []));
    const apart = written.map((i) => {
      const p = softmax(seen(all[i], i, span(0, all.length), causal));
      return Math.max(...rows[i].out.map((o, j) => Math.abs(o - p[j])));
    });
    verdict.replaceChildren(
      ...sayWith("Written: {n} of {total} rows. Largest difference from the softmax: {difference}", {
        n: String(written.length),
        total: String(all.length),
        difference: html("b", {}, apart.length ? tiny(Math.max(...apart)) : "–"),
      }),
    );
  });
  return verdict;
}

/** Bytes moved so far, in all, and by the naive algorithm; and the same at a realistic size. @param {Scope} scope @param {() => Now} now */
function bytes(scope, now) {
  const lines = [say("moved so far"), say("in total"), say("three passes")].map((name, i) => ({
    name,
    bar: html("div", { class: i ? "x-bar x-whole" : "x-bar" }),
    shown: html("span", { class: "x-value" }),
  }));
  const [room, real] = [html("p", { class: "x-facts" }), html("p", { class: "x-facts" })];
  scope.when([...TILES, "step"], () => {
    const { list, at } = now();
    const [n, blockQ, blockK] = [scope.read("n"), scope.read("block_q"), scope.read("block_k")];
    const amounts = [moved(list.slice(0, at), WIDTH), moved(list, WIDTH), naiveTraffic(n, WIDTH)];
    amounts.forEach((amount, i) => {
      lines[i].bar.style.width = `${(100 * amount) / Math.max(...amounts)}%`;
      lines[i].shown.textContent = `${BYTES * amount} B`;
    });
    const most = BYTES * held(WIDTH, Math.min(n, blockQ), Math.min(n, blockK));
    room.textContent = say(
      "Between slow and fast memory, heads {WIDTH} wide. These tiles need {most} B of fast memory.",
      { WIDTH, most },
    );
  });
  scope.when(["memory", "is_causal"], () => {
    const { n, width } = REAL;
    const side = largestBlock((scope.read("memory") * 1024) / BYTES, width);
    const mebibytes = (/** @type {number} */ amount) => `${fixed((BYTES * amount) / 2 ** 20, 0)} MiB`;
    const flash = traffic(n, width, side, side, scope.read("is_causal"));
    real.replaceChildren(
      ...sayWith(
        "At n = {n} and width {width}, tiles of {side} × {side} fit into it: {moved} move; in three passes {naive}.",
        {
          n: String(n),
          width: String(width),
          side: String(side),
          moved: html("b", {}, mebibytes(flash)),
          naive: mebibytes(naiveTraffic(n, width)),
        },
      ),
    );
  });
  return html(
    "div",
    { class: "x-panel" },
    html(
      "div",
      { class: "x-grid", style: "--columns: max-content 1fr 3.75rem" },
      ...lines.flatMap(({ name, bar, shown }) => [
        html("span", { class: "x-name" }, name),
        html("div", { class: "x-track" }, bar),
        shown,
      ]),
    ),
    room,
    html(
      "div",
      { class: "x-bench" },
      select(scope.value("memory"), {
        label: say("Fast memory"),
        options: [16, 32, 64, 128, 256].map((size) => [size, `${size} KiB`]),
      }),
    ),
    real,
  );
}

export default { render };
