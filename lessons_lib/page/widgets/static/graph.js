/** An editable graph: attention weights of a node by three scores, edges that are added and removed, propagated labels. */

import { questionCard } from "./question.js";
import {
  DEALS,
  KINDS,
  PLACES,
  RIGHT,
  SIDES,
  WORDS,
  queries,
  firstChoices,
  neighbours,
  possible,
  propagate,
  ranked,
  reversed,
  weights,
} from "./graph.math.js";
import {
  fixed,
  html,
  named,
  numbers,
  oncePerFrame,
  panel,
  panels,
  picture,
  select,
  setAttributes,
  slider,
  stage,
  svg,
} from "./kit.js";
import { mark, say } from "./words.js";

/**
 * @typedef {{ graph: string, score: string, head: number, node: number, hand: string, edits: number[][],
 *   labels: number[][], alpha: number, deal: number, guess: number, places: number[][] }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 * @typedef {{ given(kind?: string): number[][], mask(): import("./graph.math.js").Mask, node(): number, club(): boolean,
 *   hidden(): boolean, labels(): number[][], spread(): number[][] | null, pressed(place: number): void,
 *   end(): number | null, name(place: number): string, call(): import("./graph.math.js").Asked }} State
 */

/** @type {(keyof Traits)[]} */
const WEIGHED = ["graph", "head", "edits", "deal"];
/** @type {(keyof Traits)[]} */
const EVERYTHING = [...WEIGHED, "score", "node", "hand", "labels", "alpha", "guess"];
/** @type {Record<string, string>} */
const NAMES = { gat: "GAT", gatv2: "GATv2", dot: mark("dot product") };
const LETTERS = "ABCDEFGH";
const SIDE = [mark("Mr. Hi"), mark("the officers")];

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  const club = () => scope.read("graph") === "club";
  const call = () => ({
    graph: scope.read("graph"),
    score: scope.read("score"),
    head: scope.read("head"),
    deal: scope.read("deal"),
    edits: scope.read("edits"),
  });
  /** @type {Record<string, number[][]>} */
  let all = {};
  scope.when(WEIGHED, () => {
    for (const score of KINDS) all[score] = weights({ ...call(), score });
  });
  const labels = () => (club() ? scope.read("labels").filter(([, side]) => side < 2) : []);
  const mask = () => neighbours(scope.read("graph"), scope.read("edits"));
  /** @type {number | null} */
  let end = null; // the first end of an edge, once clicked
  scope.when(["graph", "hand", "edits"], () => (end = null));
  /** @type {State} */
  const state = {
    call,
    club,
    mask,
    labels,
    given: (kind = scope.read("score")) => all[kind],
    node: () => Math.min(scope.read("node"), queries(scope.read("graph")) - 1),
    hidden: () => !club() && scope.read("score") === "gat" && !scope.read("guess"),
    spread: () => (labels().length ? propagate(mask(), labels(), scope.read("alpha")) : null),
    end: () => end,
    name: (place) =>
      club() ? String(place + 1) : LETTERS[place < WORDS ? place : DEALS[scope.read("deal")][0][place - WORDS]],
    pressed(place) {
      const hand = scope.read("hand");
      if (hand === "label" && club()) scope.write("labels", relabelled(scope.read("labels"), place));
      else if (hand === "edge") {
        const pair = end === null ? [] : [Math.min(end, place), Math.max(end, place)];
        const from = club() ? end : pair[0];
        if (end === place) end = null;
        else if (possible(scope.read("graph"), pair) && from !== null) {
          const kept = scope.read("edits").filter(([u, v]) => u !== pair[0] || v !== pair[1]);
          scope.change({ node: from, edits: kept.length < scope.read("edits").length ? kept : [...kept, pair] });
        } else end = place;
      } else if (place < queries(scope.read("graph"))) scope.write("node", place);
    },
  };
  const figures = panels(
    [say("Graph"), drawn(scope, state)],
    [say("Weights"), forGraph(scope, (part) => (club() ? bars(part, state) : matrix(part, state)))],
  );
  scope.add(
    choices(scope, state),
    guess(scope, club),
    sliders(scope, state),
    figures,
    forGraph(scope, (part) => counted(part, state)),
  );
  scope.when(EVERYTHING, () =>
    scope.announce(state.hidden() ? say("First answer the question above.") : told(scope, state)),
  );
  return scope.dispose;
}

