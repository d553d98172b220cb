/** Controls that explorers of sequences share: a slider for the query's position, and switches for members of a list. */

import { slider } from "./kit.js";

/**
 * @template V
 * @typedef {import("./kit.js").Value<V>} Value
 */

/**
 * A slider for the position of the query. It is built again when `key` changes, by default the sequence length.
 * @template {{ query: number }} T
 * @param {import("./kit.js").Scope<T>} scope
 * @param {(keyof T)[]} traits of the sequence
 * @param {{ label: string, count: () => number, query: () => number, show: (place: number) => string | undefined,
 *   key?: () => string }} options
 */
export function querySlider(scope, traits, { label, count, query, show, key = () => String(count()) }) {
  return scope.rebuild(traits, key, (part) =>
    slider(
      { ...part.value("query"), get: query },
      { label, min: 0, max: Math.max(1, count() - 1), step: 1, show: (place) => show(place) ?? "" },
    ),
  );
}

/**
 * A switch for an item of a list; the list keeps the order of `all`.
 * @template E
 * @param {Value<E[]>} list @param {E} item @param {E[]} all
 * @returns {Value<boolean>}
 */
export function memberSwitch(list, item, all) {
  return {
    get: () => list.get().includes(item),
    set: (isIn) => list.set(all.filter((one) => (one === item ? isIn : list.get().includes(one)))),
    watch: list.watch,
  };
}

/** The negation of a switch. @param {Value<boolean>} value @returns {Value<boolean>} */
export function not(value) {
  return { get: () => !value.get(), set: (isOn) => value.set(!isOn), watch: value.watch };
}
