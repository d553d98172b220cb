/** Masks composed with & and |, painted cells, and the reach of several layers. */

import { button, entry, fixed, html, named, numbers, oncePerFrame, panel, select, slider, stage, svg } from "./kit.js";
import { KINDS, compose, deadRows, density, expression, overlay, parse, reach, square, written } from "./masks.math.js";
import { say } from "./words.js";

/**
 * @typedef {{ n: number, parts: string[], layers: number, painted: number[][] }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {import("./masks.math.js").Mask} Mask
 * @typedef {import("./masks.math.js").Part} Part
 */

/** The part that "Add a part" adds: the first kind that is not used. */
const NEXT = ["| global_tokens 0", "& causal", "| sliding_window 4", "| block 4", "| dilated 3 2"];
/** @type {(keyof Traits)[]} */
const MASK = ["n", "parts", "painted"];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const mask = () => overlay(compose(scope.read("n"), scope.read("parts")), scope.read("painted"));
  const code = html("code", { class: "x-code" });
  /** Measures of the mask. @type {[string, () => string][]} */
  const measures = [
    [
      say("allowed pairs"),
      () => say("{n} of {total}", { n: mask().flat().filter(Boolean).length, total: mask().length ** 2 }),
    ],
    [say("density"), () => fixed(density(mask()))],
    [say("fully masked rows"), () => String(deadRows(mask()).length)],
    [say("within reach after L layers"), () => fixed(density(reach(mask(), scope.read("layers"))))],
  ];
  scope.add(
    html(
      "div",
      { class: "x-aside" },
      html(
        "div",
        { class: "x-controls" },
        slider(scope.value("n"), { label: say("Positions n"), min: 2, max: 32, step: 1 }),
        slider(scope.value("layers"), { label: say("Layers L"), min: 1, max: 32, step: 1 }),
      ),
      matrix(scope, mask),
      composition(scope),
      numbers(scope, [...MASK, "layers"], measures),
    ),
    code,
  );
  scope.when(MASK, () => {
    const painted = scope.read("painted").length;
    code.textContent =
      expression(scope.read("n"), scope.read("parts")) + (painted ? say("  # and {n} painted", { n: painted }) : "");
  });
  scope.when([...MASK, "layers"], () => {
    scope.announce(measures.map(([name, of]) => say("{name}: {value}", { name, value: of() })).join(say("; ")));
  });
  return scope.dispose;
}

/** The parts of the mask, one below the other, each with its numbers. @param {Scope} scope */
function composition(scope) {
  const at = (/** @type {number} */ i) => parse(scope.read("parts")[i]);
  const change = (/** @type {number} */ i, /** @type {Partial<Part>} */ changed) =>
    entry(scope.value("parts"), i).set(written({ ...at(i), ...changed }));
  const remove = (/** @type {number} */ i) => {
    const [first, ...rest] = scope.read("parts").filter((_, k) => k !== i);
    scope.write("parts", [written({ ...parse(first), operation: "" }), ...rest]);
  };
  /**
   * One property of one part, as a value for a control.
   * @template {keyof Part} K
   * @param {Scope} part @param {number} i @param {K} name
   */
  const property = (part, i, name) => ({
    ...part.value("parts"),
    get: () => at(i)[name],
    set: (/** @type {Part[K]} */ value) => change(i, { [name]: value }),
  });

  const join = (/** @type {Scope} */ part, /** @type {number} */ i) =>
    i === 0
      ? html("span", { class: "x-head" }, say("mask"))
      : select(property(part, i, "operation"), {
          label: say("how part {i} is joined", { i: i + 1 }),
          options: [
            ["&", say("and &")],
            ["|", say("or |")],
          ],
          plain: true,
        });
  const choice = (/** @type {Scope} */ part, /** @type {number} */ i) =>
    select(
      { ...property(part, i, "kind"), set: (kind) => change(i, { kind, numbers: [] }) },
      {
        label: say("kind of part {i}", { i: i + 1 }),
        options: Object.entries(KINDS).map(([kind, { words }]) => [kind, say(words)]),
        plain: true,
      },
    );
  const controls = (/** @type {Scope} */ part, /** @type {number} */ i) => {
    const { numbers, list } = KINDS[at(i).kind];
    const values = property(part, i, "numbers");
    if (list) return [typed(values, say(list), numbers[0])];
    return numbers.map(([label, min, most, usual], k) => {
      const whole = Number.isInteger(usual);
      const max = most === 32 ? Math.min(most, scope.read("n")) : most;
      return slider(entry(values, k), {
        label: say(label),
        min,
        max,
        step: whole ? 1 : 0.05,
        show: whole ? String : fixed,
      });
    });
  };
  const row = (/** @type {Scope} */ part, /** @type {number} */ i, /** @type {number} */ of) =>
    html(
      "div",
      { role: "group", "aria-label": say("part {i}", { i: i + 1 }) },
      html(
        "div",
        { class: "x-join" },
        join(part, i),
        choice(part, i),
        of > 1 ? button("×", () => remove(i), say("remove part {i}", { i: i + 1 })) : "",
      ),
      ...controls(part, i),
    );
  return scope.rebuild(
    ["parts", "n"],
    () =>
      JSON.stringify([scope.read("n"), scope.read("parts").map((part) => [parse(part).operation, parse(part).kind])]),
    (part) => {
      const count = scope.read("parts").length;
      const add = button(say("Add a part"), () => {
        const parts = scope.read("parts");
        const next = NEXT.find((one) => !parts.some((had) => parse(had).kind === parse(one).kind));
        scope.write("parts", [...parts, next ?? NEXT[0]]);
      });
      return html(
        "div",
        { class: "x-panel" },
        ...scope.read("parts").map((_, i) => row(part, i, count)),
        count < 4 ? add : "",
      );
    },
  );
}