/** A part that is built again when the graph changes. @param {Scope} scope @param {(part: Scope) => Node} build */
function forGraph(scope, build) {
  return scope.rebuild(["graph"], () => scope.read("graph"), build);
}

/** The next label of a node: none, one side, the other, none. @param {number[][]} labels @param {number} place */
function relabelled(labels, place) {
  const had = labels.find(([u]) => u === place);
  const others = labels.filter(([u]) => u !== place);
  return had && had[1] ? others : [...others, [place, had ? 1 : 0]];
}

/** The controls of what is shown. @param {Scope} scope @param {State} state */
function choices(scope, { club }) {
  const graph = scope.value("graph");
  return html(
    "div",
    { class: "x-settings" },
    select(
      {
        ...graph,
        set: (name) => scope.change({ edits: [], places: [], graph: name }),
      },
      {
        label: say("Graph"),
        options: [
          ["club", say("the karate club")],
          ["dictionary", say("a dictionary")],
        ],
      },
    ),
    select(scope.value("score"), { label: say("Score"), options: KINDS.map((kind) => [kind, say(NAMES[kind])]) }),
    select(scope.value("head"), {
      label: say("Head"),
      options: [
        [1, say("first")],
        [2, say("second")],
      ],
    }),
    forGraph(scope, (part) => {
      /** @type {[string, string][]} */
      const hands = [
        ["query", say("selects the query")],
        ["edge", say("removes or adds an edge")],
        ["label", say("labels a member")],
      ];
      const hand = part.value("hand");
      const get = () => (!club() && hand.get() === "label" ? "query" : hand.get());
      return select({ ...hand, get }, { label: say("A click"), options: club() ? hands : hands.slice(0, 2) });
    }),
  );
}

/** The controls for the query node, and for the dictionary or the propagation of labels. @param {Scope} scope @param {State} state */
function sliders(scope, { club, node, name }) {
  return scope.rebuild(
    ["graph", "hand"],
    () => `${scope.read("graph")} ${scope.read("hand") === "label"}`,
    (part) =>
      html(
        "div",
        { class: "x-settings x-controls" },
        slider(
          { ...part.value("node"), get: node },
          { label: say("Query node"), min: 0, max: queries(part.read("graph")) - 1, step: 1, show: name },
        ),
        !club()
          ? slider(part.value("deal"), {
              label: say("Dictionary"),
              min: 0,
              max: DEALS.length - 1,
              step: 1,
              show: (i) => String(i + 1),
            })
          : part.read("hand") === "label"
            ? slider(part.value("alpha"), {
                label: say("Reach α"),
                min: 0,
                max: 0.99,
                step: 0.01,
                show: (x) => fixed(x),
              })
            : "",
      ),
  );
}

/** The question before GAT's weights in the dictionary are shown. @param {Scope} scope @param {() => boolean} club */
function guess(scope, club) {
  const { card, tell } = questionCard(
    "k-guess",
    say(
      "Eight queries share eight keys. Each needs the key with its own letter, for which GAT was trained. " +
        "In one head, how many different keys have the largest weight of some query? Guess first:",
    ),
    Array.from({ length: WORDS }, (_, i) => [i + 1, String(i + 1), say("{n} different keys", { n: i + 1 })]),
    (many) => scope.write("guess", many),
  );
  scope.when(["graph", "guess"], () => {
    card.hidden = club();
    const said = scope.read("guess");
    tell(
      said && !club()
        ? say(
            "You said {said}. With every edge in place it is 1: a head of GAT ranks the keys alike for all " +
              "queries. Remove the edge to a query’s first key, and the next one follows.",
            { said },
          )
        : "",
    );
  });
  return card;
}

/** The number of different first choices. @param {number[][]} given */
function different(given) {
  return new Set(firstChoices(given).filter((choice) => choice >= 0)).size;
}

