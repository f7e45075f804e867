// A pane of text that draws only the lines in sight.

import { el, escapeHtml } from "./dom.js";

const LINE_HEIGHT = 17;
const MARGIN = 20;

export class TextPane {
  /**
   * @param {string} title @param {RegExp} tokens @param {(line: string, number: number) => void} onClick
   * @param {(line: string, number: number) => boolean} isMarked whether a line belongs to the selection
   */
  constructor(title, tokens, onClick, isMarked) {
    this.tokens = tokens;
    this.isMarked = isMarked;
    this.lines = [];
    this.firstNumber = 1;
    this.body = el("div", { class: "lines" });
    /** Pixels above what is in sight and of what is in sight, kept because asking for them makes the browser lay out the page. */
    this.top = this.height = 0;
    this.scroller = el("div", { class: "text", tabindex: 0, role: "region", "aria-label": title, scroll: () => {
      const { scrollTop } = this.scroller;
      if (Math.abs(scrollTop - this.top) < 1) return; // drawn already
      this.top = scrollTop;
      this.draw();
    } }, this.body);
    this.heading = el("span", { class: "title" }, title);
    this.extra = el("span", { class: "extra" });
    this.element = el("section", { class: "pane" }, el("h2", {}, this.heading, this.extra), this.scroller);
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest("[data-k]");
      if (line && !String(getSelection())) onClick(this.lines[+line.dataset.k].text, +line.dataset.k);
    });
    new ResizeObserver(([entry]) => {
      this.height = entry.contentRect.height;
      this.draw();
    }).observe(this.scroller);
  }

  /** @param {string} title @param {import("./data.js").Line[]} lines @param {number} [firstNumber] */
  show(title, lines, firstNumber = 1) {
    this.heading.textContent = title;
    this.lines = lines;
    this.firstNumber = firstNumber;
    this.body.style.height = `${lines.length * LINE_HEIGHT}px`;
    this.draw();
  }

  /** Scroll to the first line that satisfies a condition, unless one is in sight. @param {(line: import("./data.js").Line, k: number) => boolean} condition */
  reveal(condition) {
    const seen = (k) => k * LINE_HEIGHT >= this.top && (k + 1) * LINE_HEIGHT <= this.top + this.height;
    let first = -1;
    for (let k = 0; k < this.lines.length; k++) {
      if (!condition(this.lines[k], k)) continue;
      if (seen(k)) return;
      if (first < 0) first = k;
    }
    if (first >= 0) this.scrollTo(first * LINE_HEIGHT - this.height / 3);
  }

  /** Scroll, and draw at once; the browser scrolls with the next frame, when all panes are drawn. @param {number} top */
  scrollTo(top) {
    this.top = Math.max(0, top);
    this.draw();
    this.pending ??= requestAnimationFrame(() => {
      this.pending = undefined;
      this.scroller.scrollTop = this.top;
    });
  }

  draw() {
    const top = Math.min(this.top, this.lines.length * LINE_HEIGHT - this.height);
    const first = Math.max(0, Math.floor(top / LINE_HEIGHT) - MARGIN);
    const last = Math.min(this.lines.length, first + Math.ceil(this.height / LINE_HEIGHT) + 2 * MARGIN);
    let html = "", number = this.firstNumber;
    for (let k = 0; k < first; k++) number += Number(this.lines[k].sign !== "-");
    for (let k = first; k < last; k++) {
      const { text, sign } = this.lines[k];
      const kind = `${sign === "+" ? " added" : sign === "-" ? " removed" : ""}${this.isMarked(text, k) ? " marked" : ""}`;
      const label = sign === "-" ? "" : number++;
      html += `<div class="line${kind}" data-k="${k}"><i class="number">${label}</i><i class="sign">${sign || " "}</i>${this.highlight(text)}</div>`;
    }
    this.body.innerHTML = `<div style="transform:translateY(${first * LINE_HEIGHT}px)">${html}</div>`;
  }

  highlight(text) {
    return escapeHtml(text).replace(this.tokens, (...found) => {
      const kind = Object.entries(found[found.length - 1]).find(([, value]) => value !== undefined);
      return kind ? `<i class="${kind[0]}">${found[0]}</i>` : found[0];
    });
  }
}