/**
 * A list of numbers, typed with spaces between them.
 * @param {import("./kit.js").Value<number[]>} value @param {string} label @param {[string, number, number, number]} bounds
 */
function typed(value, label, [, least, most]) {
  const input = html("input", { type: "text", inputmode: "numeric", autocomplete: "off" });
  const numbers = () => (input.value.match(/\d+/g) ?? []).map((x) => Math.min(most, Math.max(least, Number(x))));
  input.addEventListener("change", () => value.set(numbers().slice(0, 32)));
  value.watch(() => {
    input.value = value.get().join(" ");
  });
  return html("label", { class: "x-control" }, html("span", {}, label), input);
}

const [SIZE, LEFT, TOP, RIGHT] = [264, 24, 34, 16];
const HOLD = 350; // milliseconds after which a resting touch begins to paint
/** @typedef {{ brush: boolean, cell: number[], before: number[][] }} Stroke */

/** The cells on the straight line from one to another, without the first. @param {number[]} from @param {number[]} to */
function between(from, to) {
  const steps = Math.max(...to.map((k, axis) => Math.abs(k - from[axis])));
  return Array.from({ length: steps }, (_, s) =>
    from.map((k, axis) => Math.round(k + ((s + 1) / steps) * (to[axis] - k))),
  );
}

/**
 * The matrix, which is painted by mouse, by touch, and with the arrow keys and the space bar.
 * @param {Scope} scope @param {() => Mask} mask
 */
