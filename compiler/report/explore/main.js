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
const views = page.ways.map((_, k) => new View(store, k, pattern));
const dock = new Dock(store, document.getElementById("dock"));
const find = (id) => document.getElementById(id);

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
  if (topic === "ways") {
    drawWays();
    find("views").replaceChildren(...store.shown.map((k) => views[k].element));
    find("views").dataset.count = String(store.shown.length);
  }
  if (topic === "step" || topic === "code") return views[store.active].update(topic);
  for (const k of store.shown) views[k].update("selection");
  dock.draw();
});

const help = addKeys(store, { search: addSearch(store, find("search")), theme: toggleTheme, toggleWay });
find("theme").addEventListener("click", toggleTheme);
find("help").addEventListener("click", help);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => views.forEach((v) => v.graph.draw()));
store.emit("ways");
document.documentElement.dataset.ready = "true";
