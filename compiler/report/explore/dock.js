// The dock below the views: kernels, comparison, charts and remarks of all ways in sight.

import { bytes, el, si, time } from "./dom.js";
import { colour, memory, roofline, timeline } from "./charts.js";

const MAX_REMARKS = 400;

export class Dock {
  /** @param {import("./store.js").Store} store @param {HTMLElement} element */
  constructor(store, element) {
    this.store = store;
    const ways = () => store.shown.map((k) => store.page.ways[k]);
    this.tabs = {
      Kernels: () => this.kernels(),
      ...(store.page.ways.length > 1 ? { Compare: () => this.compare() } : {}),
      Roofline: () => roofline(store, this.body.clientWidth - 20, this.body.clientHeight - 36),
      Memory: () => el("div", {}, ways().map(memory)),
      Timeline: () => el("div", {}, ways().map((way) => timeline(way, store))),
      Remarks: () => this.remarks(),
    };
    this.current = store.page.ways.length > 1 ? "Compare" : "Kernels";
    this.sort = { Kernels: 0 };
    this.bar = el("div", { class: "tabs", role: "tablist" });
    this.body = el("div", { class: "body", role: "tabpanel" });
    element.append(this.bar, this.body);
  }

  open(name) {
    this.current = name;
    this.draw();
  }

  draw() {
    this.bar.replaceChildren(...Object.keys(this.tabs).map((name) =>
      el("button", { role: "tab", "aria-selected": String(name === this.current), click: () => this.open(name) }, name)));
    this.body.replaceChildren(this.tabs[this.current]());
    if (this.body.dataset.tab !== this.current) this.body.scrollTop = 0;
    this.body.dataset.tab = this.current;
  }

  rowOf(number, kernel) {
    const { store } = this;
    const click = () => store.select(kernel.origins, `@${kernel.name}`, number, kernel);
    const isHere = store.positions[number].kernel === kernel;
    return {
      click, tabindex: 0, keydown: (e) => { if (e.key === "Enter") click(); },
      class: `${store.isSelected(kernel.origins) ? "selected" : ""}${isHere ? " here" : ""}`,
    };
  }

  kernels() {
    const { store } = this, many = store.shown.length > 1;
    const rows = store.shown.flatMap((number) => {
      const way = store.page.ways[number], total = way.kernels.reduce((t, k) => t + (k.seconds ?? k.predicted ?? 0), 0) || 1;
      return way.kernels.map((kernel) => ({ number, way, kernel, cost: kernel.seconds ?? kernel.predicted ?? 0, share: (kernel.seconds ?? kernel.predicted ?? 0) / total }));
    }).sort((a, b) => b.cost - a.cost);
    if (!rows.length) return el("p", { class: "dim" }, "There are no kernels.");
    const resources = [...new Set(rows.flatMap(({ kernel }) => Object.keys(kernel.resources)))];
    const heads = [...(many ? ["way"] : []), "kernel", "computes", "dtypes"], numbers = ["runs", "MFLOP", "bytes", "measured", "predicted", "share", "roofline", ...resources];
    return el("table", {}, el("thead", {}, el("tr", {}, heads.map((h) => el("th", {}, h)), numbers.map((h) => el("th", { class: "n" }, h)), el("th", {}, "from"))),
      el("tbody", {}, rows.map(({ number, way, kernel: k, share }) => el("tr", this.rowOf(number, k),
        many ? el("td", {}, el("i", { class: "swatch", style: `background:${colour(number)}` }), way.name) : null,
        el("td", {}, el("code", {}, k.tile.text.length ? `@${k.name}` : k.name)), el("td", {}, k.ops), el("td", {}, k.dtypes),
        ...[k.launches, k.flops ? (k.flops / 1e6).toFixed(2) : "", k.bytes ? bytes(k.bytes) : "", time(k.seconds), time(k.predicted)].map((v) => el("td", { class: "n" }, String(v))),
        el("td", { class: "n bar", style: `--share:${(100 * share).toFixed(1)}%` }, share ? `${(100 * share).toFixed(1)} %` : ""),
        el("td", { class: "n" }, k.roofline && k.seconds ? `${(100 * k.roofline / k.seconds).toFixed(0)} %` : ""),
        resources.map((name) => el("td", { class: "n" }, k.resources[name] ?? "")),
        el("td", {}, k.where)))));
  }

