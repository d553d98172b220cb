// @ts-check
/** FlashAttention's forward pass, tile by tile: what fast memory holds, what must shrink, and how much is moved. */

import { normal, softmax, sum, uniform } from "./arithmetic.js";
import { button, checkbox, fixed, html, picture, select, slider, stage, svg, tiny } from "./kit.js";

const LARGEST = 16;
const WIDTH = 4; // of the heads in the figure
const REAL = { n: 4096, width: 64 };
const BYTES = 4;

/**
 * @typedef {{ doing: "load" | "merge" | "write", rows: number[], keys: number[] }} Step
 * @typedef {{ peak: number, factor: number, total: number, out: number[] }} Row
 *   the running maximum of a query, what it last shrank by, its running sum, and its output, to be divided by the sum;
 *   the values are the identity, so an output has one entry for each key: its weight
 */

const span = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

/**
 * Scores with one decimal; a larger n keeps those of a smaller one. "rising" and "falling" sort each row.
 * @param {number} n @param {number} seed @param {string} order
 */
export function scores(n, seed, order) {
  const random = uniform(seed);
  const drawn = span(0, LARGEST).map(() => span(0, LARGEST).map(() => Math.round(20 * normal(random)) / 10));
  const rows = drawn.slice(0, n).map((row) => row.slice(0, n));
  if (order !== "drawn") for (const row of rows) row.sort((a, b) => (order === "rising" ? a - b : b - a));
  return rows;
}

/**
 * What is done in turn: each block of queries meets the blocks of keys that it sees, then is written.
 * @param {number} n @param {number} blockQ @param {number} blockK @param {boolean} causal @returns {Step[]}
 */
export function schedule(n, blockQ, blockK, causal) {
  const steps = [];
  for (let q = 0; q < n; q += blockQ) {
    const rows = span(q, Math.min(n, q + blockQ));
    for (let k = 0; k < (causal ? rows[rows.length - 1] + 1 : n); k += blockK) {
      const keys = span(k, Math.min(n, k + blockK));
      steps.push({ doing: "load", rows, keys }, { doing: "merge", rows, keys });
    }
    steps.push({ doing: "write", rows, keys: [] });
  }
  return steps;
}

/** The scores of a query for some keys, -Infinity where it does not see the key. */
export function seen(/** @type {number[]} */ row, /** @type {number} */ query, /** @type {number[]} */ keys, causal) {
  return keys.map((j) => (causal && j > query ? -Infinity : row[j]));
}

/**
 * Take the scores of one tile into a row that has seen at least one key, or sees one now.
 * @param {Row} row @param {number[]} keys @param {number[]} tile their scores @param {boolean} rescale
 * @returns {Row}
 */
export function merge(row, keys, tile, rescale) {
  const peak = Math.max(row.peak, ...tile);
  const factor = rescale ? Math.exp(row.peak - peak) : 1;
  const weights = tile.map((s) => Math.exp(s - peak));
  const out = row.out.map((o) => factor * o);
  keys.forEach((j, i) => {
    out[j] += weights[i];
  });
  return { peak, factor, total: factor * row.total + sum(weights), out };
}

/**
 * All rows after some steps; what is written is divided by its sum.
 * @param {number[][]} all the scores @param {Step[]} steps @param {boolean} causal @param {boolean} rescale
 */
export function run(all, steps, causal, rescale) {
  const rows = all.map((row) => ({ peak: -Infinity, factor: 1, total: 0, out: row.map(() => 0) }));
  for (const { doing, rows: block, keys } of steps)
    for (const i of block) {
      if (doing === "merge") rows[i] = merge(rows[i], keys, seen(all[i], i, keys, causal), rescale);
      if (doing === "write") rows[i] = { ...rows[i], out: rows[i].out.map((o) => o / rows[i].total) };
    }
  return rows;
}

/**
 * Numbers moved between slow and fast memory: a block of queries once, keys and values for each tile, outputs and
 * log-sum-exps once.
 * @param {Step[]} steps @param {number} width
 */
export function moved(steps, width) {
  const queries = ({ rows, keys }) => (keys[0] === 0 ? rows.length * width : 0);
  return sum(
    steps.map((step) => {
      if (step.doing === "load") return queries(step) + 2 * step.keys.length * width;
      return step.doing === "write" ? step.rows.length * (width + 1) : 0;
    }),
  );
}

