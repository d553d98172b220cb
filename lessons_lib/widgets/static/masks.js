// @ts-check
/** Masks put together with & and |, painted by hand, and how far one layer after another lets a position see. */

import { sum, uniform } from "./arithmetic.js";
import { button, fixed, html, select, slider, stage, svg } from "./kit.js";

/** @typedef {boolean[][]} Mask one row for each query, one column for each key; true = may attend */

/**
 * Each kind of mask: how it is read aloud, the numbers that it takes (name, least, most, default) or the name of a
 * whole list of them, and, for n positions and these numbers, whether query i may attend to key j, and the call of
 * the library if it is not kind(n, ...numbers).
 * A part of a mask is written as the kind and its numbers: "sliding_window 4".
 */
const KINDS = {
  causal: { words: "causal", numbers: [], allows: () => (i, j) => j <= i },
  bidirectional: { words: "bidirectional", numbers: [], allows: () => () => true },
  sliding_window: {
    words: "sliding window",
    numbers: [["window", 1, 32, 4]],
    allows:
      (n, [window]) =>
      (i, j) =>
        j <= i && i - j < window,
  },
  two_sided_window: {
    words: "window, both sides",
    numbers: [["window", 1, 32, 3]],
    allows:
      (n, [window]) =>
      (i, j) =>
        Math.abs(i - j) < window,
    python: (n, [window]) => `sliding_window(${n}, ${window}, causal=False)`,
  },
  dilated: {
    words: "dilated window",
    numbers: [
      ["window", 1, 32, 3],
      ["dilation", 1, 16, 2],
    ],
    allows:
      (n, [window, step]) =>
      (i, j) =>
        j <= i && i - j < window * step && (i - j) % step === 0,
  },
  block: {
    words: "blocks",
    numbers: [["size", 1, 32, 4]],
    allows:
      (n, [size]) =>
      (i, j) =>
        Math.floor(i / size) === Math.floor(j / size),
  },
  documents: {
    words: "documents",
    list: "lengths",
    numbers: [["length", 1, 32, 5]],
    allows: (n, lengths) => {
      const ids = documentIds(n, lengths);
      return (i, j) => ids[i] === ids[j];
    },
    python: (n, lengths) => `documents(torch.tensor([${documentIds(n, lengths).join(", ")}]))`,
  },
  prefix: {
    words: "prefix, then causal",
    numbers: [["prefix", 0, 32, 4]],
    allows:
      (n, [prefix]) =>
      (i, j) =>
        j <= i || j < prefix,
    python: (n, [prefix]) => `prefix(${n}, ${Math.min(n, prefix)})`,
  },
  global_tokens: {
    words: "global tokens",
    list: "positions",
    numbers: [["position", 0, 31, 0]],
    allows: (n, positions) => (i, j) => positions.includes(i) || positions.includes(j),
    python: (n, positions) => `global_tokens(${n}, [${positions.filter((position) => position < n).join(", ")}])`,
  },
  random_sparse: {
    words: "random",
    numbers: [
      ["density", 0, 1, 0.2],
      ["seed", 0, 99, 0],
    ],
    allows(n, [density, seed]) {
      const random = uniform(seed);
      const drawn = Array.from({ length: n * n }, () => random() < density);
      return (i, j) => i === j || drawn[n * i + j];
    },
    python: (n, [density]) => `random_sparse(${n}, ${density}, generator)`,
  },
};

/** Which document each position is in; what the lengths leave over is one more. */
function documentIds(/** @type {number} */ n, /** @type {number[]} */ lengths) {
  const ids = lengths.flatMap((length, id) => Array(length).fill(id));
  return Array.from({ length: n }, (_, i) => ids[i] ?? lengths.length);
}

/** Read one part of a mask: "& dilated 3 2". Numbers that are not given are the kind's own. @param {string} part */
export function parse(part) {
  const words = part.split(" ");
  const operation = "&|".includes(words[0]) ? words.shift() : "";
  const [kind, ...given] = words;
  const numbers = given.length ? given.map(Number) : KINDS[kind].numbers.map((number) => number[3]);
  return { operation, kind, numbers };
}

/** The inverse of `parse`. @param {{ operation?: string, kind: string, numbers: number[] }} part */
export function written({ operation, kind, numbers }) {
  return [operation, kind, ...numbers].filter((word) => word !== "").join(" ");
}

const square = (n, allows) => Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => allows(i, j)));

