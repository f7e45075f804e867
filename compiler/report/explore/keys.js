// Keys, and the window that lists them.

import { el } from "./dom.js";

const KEYS = [
  ["↓ ↑  or  j k", "next and previous pass"], ["→ ←  or  l h", "next and previous rewrite inside passes, then pass"],
  ["g p t", "step through graph, program or tile passes"], ["Tab", "from pane to pane; in the graph, arrow keys go to neighbours and Enter opens a box"],
  ["s S", "next and previous statement of the kernel, with its code"], ["c", "next stage of code"],
  ["/", "search"], ["1 ... 9", "show or hide a way"], ["d", "light or dark"], ["Esc", "clear the selection"], ["?", "this help"],
];

/** @param {import("./store.js").Store} store @param {{search: HTMLElement, theme: () => void, toggleWay: (k: number) => void}} acts */
export function addKeys(store, acts) {
  const dialog = el("dialog", { "aria-label": "Keys" }, el("h2", {}, "Keys"), el("table", {}, KEYS.map(([key, text]) => el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, text)))),
    el("p", {}, "Click a node, a line or a kernel: every pane shows what belongs to it. A line of Tile IR marks the code of its statement, and a line of code its statement. Lines that a pass adds have a + and those it removes a −."),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  document.body.append(dialog);
  const help = () => (dialog.open ? dialog.close() : dialog.showModal());
  /** @param {"graph" | "program" | "tile"} name */
  const list = (name) => () => {
    const position = store.positions[store.active];
    store.goTo(store.active, name, position[name][0], position[name][1]);
  };
  const actions = {
    ArrowDown: () => store.move(1, true), j: () => store.move(1, true), ArrowUp: () => store.move(-1, true), k: () => store.move(-1, true),
    ArrowRight: () => store.move(1, false), l: () => store.move(1, false), ArrowLeft: () => store.move(-1, false), h: () => store.move(-1, false),
    s: () => store.moveStatement(1), S: () => store.moveStatement(-1), c: () => store.moveCode(),
    g: list("graph"), p: list("program"), t: list("tile"), "/": () => acts.search.focus(), "?": help, d: acts.theme,
    Escape: () => (dialog.open ? dialog.close() : store.select([], "")),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
    if (/^[1-9]$/.test(event.key)) return acts.toggleWay(+event.key - 1);
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  });
  return help;
}
