/**
 * Stand in for the notebook on a page without one: keep the state, tell who listens, and let the explorer draw.
 * It runs in the explorer's own element, found as the parent of the script, so that a page needs no ids.
 *
 * @typedef {{
 *   get(name: string): unknown, set(name: string, value: unknown): void, save_changes(): void,
 *   on(event: string, listener: () => void): void, off(event: string, listener: () => void): void,
 * }} PageModel
 * @param {{ render(context: { model: PageModel, el: HTMLElement }): void }} explorer
 * @param {Record<string, unknown>} state
 */
function host(explorer, state) {
  const el = document.currentScript?.parentElement;
  if (!el) throw new Error("an explorer needs an element around its script");
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
    save_changes() {},
  };
  explorer.render({ model, el });
  el.querySelector(".x-still")?.remove();
}
