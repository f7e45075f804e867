// The graph on a canvas: pan, zoom, open and close boxes, select nodes.

import { el } from "./dom.js";
import { GraphPainter } from "./graph_painter.js";
import { buildItems, openBoxes, place, visible } from "./placement.js";

export class GraphPane {
  /** @param {any} way @param {import("./store.js").Store} store @param {number} number of the way */
  constructor(way, store, number) {
    this.way = way;
    this.store = store;
    this.number = number;
    /** @type {Map<string, boolean>} boxes that were opened or closed, by key */
    this.open = new Map();
    this.built = new Map();
    this.scale = 1;
    this.x = this.y = this.width = this.height = 0;
    this.drawing = -1;
    /** @type {import("./placement.js").Item} */
    this.root = null;
    /** @type {Map<string, import("./placement.js").Item>} */
    this.byId = new Map();
    this.edges = [];
    /** @type {import("./placement.js").Edge[]} */
    this.lines = [];
    this.fitted = false;
    /** @type {Set<string>} ids of the nodes that are marked as new */
    this.fresh = new Set();
    this.heading = el("span", { class: "title" }, "Graph");
    const button = (text, label, act) => el("button", { click: act, title: label, "aria-label": label }, text);
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": "Graph; arrow keys go to neighbours" });
    this.hint = el("div", { class: "hint", role: "status" });
    this.element = el("section", { class: "pane graph" },
      el("h2", {}, this.heading, el("span", { class: "extra" },
        button("−", "Zoom out", () => this.zoom(1 / 1.3)), button("+", "Zoom in", () => this.zoom(1.3)), button("fit", "Show all", () => this.fit()),
        button("open", "Open all boxes", () => this.openAll(true)), button("close", "Close all boxes", () => this.openAll(false)))),
      el("div", { class: "canvas" }, this.canvas, this.hint));
    this.painter = new GraphPainter(this);
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
  }

  /**
   * Show a drawing; nodes whose names the one before did not have are marked, and those of `origins`.
   * @param {number} number @param {number} before @param {string} title @param {number[]} origins */
  show(number, before, title, origins) {
    this.heading.textContent = title;
    if (number < 0 || !this.way.drawings.length) return;
    if (number !== this.drawing) {
      this.drawing = number;
      if (!this.built.has(number)) this.built.set(number, buildItems(this.way.drawings[number], this.way.nodes));
      Object.assign(this, this.built.get(number));
      openBoxes(this.root, this.open);
      this.place();
    }
    const own = (id) => id.slice(id.lastIndexOf("/") + 1);
    const names = (k) => new Set(this.way.drawings[k].nodes.map((n) => own(this.way.nodes[n].id)));
    const old = before >= 0 && before !== number ? names(before) : null;
    this.fresh = new Set([...this.byId.values()].filter(({ node }) => (old && !old.has(own(node.id))) || node.origins.some((o) => origins.includes(o))).map(({ node }) => node.id));
    if (origins.length) this.reveal((node) => this.fresh.has(node.id));
    if (!this.fitted && this.width) this.fit();
    this.draw();
  }

  place() {
    this.lines = place(this.root, this.edges);
  }

  /** Center the first node that satisfies a condition, where it is out of sight. @param {(node: any) => boolean} condition */
  reveal(condition) {
    if (!this.root) return;
    const found = [...this.byId.values()].find((item) => condition(item.node));
    if (found) {
      const item = visible(found), { width, height } = this;
      const cx = (item.x + item.w / 2) * this.scale + this.x, cy = (item.y + Math.min(item.h, 40) / 2) * this.scale + this.y;
      if (cx < 20 || cy < 20 || cx > width - 20 || cy > height - 20) {
        if (this.scale < 0.25) this.scale = 0.7;
        this.x = width / 2 - (item.x + item.w / 2) * this.scale;
        this.y = height / 2 - (item.y + item.h / 2) * this.scale;
      }
    }
    this.draw();
  }

  fit() {
    if (!this.root) return;
    this.scale = Math.max(0.02, Math.min(1.2, this.width / (this.root.w + 20), this.height / (this.root.h + 20)));
    if (this.scale < 0.35) this.scale = Math.min(0.6, Math.max(this.scale, this.width / (this.root.w + 20)));
    this.x = (this.width - this.root.w * this.scale) / 2;
    this.y = 4;
    this.fitted = true;
    this.draw();
  }

  zoom(by, cx = this.width / 2, cy = this.height / 2) {
    const scale = Math.max(0.02, Math.min(4, this.scale * by)), ratio = scale / this.scale;
    [this.x, this.y, this.scale] = [cx - (cx - this.x) * ratio, cy - (cy - this.y) * ratio, scale];
    this.draw();
  }

