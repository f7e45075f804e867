// Coordinates of a drawing: boxes that are open hold their layers one below the other, closed ones are as small as a node.

const CHARACTER = 6.7, NODE_HEIGHT = 34, GAP = 18, LAYER_GAP = 26, PADDING = 12, HEADER = 20, LANE = 8, MAX_LABEL = 34;
const OPENED = 90;

/**
 * @typedef {{key: string, label: string, detail: string, node: any, parent: Item | null, children: Item[] | null, layers: number[][],
 *   lanes: Map<string, number>, rank: number, position: number, open: boolean, edges: [number, number][],
 *   x: number, y: number, w: number, h: number, left: number, top: number}} Item  a node, or a box with children
 * @typedef {{source: Item, target: Item, points: number[]}} Edge
 */

/** The items of a drawing, all boxes closed. @param {any} drawing @param {any[]} table */
export function buildItems(drawing, table) {
  const nodes = drawing.nodes.map((k) => table[k]);
  const byId = new Map();
  const make = (child, parent, path, position) => {
    const isBox = typeof child !== "number";
    const node = isBox ? (child.node == null ? null : nodes[child.node]) : nodes[child];
    const key = isBox ? `${path}/${child.label}` : node.id;
    const label = node ? node.op : child.label;
    const detail = node ? node.type : "";
    const item = { key, label, detail, node, parent, children: null, layers: [], lanes: new Map(), rank: 0, position, open: false,
      edges: [], x: 0, y: 0, w: 0, h: 0, left: 0, top: 0 };
    if (node) byId.set(node.id, item);
    if (isBox) {
      item.children = child.children.map((c, k) => make(c, item, key, k));
      item.layers = child.layers;
      item.layers.forEach((layer, rank) => layer.forEach((k) => { if (k >= 0) item.children[k].rank = rank; }));
    }
    return item;
  };
  const root = make(drawing.root, null, "", 0);
  const edges = [];
  for (const node of nodes) {
    const target = byId.get(node.id);
    if (!target || target.children) continue;
    for (const id of node.inputs) if (byId.has(id)) edges.push(liftEdge(byId.get(id), target));
  }
  return { root, byId, edges };
}

/** The box around both ends of an edge, and which of its children they are or lie in. */
function liftEdge(source, target) {
  const above = new Map();
  for (let item = source; item.parent; item = item.parent) above.set(item.parent, item);
  let end = target;
  while (!above.has(end.parent)) end = end.parent;
  const box = end.parent, start = above.get(box);
  if (start !== end) box.edges.push([start.position, end.position]);
  return { source, target, box, start, end };
}

/** Open boxes as remembered, and else from outside until enough is in sight. @param {Item} root @param {Map<string, boolean>} open */
export function openBoxes(root, open) {
  root.open = true;
  let visible = root.children.length;
  const queue = [...root.children];
  while (queue.length) {
    const item = queue.shift();
    if (!item.children) continue;
    item.open = open.get(item.key) ?? visible + item.children.length <= OPENED;
    if (!item.open) continue;
    visible += item.children.length;
    queue.push(...item.children);
  }
}

/** Compute all coordinates, and the lines of the edges between what is in sight. @returns {Edge[]} */
export function place(root, edges) {
  measure(root);
  locate(root, 0, 0);
  const seen = new Set(), lines = [];
  for (const edge of edges) {
    const source = visible(edge.source), target = visible(edge.target);
    const pair = `${source.key}\n${target.key}`;
    if (source === target || seen.has(pair) || contains(source, target) || contains(target, source)) continue;
    seen.add(pair);
    lines.push({ source, target, points: route(source, target, edge) });
  }
  return lines;
}

/** The item itself, or the outermost closed box around it. */
export function visible(item) {
  let shown = item;
  for (let box = item.parent; box; box = box.parent) if (!box.open) shown = box;
  return shown;
}

function contains(box, item) {
  for (let p = item.parent; p; p = p.parent) if (p === box) return true;
  return false;
}

function measure(item) {
  if (!item.children || !item.open) {
    const longest = Math.max(item.label.length + 2, item.detail.length);
    [item.w, item.h] = [Math.min(longest, MAX_LABEL) * CHARACTER + 16, NODE_HEIGHT];
    return;
  }
  item.children.forEach(measure);
  const center = new Map(), above = new Map();
  for (const [s, t] of item.edges) {
    if (!above.has(t)) above.set(t, []);
    above.get(t).push(s);
  }
  const at = (rank, k) => center.get(`${rank},${~k}`) ?? center.get(`${item.children[k].rank},${k}`);
  let y = HEADER, least = Infinity, most = -Infinity;
  item.layers.forEach((layer, rank) => {
    const wanted = layer.map((k) => {
      if (k < 0) return at(rank - 1, ~k);
      const near = (above.get(k) ?? []).map((s) => at(rank - 1, s)).filter((c) => c !== undefined);
      return near.length ? near.reduce((a, b) => a + b) / near.length : undefined;
    });
    let cursor = -Infinity, shift = 0, count = 0;
    const left = layer.map((k, i) => {
      const w = k < 0 ? LANE : item.children[k].w;
      const x = Math.max(cursor, wanted[i] === undefined ? (cursor === -Infinity ? 0 : cursor) : wanted[i] - w / 2);
      if (wanted[i] !== undefined) [shift, count] = [shift + wanted[i] - w / 2 - x, count + 1];
      cursor = x + w + GAP;
      return x;
    });
    const offset = count ? shift / count : 0;
    const height = Math.max(0, ...layer.map((k) => (k < 0 ? 0 : item.children[k].h)));
    layer.forEach((k, i) => {
      const x = left[i] + offset, w = k < 0 ? LANE : item.children[k].w;
      center.set(`${rank},${k}`, x + w / 2);
      [least, most] = [Math.min(least, x), Math.max(most, x + w)];
      if (k < 0) item.lanes.set(`${rank},${~k}`, x + LANE / 2);
      else Object.assign(item.children[k], { left: x, top: y });
    });
    item.lanes.set(`y${rank}`, y);
    item.lanes.set(`h${rank}`, height);
    y += height + LAYER_GAP;
  });
  const shift = PADDING - least;
  for (const child of item.children) child.left += shift;
  item.lanes.set("shift", shift);
  item.w = Math.max(most - least + 2 * PADDING, item.label.length * CHARACTER + 40);
  item.h = y - LAYER_GAP + PADDING;
}

function locate(item, x, y) {
  [item.x, item.y] = [x, y];
  if (item.children && item.open) for (const child of item.children) locate(child, x + child.left, y + child.top);
}

/** Points of an edge: down from its source, through its lane in the box around both ends, to its target. */
function route(source, target, { box, start, end }) {
  const points = [source.x + source.w / 2, source.y + source.h];
  if (visible(box) === box && box.open) {
    const shift = box.x + (box.lanes.get("shift") ?? 0);
    for (let rank = start.rank + 1; rank < end.rank; rank++) {
      const x = box.lanes.get(`${rank},${start.position}`);
      if (x !== undefined) points.push(shift + x, box.y + box.lanes.get(`y${rank}`), shift + x, box.y + box.lanes.get(`y${rank}`) + box.lanes.get(`h${rank}`));
    }
  }
  points.push(target.x + target.w / 2, target.y);
  return points;
}
