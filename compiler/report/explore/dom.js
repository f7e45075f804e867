// Elements, and numbers as text.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element; functions among the attributes are listeners, and falsy children are left out.
 * @param {string} tag @param {Record<string, any>} [attributes] @param {...any} children
 */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element, as `el` does. @param {string} tag @param {Record<string, any>} [attributes] @param {...any} children */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((c) => c != null && c !== false && c !== ""));
  return element;
}

/** @param {number | null} s seconds */
export function time(s) {
  if (s == null) return "";
  if (s < 1e-6) return `${(s * 1e9).toFixed(0)} ns`;
  return s < 1e-3 ? `${(s * 1e6).toFixed(1)} us` : `${(s * 1e3).toFixed(2)} ms`;
}

/** @param {number} n */
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  const k = Math.min(3, Math.floor(Math.log2(Math.max(1, n)) / 10));
  return `${(n / 1024 ** k).toFixed(k ? 1 : 0)} ${units[k]}`;
}

/** A number with a decimal prefix. @param {number} n @param {string} unit */
export function si(n, unit) {
  const k = n > 0 ? Math.max(0, Math.min(4, Math.floor(Math.log10(n) / 3))) : 0;
  return `${(n / 1000 ** k).toPrecision(3)} ${["", "k", "M", "G", "T"][k]}${unit}`;
}

export function escapeHtml(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}