/** What the figure shows, in words. @param {Scope} scope @param {State} state */
function told(scope, state) {
  const { given, node, name, club, spread } = state;
  const row = given()[node()];
  const order = [...row.keys()].filter((v) => row[v]).sort((a, b) => row[b] - row[a]);
  const list = order.slice(0, 3).map((v) => `${v === node() ? say("itself") : name(v)} (${fixed(row[v])})`);
  const [right, others] = agreed(state);
  const known = { name: name(node()), score: say(NAMES[scope.read("score")]), list: list.join(say(", ")) };
  const most = !list.length
    ? club()
      ? mark("Member {name}, {score}: no neighbour to attend to.")
      : mark("Query {name}, {score}: no neighbour to attend to.")
    : club()
      ? mark("Member {name}, {score}: most to {list}.")
      : mark("Query {name}, {score}: most to {list}.");
  return (
    say(most, known) +
    (spread() ? say(" Labels put {right} of {others} others on the side that they took.", { right, others }) : "")
  );
}

/** The number of members without a label that the labels assign to the correct side. @param {State} state */
function agreed({ spread, labels }) {
  const put = spread() ?? [];
  const others = [...put.keys()].filter((u) => !labels().some(([v]) => v === u));
  return [others.filter((u) => put[u][SIDES[u]] > put[u][1 - SIDES[u]]).length, others.length];
}

const [WIDE, HIGH, LOW, ROW] = [340, 320, 274, 33]; // the dictionary is lower than the club
const across = (/** @type {number} */ place) =>
  place < WORDS ? [34, ROW * place + 23] : [262, ROW * (place - WORDS) + 23];
const line = (/** @type {number[]} */ a, /** @type {number[]} */ b) => `M${a.join(" ")}L${b.join(" ")}`;

/**
 * The graph: nodes are selected by click, or by arrow keys and Enter, and moved by dragging, or by Shift and arrow keys.
 * @param {Scope} scope @param {State} state
 */
