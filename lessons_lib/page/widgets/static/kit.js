/** The building blocks of explorers: the card with its clean-up, elements, labelled controls, formatted numbers. */

import { learn, say } from "./words.js";

/**
 * The traits, in the notebook or on the page.
 * @template T
 * @typedef {{
 *   get<K extends keyof T>(name: K): T[K],
 *   set<K extends keyof T>(name: K, value: T[K]): void,
 *   save_changes(): void,
 *   on(event: string, listener: () => void): void,
 *   off(event: string, listener: () => void): void,
 * }} Model
 */

/**
 * The value that a control shows and changes.
 * @template V
 * @typedef {{ get(): V, set(value: V): void, watch(draw: () => void): void }} Value
 */

/**
 * Reads and writes traits and observes their changes, until it is disposed of.
 *
 * `when` draws now, and again whenever one of the traits changes. `change` sets several traits and then draws once.
 * `value` is a trait as a control uses it. `rebuild` makes a part that is built again when its key changes; the listeners of the old part are removed first. `later`
 * registers a function that `dispose` calls.
 * @template T
 * @typedef {{
 *   read<K extends keyof T>(trait: K): T[K],
 *   write<K extends keyof T>(trait: K, value: T[K]): void,
 *   change(values: Partial<T>): void,
 *   when(traits: (keyof T)[], draw: () => void): void,
 *   value<K extends keyof T>(trait: K): Value<T[K]>,
 *   rebuild(traits: (keyof T)[], key: () => string, build: (part: Scope<T>) => Node): HTMLElement,
 *   later(undo: () => void): void,
 *   dispose(): void,
 * }} Scope
 */

/**
 * The script, and what the card says to the reader. A Try link has its words, its address and the values that it sets.
 * @typedef {{ name: string, title: string, question: string, tries: [string, string, Record<string, unknown>][] }} Card
 */

/**
 * The card of an explorer: title, question, the nodes that are added, and a button that resets all traits to their
 * initial values. `dispose` removes the card and all listeners; `render` returns it.
 *
 * Key presses inside the card do not reach JupyterLab or other listeners for arrow keys, except with Ctrl or Cmd.
 * @template T
 * @param {{ model: Model<T>, el: HTMLElement }} context
 */
export function stage({ model, el }) {
  learn(model);
  const card = /** @type {Model<{ _card: Card }>} */ (/** @type {unknown} */ (model)).get("_card");
  const { name, title, question, tries } = card;
  const liveRegion = html("p", { class: "x-said", "aria-live": "polite" });
  /** @type {Shared<T>} */
  const shared = { first: new Map(), parts: 0, waiting: null };
  const { first } = shared;
  /** Set all traits to their first values, or to those in `values`. @param {Record<string, unknown>} values */
  const restart = (values) => {
    for (const trait of Object.keys(values)) scope.read(/** @type {keyof T} */ (trait)); // so that Reset knows the first value
    const wanted = new Map([...first].map(([trait, value]) => [trait, JSON.parse(value)]));
    for (const trait of Object.keys(values)) wanted.set(/** @type {keyof T} */ (trait), values[trait]);
    const changed = [...wanted].filter(([trait, value]) => JSON.stringify(model.get(trait)) !== JSON.stringify(value));
    scope.change(/** @type {Partial<T>} */ (Object.fromEntries(changed)));
  };
  const reset = button(say("Reset"), () => restart({}));
  reset.className = "x-reset";
  const body = html(
    "div",
    { class: "x-body", role: "group", "aria-label": title },
    html("p", { class: "x-title", "aria-hidden": "true" }, title),
    html("p", { class: "x-question" }, question),
    ...(tries.length ? [tryLinks(tries, restart, () => model.get(/** @type {keyof T} */ ("guess")))] : []),
    liveRegion,
    reset,
  );
  const scope = follow(model, shared);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;
  const leaveKeys = keepKeys(body);
  el.classList.add("explorer", `x-${name}`);
  el.append(body);
  return {
    ...scope,

    /** @param {(Node | string)[]} nodes */
    add: (...nodes) => reset.before(...nodes),

    /** Announce what the figure shows to screen readers, once the reader's input has paused. @param {string} words */
    announce(words) {
      const speak = () => {
        if (body.classList.contains("x-playing")) waiting = setTimeout(speak, 400);
        else if (liveRegion.textContent !== words) liveRegion.textContent = words;
      };
      clearTimeout(waiting);
      if (liveRegion.textContent) waiting = setTimeout(speak, 400);
      else speak();
    },

    dispose() {
      scope.dispose();
      clearTimeout(waiting);
      leaveKeys();
      body.remove();
    },
  };
}

