// Painting of the graph: open boxes, then edges, then everything else, as far as it is in sight.

const COLOURS = ["ink", "dim", "line", "paper", "wash", "accent", "added", "hot"];
const DETAILED = 0.28;

export class GraphPainter {
  /** @param {import("./graph_pane.js").GraphPane} pane */
  constructor(pane) {
    this.pane = pane;
    /** @type {Record<string, string>} */
    this.colour = {};
    this.window = [0, 0, 0, 0];
    this.detailed = true;
    const cost = (k) => k.seconds ?? k.predicted ?? 0;
    const total = pane.way.kernels.reduce((t, k) => t + cost(k), 0) || 1;
    /** @type {Map<string, number>} share of a call by kernel */
    this.shares = new Map(pane.way.kernels.map((k) => [k.name, cost(k) / total]));
  }

  paint() {
    const { canvas, root, scale, x, y, width, height } = this.pane;
    const context = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement);
    this.colour = Object.fromEntries(COLOURS.map((n) => [n, style.getPropertyValue(`--${n}`)]));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!root) return;
    context.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * x, ratio * y);
    this.window = [-x / scale, -y / scale, (width - x) / scale, (height - y) / scale];
    this.detailed = scale > DETAILED;
    root.children.forEach((item) => this.paintItems(context, item, 0, true));
    this.paintEdges(context);
    root.children.forEach((item) => this.paintItems(context, item, 0, false));
  }

  sees(x0, y0, x1, y1) {
    const [left, top, right, bottom] = this.window;
    return x1 >= left && x0 <= right && y1 >= top && y0 <= bottom;
  }

  paintEdges(context) {
    const selected = (item) => item.node && this.pane.store.isNodeSelected(this.pane.number, item.node);
    for (const strong of [false, true]) {
      context.beginPath();
      for (const { source, target, points: p } of this.pane.lines) {
        if ((selected(source) || selected(target)) !== strong) continue;
        let left = Infinity, right = -Infinity;
        for (let k = 0; k < p.length; k += 2) [left, right] = [Math.min(left, p[k]), Math.max(right, p[k])];
        if (!this.sees(left, Math.min(p[1], p[p.length - 1]), right, Math.max(p[1], p[p.length - 1]))) continue;
        context.moveTo(p[0], p[1]);
        for (let k = 2; k < p.length; k += 2) {
          const middle = (p[k - 1] + p[k + 1]) / 2;
          if (this.detailed) context.bezierCurveTo(p[k - 2], middle, p[k], middle, p[k], p[k + 1]);
          else context.lineTo(p[k], p[k + 1]);
        }
      }
      context.strokeStyle = strong ? this.colour.accent : this.colour.dim;
      context.lineWidth = strong ? 1.8 : 0.8;
      context.stroke();
    }
  }

  /** Paint the open boxes in an item, or everything else in it: edges pass between the two. */
  paintItems(context, item, depth, boxes) {
    if (!this.sees(item.x, item.y, item.x + item.w, item.y + item.h)) return;
    const isOpen = !!item.children && item.open;
    if (isOpen === boxes) this.paintItem(context, item, depth, isOpen);
    if (isOpen) for (const child of item.children) this.paintItems(context, child, depth + 1, boxes);
  }

  paintItem(context, item, depth, isOpen) {
    const { colour } = this, selected = this.isSelected(item), fresh = this.isFresh(item);
    context.beginPath();
    context.roundRect(item.x, item.y, item.w, item.h, item.children ? 7 : 4);
    context.fillStyle = isOpen && depth % 2 === 0 ? colour.wash : colour.paper;
    context.fill();
    const share = this.shares.get(item.node?.kernel) ?? 0;
    if (share) {
      context.globalAlpha = 0.08 + 0.42 * share;
      context.fillStyle = colour.hot;
      context.fill();
      context.globalAlpha = 1;
    }
    context.lineWidth = selected ? 2.5 : fresh ? 1.8 : 1;
    context.strokeStyle = selected ? colour.accent : fresh ? colour.added : colour.line;
    context.stroke();
    if (this.detailed) this.paintLabel(context, item, isOpen, fresh);
  }

  paintLabel(context, item, isOpen, fresh) {
    const { colour } = this;
    const room = Math.floor((item.w - 16) / 6.7);
    const cut = (text) => (text.length > room ? `${text.slice(0, room - 1)}…` : text);
    context.fillStyle = colour.ink;
    context.font = "600 11px ui-monospace, Menlo, Consolas, monospace";
    const kernel = item.node?.kernel ?? "";
    const label = `${item.children ? (item.open ? "▾ " : "▸ ") : ""}${fresh ? "+" : ""}${item.children && kernel ? `@${kernel}` : item.label}`;
    context.fillText(cut(label), item.x + 8, item.y + 14);
    if (isOpen) return;
    context.fillStyle = colour.dim;
    context.font = "10.5px ui-monospace, Menlo, Consolas, monospace";
    context.fillText(cut(item.detail), item.x + 8, item.y + 27);
  }

  isSelected(item) {
    if (item.node) return this.pane.store.isNodeSelected(this.pane.number, item.node);
    if (!item.children) return false;
    return !item.open && item.children.some((child) => this.isSelected(child));
  }

  isFresh(item) {
    if (!this.pane.fresh.size) return false;
    if (item.node) return this.pane.fresh.has(item.node.id);
    return !item.open && item.children.some((child) => this.isFresh(child));
  }
}
