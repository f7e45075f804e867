// Search over nodes, kernels, modules and lines of the source.

import { el } from "./dom.js";

const MAX_RESULTS = 30;

/** @param {import("./store.js").Store} store @param {HTMLElement} element */
export function addSearch(store, element) {
  const entries = searchEntries(store);
  const list = el("ul", { class: "results", role: "listbox" });
  let chosen = 0, found = [];
  const pick = (entry) => {
    if (!entry) return;
    entry.act();
    input.blur();
    list.replaceChildren();
  };
  const draw = () => list.replaceChildren(...found.map((entry, k) =>
    el("li", { role: "option", "aria-selected": String(k === chosen), pointerdown: (e) => { e.preventDefault(); pick(entry); } }, el("span", { class: "dim" }, `${entry.kind} `), entry.text)));
  const input = el("input", {
    type: "search", placeholder: "search  /", "aria-label": "Search nodes, kernels, modules and source lines",
    input: () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      found = words.length ? entries.filter((e) => words.every((w) => e.key.includes(w))).slice(0, MAX_RESULTS) : [];
      chosen = 0;
      draw();
    },
    keydown: (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        chosen = Math.max(0, Math.min(found.length - 1, chosen + (event.key === "ArrowDown" ? 1 : -1)));
        draw();
        event.preventDefault();
      } else if (event.key === "Enter") pick(found[chosen]);
      else if (event.key === "Escape") input.blur();
      event.stopPropagation();
    },
    blur: () => setTimeout(() => list.replaceChildren(), 150),
  });
  element.append(input, list);
  return input;
}

function searchEntries(store) {
  const { page } = store, entries = [];
  const add = (kind, text, act) => entries.push({ kind, text, act, key: `${kind} ${text}`.toLowerCase() });
  page.ways.forEach((way, number) => way.kernels.forEach((k) =>
    add("kernel", `@${k.name} ${k.ops}${page.ways.length > 1 ? ` (${way.name})` : ""}`, () => store.select(k.origins, `@${k.name}`, number, k))));
  const modules = new Map();
  page.origins.forEach((o, k) => {
    const parts = o.module ? o.module.split(".") : [];
    parts.forEach((_, i) => {
      const path = parts.slice(0, i + 1).join(".");
      modules.set(path, [...(modules.get(path) ?? []), k]);
    });
  });
  for (const [path, origins] of modules) add("module", path, () => store.select(origins, path));
  page.sources.forEach((file, f) => file.lines.forEach((text, k) => {
    const origins = page.origins.flatMap((o, i) => (o.file === f && o.line === file.first + k ? [i] : []));
    if (origins.length) add("line", `${file.name}:${file.first + k} ${text.trim()}`, () => store.select(origins, `${file.name}:${file.first + k}`));
  }));
  page.origins.forEach((o, k) => add("node", `%${o.name} ${o.op} ${o.type}`, () => store.select([k], `%${o.name}`)));
  return entries;
}