/** The same for all steps, without listing them: n (2 d + 1), and 2 d for each key that a block of queries meets. */
export function traffic(n, width, blockQ, blockK, causal) {
  let met = 0;
  for (let q = 0; q < n; q += blockQ)
    met += causal ? Math.min(n, Math.ceil(Math.min(n, q + blockQ) / blockK) * blockK) : n;
  return n * (2 * width + 1) + 2 * width * met;
}

/** Three passes: read Q, K, write S; read S, write P; read P, V, write O. */
export function naiveTraffic(/** @type {number} */ n, /** @type {number} */ width) {
  return 4 * n * width + 4 * n * n;
}

/** Numbers in fast memory: Q and O, K and V, the tile, a maximum and a sum for each query. */
export function held(/** @type {number} */ width, /** @type {number} */ blockQ, /** @type {number} */ blockK) {
  return 2 * (blockQ + blockK) * width + blockQ * blockK + 2 * blockQ;
}

/** The side of the largest square tile, a power of two, for which so many numbers are enough. */
export function largestBlock(/** @type {number} */ numbers, /** @type {number} */ width) {
  let side = 1;
  while (held(width, 2 * side, 2 * side) <= numbers) side *= 2;
  return side;
}

const TILES = ["n", "block_q", "block_k", "is_causal"];
const EVERYTHING = [...TILES, "order", "seed", "rescale", "step"];

function render({ model, el }) {
  const on = stage({ model, el });
  const steps = () => schedule(...TILES.map(on.read));
  const all = () => scores(...["n", "seed", "order"].map(on.read));
  // The state before and after the present step; before the first, the first block of queries waits.
  const now = () => {
    const list = steps();
    const at = Math.min(on.read("step"), list.length);
    const [causal, rescale] = [on.read("is_causal"), on.read("rescale")];
    return {
      at,
      list,
      causal,
      all: all(),
      step: at ? list[at - 1] : { doing: "wait", rows: list[0].rows, keys: [] },
      before: run(all(), list.slice(0, Math.max(0, at - 1)), causal, rescale),
      rows: run(all(), list.slice(0, at), causal, rescale),
    };
  };
  const words = html("p", { style: "min-height: 5.6em" });
  on.add(
    html(
      "div",
      { class: "x-panels" },
      html("div", { class: "x-panel" }, walk(on, steps), matrix(on, now), settings(on)),
      html("div", { class: "x-panel" }, words, table(on, now), outputs(on, now), check(on, now), bytes(on, now)),
    ),
  );
  on.when(EVERYTHING, () => {
    const state = now();
    words.textContent = told(state);
    on.say(`Step ${state.at} of ${state.list.length}. ${told(state)}`);
  });
  return on.leave;
}

const named = (list) => (list.length > 1 ? `${list[0]} to ${list[list.length - 1]}` : String(list[0]));

/** What happens in this step. */
function told({ step: { doing, rows, keys }, rows: after }) {
  if (doing === "wait") return `Nothing is in fast memory yet. Press Step: queries ${named(rows)} come first.`;
  if (doing === "load")
    return (
      `Queries ${named(rows)} are here; keys ${named(keys)} and their values come in, and the scores of the tile are ` +
      "computed. By which factor will each sum shrink? Say a number, then press Step."
    );
  if (doing === "write")
    return `Divide by the sum and write: outputs ${named(rows)} and their log-sum-exps. The tiles are forgotten.`;
  if (keys[0] === 0) return "The first tile: nothing to shrink yet. Each sum is relative to its maximum.";
  const least = rows.reduce((a, b) => (after[b].factor < after[a].factor ? b : a));
  return (
    "Sum and output shrink by e to the old maximum minus the new one; then the tile is added. " +
    (after[least].factor < 1
      ? `Query ${least} shrinks most: × ${fixed(after[least].factor)}.`
      : "Here nothing shrinks.")
  );
}

/** Forwards, back, and to any step. */
function walk(on, steps) {
  const go = (by) => () => {
    const last = steps().length;
    on.write("step", Math.max(0, Math.min(last, Math.min(last, on.read("step")) + by)));
  };
  const place = on.anew(
    TILES,
    () => String(steps().length),
    (part) =>
      slider(part, "step", {
        label: `Step, of ${steps().length}`,
        min: 0,
        max: steps().length,
        step: 1,
        show: (step) => String(Math.min(step, steps().length)),
      }),
  );
  return html(
    "div",
    {},
    html(
      "div",
      { class: "x-bench" },
      button("Step", go(1)),
      button("Back", go(-1)),
      button("Start again", () => on.write("step", 0)),
    ),
    place,
  );
}

