// @ts-check
/** What explorers are built from: a stage that can be left without a trace, elements, labelled controls, numbers. */

/**
 * @typedef {{
 *   get(name: string): any, set(name: string, value: any): void, save_changes(): void,
 *   on(event: string, f: () => void): void, off(event: string, f: () => void): void,
 * }} Model the traits, in the notebook or on the page
 * @typedef {string | [string, number]} Path a trait, or one entry of a trait that is a list
 * @typedef {{
 *   read(path: Path): any,
 *   write(path: Path, value: any): void,
 *   when(traits: string[], draw: () => void): void,
 *   anew(traits: string[], key: () => string, build: (on: Scope) => Node): HTMLElement,
 *   leave(): void,
 * }} Scope
 */

/**
 * Where one explorer lives. `leave` undoes all that was done here: it is what `render` returns.
 * @param {{ model: Model, el: HTMLElement }} context
 */
export function stage({ model, el }) {
  const said = html("p", { class: "x-said", "aria-live": "polite" });
  const body = html("div", { class: "x-body" }, said);
  const scope = follow(model);
  let rest = 0;
  el.classList.add("explorer");
  el.append(body);
  return {
    ...scope,

    /** @param {(Node | string)[]} nodes */
    add: (...nodes) => body.append(...nodes),

    /** Say what the figure shows to those who cannot see it, once the hand rests. @param {string} words */
    say(words) {
      const speak = () => {
        if (said.textContent !== words) said.textContent = words;
      };
      clearTimeout(rest);
      if (said.textContent) rest = setTimeout(speak, 400);
      else speak();
    },

    leave() {
      scope.leave();
      clearTimeout(rest);
      body.remove();
    },
  };
}

/**
 * Read and write traits and follow their changes, until `leave`.
 * @param {Model} model
 * @returns {Scope}
 */
function follow(model) {
  /** @type {(() => void)[]} */
  const undo = [];
  let left = false;
  /** @type {Scope} */
  const scope = {
    read: (path) => (typeof path === "string" ? model.get(path) : model.get(path[0])[path[1]]),

    write(path, value) {
      if (typeof path === "string") model.set(path, value);
      else
        model.set(
          path[0],
          model.get(path[0]).map((/** @type {any} */ old, /** @type {number} */ i) => (i === path[1] ? value : old)),
        );
      model.save_changes();
    },

    // Draw now, and again whenever one of the traits changes.
    when(traits, draw) {
      const heard = () => {
        if (!left) draw();
      };
      for (const trait of traits) {
        model.on(`change:${trait}`, heard);
        undo.push(() => model.off(`change:${trait}`, heard));
      }
      draw();
    },

    // A part that is built anew when `key` changes: what it followed before is forgotten first.
    anew(traits, key, build) {
      const place = html("div", { class: "x-part" });
      let built = "";
      let part = follow(model);
      scope.when(traits, () => {
        if (key() === built) return;
        built = key();
        part.leave();
        part = follow(model);
        place.replaceChildren(build(part));
      });
      undo.push(() => part.leave());
      return place;
    },

    leave() {
      left = true;
      for (const f of undo.splice(0)) f();
    },
  };
  return scope;
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes] those that are null or undefined are left out
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function html(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** As `html`. @param {string} tag @param {Record<string, any>} [attributes] @param {(Node | string)[]} children */
export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/**
 * @template {Element} E
 * @param {E} element @param {Record<string, any>} attributes @param {(Node | string)[]} children
 */
function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children);
  return element;
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
 * A labelled slider for a trait. `place` and `value` map the trait to the slider's own scale and back.
 * @param {Scope} on
 * @param {Path} path
 * @param {{ label: string, min: number, max: number, step: number | "any", show?: (value: number) => string,
 *   place?: (value: number) => number, value?: (place: number) => number, plain?: boolean }} options
 *   `show` writes the value; `plain` leaves the label to a screen reader alone
 */
export function slider(on, path, { label, min, max, step, show = String, place = (v) => v, value = (v) => v, plain }) {
  const input = html("input", { type: "range", min: place(min), max: place(max), step });
  const shown = html("span", { class: "x-value", "aria-hidden": "true" });
  const control = html(
    "label",
    { class: "x-control" },
    html("span", { class: plain ? "x-said" : "" }, label),
    input,
    shown,
  );
  input.addEventListener("input", () => on.write(path, value(input.valueAsNumber)));
  on.when([trait(path)], () => {
    const now = on.read(path);
    input.value = String(place(now));
    input.setAttribute("aria-valuetext", show(now));
    shown.textContent = show(now);
  });
  return control;
}

/**
 * A slider on a logarithmic scale, in a hundred steps; it writes three digits.
 * @param {Scope} on @param {Path} path
 * @param {{ label: string, min: number, max: number, show?: (value: number) => string }} options
 */
export function logSlider(on, path, options) {
  const step = Math.log(options.max / options.min) / 100;
  const value = (/** @type {number} */ place) => Number(Math.exp(place).toPrecision(3));
  return slider(on, path, { ...options, step, place: Math.log, value });
}

/**
 * A labelled choice among values; `options` pairs each value with what is read. `plain` is as in `slider`.
 * @param {Scope} on @param {Path} path @param {{ label: string, options: [string, string][], plain?: boolean }} options
 */
export function select(on, path, { label, options, plain }) {
  const input = html("select", {}, ...options.map(([value, words]) => html("option", { value }, words)));
  input.addEventListener("change", () => on.write(path, input.value));
  on.when([trait(path)], () => {
    input.value = on.read(path);
  });
  return html(
    "label",
    { class: plain ? "x-plain" : "x-control" },
    html("span", { class: plain ? "x-said" : "" }, label),
    input,
  );
}

/** @param {Scope} on @param {Path} path @param {{ label: string }} options */
export function checkbox(on, path, { label }) {
  const input = html("input", { type: "checkbox" });
  input.addEventListener("change", () => on.write(path, input.checked));
  on.when([trait(path)], () => {
    input.checked = on.read(path);
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

/** The trait that a path leads into. @param {Path} path */
function trait(path) {
  return typeof path === "string" ? path : path[0];
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