  openAll(open) {
    const visit = (item) => {
      if (!item.children) return;
      if (item !== this.root) this.open.set(item.key, (item.open = open));
      item.children.forEach(visit);
    };
    visit(this.root);
    this.place();
    this.fit();
  }

  /** Open or close a box; its header stays under the pointer. */
  toggle(box) {
    const { x, y } = box;
    this.open.set(box.key, (box.open = !box.open));
    this.place();
    this.x += (x - box.x) * this.scale;
    this.y += (y - box.y) * this.scale;
    this.draw();
  }

  /** Select a node, or all nodes in a box. */
  select(item) {
    const origins = new Set();
    const visit = (i) => {
      (i.node?.origins ?? []).forEach((o) => origins.add(o));
      i.children?.forEach(visit);
    };
    visit(item);
    const kernel = item.node?.kernel && this.way.kernels.find((k) => k.name === item.node.kernel);
    const label = item.node ? `%${item.node.id}: ${item.node.type} = ${item.node.op}` : item.key.slice(1).replaceAll("/", ".");
    this.store.select(origins, label, this.number, kernel || null);
  }

  itemAt(px, py) {
    const x = (px - this.x) / this.scale, y = (py - this.y) / this.scale;
    const inside = (i) => x >= i.x && x <= i.x + i.w && y >= i.y && y <= i.y + i.h;
    let found = null;
    for (let item = this.root; item; ) {
      const next = item.open && item.children ? item.children.find(inside) : null;
      if (next) found = next;
      item = next;
    }
    return found;
  }

  listen() {
    const canvas = this.canvas;
    let start = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      start = { x: event.offsetX, y: event.offsetY, left: this.x, top: this.y, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!start) return this.describe(this.root && this.itemAt(event.offsetX, event.offsetY));
      const [dx, dy] = [event.offsetX - start.x, event.offsetY - start.y];
      start.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
      [this.x, this.y] = [start.left + dx, start.top + dy];
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const moved = start?.moved;
      start = null;
      const item = moved || !this.root ? null : this.itemAt(event.offsetX, event.offsetY);
      if (!item) return;
      const onHeader = item.children && (!item.open || (event.offsetY - this.y) / this.scale < item.y + 20);
      if (onHeader && (event.offsetX - this.x) / this.scale < item.x + 20) this.toggle(item);
      else this.select(item);
    });
    canvas.addEventListener("dblclick", (event) => {
      const item = this.root && this.itemAt(event.offsetX, event.offsetY);
      if (item?.children) this.toggle(item);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Arrow keys go to an operand, a user, or a neighbour in the layer; Enter opens and closes. */
  key(event) {
    if (!this.root) return;
    const current = this.current && this.byId.get(this.current);
    const users = (i) => this.lines.filter((l) => l.source === visible(i)).map((l) => l.target);
    const operands = (i) => this.lines.filter((l) => l.target === visible(i)).map((l) => l.source);
    const beside = (i, by) => {
      const shown = visible(i), layer = shown.parent.layers[shown.rank].filter((k) => k >= 0);
      return [shown.parent.children[layer[layer.indexOf(shown.position) + by]]];
    };
    const moves = { ArrowDown: users, ArrowUp: operands, ArrowLeft: (i) => beside(i, -1), ArrowRight: (i) => beside(i, 1) };
    if (event.key === "Enter" && current) {
      const box = current.children ? current : current.parent;
      if (box !== this.root) this.toggle(box);
    } else if (event.key in moves && !event.ctrlKey) {
      let next = current ? moves[event.key](current)[0] : visible([...this.byId.values()][0]);
      while (next?.children && !next.node) next = next.children[0];
      if (!next) return;
      this.current = next.node.id;
      this.select(next);
      this.describe(next);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  describe(item) {
    if (this.described === item) return;
    this.described = item;
    const n = item?.node;
    this.hint.textContent = !item ? "" : n
      ? `%${n.id}: ${n.type} = ${n.op}${n.kernel ? `, kernel ${n.kernel}` : ""}${n.constants.length ? `; constants ${n.constants.join(", ")}` : ""}`
      : `${item.key.slice(1).replaceAll("/", ".")}: ${item.open ? "close" : "open"} by the triangle or a double click`;
    this.canvas.style.cursor = item ? "pointer" : "grab";
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas.parentElement, ratio = window.devicePixelRatio || 1;
    [this.width, this.height] = [clientWidth, clientHeight];
    [this.canvas.width, this.canvas.height] = [clientWidth * ratio, clientHeight * ratio];
    if (!this.fitted && clientWidth) this.fit();
    this.painter.paint();
  }

  draw() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = undefined;
      this.painter.paint();
    });
  }
}