function settings(on) {
  return html(
    "div",
    {},
    slider(on, "n", { label: "Positions n", min: 2, max: LARGEST, step: 1 }),
    slider(on, "block_q", { label: "Queries in a tile", min: 1, max: 8, step: 1 }),
    slider(on, "block_k", { label: "Keys in a tile", min: 1, max: 8, step: 1 }),
    html(
      "div",
      { class: "x-bench" },
      select(on, "order", {
        label: "Scores of a row",
        options: [
          ["drawn", "drawn"],
          ["rising", "rising"],
          ["falling", "falling"],
        ],
      }),
      button("Draw again", () => on.write("seed", (on.read("seed") + 1) % 2 ** 31)),
    ),
    html(
      "div",
      { class: "x-bench" },
      checkbox(on, "is_causal", { label: "causal" }),
      checkbox(on, "rescale", { label: "rescale what is there" }),
    ),
  );
}

const [SIZE, LEFT, TOP, RIGHT] = [264, 44, 54, 24];
const INK = "fill: var(--ink)";

/** Scores, tiles, and the blocks of Q, K, V and O: strong where they are in fast memory, faint where they are not. */
function matrix(on, now) {
  const drawing = picture(LEFT + SIZE + RIGHT, TOP + SIZE + 16, "scores, and which tile of them is in fast memory");
  on.when(EVERYTHING, () => {
    const { step, list, at, all, causal } = now();
    const side = SIZE / all.length;
    const [low, high] = [Math.min(...all.flat()), Math.max(...all.flat())];
    const within = (i, j) => step.rows.includes(i) && step.keys.includes(j);
    const box = (x, y, width, height, more) => svg("rect", { x, y, width, height, ...more });
    const word = (content, x, y, anchor = "middle", style = null) =>
      svg("text", { x, y, "text-anchor": anchor, style }, content);
    const written = list.slice(0, at).flatMap(({ doing, rows }) => (doing === "write" ? rows : []));
    const here = at && step.doing !== "write" ? step.rows : [];

    const marks = span(0, all.length).flatMap((k) => {
      const start = k * side + 1;
      const strip = (x, y, width, height, held, is = "x-solid") => [
        box(x, y, width, height, { class: "x-ground" }),
        ...(held ? [box(x, y, width, height, { class: is })] : []),
      ];
      return [
        word(String(k), LEFT + start + side / 2 - 1, TOP - 40),
        word(String(k), LEFT - 24, TOP + start + side / 2 + 3, "end"),
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
    const cells = all.flatMap((row, i) =>
      row.flatMap((score, j) => {
        const [x, y] = [LEFT + j * side, TOP + i * side];
        const shade = 0.06 + 0.39 * ((score - low) / (high - low || 1));
        if (causal && j > i) return [];
        return [
          box(x + 1, y + 1, side - 2, side - 2, { class: "x-solid", "fill-opacity": shade * (within(i, j) ? 1 : 0.3) }),
          ...(side > 26
            ? [word(fixed(score, 1), x + side / 2, y + side / 2 + 4, "middle", within(i, j) ? INK : null)]
            : []),
        ];
      }),
    );
    const edges = list.filter(({ doing }) => doing === "load").map(({ rows, keys }) => outline(rows, keys, side));
    const current = step.keys.length ? outline(step.rows, step.keys, side) : "";
    drawing.replaceChildren(
      ...marks,
      ...[
        ["K", LEFT - 6, TOP - 26, "end"],
        ["V", LEFT - 6, TOP - 10, "end"],
        ["Q", LEFT - 14, TOP + SIZE + 13],
        ["O", LEFT + SIZE + 14, TOP + SIZE + 13],
      ].map(([name, x, y, anchor]) => word(name, x, y, anchor)),
      ...cells,
      svg("path", { class: "x-axis", d: edges.join("") }),
      svg("path", { class: "x-line x-second", d: current }),
    );
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "p",
      { class: "x-legend" },
      html("span", {}, html("span", { class: "x-key x-may" }), "in fast memory"),
      html("span", {}, html("span", { class: "x-key", style: "background: var(--second)" }), "written"),
      html("span", {}, "no frame: never visited"),
    ),
  );
}

function outline(rows, keys, side) {
  const [x, y] = [LEFT + keys[0] * side, TOP + rows[0] * side];
  return `M${x} ${y}h${keys.length * side}v${rows.length * side}h${-keys.length * side}z`;
}

/** The running numbers of each query of the block; the factor is for the reader to predict before it is shown. */
function table(on, now) {
  const body = html("tbody");
  const heads = ["query", "max", "in tile", "factor", "sum"].map((head) => html("th", { scope: "col" }, head));
  on.when(EVERYTHING, () => {
    const { step, rows, all, causal } = now();
    const line = (i) => {
      const tile = Math.max(...seen(all[i], i, step.keys, causal));
      const first = step.keys[0] === 0;
      const factor = { load: first ? "–" : "?", merge: first ? "–" : fixed(rows[i].factor) }[step.doing] ?? "";
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

const number = (x) => (x === -Infinity ? "−∞" : fixed(x, 1));

/** The output of each query of the block, one bar for each key; an outline where a bar was higher. */
function outputs(on, now) {
  const [left, right, high] = [20, 316, 22];
  const drawing = picture(320, 24, "outputs so far");
  on.when(EVERYTHING, () => {
    const { step, before, rows, all, causal } = now();
    const wide = (right - left) / all.length;
    drawing.setAttribute("viewBox", `0 0 320 ${step.rows.length * (high + 8)}`);
    drawing.replaceChildren(
      ...step.rows.flatMap((i, r) => {
        const foot = (r + 1) * (high + 8) - 3;
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
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html(
      "figcaption",
      {},
      "Output of each query so far, not yet divided by its sum. The values are the identity, so that bar j is the " +
        "weight of key j. Outlined: before it shrank; orange: just added; rings: the softmax of a row that is written.",
    ),
  );
}

/** Whether what is written is the softmax. */
function check(on, now) {
  const said = html("p", { class: "x-facts" });
  on.when(EVERYTHING, () => {
    const { list, at, all, causal, rows } = now();
    const written = list.slice(0, at).flatMap((step) => (step.doing === "write" ? step.rows : []));
    const apart = written.map((i) => {
      const p = softmax(seen(all[i], i, span(0, all.length), causal));
      return Math.max(...rows[i].out.map((o, j) => Math.abs(o - p[j])));
    });
    said.replaceChildren(
      `Written: ${written.length} of ${all.length} rows. Largest difference from the softmax: `,
      html("b", {}, apart.length ? tiny(Math.max(...apart)) : "–"),
    );
  });
  return said;
}

/** Bytes moved so far, in the end, and by the naive algorithm; and the same at a real size. */
function bytes(on, now) {
  const lines = ["moved so far", "in the end", "naive"].map((name, i) => ({
    name,
    bar: html("div", { class: i ? "x-bar x-whole" : "x-bar" }),
    shown: html("span", { class: "x-value" }),
  }));
  const [room, real] = [html("p", { class: "x-facts" }), html("p", { class: "x-facts" })];
  on.when([...TILES, "step"], () => {
    const { list, at } = now();
    const [n, blockQ, blockK] = TILES.map(on.read);
    const amounts = [moved(list.slice(0, at), WIDTH), moved(list, WIDTH), naiveTraffic(n, WIDTH)];
    amounts.forEach((amount, i) => {
      lines[i].bar.style.width = `${(100 * amount) / Math.max(...amounts)}%`;
      lines[i].shown.textContent = `${BYTES * amount} B`;
    });
    const most = BYTES * held(WIDTH, Math.min(n, blockQ), Math.min(n, blockK));
    room.textContent = `Between slow and fast memory, heads ${WIDTH} wide. These tiles need ${most} B of fast memory.`;
  });
  on.when(["memory", "is_causal"], () => {
    const { n, width } = REAL;
    const side = largestBlock((on.read("memory") * 1024) / BYTES, width);
    const mebibytes = (amount) => `${fixed((BYTES * amount) / 2 ** 20, 0)} MiB`;
    const flash = traffic(n, width, side, side, on.read("is_causal"));
    real.replaceChildren(
      `At n = ${n} and width ${width}, tiles of ${side} × ${side} fit into it: `,
      html("b", {}, mebibytes(flash)),
      ` move; naively ${mebibytes(naiveTraffic(n, width))}.`,
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
      select({ ...on, write: (trait, value) => on.write(trait, Number(value)) }, "memory", {
        label: "Fast memory",
        options: [16, 32, 64, 128, 256].map((size) => [String(size), `${size} KiB`]),
      }),
    ),
    real,
  );
}

export default { render };
