/** Tabs that explorers with many figures share. */

import { button, html } from "./kit.js";
import { say } from "./words.js";

/**
 * Panels in groups, of which one group is shown, selected by its name; on a phone one panel of the group at a time,
 * selected by its own name, with the panels of the group that have no name below.
 * @param {[string, [string, Element][]][]} groups
 * @returns the element, and the function that opens a panel
 */
export function tabs(...groups) {
  /** @type {((chosen: Element) => void)[]} */
  const followers = [];
  const open = (/** @type {Element} */ chosen) => followers.forEach((show) => show(chosen));
  const bar = (/** @type {string} */ look) =>
    html("div", { class: `x-tabs ${look}`, role: "group", "aria-label": say("Show") });
  const [wide, narrow] = [bar("x-wide"), bar("x-narrow")];
  /** @param {Element} tabBar @param {string} name @param {Element} target @param {Element[]} group */
  const addTab = (tabBar, name, target, group) => {
    const tab = button(name, () => open(target));
    followers.push((chosen) => tab.setAttribute("aria-pressed", String(group.includes(chosen))));
    tabBar.append(tab);
  };
  for (const [name, named] of groups) {
    const group = named.map(([, panel]) => panel);
    addTab(wide, name, group[0], group);
    for (const [own, panel] of named) {
      if (own) addTab(narrow, own, panel, [panel]);
      followers.push((chosen) => {
        panel.classList.toggle("x-away", !group.includes(chosen));
        panel.classList.toggle("x-beside", own !== "" && panel !== chosen);
      });
    }
  }
  const all = groups.flatMap(([, named]) => named.map(([, panel]) => panel));
  open(all[0]);
  return { element: html("div", { class: "x-panels x-tabbed" }, wide, narrow, ...all), open };
}
