/** What explorers are built from: a stage that can be left without a trace, elements, labelled controls, numbers. */

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
 * What a control shows and changes.
 * @template V
 * @typedef {{ get(): V, set(value: V): void, watch(draw: () => void): void }} Value
 */

/**
 * Reads and writes traits and follows their changes, until it is disposed of.
 *
 * `when` draws now, and again whenever one of the traits changes. `value` is a trait as a control sees it.
 * `rebuild` makes a part that is built again when its key changes: what the old part followed is forgotten first.
 * @template T
 * @typedef {{
 *   read<K extends keyof T>(trait: K): T[K],
 *   write<K extends keyof T>(trait: K, value: T[K]): void,
 *   when(traits: (keyof T)[], draw: () => void): void,
 *   value<K extends keyof T>(trait: K): Value<T[K]>,
 *   rebuild(traits: (keyof T)[], key: () => string, build: (part: Scope<T>) => Node): HTMLElement,
 *   dispose(): void,
 * }} Scope
 */

/**
 * Where one explorer lives. `dispose` undoes all that was done here: it is what `render` returns.
 * @template T
 * @param {{ model: Model<T>, el: HTMLElement }} context
 */
export function stage({ model, el }) {
  const liveRegion = html("p", { class: "x-said", "aria-live": "polite" });
  const body = html("div", { class: "x-body" }, liveRegion);
  const scope = follow(model);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;
  el.classList.add("explorer");
  el.append(body);
  return {
    ...scope,

    /** @param {(Node | string)[]} nodes */
    add: (...nodes) => body.append(...nodes),

    /** Say what the figure shows to those who cannot see it, once the hand rests. @param {string} words */
    announce(words) {
      const speak = () => {
        if (liveRegion.textContent !== words) liveRegion.textContent = words;
      };
      clearTimeout(waiting);
      if (liveRegion.textContent) waiting = setTimeout(speak, 400);
      else speak();
    },

    dispose() {
      scope.dispose();
      clearTimeout(waiting);
      body.remove();
    },
  };
}

/**
 * @template T
 * @param {Model<T>} model
 * @returns {Scope<T>}
 */
function follow(model) {
  /** @type {(() => void)[]} */
  const undo = [];
  let disposed = false;
  /** @type {Scope<T>} */
  const scope = {
    read: (trait) => model.get(trait),

    write(trait, value) {
      model.set(trait, value);
      model.save_changes();
    },

    when(traits, draw) {
      const listener = () => {
        if (!disposed) draw();
      };
      for (const trait of traits) {
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
      let part = follow(model);
      scope.when(traits, () => {
        if (key() === built) return;
        built = key();
        part.dispose();
        part = follow(model);
        place.replaceChildren(build(part));
      });
      undo.push(() => part.dispose());
      return place;
    },

    dispose() {
      disposed = true;
      for (const f of undo.splice(0)) f();
    },
  };
  return scope;
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

/** A drawing that says in words what it shows. @param {number} width @param {number} height @param {string} label */
export function picture(width, height, label) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

/** The straight map from one interval to another. @param {number[]} from @param {number[]} to */
export function linear([a, b], [c, d]) {
  return (/** @type {number} */ x) => c + ((x - a) / (b - a)) * (d - c);
}

/**
 * A labelled slider. `toPlace` and `toValue` map the value to the slider's own scale and back.
 * @template V
 * @param {Value<V>} value
 * @param {{ label: string, min: V, max: V, step: number | "any", show?: (value: V) => string,
 *   toPlace: (value: V) => number, toValue: (place: number) => V, plain?: boolean }} options
 *   `show` writes the value; `plain` leaves the label to a screen reader alone
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
  input.addEventListener("input", () => value.set(toValue(input.valueAsNumber)));
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
 * A labelled choice among values; `options` pairs each value with what is read. `plain` is as in `slider`.
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
 * `name` says what a sign means that stands for words.
 * @param {string} label @param {() => void} press @param {string} [name]
 */
export function button(label, press, name) {
  const made = html("button", { type: "button", "aria-label": name }, label);
  made.addEventListener("click", press);
  return made;
}

/** A number with so many decimals, and a minus sign that is one. @param {number} x */
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
