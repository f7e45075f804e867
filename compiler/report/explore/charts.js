// Charts as SVG: roofline, memory over the steps, timeline of a call.

import { bytes, el, si, svg, time } from "./dom.js";

const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const SHAPES = ["circle", "square", "triangle"];
const MAX_EVENTS = 6000;

/** A colour for a number, distinct for the colour-blind. @param {number} k */
export const colour = (k) => PALETTE[k % PALETTE.length];

/** A mark at (x, y), whose shape tells the ways apart. */
function mark(shape, x, y, r, attributes) {
  if (shape === "circle") return svg("circle", { cx: x, cy: y, r, ...attributes });
  const points = shape === "square" ? [[-r, -r], [r, -r], [r, r], [-r, r]] : [[0, -1.2 * r], [1.1 * r, r], [-1.1 * r, r]];
  return svg("polygon", { points: points.map(([dx, dy]) => `${x + dx},${y + dy}`).join(" "), ...attributes });
}

/**
 * Kernels of all ways under the ceilings of the machine: operations in a byte, operations in a second.
 * @param {import("./store.js").Store} store
 */
export function roofline(store) {
  const W = 760, H = 330, L = 70, B = 40, T = 14, R = 150;
  const ways = store.shown.map((k) => store.page.ways[k]).filter((w) => w.ceilings);
  if (!ways.length) return el("p", { class: "dim" }, "The machine of this target is not described, so there are no ceilings.");
  const ceilings = ways[0].ceilings;
  const dots = ways.flatMap((way) => way.kernels.filter((k) => k.flops && k.bytes && (k.seconds ?? k.predicted))
    .map((k) => ({ way, kernel: k, x: k.flops / k.bytes, y: k.flops / (k.seconds ?? k.predicted), isMeasured: k.seconds != null })));
  const peak = Math.max(...Object.values(ceilings.flops));
  const xs = [0.05, 1000, ...dots.map((d) => d.x)], ys = [peak * 1.4, ceilings.flops.f32 / 3e3, ...dots.map((d) => d.y)];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)].map(Math.log10);
  const px = (x) => L + (Math.log10(x) - x0) / (x1 - x0) * (W - L - R), py = (y) => H - B - (Math.log10(y) - y0) / (y1 - y0) * (H - B - T);
  const decades = (a, b) => Array.from({ length: Math.floor(b) - Math.ceil(a) + 1 }, (_, k) => 10 ** (Math.ceil(a) + k));
  const grid = [
    ...decades(x0, x1).flatMap((x) => [svg("line", { x1: px(x), x2: px(x), y1: T, y2: H - B, class: "grid" }), svg("text", { x: px(x), y: H - B + 15, "text-anchor": "middle" }, `${x}`)]),
    ...decades(y0, y1).flatMap((y) => [svg("line", { x1: L, x2: W - R, y1: py(y), y2: py(y), class: "grid" }), svg("text", { x: L - 6, y: py(y) + 4, "text-anchor": "end" }, si(y, "op/s"))]),
  ];
  const roofs = [];
  const labels = [];
  for (const [name, rate] of Object.entries(ceilings.flops)) {
    roofs.push(svg("line", { x1: px(Math.max(10 ** x0, rate / Math.max(...Object.values(ceilings.bytes)))), x2: W - R, y1: py(rate), y2: py(rate), class: "roof" }));
    labels.push({ y: py(rate), text: `${name} ${si(rate, "op/s")}` });
  }
  let lowest = -Infinity;
  labels.sort((a, b) => a.y - b.y).forEach(({ y, text }) => {
    const at = lowest = Math.max(y, lowest + 12);
    roofs.push(svg("text", { x: W - R + 4, y: at + 4 }, text));
  });
  for (const [name, rate] of Object.entries(ceilings.bytes)) {
    const right = Math.min(10 ** x1, peak / rate), left = Math.max(10 ** x0, 10 ** y0 / rate);
    if (left >= right) continue;
    roofs.push(svg("line", { x1: px(left), x2: px(right), y1: py(left * rate), y2: py(right * rate), class: "roof" }));
    const slope = Math.atan2(py(right * rate) - py(left * rate), px(right) - px(left)) * 180 / Math.PI;
    const at = left * 1.3, x = px(at), y = py(at * rate) - 4;
    roofs.push(svg("text", { x, y, transform: `rotate(${slope} ${x} ${y})` }, `${name} ${si(rate, "B/s")}`));
  }
  const total = (way) => way.kernels.reduce((t, k) => t + (k.seconds ?? k.predicted ?? 0), 0) || 1;
  const marks = dots.map(({ way, kernel, x, y, isMeasured }) => {
    const number = store.page.ways.indexOf(way);
    const share = (kernel.seconds ?? kernel.predicted) / total(way);
    const attributes = {
      fill: colour(number), "fill-opacity": isMeasured ? 0.75 : 0.15, stroke: colour(number), tabindex: 0, role: "button",
      class: store.isSelected(kernel.origins) ? "mark selected" : "mark",
      click: () => store.select(kernel.origins, `@${kernel.name}`, number, kernel),
    };
    const title = svg("title", {}, `${way.name} @${kernel.name}: ${si(y, "op/s")}, ${x.toPrecision(3)} op/byte, ${time(kernel.seconds ?? kernel.predicted)} ${isMeasured ? "measured" : "predicted"}`);
    const shape = mark(SHAPES[number % 3], px(x), py(y), 4 + 9 * Math.sqrt(share), attributes);
    shape.append(title);
    return shape;
  });
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img", "aria-label": "Roofline of all kernels" }, grid, roofs, marks,
    svg("text", { x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle" }, "operations in a byte of memory traffic"));
  return el("div", {}, chart, el("p", { class: "dim" }, `Ceilings ${ceilings.origin}. The size of a mark is its share of the call; hollow marks are predictions. `, legend(store)));
}

/** What marks of each way look like. */
function legend(store) {
  return store.shown.map((k) => el("span", { class: "legend" },
    svg("svg", { width: 14, height: 12 }, mark(SHAPES[k % 3], 7, 6, 4.5, { fill: colour(k) })), store.page.ways[k].name));
}

/** The workspace of a way: steps from left to right, addresses from top to bottom. @param {any} way */
export function memory(way) {
  const plan = way.memory;
  if (!plan) return el("p", { class: "dim" }, `${way.name}: no plan of memory; sizes are dynamic, or compilation stopped before it.`);
  const W = 760, H = 240, count = Math.max(1, plan.steps.length), total = Math.max(1, plan.size);
  const used = plan.steps.map((_, k) => plan.blocks.reduce((t, b) => t + (b.first <= k && k <= b.last ? b.size : 0), 0));
  const blocks = plan.blocks.map((b, k) => svg("rect", {
    x: W * b.first / count, width: Math.max(1, W * (b.last - b.first + 1) / count), y: H * b.offset / total, height: Math.max(1, H * b.size / total),
    fill: colour(k), "fill-opacity": 0.7, class: "block",
  }, svg("title", {}, `%${b.name}: ${b.type}, ${bytes(b.size)} at ${b.offset}, steps ${b.first} to ${b.last} (${plan.steps[b.first]} ... ${plan.steps[b.last]})`)));
  return el("div", {}, el("h3", {}, `${way.name}: workspace ${bytes(plan.size)}, ${bytes(plan.size_without_reuse)} without reuse, at most ${bytes(Math.max(0, ...used))} in use`),
    svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart frame", preserveAspectRatio: "none", role: "img", "aria-label": "Memory plan over the steps of a call" }, blocks),
    el("p", { class: "dim" }, `Steps 0 to ${count - 1} from left to right, addresses from top to bottom.`));
}

/** The timeline of one call: a row for each thread. @param {any} way @param {import("./store.js").Store} store */
export function timeline(way, store) {
  const events = way.trace.filter((e) => e.ph === "X");
  if (!events.length) return el("p", { class: "dim" }, `${way.name}: not measured here.`);
  const W = 760, ROW = 26, rows = [["steps", events.filter((e) => e.cat === "step")]];
  for (const { tid, args } of way.trace.filter((e) => e.ph === "M")) rows.push([args.name, events.filter((e) => e.cat === "chunks" && e.tid === tid)]);
  const end = Math.max(...events.map((e) => e.ts + e.dur)), left = 60;
  const numbers = new Map(way.kernels.map((k, i) => [k.name, i]));
  let omitted = 0;
  const bars = rows.flatMap(([name, own], row) => {
    omitted += Math.max(0, own.length - MAX_EVENTS);
    return [svg("text", { x: 0, y: row * ROW + 17 }, name), ...own.slice(0, MAX_EVENTS).map((e) => {
      const kernel = way.kernels[numbers.get(e.name)];
      return svg("rect", {
        x: left + (W - left) * e.ts / end, width: Math.max(0.4, (W - left) * e.dur / end), y: row * ROW + 3, height: ROW - 6,
        fill: colour(numbers.get(e.name) ?? 6), class: kernel && store.isSelected(kernel.origins) ? "block selected" : "block",
        click: () => kernel && store.select(kernel.origins, `@${kernel.name}`, store.page.ways.indexOf(way), kernel),
      }, svg("title", {}, `${e.name}: ${e.dur.toFixed(2)} us at ${e.ts.toFixed(2)} us, ${e.args.ops} ${e.args.where}`));
    })];
  });
  return el("div", {}, el("h3", {}, `${way.name}: the fastest of the recorded calls, ${end.toFixed(1)} us`),
    svg("svg", { viewBox: `0 0 ${W} ${rows.length * ROW}`, class: "chart frame", role: "img", "aria-label": "Timeline of a call for each thread" }, bars),
    omitted ? el("p", { class: "dim" }, `${omitted} spans are left out.`) : null);
}
