// The page: reads its data, and puts views and dock together.

import { el } from "./dom.js";
import { readData } from "./data.js";
import { Dock } from "./dock.js";
import { addKeys } from "./keys.js";
import { addSearch } from "./search.js";
import { Store } from "./store.js";
import { summary, View } from "./view.js";

const { page, tokens } = await readData();
const store = new Store(page);
const pattern = new RegExp(tokens, "g");
const find = (id) => document.getElementById(id);
const views = page.ways.map((_, k) => new View(store, k, pattern));
for (const view of views) view.element.hidden = true;
find("views").replaceChildren(...views.map((view) => view.element));
const dock = new Dock(store, document.getElementById("dock"));

function toggleWay(k) {
  if (k >= page.ways.length) return;
  const shown = store.shown.includes(k) ? store.shown.filter((n) => n !== k) : [...store.shown, k].sort();
  if (!shown.length) return;
  store.shown = shown;
  if (!shown.includes(store.active)) store.active = shown[0];
  store.emit("ways");
}

function toggleTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches, root = document.documentElement;
  root.dataset.theme = (root.dataset.theme || (isDark ? "dark" : "light")) === "dark" ? "light" : "dark";
  for (const view of views) view.graph.draw();
}

function drawWays() {
  find("ways").replaceChildren(...(page.ways.length > 1 ? page.ways : []).map((way, k) =>
    el("button", { "aria-pressed": String(store.shown.includes(k)), title: summary(way), click: () => toggleWay(k) }, `${k + 1} ${way.name}`)));
}

store.subscribe((topic) => {
  if (topic === "step" || topic === "code") return views[store.active].update(topic);
  const stale = store.shown.filter((k) => topic === "selection" || views[k].element.hidden);
  if (topic === "ways") {
    drawWays();
    views.forEach((view, k) => { view.element.hidden = !store.shown.includes(k); });
    find("views").dataset.count = String(store.shown.length);
  }
  for (const k of stale) views[k].update("selection");
  dock.draw();
});

const help = addKeys(store, { search: addSearch(store, find("search")), theme: toggleTheme, toggleWay });
find("theme").addEventListener("click", toggleTheme);
find("help").addEventListener("click", help);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => views.forEach((v) => v.graph.draw()));
store.emit("ways");
document.documentElement.dataset.ready = "true";