function drawn(scope, state) {
  const facts = html("p", { class: "x-facts k-told" });
  const hint = html("figcaption");
  const frame = forGraph(scope, (part) => {
    const club = state.club();
    const all = [...Array(club ? SIDES.length : 2 * WORDS).keys()];
    const high = club ? HIGH : LOW;
    const at = (/** @type {number} */ u) => {
      const moved = part.read("places").find(([v]) => v === u);
      return moved ? within(moved.slice(1), high) : club ? PLACES[u] : across(u);
    };
    const move = (/** @type {number} */ u, /** @type {number[]} */ to) =>
      part.write("places", [...part.read("places").filter(([v]) => v !== u), [u, ...within(to, high)]]);
    const paths = ["x-axis", "k-cut", "k-laid"].map((look) => svg("path", { class: look }));
    const own = svg("g", { class: "k-own" });
    let here = state.node(); // the node that Tab reaches
    const knots = all.map((u) => {
      const square = club ? SIDES[u] : u >= WORDS;
      const size = club || u < WORDS ? 21 : 52;
      const box = { x: -size / 2, y: -10.5, width: size, height: 21, rx: square ? 3 : 10.5 };
      const [back, mark] = [svg("rect", box), svg("rect", box)];
      const ring = svg("rect", {
        class: "k-ring",
        x: -size / 2 - 4,
        y: -14.5,
        width: size + 8,
        height: 29,
        rx: square ? 6 : 14.5,
      });
      const words = svg("text", { y: 4, "text-anchor": "middle" });
      const hit = svg("circle", { r: 15, fill: "transparent" });
      const knot = svg("g", { role: "button", class: "k-knot" }, hit, back, ring, mark, words);
      movable(knot, {
        drawing: () => graph,
        at: () => at(u),
        move: (to) => move(u, to),
        press: () => press(u),
      });
      return { knot, mark, ring, words };
    });
    const go = (/** @type {number} */ u) => {
      here = u;
      knots.forEach(({ knot }, v) => knot.setAttribute("tabindex", v === u ? "0" : "-1"));
    };
    const press = (/** @type {number} */ u) => {
      go(u);
      state.pressed(u);
      draw();
    };
    const graph = svg(
      "svg",
      {
        viewBox: `0 0 ${WIDE} ${club ? HIGH : LOW}`,
        role: "group",
        "aria-label": club ? say("the club: members and who met whom") : say("queries and keys"),
      },
      ...paths,
      own,
      ...(club ? [] : [named(say("query"), 34, 6, "", "middle"), named(say("key: value"), 262, 6, "", "middle")]),
      ...knots.map(({ knot }) => knot),
    );
    graph.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (way && event.shiftKey)
        move(
          here,
          at(here).map((c, axis) => c + 8 * way[axis]),
        );
      else if (way) {
        go(nearest(at(here), way, all.map(at)) ?? here);
        knots[here].knot.focus();
      } else if (event.key === "Enter" || event.key === " ") press(here);
      else return;
      event.preventDefault();
    });

    const draw = () => {
      const [mask, given, node, spread] = [state.mask(), state.given()[state.node()], state.node(), state.spread()];
      const plain = neighbours(part.read("graph"), []);
      const pairs = all.flatMap((v) => all.slice(0, v).map((u) => [u, v]));
      const those = (/** @type {(had: boolean, has: boolean) => boolean} */ which) =>
        pairs
          .filter(([u, v]) => which(plain[u][v], mask[u][v]))
          .map(([u, v]) => line(at(u), at(v)))
          .join("");
      paths[0].setAttribute(
        "d",
        those((had, has) => had && has),
      );
      paths[1].setAttribute(
        "d",
        those((had, has) => had && !has),
      );
      paths[2].setAttribute(
        "d",
        those((had, has) => !had && has),
      );
      own.replaceChildren(
        ...all
          .filter((v) => v !== node && given[v] > 0 && !state.hidden())
          .map((v) => svg("path", { d: line(at(node), at(v)), "stroke-width": (0.8 + 13 * given[v]).toFixed(1) })),
      );
      knots.forEach(({ knot, mark, ring, words }, u) => {
        knot.setAttribute("transform", `translate(${at(u)})`);
        const label = state.labels().find(([v]) => v === u);
        const [a, b] = spread ? spread[u] : [1 - SIDES[u], SIDES[u]];
        const side = !club ? -1 : a > b ? 0 : b > a ? 1 : -1;
        const sure = spread ? Math.abs(a - b) / (a + b || 1) : 0.5;
        const looks = [
          `k-mark k-${side}`,
          label ? "k-label" : "",
          spread && side >= 0 && side !== SIDES[u] ? "k-other" : "",
        ];
        if (!club && u >= WORDS && state.name(u) === state.name(node)) looks.push("k-match");
        mark.setAttribute("class", looks.join(" "));
        mark.style.fillOpacity = club ? (0.12 + 0.4 * sure).toFixed(2) : "";
        ring.classList.toggle("k-query", u === node);
        ring.classList.toggle("k-end", u === state.end());
        const says = !club && u >= WORDS ? `: ${DEALS[part.read("deal")][1][u - WORDS]}` : "";
        words.textContent = state.name(u) + says;
        const kind = club
          ? say("member {name}, went with {side}", { name: state.name(u), side: say(SIDE[SIDES[u]]) })
          : u < WORDS
            ? say("query {name}", { name: `${state.name(u)}${says}` })
            : say("key {name}", { name: `${state.name(u)}${says}` });
        const weight = given[u] && !state.hidden() ? say(", weight {weight}", { weight: fixed(given[u]) }) : "";
        const marked = label
          ? say(", labelled {side}", { side: say(SIDE[label[1]]) })
          : spread && side >= 0
            ? say(", put with {side}", { side: say(SIDE[side]) })
            : "";
        knot.setAttribute(
          "aria-label",
          kind + (u === node && club ? say(", the query") : u === node ? say(", selected") : "") + weight + marked,
        );
      });
      facts.textContent = state.hidden() ? "" : told(part, state);
      hint.textContent = hinted(part, state);
    };
    go(here);
    part.when([...EVERYTHING, "places"], () => {
      if (state.club() === club) draw();
    });
    return graph;
  });
  return panel([frame, hint, facts]);
}

/** A place inside the drawing, in whole numbers. @param {number[]} place @param {number} high */
function within([x, y], high) {
  return [Math.round(Math.max(15, Math.min(WIDE - 15, x))), Math.round(Math.max(15, Math.min(high - 15, y)))];
}

/**
 * Let a node be pressed, and be dragged by mouse and touch.
 * @param {SVGElement} knot
 * @param {{ drawing(): SVGSVGElement, at(): number[], move(to: number[]): void, press(): void }} node
 */
