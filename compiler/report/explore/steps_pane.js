// The passes of a way as a list, with what each changed; rewrites stand below the pass that is shown.

import { el, time } from "./dom.js";
import { deltaSize } from "./data.js";

/** @type {["graph", "program", "tile"]} */
const LISTS = ["graph", "program", "tile"];
/** Rewrites before and behind the one that is shown that are listed. */
const AROUND = 60;
const TITLES = { graph: "Graph passes", program: "Program passes", tile: "Tile passes" };

export class StepsPane {
  /** @param {import("./store.js").Store} store @param {number} number of the way */
  constructor(store, number) {
    this.store = store;
    this.number = number;
    this.body = el("div", { class: "list" });
    this.onlyChanges = el("input", { type: "checkbox", checked: true, change: () => {
      store.onlyChanges = this.onlyChanges.checked;
      store.emit("selection");
    } });
    this.element = el("section", { class: "pane steps" },
      el("h2", {}, el("span", { class: "title" }, "Passes"), el("label", { class: "extra" }, this.onlyChanges, " changes only")), this.body);
  }

  draw() {
    const { store, number } = this, position = store.positions[number];
    this.onlyChanges.checked = store.onlyChanges;
    this.body.replaceChildren(...LISTS.flatMap((list) => {
      const { steps } = store.stepsOf(number, list);
      if (!steps.length && list !== "graph") return [];
      const title = TITLES[list] + (list === "tile" && position.kernel ? ` of @${position.kernel.name}` : "");
      const rows = steps.map((step, k) => this.row(list, step, k + 1, position)).filter(Boolean);
      return [el("h3", {}, title), this.first(list, position), ...rows];
    }));
    this.pending ??= requestAnimationFrame(() => { // when all panes are drawn, so that the browser lays them out once
      this.pending = undefined;
      this.body.querySelector(".current[aria-current=step]")?.scrollIntoView({ block: "nearest" });
    });
  }

  first(list, position) {
    const names = { graph: "imported", program: "lowered", tile: "before all" };
    return this.button(list, 0, 0, position, [el("span", { class: "name" }, names[list])], "the IR before the first pass");
  }

  row(list, step, k, position) {
    const [added, removed] = deltaSize(step.delta), isCurrent = position[list][0] === k;
    if (!this.store.isListed(step) && !isCurrent) return null;
    const size = step.delta.length ? el("span", { class: "size" }, el("b", { class: "plus" }, `+${added}`), " ", el("b", { class: "minus" }, `−${removed}`)) : null;
    const label = [el("span", { class: "name" }, step.name), step.failed ? el("b", { class: "failed" }, " failed") : size];
    const title = `${step.text}\n${step.effect}\n${time(step.seconds)}`;
    const row = this.button(list, k, 0, position, label, title, step.delta.length || step.failed ? "" : "idle");
    if (!isCurrent || !(step.rewrites.length || step.omitted)) return row;
    return el("div", {}, row, this.rewrites(list, step.rewrites, k, position), step.omitted && el("p", { class: "dim" }, step.omitted));
  }

  /** The rewrites around the one that is shown: a large graph has thousands. */
  rewrites(list, all, k, position) {
    const first = Math.max(0, position[list][1] - AROUND), last = Math.min(all.length, first + 2 * AROUND);
    const more = (count, rewrite, where) => count > 0 && this.button(list, k, rewrite, position, [`${count} ${where}`], `go to rewrite ${rewrite}`, "rewrite");
    const rows = all.slice(first, last).map((r, i) => this.button(list, k, first + i + 1, position,
      [`${first + i + 1}. ${r.message}`, r.about ? el("code", {}, ` ${r.about}`) : null],
      r.number ? `${r.message}\nthe state that opt --rewrite-limit ${r.number} stops at` : r.message, "rewrite"));
    return [more(first, first, "earlier"), ...rows, more(all.length - last, last + 1, "later")].filter(Boolean);
  }

  button(list, step, rewrite, position, label, title, kind = "") {
    const isHere = position[list][0] === step && position[list][1] === rewrite;
    const isActive = isHere && position.list === list && this.store.active === this.number;
    return el("button", {
      class: `step ${kind}${isHere ? " current" : ""}${isActive ? " active" : ""}`, title, "aria-current": isActive ? "step" : null,
      click: () => this.store.goTo(this.number, list, step, rewrite),
    }, ...label);
  }
}
