// The panes of one way: passes, graph, source, Graph IR, Tile IR and code, all showing the same selection.

import { el, time } from "./dom.js";
import { deltaSize, finalLines, linesAt } from "./data.js";
import { GraphPane } from "./graph_pane.js";
import { StepsPane } from "./steps_pane.js";
import { TextPane } from "./text_pane.js";

const NAME = /^\s*%("[^"]+"|[\w.]+)/;
const KERNEL = /@("[^"]+"|[\w.]+)/;

export class View {
  /** @param {import("./store.js").Store} store @param {number} number of the way @param {RegExp} tokens */
  constructor(store, number, tokens) {
    this.store = store;
    this.number = number;
    this.way = store.page.ways[number];
    this.steps = new StepsPane(store, number);
    this.graph = new GraphPane(this.way, store, number);
    const marked = (line) => this.isMarked(line);
    this.graphText = new TextPane("Graph IR", tokens, (line) => this.selectLine(line), marked);
    this.tileText = new TextPane("Tile IR", tokens, (line, k) => this.selectTile(line, k), (_, k) => this.isTileMarked(k));
    this.codeText = new TextPane("Code", tokens, (_, k) => this.selectCode(k), (_, k) => this.markedCode.has(this.codeLines[k]));
    /** @type {number[]} the index in the last Tile IR of each line of Tile IR that is shown */
    this.tileLines = [];
    /** @type {number[]} the statement of each line of the code that is shown */
    this.codeLines = [];
    /** @type {Set<number>} */
    this.markedCode = new Set();
    this.source = new TextPane("Source", tokens, (_, k) => this.selectSource(k), (_, k) => this.isSourceMarked(k));
    this.sourceNumber = 0;
    this.details = el("section", { class: "pane details", "aria-live": "polite" });
    this.stages = el("span", { class: "extra", role: "tablist" });
    this.codeText.extra.append(this.stages);
    const failed = this.way.error ? el("pre", { class: "error", role: "alert" }, `Stopped: ${this.way.error}`) : null;
    const hasSource = store.page.sources.length > 0;
    this.element = el("article", { class: `view${hasSource ? "" : " library"}`, "aria-label": this.way.name, pointerdown: () => { store.active = number; } },
      el("div", { class: "summary" }, el("b", {}, this.way.name), " ", summary(this.way)), failed,
      el("div", { class: "panes" }, this.steps.element, this.graph.element, this.graphText.element, this.tileText.element,
        hasSource ? this.source.element : null, this.codeText.element, this.details));
  }

  /** Draw what a change concerns. @param {string} topic */
  update(topic) {
    if (topic === "selection" || topic === "step") this.steps.draw();
    this.showTexts();
    if (topic === "code") return this.revealStatement();
    this.showGraph();
    if (topic === "selection") {
      this.graph.reveal((node) => this.store.isNodeSelected(this.number, node));
      this.graphText.reveal((line) => this.isMarked(line.text));
      this.revealStatement();
      this.showSource();
      this.showDetails();
    } else {
      this.graphText.reveal((line) => line.sign !== "");
      this.tileText.reveal((line) => line.sign !== "");
    }
  }

  showTexts() {
    const p = this.store.positions[this.number], list = p.list === "program" ? "program" : "graph";
    const steps = this.store.stepsOf(this.number, list), [step, rewrite] = p[list];
    this.showStep(this.graphText, list === "program" ? "Program" : "Graph IR", steps, step, rewrite);
    const tile = this.store.stepsOf(this.number, "tile"), title = p.kernel ? `Tile IR of @${p.kernel.name}` : "Tile IR";
    this.showStep(this.tileText, title, tile, ...p.tile);
    const statement = this.store.statementIn(this.number);
    if (statement && !this.tileLines.includes(statement - 1)) {
      p.tile = [tile.steps.length, 0]; // an earlier step does not have the statement yet
      this.showStep(this.tileText, title, tile, ...p.tile);
    }
    const code = p.kernel?.code ?? {};
    if (!(p.code in code)) p.code = Object.keys(code)[0] ?? "";
    const shown = `${p.kernel?.name} ${p.code}`, { text = "", lines = [] } = code[p.code] ?? {};
    this.codeLines = lines;
    this.markedCode = this.statementsOfCode();
    if (this.shownCode === shown) this.codeText.draw();
    else {
      this.shownCode = shown;
      this.codeText.scrollTo(0);
      this.codeText.show(p.code ? "Code" : "No code", text.split("\n").map((line) => ({ text: line, sign: "" })));
      this.stages.replaceChildren(...Object.keys(code).map((stage) => el("button", {
        role: "tab", "aria-selected": String(stage === p.code),
        click: () => { p.code = stage; this.update("code"); },
      }, stage)));
    }
  }