function movable(knot, { drawing, at, move, press }) {
  /** Where the pointer took the node, relative to its centre. @type {number[] | null} */
  let held = null;
  let dragged = false;
  const moving = oncePerFrame(move);
  const place = (/** @type {PointerEvent} */ event) => {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing().getScreenCTM()?.inverse());
    return [x, y];
  };
  // Browsers ignore touch-action inside an SVG: without this they would scroll and cancel the touch.
  knot.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  knot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const from = place(event);
    held = at().map((c, axis) => c - from[axis]);
    dragged = false;
    knot.setPointerCapture(event.pointerId);
  });
  knot.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, y] = held;
    const to = place(event).map((c, axis) => c + [x, y][axis]);
    dragged ||= Math.hypot(...at().map((c, axis) => to[axis] - c)) > 4;
    if (dragged) moving.later(to);
  });
  knot.addEventListener("pointerup", () => {
    moving.flush();
    if (held && !dragged) press();
    held = null;
  });
  knot.addEventListener("pointercancel", () => {
    moving.flush();
    held = null;
  });
  knot.addEventListener("click", (event) => {
    if (!event.detail) press(); // by a screen reader, without a pointer
  });
}

/** The effect of a click, and the meaning of shapes and colours. @param {Scope} scope @param {State} state */
function hinted(scope, { club, end, name }) {
  const from = end();
  const hand = scope.read("hand");
  if (from !== null)
    return say("{name} is one end. Click the other: an edge between them is removed, or added where there is none.", {
      name: name(from),
    });
  if (hand === "edge")
    return club()
      ? say(
          "Click two nodes to remove the edge between them, or to add one. Dotted: removed; dashed: added. The first " +
            "one clicked is the query.",
        )
      : say("Click two nodes to remove the edge between them, or to add one. Dotted: removed; dashed: added.");
  if (!club())
    return say(
      "A line is as thick as its attention weight. Outlined: the key with the query’s own letter. Nodes can " +
        "be dragged.",
    );
  if (hand === "label")
    return say(
      "Click once for the side of Mr. Hi (green), again for the officers’ (pink), again for none. Shapes " +
        "are the sides that members took, colours where the labels put them; a broken outline: elsewhere.",
    );
  return say(
    "A line is as thick as its weight. Round: went with Mr. Hi (1); square: with the officers (34), the " +
      "two labels in training. Drag a node, or move it by Shift and an arrow key.",
  );
}

/** The node in a direction; a node straight ahead is preferred to a near one. @param {number[]} from @param {number[]} way @param {number[][]} places */
function nearest(from, way, places) {
  /** @type {number | null} */
  let best = null;
  let least = Infinity;
  places.forEach(([x, y], u) => {
    const ahead = (x - from[0]) * way[0] + (y - from[1]) * way[1];
    const aside = Math.abs((x - from[0]) * way[1]) + Math.abs((y - from[1]) * way[0]);
    if (ahead > 0 && ahead + 2 * aside < least) [best, least] = [u, ahead + 2 * aside];
  });
  return best;
}

/** The neighbours of the query node in GAT's order, with their weights under all three scores. @param {Scope} part @param {State} state */
function bars(part, { given, node, name, call, mask }) {
  const drawing = picture(WIDE, HIGH, say("weights of the neighbours by three scores"));
  part.when([...WEIGHED, "score", "node"], () => {
    if (part.read("graph") !== "club") return;
    const u = node();
    const rows = ranked(call()).filter((v) => mask()[u][v]);
    const step = Math.min(17, (HIGH - 26) / rows.length);
    const most = Math.max(...KINDS.flatMap((kind) => given(kind)[u]));
    drawing.replaceChildren(
      named(say("attends to"), 44, 12, "", "end"),
      ...KINDS.flatMap((kind, i) => {
        const left = 54 + 98 * i;
        const isOwn = kind === part.read("score");
        return [
          named(say(NAMES[kind]), left, 12, isOwn ? "k-head" : ""),
          ...rows.flatMap((v, row) => [
            svg("rect", {
              class: isOwn ? "k-bar" : "k-quiet",
              x: left,
              y: (20 + step * row).toFixed(1),
              width: Math.max(0.5, (60 * given(kind)[u][v]) / most).toFixed(1),
              height: (step - 3).toFixed(1),
            }),
            named(short(given(kind)[u][v]), left + 4 + (60 * given(kind)[u][v]) / most, 20 + step * (row + 0.5) + 2.5),
          ]),
        ];
      }),
      ...rows.map((v, row) => named(v === u ? say("itself") : name(v), 44, 20 + step * (row + 0.5) + 2.5, "", "end")),
    );
  });
  return panel([
    drawing,
    say(
      "Rows stand in the order in which this head of GAT ranks all 34 members. In GAT’s column no bar is " +
        "longer than the one above it, whatever the query and whatever edge is removed or added. In the other " +
        "columns it may be.",
    ),
  ]);
}

