// The data of the page, and texts at each step.

/**
 * @typedef {[number, number, string[]]} Hunk  first line, lines removed, lines added
 * @typedef {{number: number, message: string, about: string, origins: number[], delta: Hunk[]}} Rewrite
 * @typedef {{name: string, text: string, effect: string, seconds: number, delta: Hunk[], rewrites: Rewrite[], omitted: string,
 *   drawing: number, failed: boolean}} Step
 * @typedef {{text: string[], steps: Step[]}} Steps
 * @typedef {{text: string, sign: string}} Line  sign is "+", "-" or ""
 */

/** Read what Python wrote: JSON, compressed, in base64. @returns {Promise<{page: any, tokens: string}>} */
export async function readData() {
  const encoded = document.getElementById("data").textContent;
  const compressed = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** Change a text in place. @param {string[]} text @param {Hunk[]} delta @returns {string[]} */
function applyDelta(text, delta) {
  for (let k = delta.length - 1; k >= 0; k--) text.splice(delta[k][0], delta[k][1], ...delta[k][2]);
  return text;
}

/** The lines of a change: those that stay, and in place those that go and come. @param {string[]} text @param {Hunk[]} delta @returns {Line[]} */
export function diffLines(text, delta) {
  const lines = [];
  let position = 0;
  const take = (end, sign) => {
    for (; position < end; position++) lines.push({ text: text[position], sign });
  };
  for (const [start, removed, added] of delta) {
    take(start, "");
    take(start + removed, "-");
    for (const line of added) lines.push({ text: line, sign: "+" });
  }
  take(text.length, "");
  return lines;
}

const texts = new WeakMap();

/** The text before step `k`; k may be the number of steps. @param {Steps} steps @param {number} k @returns {string[]} */
export function textBefore(steps, k) {
  if (!texts.has(steps)) texts.set(steps, [steps.text]);
  const known = texts.get(steps);
  while (known.length <= k) {
    const step = steps.steps[known.length - 1];
    known.push(step.delta.length ? applyDelta([...known[known.length - 1]], step.delta) : known[known.length - 1]);
  }
  return known[k];
}

/**
 * The lines to show at a position: `step` 0 is the first text, k what pass k changes; `rewrite` > 0 what one rewrite in it changes.
 * @param {Steps} steps @param {number} step @param {number} rewrite @returns {Line[]}
 */
export function linesAt(steps, step, rewrite) {
  if (step === 0) return steps.text.map((text) => ({ text, sign: "" }));
  const before = textBefore(steps, step - 1);
  const { delta, rewrites } = steps.steps[step - 1];
  if (!rewrite) return diffLines(before, delta);
  const made = rewrites.slice(0, rewrite - 1).reduce((text, r) => applyDelta(text, r.delta), [...before]);
  return diffLines(made, rewrites[rewrite - 1].delta);
}

/**
 * The index in the last text of each line that is shown at a position; -1 for one that a later change removes.
 * @param {Steps} steps @param {number} step @param {number} rewrite @param {Line[]} lines @returns {number[]}
 */
export function finalLines(steps, step, rewrite, lines) {
  let next = 0;
  const first = lines.map(({ sign }) => (sign === "-" ? -1 : next++));
  const later = rewrite ? steps.steps[step - 1].rewrites.slice(rewrite) : [];
  return [...later, ...steps.steps.slice(step)].reduce((numbers, { delta }) => followDelta(numbers, delta), first);
}

/** Where lines of a text are after a change; -1 for those that it removes. @param {number[]} numbers ascending, but for -1 @param {Hunk[]} delta */
function followDelta(numbers, delta) {
  let k = 0, shift = 0;
  return numbers.map((n) => {
    if (n < 0) return -1;
    for (; k < delta.length && delta[k][0] + delta[k][1] <= n; k++) shift += delta[k][2].length - delta[k][1];
    return k < delta.length && delta[k][0] <= n ? -1 : n + shift;
  });
}

/** Added and removed lines. @param {Hunk[]} delta @returns {[number, number]} */
export function deltaSize(delta) {
  return delta.reduce(([a, r], hunk) => [a + hunk[2].length, r + hunk[1]], [0, 0]);
}