function matrix(scope, mask) {
  const message = html("p", { class: "x-facts" });
  /** @type {number[]} */
  let at = [0, 0]; // the cell that Tab reaches
  const drawing = scope.rebuild(
    ["n"],
    () => String(scope.read("n")),
    (part) => {
      const n = scope.read("n");
      const side = SIZE / n;
      const middle = (/** @type {number} */ k) => (k + 0.5) * side;
      const cells = square(n, (i, j) =>
        svg("rect", {
          role: "gridcell",
          x: LEFT + j * side + 0.5,
          y: TOP + i * side + 0.5,
          width: side - 1,
          height: side - 1,
        }),
      );
      const marks = svg("g");
      const dead = svg("g", { "aria-hidden": "true" });
      const grid = svg(
        "svg",
        {
          viewBox: `0 0 ${LEFT + SIZE + RIGHT} ${TOP + SIZE + 2}`,
          role: "grid",
          "aria-label": say("mask: queries down, keys across"),
        },
        svg("rect", { class: "x-ground", x: LEFT, y: TOP, width: SIZE, height: SIZE }),
        places(n, middle),
        ...cells.map((row) => svg("g", { role: "row" }, ...row)),
        marks,
        dead,
      );
      let seen = mask();

      const tell = (/** @type {number[]} */ [i, j]) => {
        message.textContent = cells[i][j].getAttribute("aria-label");
      };
      const go = (/** @type {number[]} */ [i, j]) => {
        at = [i, j].map((k) => Math.max(0, Math.min(n - 1, k)));
        for (const cell of cells.flat()) cell.setAttribute("tabindex", cell === cells[at[0]][at[1]] ? "0" : "-1");
      };
      const paint = (/** @type {number[][]} */ places, /** @type {boolean} */ value) => {
        const changed = places.filter(([i, j]) => seen[i][j] !== value);
        if (!changed.length) return;
        const plain = compose(n, scope.read("parts"));
        const kept = scope.read("painted").filter(([a, b]) => !changed.some(([i, j]) => a === i && b === j));
        const paint = changed.filter(([i, j]) => plain[i][j] !== value).map((cell) => [...cell, Number(value)]);
        scope.write("painted", [...kept, ...paint]);
      };
      go(at);

      part.when(["parts", "painted", "layers"], () => {
        seen = mask();
        const reached = reach(seen, scope.read("layers"));
        cells.forEach((row, i) =>
          row.forEach((cell, j) => {
            const [words, look] = seen[i][j]
              ? [say("may attend"), "x-may"]
              : reached[i][j]
                ? [say("within reach"), "x-near"]
                : [say("hidden"), ""];
            cell.setAttribute("class", `x-cell ${look}`);
            cell.setAttribute("aria-label", say("query {i}, key {j}: {state}", { i, j, state: words }));
          }),
        );
        const painted = scope.read("painted").filter(([i, j]) => i < n && j < n);
        marks.replaceChildren(
          ...painted.map(([i, j]) =>
            svg("circle", { class: "x-mark", r: 3, cx: LEFT + middle(j), cy: TOP + middle(i) }),
          ),
        );
        dead.replaceChildren(
          ...deadRows(seen).map((i) => named("∅", LEFT + SIZE + 8, TOP + middle(i) + 4, "x-dead", "middle")),
        );
        tell(at);
      });

      /** A stroke: its value, its position, and the cells painted before. @type {Stroke | null} */
      let stroke = null;
      /** @type {{ from: PointerEvent, timer: ReturnType<typeof setTimeout> } | null} */
      let resting = null; // a touch that may become a tap, a press or a scroll
      const cellAt = (/** @type {PointerEvent} */ event) => {
        const box = grid.getBoundingClientRect();
        const unit = box.width / (LEFT + SIZE + RIGHT);
        const places = [(event.clientY - box.top) / unit - TOP, (event.clientX - box.left) / unit - LEFT];
        return places.map((place) => Math.floor(place / side));
      };
      const inside = (/** @type {number[]} */ cell) => cell.every((k) => k >= 0 && k < n);
      const begin = (/** @type {PointerEvent} */ event) => {
        const cell = cellAt(event);
        if (!inside(cell)) return;
        stroke = { brush: !seen[cell[0]][cell[1]], cell, before: scope.read("painted") };
        go(cell);
        paint([cell], stroke.brush);
        tell(cell);
      };
      /** The cells that the stroke has crossed since the last frame. @type {number[][]} */
      const crossed = [];
      const painting = oncePerFrame((/** @type {boolean} */ brush) => paint(crossed.splice(0), brush));
      const rest = () => {
        clearTimeout(resting?.timer);
        resting = null;
      };
      grid.addEventListener("pointerdown", (event) => {
        if (event.button !== 0 || !event.isPrimary) return;
        if (event.pointerType !== "touch") {
          grid.setPointerCapture(event.pointerId);
          begin(event);
        } else resting = { from: event, timer: setTimeout(() => (rest(), begin(event)), HOLD) };
      });
      grid.addEventListener("pointermove", (event) => {
        if (resting && Math.hypot(event.clientX - resting.from.clientX, event.clientY - resting.from.clientY) > 8)
          rest();
        const to = cellAt(event);
        if (stroke) {
          crossed.push(...between(stroke.cell, to).filter(inside));
          painting.later(stroke.brush);
          stroke.cell = to;
        }
        if (inside(to)) tell(to);
      });
      grid.addEventListener("pointerup", (event) => {
        if (resting) begin(event);
        painting.flush();
        rest();
        stroke = null;
      });
      grid.addEventListener("pointercancel", () => {
        painting.flush();
        if (stroke) scope.write("painted", stroke.before);
        rest();
        stroke = null;
      });
      grid.addEventListener("touchmove", (event) => stroke && event.preventDefault(), { passive: false });
      grid.addEventListener("contextmenu", (event) => stroke && event.preventDefault());
      grid.addEventListener("keydown", (event) => {
        const [i, j] = at;
        /** @type {Record<string, number[]>} */
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
        } else if (event.key === " " || event.key === "Enter") paint([at], !seen[i][j]);
        else return;
        tell(at);
        event.preventDefault();
      });
      return grid;
    },
  );
  const clear = button(say("Clear the paint"), () => {
    scope.write("painted", []);
    /** @type {SVGElement | null} */ (drawing.querySelector("[tabindex='0']"))?.focus(); // it has no more to do
  });
  scope.when(["painted"], () => {
    clear.disabled = scope.read("painted").length === 0;
  });
  return panel(
    [
      drawing,
      html("div", { class: "x-bench" }, message, clear),
      html(
        "p",
        { class: "x-legend" },
        ...[
          ["x-key x-may", "", say("may attend")],
          ["x-key x-near", "", say("within reach")],
          ["x-dead", "∅ ", say("fully masked")],
        ].map(([look, sign, words]) => html("span", {}, html("span", { class: look }, sign), words)),
      ),
    ],
    "x-right",
  );
}

/** The indices of rows and columns, every fourth if there are many. @param {number} n @param {(k: number) => number} middle */
function places(n, middle) {
  const mark = (/** @type {number} */ k, /** @type {number} */ x, /** @type {number} */ y) =>
    named(String(k), x, y, "", "middle");
  const marked = Array.from({ length: n }, (_, k) => k).filter((k) => !(k % (n > 16 ? 4 : n > 10 ? 2 : 1)));
  return svg(
    "g",
    { "aria-hidden": "true" },
    named(say("key"), LEFT + SIZE / 2, 12, "", "middle"),
    named(say("query"), 0, 12),
    ...marked.flatMap((k) => [mark(k, LEFT + middle(k), TOP - 6), mark(k, LEFT - 12, TOP + middle(k) + 4)]),
  );
}

export default { render };
