// State of the page, and who hears of its changes.

/**
 * @typedef {{graph: [number, number], program: [number, number], tile: [number, number], list: "graph" | "program" | "tile", kernel: any, code: string}} Position
 *   where a way is shown: step and rewrite in each list of passes, the list that arrow keys move in, kernel and stage of code
 */

export class Store {
  /** @param {any} page */
  constructor(page) {
    this.page = page;
    this.shown = page.ways.map((_, k) => k).slice(0, 3);
    this.active = 0;
    /** @type {Set<number>} */
    this.origins = new Set();
    this.label = "";
    /** @type {{way: number, name: string} | null} the kernel that is selected, if one is */
    this.kernel = null;
    /** The line where the selected statement of that kernel begins, in its last Tile IR; 0 if none is selected. */
    this.statement = 0;
    this.listeners = [];
    /** Passes that change nothing are left out. */
    this.onlyChanges = true;
    this.originByName = new Map(page.origins.map((o, k) => [o.name, k]));
    /** @type {Position[]} */
    this.positions = page.ways.map((way) => ({
      graph: lastOf(way.graph), program: lastOf(way.program), tile: lastOf(slowest(way)?.tile), list: "graph",
      kernel: slowest(way), code: Object.keys(slowest(way)?.code ?? {})[0] ?? "",
    }));
  }

  /** Call `listener(topic)` after each change; topics are "selection", "step" and "ways". @param {(topic: string) => void} listener */
  subscribe(listener) {
    this.listeners.push(listener);
  }

  emit(topic) {
    for (const listener of this.listeners) listener(topic);
  }

  /**
   * Select nodes of the imported graph, in every way; a kernel of way `way` if one is given, and a statement of it.
   * @param {Iterable<number>} origins @param {string} label @param {number} [way] @param {any} [kernel] @param {number} [statement]
   */
  select(origins, label, way = -1, kernel = null, statement = 0) {
    this.origins = new Set(origins);
    this.label = label;
    this.kernel = kernel && { way, name: kernel.name };
    this.statement = statement;
    this.page.ways.forEach((w, k) => this.setKernel(k, k === way && kernel ? kernel : this.kernelOf(w) ?? this.positions[k].kernel));
    this.emit("selection");
  }

  /** Select the statement of the kernel shown in a way that begins in a line of its last Tile IR. @param {number} way @param {number} line */
  selectStatement(way, line) {
    const { kernel } = this.positions[way];
    this.active = way;
    this.select(kernel.statements.origins[line] ?? kernel.origins, `@${kernel.name}:${line}`, way, kernel, line);
  }

  /** The selected statement, if it belongs to the kernel shown in a way; else 0. @param {number} way */
  statementIn(way) {
    const isHere = this.kernel?.way === way && this.kernel.name === this.positions[way].kernel?.name;
    return isHere ? this.statement : 0;
  }

  /** Select the next statement of the kernel, or the one before. @param {number} by 1 or -1 */
  moveStatement(by) {
    const lines = [...new Set(this.positions[this.active].kernel?.statements.first_lines)].sort((a, b) => a - b);
    const now = lines.indexOf(this.statementIn(this.active));
    const next = now < 0 ? (by > 0 ? 0 : lines.length - 1) : now + by;
    if (lines[next]) this.selectStatement(this.active, lines[next]);
  }

  /** Show the next stage of code. */
  moveCode() {
    const position = this.positions[this.active], stages = Object.keys(position.kernel?.code ?? {});
    position.code = stages[(stages.indexOf(position.code) + 1) % stages.length] ?? "";
    this.emit("code");
  }

  setKernel(way, kernel) {
    const position = this.positions[way];
    if (!kernel || kernel === position.kernel) return;
    position.kernel = kernel;
    position.tile = lastOf(kernel.tile);
    if (!(position.code in kernel.code)) position.code = Object.keys(kernel.code)[0] ?? "";
  }

  /** The kernel of a way that computes most of the selection. */
  kernelOf(way) {
    let best = null, most = 0;
    for (const kernel of way.kernels) {
      const shared = this.overlap(kernel.origins);
      if (shared > most) [best, most] = [kernel, shared];
    }
    return best;
  }

  overlap(origins) {
    let count = 0;
    for (const o of origins) count += Number(this.origins.has(o));
    return count;
  }

  isSelected(origins) {
    return this.origins.size > 0 && origins.some((o) => this.origins.has(o));
  }

  /** Whether a node of a drawing belongs to the selection: one that is a kernel only if it is the one that is selected. */
  isNodeSelected(way, node) {
    const exact = node.kernel && this.kernel?.way === way;
    return exact ? node.kernel === this.kernel.name : this.isSelected(node.origins);
  }

  /** Go to a step of a list of passes. @param {number} way @param {"graph" | "program" | "tile"} list @param {number} step @param {number} [rewrite] */
  goTo(way, list, step, rewrite = 0) {
    this.active = way;
    this.positions[way].list = list;
    this.positions[way][list] = [step, rewrite];
    this.emit("step");
  }

  /** Move by one rewrite or pass in the list where the last move was. @param {number} by 1 or -1 @param {boolean} whole passes only */
  move(by, whole) {
    const way = this.active, position = this.positions[way], list = position.list;
    const { steps } = this.stepsOf(way, list);
    let [step, rewrite] = position[list];
    const count = (k) => (k > 0 && !whole ? steps[k - 1].rewrites.length : 0);
    const inside = rewrite || (by < 0 ? count(step) + 1 : 0);
    if (!whole && by > 0 && rewrite && rewrite < count(step)) rewrite += 1;
    else if (!whole && by < 0 && inside > 1) rewrite = inside - 1;
    else {
      let next = step + by;
      while (next > 0 && next <= steps.length && !this.isListed(steps[next - 1])) next += by;
      if (next >= 0 && next <= steps.length) [step, rewrite] = [next, by > 0 && count(next) ? 1 : 0];
    }
    this.goTo(way, list, step, rewrite);
  }

  /** Whether a pass is in the lists: it changed something, or all are. */
  isListed(step) {
    return !this.onlyChanges || step.delta.length > 0 || step.failed;
  }

  /** @param {number} way @param {"graph" | "program" | "tile"} list */
  stepsOf(way, list) {
    const w = this.page.ways[way];
    return list === "tile" ? this.positions[way].kernel?.tile ?? { text: [], steps: [] } : w[list];
  }

  /** The origin that a name in IR text stands for: the name without the parts that passes added; -1 without one. @param {string} name */
  originOf(name) {
    for (let text = name; text; text = text.slice(0, Math.max(0, text.lastIndexOf(".")))) {
      const found = this.originByName.get(text);
      if (found !== undefined) return found;
    }
    return -1;
  }
}

/** The last step that changed something. @returns {[number, number]} */
function lastOf(steps) {
  const last = steps?.steps.findLastIndex((s) => s.delta.length || s.failed) ?? -1;
  return [last + 1, 0];
}

/** The kernel that takes most of a call, by measurement or else by prediction. */
export function slowest(way) {
  const cost = (k) => k.seconds ?? k.predicted ?? 0;
  return way.kernels.reduce((best, k) => (!best || cost(k) > cost(best) ? k : best), null);
}