  showStep(pane, what, steps, step, rewrite) {
    const shown = [steps, step, rewrite].join();
    if (pane.shownSteps === steps && pane.shownAt === shown) return void pane.draw();
    [pane.shownSteps, pane.shownAt] = [steps, shown];
    const pass = step ? steps.steps[step - 1] : null;
    const which = rewrite ? `, rewrite ${rewrite} of ${pass.rewrites.length}` : "";
    const delta = pass && (rewrite ? pass.rewrites[rewrite - 1].delta : pass.delta);
    const [added, removed] = delta ? deltaSize(delta) : [0, 0];
    const changed = !pass ? "" : delta.length ? `: +${added} −${removed}` : ": unchanged";
    const lines = linesAt(steps, step, rewrite);
    if (pane === this.tileText) this.tileLines = finalLines(steps, step, rewrite, lines);
    pane.show(`${what} ${pass ? `after ${pass.name}${which}${changed}` : "at first"}`, lines);
  }

  /** The statement that a line of Tile IR belongs to; 0 if a later pass removes the line. @param {number} k */
  statementOfTile(k) {
    return this.store.positions[this.number].kernel?.statements.first_lines[this.tileLines[k]] ?? 0;
  }

  isTileMarked(k) {
    const statement = this.store.statementIn(this.number);
    return statement > 0 && this.statementOfTile(k) === statement;
  }

  selectTile(line, k) {
    const statement = this.statementOfTile(k);
    if (statement) this.store.selectStatement(this.number, statement);
    else this.selectLine(line);
  }

  selectCode(k) {
    if (this.codeLines[k]) this.store.selectStatement(this.number, this.codeLines[k]);
  }

  /** The statements whose code is marked: the one that is selected, or those inside a loop that has no code of its own. */
  statementsOfCode() {
    const statement = this.store.statementIn(this.number);
    if (!statement || this.codeLines.includes(statement)) return new Set(statement ? [statement] : []);
    const lines = this.store.positions[this.number].kernel.statements.first_lines;
    return new Set(lines.slice(statement - 1, lines.lastIndexOf(statement) + 1));
  }

  revealStatement() {
    const statement = this.store.statementIn(this.number);
    this.tileText.reveal((_, k) => statement > 0 && this.tileLines[k] === statement - 1);
    this.codeText.reveal((_, k) => this.markedCode.has(this.codeLines[k]));
  }

  /** The graph after the pass that is shown; of a rewrite, the graph before the pass, and what the rewrite is about. */
  showGraph() {
    const { steps } = this.way.graph, [step, rewrite] = this.store.positions[this.number].graph;
    let drawing = this.way.drawings.length ? 0 : -1, before = drawing;
    steps.slice(0, step).forEach((s, k) => {
      if (k === step - 1) before = drawing;
      if (s.drawing >= 0) drawing = s.drawing;
    });
    if (rewrite) drawing = before;
    const count = drawing < 0 ? 0 : this.way.drawings[drawing].nodes.length;
    const title = !step ? "as imported" : `${rewrite ? "before" : "after"} ${steps[step - 1].name}`;
    this.graph.show(drawing, before, `Graph ${title}, ${count} nodes`, rewrite ? steps[step - 1].rewrites[rewrite - 1].origins : []);
  }

  showSource() {
    const { page, origins } = this.store;
    if (!page.sources.length) return;
    const counts = page.sources.map(() => 0);
    for (const o of origins) if (page.origins[o].file >= 0) counts[page.origins[o].file]++;
    const most = counts.indexOf(Math.max(...counts));
    if (counts[most]) this.sourceNumber = most;
    const file = page.sources[this.sourceNumber];
    this.source.show(file.name, file.lines.map((text) => ({ text, sign: "" })), file.first);
    this.source.reveal((_, k) => this.isSourceMarked(k));
  }