/**
 * The Try links of a card. A link sets all traits, but not the reader's guess; opened in a new tab, it is an address.
 * @param {Card["tries"]} tries @param {(values: Record<string, unknown>) => void} restart @param {() => unknown} guess
 */
function tryLinks(tries, restart, guess) {
  const links = tries.map(([words, address, values]) => {
    const link = html("a", { href: address }, words);
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation(); // folds.js and book.js look for the target of a link
      restart(guess() === undefined ? values : { guess: guess(), ...values });
    });
    return link;
  });
  return html("p", { class: "x-tries" }, html("span", {}, say("Try:")), ...links);
}

/**
 * Stop key presses in an element from reaching other listeners, except with Ctrl or Cmd; the returned function undoes it.
 * @param {HTMLElement} body
 */
export function keepKeys(body) {
  /** @param {KeyboardEvent} event */
  const isOurs = (event) => !event.ctrlKey && !event.metaKey;
  // Some versions of JupyterLab listen on the document before any element; they ignore elements with this attribute.
  const mark = (/** @type {KeyboardEvent} */ event) => {
    if (event.composedPath().includes(body)) body.toggleAttribute("data-lm-suppress-shortcuts", isOurs(event));
  };
  window.addEventListener("keydown", mark, true);
  body.addEventListener("keydown", (event) => isOurs(event) && event.stopPropagation());
  return () => window.removeEventListener("keydown", mark, true);
}

/**
 * What the scopes of a card share: the value of each trait when it was first read, as JSON, the number of functions
 * that `when` registered, and while `change` sets traits, those to call afterwards, by their number.
 * @template T
 * @typedef {{ first: Map<keyof T, string>, parts: number, waiting: Map<number, () => void> | null }} Shared
 */

/**
 * @template T
 * @param {Model<T>} model
 * @param {Shared<T>} shared
 * @returns {Scope<T>}
 */
function follow(model, shared) {
  const { first } = shared;
  /** @type {(() => void)[]} */
  const undo = [];
  let disposed = false;
  /** @type {Scope<T>} */
  const scope = {
    read(trait) {
      const value = model.get(trait);
      if (!first.has(trait)) first.set(trait, JSON.stringify(value));
      return value;
    },

    write(trait, value) {
      scope.change(/** @type {Partial<T>} */ (/** @type {unknown} */ ({ [trait]: value })));
    },

    change(values) {
      /** @type {Map<number, () => void>} */
      const waiting = new Map();
      shared.waiting = waiting;
      for (const trait of /** @type {(keyof T)[]} */ (Object.keys(values)))
        model.set(trait, /** @type {T[keyof T]} */ (values[trait]));
      shared.waiting = null;
      // In the order of registration: a function may use what an earlier one computed.
      for (const number of [...waiting.keys()].sort((a, b) => a - b)) waiting.get(number)?.();
      model.save_changes();
    },

    when(traits, draw) {
      const number = (shared.parts += 1);
      const redraw = () => {
        if (!disposed) draw();
      };
      const listener = () => {
        if (shared.waiting) shared.waiting.set(number, redraw);
        else redraw();
      };
      for (const trait of traits) {
        scope.read(trait);
        const event = `change:${String(trait)}`;
        model.on(event, listener);
        undo.push(() => model.off(event, listener));
      }
      draw();
    },

    value: (trait) => ({
      get: () => scope.read(trait),
      set: (value) => scope.write(trait, value),
      watch: (draw) => scope.when([trait], draw),
    }),

    rebuild(traits, key, build) {
      const place = html("div", { class: "x-part" });
      let built = "";
      let part = follow(model, shared);
      scope.when(traits, () => {
        if (key() === built) return;
        built = key();
        part.dispose();
        part = follow(model, shared);
        const refocus = focusWithin(place);
        place.replaceChildren(build(part));
        refocus();
      });
      undo.push(() => part.dispose());
      return place;
    },

    later: (f) => void undo.push(f),

    dispose() {
      disposed = true;
      for (const f of undo.splice(0)) f();
    },
  };
  return scope;
}

/**
 * Remember which control inside an element has the focus. The returned function focuses the control of the same name
 * after the element was rebuilt, or else the control at the same index.
 * @param {HTMLElement} place
 */
