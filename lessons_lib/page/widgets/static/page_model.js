/**
 * Draw an explorer on a page without a notebook, with a model that keeps the state and calls the listeners.
 * The explorer draws into the parent of the running script, so that a page needs no ids. That element gets a property
 * `explorer` for the page to use: the model, the initial state and the rules of the traits. It dispatches
 * `explorer-saved` when the reader has changed something.
 *
 * @typedef {{
 *   get(name: string): unknown, set(name: string, value: unknown): void, save_changes(): void,
 *   on(event: string, listener: () => void): void, off(event: string, listener: () => void): void,
 * }} PageModel
 * @typedef {[least: number | null, most: number | null, whole: boolean] | { options: unknown[] }
 *   | { each: Rule | null, least: number, most: number } | "string" | "boolean"} Rule the values that a trait may take
 * @typedef {{ name: string, rules: Record<string, Rule | null> }} About
 * @typedef {About & { model: PageModel, start: Record<string, unknown> }} Explorer
 * @param {{ render(context: { model: PageModel, el: HTMLElement }): void, about?: About }} explorer
 * @param {Record<string, unknown>} state
 */
export function mount(explorer, state) {
  const el = document.currentScript?.parentElement;
  if (!el) throw new Error("an explorer needs an element around its script");
  const { _card, _words, ...start } = state;
  /** @type {Record<string, Set<() => void>>} */
  const listeners = {};
  /** @type {PageModel} */
  const model = {
    get: (name) => state[name],
    set(name, value) {
      const before = JSON.stringify(state[name]);
      state[name] = value;
      if (JSON.stringify(value) !== before) for (const f of listeners[`change:${name}`] ?? []) f();
    },
    on(event, f) {
      (listeners[event] ??= new Set()).add(f);
    },
    off(event, f) {
      listeners[event]?.delete(f);
    },
    save_changes() {
      el.dispatchEvent(new Event("explorer-saved", { bubbles: true }));
    },
  };
  explorer.render({ model, el });
  el.querySelector(".x-still")?.remove();
  Object.assign(el, { explorer: { ...explorer.about, model, start } });
}