  isSourceMarked(k) {
    const line = this.store.page.sources[this.sourceNumber].first + k;
    for (const o of this.store.origins) {
      const origin = this.store.page.origins[o];
      if (origin.file === this.sourceNumber && origin.line === line) return true;
    }
    return false;
  }

  selectSource(k) {
    const file = this.store.page.sources[this.sourceNumber], line = file.first + k;
    const found = [];
    this.store.page.origins.forEach((o, number) => {
      if (o.file === this.sourceNumber && o.line === line) found.push(number);
    });
    if (found.length) this.store.select(found, `${file.name}:${line}`, this.number);
  }

  isMarked(line) {
    if (!this.store.origins.size) return false;
    const node = this.nodeOf(line);
    if (node) return this.store.isNodeSelected(this.number, node);
    const name = NAME.exec(line);
    return !!name && this.store.origins.has(this.store.originOf(name[1].replaceAll('"', "")));
  }

  nodeOf(line) {
    const name = NAME.exec(line);
    return (name && this.graph.byId?.get(name[1].replaceAll('"', ""))?.node) || null;
  }

  selectLine(line) {
    const kernel = /kernel|launch/.test(line) && this.way.kernels.find((k) => k.name === KERNEL.exec(line)?.[1]);
    if (kernel) return this.store.select(kernel.origins, `@${kernel.name}`, this.number, kernel);
    const name = NAME.exec(line)?.[1].replaceAll('"', "");
    if (!name) return;
    const item = this.graph.byId?.get(name), origin = this.store.originOf(name);
    if (item && /^ {0,2}%/.test(line)) this.graph.select(item);
    else if (origin >= 0) this.store.select([origin], `%${name}`, this.number);
  }

  showDetails() {
    const { kernel } = this.store.positions[this.number];
    if (!kernel) return this.details.replaceChildren();
    const total = this.way.kernels.reduce((t, k) => t + (k.seconds ?? 0), 0);
    const fact = (name, value) => value && [el("dt", {}, name), el("dd", {}, value)];
    const remarks = kernel.remarks.map((r) => el("li", { class: r.kind }, el("b", {}, r.kind), " ", el("code", {}, r.pass_name), ` ${r.message}`,
      r.lost ? `, ${time(r.lost)} lost` : "", r.subject ? el("code", {}, ` ${r.subject}`) : null));
    const others = kernel.alternatives.map((a) => el("li", {}, el("code", {}, a.change), a.predicted == null ? "" : ` ${time(a.predicted)} a launch, predicted`));
    this.details.replaceChildren(
      el("h2", {}, el("span", { class: "title" }, kernel.tile.text.length ? `Kernel @${kernel.name}` : kernel.name)),
      el("div", { class: "list" },
        el("dl", {}, fact(kernel.tile.text.length ? "computes" : "step", kernel.ops), fact("from", kernel.where), fact("dtypes", kernel.dtypes), fact("launches", kernel.launches && `${kernel.launches} a call`),
          fact("measured", time(kernel.seconds)), fact("predicted", time(kernel.predicted)), fact("roofline", time(kernel.roofline)),
          Object.entries(kernel.resources).flatMap(([name, value]) => fact(name, value)),
          fact("share", kernel.seconds && total ? `${(100 * kernel.seconds / total).toFixed(1)} %` : "")),
        remarks.length ? [el("h3", {}, "Decisions"), el("ul", {}, remarks)] : null,
        others.length ? [el("h3", {}, "Alternatives considered"), kernel.launches && kernel.predicted != null ? el("p", { class: "dim" }, `chosen: ${time(kernel.predicted / kernel.launches)} a launch, predicted`) : null, el("ul", {}, others)] : null));
  }
}

/** A way in a line. */
export function summary(way) {
  const parts = [way.target];
  if (way.seconds != null) parts.push(`${time(way.seconds)} a call`);
  if (way.predicted != null) parts.push(`${time(way.predicted)} predicted`);
  if (way.kernels.length) parts.push(`${way.kernels.length} kernels`);
  for (const [name, value] of Object.entries(way.facts)) parts.push(`${name} ${value}`);
  return parts.join(" · ");
}