function focusWithin(place) {
  const root = place.getRootNode();
  const active = root instanceof Document || root instanceof ShadowRoot ? root.activeElement : null;
  const controls = () => [
    .../** @type {NodeListOf<HTMLElement>} */ (
      place.querySelectorAll("input, select, button, [tabindex]:not([tabindex='-1'])")
    ),
  ];
  const name = (/** @type {Element} */ control) =>
    control.getAttribute("aria-label") ?? control.closest("label")?.querySelector("span")?.textContent;
  const before = controls();
  const index = before.findIndex((control) => control === active);
  const wanted = index < 0 ? null : name(before[index]);
  return () => {
    const after = controls();
    if (index >= 0 && after.length)
      (after.find((control) => wanted && name(control) === wanted) ?? after[Math.min(index, after.length - 1)]).focus();
  };
}

/**
 * One entry of a list.
 * @template E
 * @param {Value<E[]>} list
 * @param {number} index
 * @returns {Value<E>}
 */
export function entry(list, index) {
  return {
    get: () => list.get()[index],
    set: (value) => list.set(list.get().map((old, i) => (i === index ? value : old))),
    watch: list.watch,
  };
}

/** @typedef {Record<string, string | number | boolean | null | undefined>} Attributes */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes] those that are null or undefined are left out
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

/**
 * As `html`.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {(Node | string)[]} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

/** @param {Element} element @param {Attributes} attributes */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, String(value));
}

/** An SVG picture with alternative text. @param {number} width @param {number} height @param {string} label */
export function picture(width, height, label) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

/**
 * A label in a drawing: of a vertical axis, above its upper end, or with the class `look` of a line.
 * @param {string} words @param {number} x @param {number} y @param {string} [look] @param {string} [anchor]
 */
export function named(words, x, y, look = "", anchor = "start") {
  return svg("text", { class: look, x, y, "text-anchor": anchor }, words);
}

/** The linear map from one interval to another. @param {number[]} from @param {number[]} to */
export function linear([a, b], [c, d]) {
  return (/** @type {number} */ x) => c + ((x - a) / (b - a)) * (d - c);
}

/**
 * Handle at most one event in each animation frame: of several events only the last is handled, in the next frame.
 * `flush` handles it at once; a control calls it when the reader lets go, so that its value is then complete.
 * @template E
 * @param {(event: E) => void} handle
 */
export function oncePerFrame(handle) {
  let frame = 0;
  /** @type {E} */
  let last;
  const flush = () => {
    if (!frame) return;
    cancelAnimationFrame(frame);
    frame = 0;
    handle(last);
  };
  const later = (/** @type {E} */ event) => {
    last = event;
    frame ||= requestAnimationFrame(flush);
  };
  return { later, flush };
}

/**
 * A labelled slider. `toPlace` and `toValue` map the value to the scale of the slider and back.
 * @template V
 * @param {Value<V>} value
 * @param {{ label: string, min: V, max: V, step: number | "any", show?: (value: V) => string,
 *   toPlace: (value: V) => number, toValue: (place: number) => V, plain?: boolean }} options
 *   `show` formats the value; `plain` shows the label to screen readers only
 */
export function mappedSlider(value, { label, min, max, step, show = String, toPlace, toValue, plain }) {
  const input = html("input", { type: "range", min: toPlace(min), max: toPlace(max), step });
  const shown = html("span", { class: "x-value", "aria-hidden": "true" });
  const control = html(
    "label",
    { class: "x-control" },
    html("span", { class: plain ? "x-said" : "" }, label),
    input,
    shown,
  );
  const set = oncePerFrame((/** @type {number} */ place) => value.set(toValue(place)));
  input.addEventListener("input", () => set.later(input.valueAsNumber));
  input.addEventListener("change", set.flush);
  value.watch(() => {
    const now = value.get();
    input.value = String(toPlace(now));
    input.setAttribute("aria-valuetext", show(now));
    shown.textContent = show(now);
  });
  return control;
}

/**
 * A labelled slider for a number.
 * @param {Value<number>} value
 * @param {{ label: string, min: number, max: number, step: number, show?: (value: number) => string,
 *   plain?: boolean }} options as in `mappedSlider`
 */
export function slider(value, options) {
  return mappedSlider(value, { ...options, toPlace: (v) => v, toValue: (v) => v });
}

/**
 * A slider on a logarithmic scale, in a hundred steps; it writes three digits.
 * @param {Value<number>} value
 * @param {{ label: string, min: number, max: number, show?: (value: number) => string }} options
 */