/** Put parts together from left to right. @param {number} n @param {string[]} parts @returns {Mask} */
export function compose(n, parts) {
  return parts.map(parse).reduce(
    (mask, { operation, kind, numbers }) => {
      const allows = KINDS[kind].allows(n, numbers);
      return square(n, (i, j) => (operation === "&" ? mask[i][j] && allows(i, j) : mask[i][j] || allows(i, j)));
    },
    square(n, () => false),
  );
}

/**
 * Lay painted cells [query, key, allowed] over a mask.
 * @param {Mask} mask @param {number[][]} painted @returns {Mask}
 */
export function overlay(mask, painted) {
  const covered = mask.map((row) => [...row]);
  for (const [i, j, allowed] of painted) if (i < mask.length && j < mask.length) covered[i][j] = Boolean(allowed);
  return covered;
}

/** The share of pairs that may attend. @param {Mask} mask */
export function density(mask) {
  return sum(mask.map((row) => row.filter(Boolean).length)) / mask.length ** 2;
}

/** The queries that may attend nowhere. @param {Mask} mask */
export function deadRows(mask) {
  return mask.flatMap((row, i) => (row.some(Boolean) ? [] : [i]));
}

/** Which inputs can influence which outputs after so many layers; the residual stream carries each to itself. */
export function reach(/** @type {Mask} */ mask, /** @type {number} */ layers) {
  const n = mask.length;
  const layer = square(n, (i, j) => i === j || mask[i][j]);
  let reached = square(n, (i, j) => i === j);
  for (let l = 0; l < layers; l++) {
    const before = reached;
    reached = square(n, (i, j) => layer[i].some((may, k) => may && before[k][j]));
  }
  return reached;
}

/** The composition as a line of Python. @param {number} n @param {string[]} parts */
export function expression(n, parts) {
  const call = ({ kind, numbers }) => KINDS[kind].python?.(n, numbers) ?? `${kind}(${[n, ...numbers].join(", ")})`;
  return parts.map(parse).reduce((all, part, i, parsed) => {
    if (i === 0) return call(part);
    const loose = part.operation === "&" && parsed[i - 1].operation === "|";
    return `${loose ? `(${all})` : all} ${part.operation} ${call(part)}`;
  }, "");
}

const MASK = ["n", "parts", "painted"];

function render({ model, el }) {
  const on = stage({ model, el });
  const mask = () => overlay(compose(on.read("n"), on.read("parts")), on.read("painted"));
  const code = html("code", { class: "x-code" });
  on.add(
    html(
      "div",
      { class: "x-panels" },
      html(
        "div",
        { class: "x-panel" },
        html(
          "div",
          {},
          slider(on, "n", { label: "Positions n", min: 2, max: 32, step: 1 }),
          slider(on, "layers", { label: "Layers L", min: 1, max: 32, step: 1 }),
        ),
        composition(on),
        facts(on, mask),
      ),
      matrix(on, mask),
    ),
    code,
  );
  on.when(MASK, () => {
    const painted = on.read("painted").length;
    code.textContent = expression(on.read("n"), on.read("parts")) + (painted ? `  # and ${painted} painted` : "");
  });
  on.when([...MASK, "layers"], () => {
    const [now, layers] = [mask(), on.read("layers")];
    const percent = (/** @type {Mask} */ some) => `${fixed(100 * density(some), 0)} percent`;
    on.say(
      `${percent(now)} of pairs may attend; ${deadRows(now).length} queries see nothing; ` +
        `${percent(reach(now, layers))} are within reach after ${layers} layers.`,
    );
  });
  return on.leave;
}