const short = (/** @type {number} */ weight) => fixed(weight).replace(/^0/, "");

/** The attention weights of the query nodes on the entries. @param {Scope} part @param {State} state */
function matrix(part, { given, node, name, hidden }) {
  const [left, top, side] = [30, 40, 29];
  const drawing = picture(WIDE, LOW, say("attention weights of eight queries on eight keys"));
  part.when(EVERYTHING, () => {
    if (part.read("graph") === "club") return;
    drawing.replaceChildren(named(say("key"), left + 4 * side, 12, "", "middle"), named(say("query"), 0, 12));
    const best = hidden() ? [] : firstChoices(given());
    for (let i = 0; i < WORDS; i++) {
      drawing.append(
        named(name(i), left - 10, top + side * (i + 0.5) + 4, i === node() ? "k-head" : "", "end"),
        named(name(WORDS + i), left + side * (i + 0.5), top - 8, "", "middle"),
      );
      for (let j = 0; j < WORDS; j++) {
        const weight = given()[i][WORDS + j];
        const [x, y] = [left + side * j, top + side * i];
        const isOwn = name(i) === name(WORDS + j);
        const cell = svg("rect", { x: x + 1, y: y + 1, width: side - 2, height: side - 2 });
        drawing.append(svg("rect", { class: "x-ground", x: x + 1, y: y + 1, width: side - 2, height: side - 2 }), cell);
        const shade = hidden() ? 0 : 0.75 * weight;
        setAttributes(cell, { class: isOwn ? "k-cell k-match" : "k-cell", "fill-opacity": shade.toFixed(3) });
        const isBest = best[i] === WORDS + j;
        if (weight >= 0.005 && !hidden())
          drawing.append(named(short(weight), x + side / 2, y + side / 2 + 4, isBest ? "k-head" : "", "middle"));
      }
    }
    drawing.append(
      svg("rect", {
        class: "k-row",
        x: left - 1,
        y: top + side * node() - 1,
        width: 8 * side + 2,
        height: side + 2,
        rx: 3,
      }),
    );
  });
  return panel([
    drawing,
    say("A row for each query. Outlined: the key with its own letter. Bold: the largest weight."),
  ]);
}

/** @param {Scope} part @param {State} state */
function counted(part, state) {
  const { given, mask, club, spread, name } = state;
  const seen = (/** @type {string} */ kind) => kind !== "gat" || club() || part.read("guess");
  const each = (/** @type {(kind: string) => number | string} */ of) =>
    club() === (part.read("graph") === "club") ? KINDS.map((kind) => (seen(kind) ? of(kind) : "–")).join(" · ") : "";
  const right = (/** @type {string} */ kind) => {
    const shares = RIGHT[part.read("graph")][kind].map((share) =>
      club() ? `${Math.round(32 * share)}` : fixed(share),
    );
    const [least, most] = [shares.sort()[0], shares[shares.length - 1]];
    return least === most ? least : `${least}–${most}`;
  };
  const matched = (/** @type {string} */ kind) =>
    firstChoices(given(kind)).filter((v, u) => v >= 0 && name(v) === name(u)).length;
  /** @type {[string, () => string][]} */
  const measures = club()
    ? [
        [
          say("pairs that two members rank both ways"),
          () =>
            say("{n} of {total}", {
              n: each((kind) => reversed(given(kind), mask()).opposite),
              total: reversed(given(), mask()).pairs,
            }),
        ],
        [
          say("others that labels put on their side"),
          () => {
            const [n, total] = agreed(state);
            return spread() ? say("{n} of {total}", { n, total }) : say("no labels yet");
          },
        ],
        [say("the same by trained networks, five seeds"), () => say("{n} of {total}", { n: each(right), total: 32 })],
      ]
    : [
        [say("different keys with a largest weight"), () => each((kind) => different(given(kind)))],
        [say("queries with most weight on their letter"), () => each(matched)],
        [say("right on new dictionaries, five seeds"), () => each(right)],
      ];
  return html(
    "div",
    {},
    html("p", { class: "x-facts" }, say("Three numbers are of GAT · GATv2 · dot product.")),
    numbers(part, EVERYTHING, measures),
  );
}

export default { render };