export function logSlider(value, options) {
  const step = Math.log(options.max / options.min) / 100;
  const toValue = (/** @type {number} */ place) => Number(Math.exp(place).toPrecision(3));
  return mappedSlider(value, { ...options, step, toPlace: Math.log, toValue });
}

/**
 * A labelled choice among values; `options` pairs each value with its text. `plain` is as in `slider`.
 * @template {string | number} V
 * @param {Value<V>} value
 * @param {{ label: string, options: [V, string][], plain?: boolean }} options
 */
export function select(value, { label, options, plain }) {
  const input = html("select", {}, ...options.map(([option, words]) => html("option", { value: option }, words)));
  input.addEventListener("change", () => value.set(options[input.selectedIndex][0]));
  value.watch(() => {
    input.value = String(value.get());
  });
  return html(
    "label",
    { class: plain ? "x-plain" : "x-control" },
    html("span", { class: plain ? "x-said" : "" }, label),
    input,
  );
}

/** @param {Value<boolean>} value @param {{ label: string }} options */
export function checkbox(value, { label }) {
  const input = html("input", { type: "checkbox" });
  input.addEventListener("change", () => value.set(input.checked));
  value.watch(() => {
    input.checked = value.get();
  });
  return html("label", { class: "x-check" }, input, label);
}

/**
 * `name` is the accessible name, for a label that is a symbol.
 * @param {string} label @param {() => void} press @param {string} [name]
 */
export function button(label, press, name) {
  const made = html("button", { type: "button", "aria-label": name }, label);
  made.addEventListener("click", press);
  return made;
}

/**
 * A figure of an explorer, with a further class `look`. A text among its nodes is a caption.
 * @param {(Node | string)[]} nodes @param {string} [look]
 */
export function panel(nodes, look) {
  const children = nodes.map((node) => (typeof node === "string" ? html("figcaption", {}, node) : node));
  return html("figure", { class: look ? `x-panel ${look}` : "x-panel" }, ...children);
}

/**
 * Panels side by side; on a phone one at a time, selected by its name, with the panels without a name below.
 * @param {[string, Element][]} named
 */
export function panels(...named) {
  const tabs = html("div", { class: "x-tabs", role: "group", "aria-label": say("Show") });
  const choose = named
    .filter(([name]) => name)
    .map(([name, panel]) => {
      const tab = button(name, () => choose.forEach((show) => show(panel)));
      tabs.append(tab);
      return (/** @type {Element} */ chosen) => {
        panel.classList.toggle("x-away", panel !== chosen);
        tab.setAttribute("aria-pressed", String(panel === chosen));
      };
    });
  for (const show of choose) show(named[0][1]);
  return html("div", { class: "x-panels" }, tabs, ...named.map(([, panel]) => panel));
}

/**
 * The number that an explorer is about, in large digits, and the words that say what it is.
 * @template T
 * @param {Scope<T>} scope @param {(keyof T)[]} traits what they depend on
 * @param {() => [string, string]} of the number and the words
 */
export function headline(scope, traits, of) {
  const [number, words] = [html("b"), html("span")];
  scope.when(traits, () => ([number.textContent, words.textContent] = of()));
  return html("p", { class: "x-headline" }, number, " ", words);
}

/**
 * A table of names and numbers.
 * @template T
 * @param {Scope<T>} scope @param {(keyof T)[]} traits what they depend on
 * @param {[string, () => string][]} measures
 */
export function numbers(scope, traits, measures) {
  const cells = measures.map(() => html("td"));
  scope.when(traits, () => measures.forEach(([, of], i) => (cells[i].textContent = of())));
  const rows = measures.map(([name], i) => html("tr", {}, html("th", { scope: "row" }, name), cells[i]));
  return html("table", { class: "x-table x-numbers" }, ...rows);
}

/** A number with a fixed number of decimals and a true minus sign. @param {number} x */
export function fixed(x, decimals = 2) {
  const written = x.toFixed(decimals);
  return Number(written) === 0 ? written.replace("-", "") : written.replace("-", "\u2212");
}

/** A number that may be very small: three decimals, or a power of ten. @param {number} x */
export function tiny(x) {
  if (x === 0 || x >= 0.001) return x.toFixed(3);
  const [digits, exponent] = x.toExponential(0).split("e");
  return `${digits}·10${[...exponent].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("")}`;
}