/** The parts of the mask, one below the other, each with its numbers. */
function composition(on) {
  const at = (i) => parse(on.read("parts")[i]);
  const change = (i, changed) => on.write(["parts", i], written({ ...at(i), ...changed }));
  const remove = (i) => {
    const [first, ...rest] = on.read("parts").filter((_, k) => k !== i);
    on.write("parts", [written({ ...parse(first), operation: "" }), ...rest]);
  };
  // One property of one part, as a trait of its own that a control can read and write.
  const property = (part, i, name) => ({
    ...part,
    read: () => at(i)[name],
    write: (_, value) => change(i, { [name]: value }),
  });
  const one = (part, i, k) => ({
    ...part,
    read: () => at(i).numbers[k],
    write: (_, value) => change(i, { numbers: at(i).numbers.map((old, e) => (e === k ? value : old)) }),
  });

  const join = (part, i) =>
    i === 0
      ? html("span", { class: "x-head" }, "mask")
      : select(property(part, i, "operation"), "parts", {
          label: `how part ${i + 1} is joined`,
          options: [
            ["&", "and &"],
            ["|", "or |"],
          ],
          plain: true,
        });
  const choice = (part, i) =>
    select({ ...property(part, i, "kind"), write: (_, kind) => change(i, { kind, numbers: [] }) }, "parts", {
      label: `kind of part ${i + 1}`,
      options: Object.entries(KINDS).map(([kind, { words }]) => [kind, words]),
      plain: true,
    });
  const controls = (part, i) => {
    const { numbers, list } = KINDS[at(i).kind];
    if (list) return [typed(property(part, i, "numbers"), list, numbers[0])];
    return numbers.map(([label, min, most, usual], k) => {
      const whole = Number.isInteger(usual);
      const max = most === 32 ? Math.min(most, on.read("n")) : most;
      return slider(one(part, i, k), "parts", {
        label,
        min,
        max,
        step: whole ? 1 : 0.05,
        show: whole ? String : fixed,
      });
    });
  };
  const row = (part, i, of) =>
    html(
      "div",
      { role: "group", "aria-label": `part ${i + 1}` },
      html(
        "div",
        { class: "x-join" },
        join(part, i),
        choice(part, i),
        of > 1 ? button("×", () => remove(i), `remove part ${i + 1}`) : "",
      ),
      ...controls(part, i),
    );
  return on.anew(
    ["parts", "n"],
    () => JSON.stringify([on.read("n"), on.read("parts").map((part) => [parse(part).operation, parse(part).kind])]),
    (part) => {
      const count = on.read("parts").length;
      const add = button("Add a part", () => on.write("parts", [...on.read("parts"), "| global_tokens 0"]));
      return html(
        "div",
        { class: "x-panel" },
        ...on.read("parts").map((_, i) => row(part, i, count)),
        count < 4 ? add : "",
      );
    },
  );
}

/** A list of numbers, typed with spaces between them. */
function typed(on, label, [, least, most]) {
  const input = html("input", { type: "text", inputmode: "numeric", autocomplete: "off" });
  const numbers = () => (input.value.match(/\d+/g) ?? []).map((x) => Math.min(most, Math.max(least, Number(x))));
  input.addEventListener("change", () => on.write("parts", numbers().slice(0, 32)));
  on.when(["parts"], () => {
    input.value = on.read("parts").join(" ");
  });
  return html("label", { class: "x-control" }, html("span", {}, label), input);
}

/** What the mask costs and what it lets through. */
function facts(on, mask) {
  const [allowed, share, dead, reached] = Array.from({ length: 4 }, () => html("b"));
  on.when([...MASK, "layers"], () => {
    const now = mask();
    const n = now.length;
    allowed.textContent = `${Math.round(density(now) * n * n)} of ${n * n}`;
    share.textContent = fixed(density(now));
    dead.textContent = String(deadRows(now).length);
    reached.textContent = fixed(density(reach(now, on.read("layers"))));
  });
  const line = (name, ...values) => html("tr", {}, html("th", { scope: "row" }, name), html("td", {}, ...values));
  return html(
    "table",
    { class: "x-table x-wide" },
    line("pairs that may attend", allowed),
    line("density", share),
    line("queries that see nothing", dead),
    line("within reach after L layers", reached),
  );
}

const [SIZE, LEFT, TOP, RIGHT] = [288, 26, 22, 14];