  /** Ways beside one another: totals, then the kernels that compute the same part of the model. */
  compare() {
    const { store } = this, ways = store.shown.map((k) => store.page.ways[k]);
    const cost = (k) => k.seconds ?? k.predicted;
    const sum = (way, f) => way.kernels.reduce((t, k) => t + (f(k) ?? 0), 0);
    const line = (name, f) => el("tr", {}, el("th", {}, name), ways.map((w) => el("td", { class: "n" }, f(w))));
    const head = el("tr", {}, el("th", {}, ""), store.shown.map((k) => el("th", { class: "n" }, el("i", { class: "swatch", style: `background:${colour(k)}` }), store.page.ways[k].name)));
    const totals = [
      line("a call, measured", (w) => (w.seconds == null ? (w.error ? "stopped" : "not here") : time(w.seconds))),
      line("kernels, predicted", (w) => time(w.predicted)),
      line("launches", (w) => String(sum(w, (k) => k.launches))),
      line("operations", (w) => si(sum(w, (k) => k.flops), "op")),
      line("memory traffic", (w) => bytes(sum(w, (k) => k.bytes))),
      line("workspace", (w) => (w.memory ? bytes(w.memory.size) : "")),
    ];
    const shown = store.shown.join();
    if (this.grouped?.shown !== shown) this.grouped = { shown, groups: this.groups(ways) };
    const { groups } = this.grouped;
    const rows = groups.map(({ kernels, label }) => el("tr", { class: kernels.flat().some((k) => store.isSelected(k.origins)) ? "selected" : "" },
      el("th", {}, label), ways.map((w, i) => el("td", {}, kernels[i].map((k) => {
        const number = store.page.ways.indexOf(w), total = sum(w, cost) || 1;
        return el("button", { class: `kernel${store.positions[number].kernel === k ? " here" : ""}`, style: `--share:${(100 * (cost(k) ?? 0) / total).toFixed(1)}%`, title: `${k.ops} ${k.where}`,
          click: () => store.select(k.origins, `@${k.name}`, number, k) }, `@${k.name} ${time(cost(k))}`);
      })))));
    return el("table", { class: "compare" }, el("thead", {}, head), el("tbody", {}, totals, el("tr", {}, el("th", { colspan: ways.length + 1, class: "dim" }, "kernels that share nodes of the imported graph")), rows));
  }

  /** A row for each kernel of the first way, with those of the others that share most of its nodes; those that cost most first. */
  groups(ways) {
    const first = ways.find((w) => w.kernels.length), rows = [];
    const add = (k, i) => rows.push({ origins: new Set(k.origins), kernels: ways.map((_, j) => (i === j ? [k] : [])), label: k.where || k.ops });
    first?.kernels.forEach((k) => add(k, ways.indexOf(first)));
    ways.forEach((w, i) => w !== first && w.kernels.forEach((k) => {
      const shared = rows.map((row) => k.origins.filter((o) => row.origins.has(o)).length / Math.max(1, row.origins.size));
      const most = Math.max(0, ...shared);
      if (most) rows[shared.indexOf(most)].kernels[i].push(k);
      else add(k, i);
    }));
    const cost = ({ kernels }) => Math.max(...kernels.map((own) => own.reduce((t, k) => t + (k.seconds ?? k.predicted ?? 0), 0)));
    return rows.sort((a, b) => cost(b) - cost(a));
  }

  remarks() {
    const { store } = this;
    const rows = store.shown.flatMap((number) => store.page.ways[number].remarks.map((r) => [number, r]));
    const chosen = store.origins.size ? rows.filter(([, r]) => store.isSelected(r.origins)) : [];
    const shown = (chosen.length ? chosen : rows).slice(0, MAX_REMARKS);
    const note = chosen.length ? `${chosen.length} of ${rows.length} remarks are about the selection.` : `${rows.length} remarks, those that cost most first.`;
    return el("div", {}, el("p", { class: "dim" }, note, shown.length < (chosen.length || rows.length) ? ` The first ${MAX_REMARKS} are shown.` : ""),
      el("table", {}, el("tbody", {}, shown.map(([number, r]) => el("tr", { click: () => r.origins.length && store.select(r.origins, r.subject, number) },
        store.shown.length > 1 ? el("td", {}, store.page.ways[number].name) : null, el("td", { class: r.kind }, r.kind), el("td", {}, el("code", {}, r.pass_name)),
        el("td", { class: "n" }, r.times > 1 ? `${r.times} times` : ""), el("td", { class: "n" }, r.lost ? time(r.lost) : ""),
        el("td", {}, r.message), el("td", {}, el("code", {}, r.subject)), el("td", { class: "dim" }, r.where))))));
  }
}