/** The matrix: painted by mouse, by touch, and with the arrow keys and the space bar. */
function matrix(on, mask) {
  const told = html("p", { class: "x-facts" });
  /** @type {number[]} */
  let at = [0, 0]; // the one cell that the tabulator key reaches
  const drawing = on.anew(
    ["n"],
    () => String(on.read("n")),
    (part) => {
      const n = on.read("n");
      const side = SIZE / n;
      const middle = (k) => (k + 0.5) * side;
      const cells = square(n, (i, j) =>
        svg("rect", {
          role: "gridcell",
          x: LEFT + j * side + 0.5,
          y: TOP + i * side + 0.5,
          width: side - 1,
          height: side - 1,
        }),
      );
      const marks = ["x-halo", "x-marks"].map((look) => svg("path", { class: look }));
      const dead = svg("g", { "aria-hidden": "true" });
      const grid = svg(
        "svg",
        {
          viewBox: `0 0 ${LEFT + SIZE + RIGHT} ${TOP + SIZE + 2}`,
          role: "grid",
          "data-lm-suppress-shortcuts": "true",
          "aria-label": "mask: a row for each query, a column for each key",
        },
        svg("rect", { class: "x-ground", x: LEFT, y: TOP, width: SIZE, height: SIZE }),
        numbers(n, middle),
        ...cells.map((row) => svg("g", { role: "row" }, ...row)),
        ...marks,
        dead,
      );
      let seen = mask();

      const tell = (/** @type {number[]} */ [i, j]) => {
        told.textContent = cells[i][j].getAttribute("aria-label");
      };
      const go = (/** @type {number[]} */ [i, j]) => {
        at = [i, j].map((k) => Math.max(0, Math.min(n - 1, k)));
        for (const cell of cells.flat()) cell.setAttribute("tabindex", cell === cells[at[0]][at[1]] ? "0" : "-1");
      };
      const paint = (/** @type {number[]} */ [i, j], /** @type {boolean} */ value) => {
        if (seen[i][j] === value) return;
        const composed = compose(n, on.read("parts"))[i][j] === value;
        const others = on.read("painted").filter(([a, b]) => a !== i || b !== j);
        on.write("painted", composed ? others : [...others, [i, j, Number(value)]]);
      };
      go(at);

      part.when(["parts", "painted", "layers"], () => {
        seen = mask();
        const reached = reach(seen, on.read("layers"));
        cells.forEach((row, i) =>
          row.forEach((cell, j) => {
            const [words, look] = seen[i][j]
              ? ["may attend", "x-may"]
              : reached[i][j]
                ? ["within reach", "x-near"]
                : ["hidden", ""];
            cell.setAttribute("class", `x-cell ${look}`);
            cell.setAttribute("aria-label", `query ${i}, key ${j}: ${words}`);
          }),
        );
        const painted = on.read("painted").filter(([i, j]) => i < n && j < n);
        const dots = painted.map(([i, j]) => `M${LEFT + middle(j)} ${TOP + middle(i)}h0`).join("");
        for (const mark of marks) mark.setAttribute("d", dots);
        dead.replaceChildren(
          ...deadRows(seen).map((i) =>
            svg("text", { class: "x-dead", x: LEFT + SIZE + 8, y: TOP + middle(i) + 4, "text-anchor": "middle" }, "∅"),
          ),
        );
        tell(at);
      });

      let brush = true;
      const pointed = (act) => (event) => {
        const box = grid.getBoundingClientRect();
        const unit = box.width / (LEFT + SIZE + RIGHT);
        const cell = [(event.clientY - box.top) / unit - TOP, (event.clientX - box.left) / unit - LEFT].map((x) =>
          Math.floor(x / side),
        );
        if (cell.some((k) => k < 0 || k >= n)) return;
        act(cell, event);
        tell(cell);
      };
      grid.addEventListener(
        "pointerdown",
        pointed(([i, j]) => {
          brush = !seen[i][j];
          go([i, j]);
          paint([i, j], brush);
        }),
      );
      grid.addEventListener(
        "pointermove",
        pointed((cell, event) => {
          if (event.buttons === 1) paint(cell, brush);
        }),
      );
      grid.addEventListener("keydown", (event) => {
        const [i, j] = at;
        const steps = {
          ArrowUp: [i - 1, j],
          ArrowDown: [i + 1, j],
          ArrowLeft: [i, j - 1],
          ArrowRight: [i, j + 1],
          Home: [i, 0],
          End: [i, n - 1],
        };
        if (event.key in steps) {
          go(steps[event.key]);
          cells[at[0]][at[1]].focus();
        } else if (event.key === " " || event.key === "Enter") paint(at, !seen[i][j]);
        else return;
        tell(at);
        event.preventDefault();
        event.stopPropagation(); // the arrow keys turn pages elsewhere
      });
      return grid;
    },
  );
  const clear = button("Clear the paint", () => on.write("painted", []));
  on.when(["painted"], () => {
    clear.disabled = on.read("painted").length === 0;
  });
  return html(
    "figure",
    { class: "x-panel" },
    drawing,
    html("div", { class: "x-bench" }, told, clear),
    html(
      "p",
      { class: "x-legend" },
      html("span", {}, "row: query, column: key"),
      html("span", {}, html("span", { class: "x-key x-may" }), "may attend"),
      html("span", {}, html("span", { class: "x-key x-near" }), "within reach after L layers"),
      html("span", {}, html("span", { class: "x-dead" }, "∅ "), "sees nothing"),
    ),
  );
}

/** The numbers of the rows and columns, every fourth when there are many. */
function numbers(n, middle) {
  const mark = (k, x, y) => svg("text", { x, y, "text-anchor": "middle" }, String(k));
  const marked = Array.from({ length: n }, (_, k) => k).filter((k) => k % (n > 16 ? 4 : 1) === 0);
  return svg(
    "g",
    { "aria-hidden": "true" },
    ...marked.flatMap((k) => [mark(k, LEFT + middle(k), TOP - 6), mark(k, LEFT - 12, TOP + middle(k) + 4)]),
  );
}

export default { render };
