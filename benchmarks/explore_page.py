"""Size of pages that explore compilations, and the time of loads and clicks in headless Chromium.

    python -m benchmarks explore_page

Budgets: a page below 3 MB, first paint below 1 s, and each click below 100 ms, for 12 encoder layers, compiled in one way and in
three, and for 5,000 nodes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.browser import missing_browser, opened_page
from compiler.api import explore
from compiler.report.render import format_bytes, table
from compiler.report.ways import Way

CLICKS = {
    "kernels": "tab('Kernels')",
    "kernel": "document.querySelectorAll('#dock tbody tr')[0].click()",
    "pass": "document.querySelectorAll('.step')[2].click()",
    "previous pass": "press('ArrowUp')",
    "next rewrite": "press('ArrowRight')",
    "line": "document.querySelectorAll('.line .v')[3].closest('.line').click()",
    "roofline": "tab('Roofline')",
    "memory": "tab('Memory')",
    "timeline": "tab('Timeline')",
    "remarks": "tab('Remarks')",
    "open all boxes": "document.querySelector('[title=\"Open all boxes\"]').click()",
    "close all boxes": "document.querySelector('[title=\"Close all boxes\"]').click()",
    "theme": "document.getElementById('theme').click()",
}
"""Scripts by the name of what they do; each is timed until the second frame after it."""

COMPARING_CLICKS = {
    "compare": "tab('Compare')",
    "kernel in all ways": "document.querySelectorAll('#dock button.kernel')[0].click()",
    "hide a way": "press('2')",
    "show a way": "press('2')",
    "clear selection": "press('Escape')",
}
"""The same, for pages with several ways."""

ROUNDS = 3
"""Each click is timed this many times; the fastest counts."""

TIMED = """
const done = arguments[arguments.length - 1];
const press = (key) => document.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
const tab = (name) => [...document.querySelectorAll('#dock .tabs button')].find((b) => b.textContent === name).click();
const start = performance.now();
%s;
const scripted = performance.now() - start;
requestAnimationFrame(() => setTimeout(() => done([scripted, performance.now() - start])));
"""


class Chain(nn.Module):
    """Three elementwise operators for each of `length` steps, with a long-lived value now and then."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for k in range(self.length):
            values.append(torch.tanh(values[-1]) * values[max(0, k - 2)] + float(k % 7))
        return values[-1]


def main() -> None:
    """Print a table for each page."""
    if absent := missing_browser():
        raise SystemExit(f"not run: {absent} is missing")
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    measure_page("12 encoder layers", encoder, torch.randn(2, 16, 64))
    against = {"unfused": "unfused", "gpu": {"target": "sm90"}}
    measure_page("12 encoder layers in 3 ways", encoder, torch.randn(2, 16, 64), against)
    measure_page("5,000 nodes", Chain(1666).eval(), torch.randn(64))


def measure_page(name: str, model: nn.Module, x: Tensor, against: Mapping[str, Way] = MappingProxyType({})) -> None:
    """Save the page of a model, open it, and print its size and times."""
    with tempfile.TemporaryDirectory() as folder:
        file = explore(model, Path(folder) / "page.html", (x,), against=against, repeats=5)
        size = format_bytes(file.stat().st_size)
        with opened_page(file) as driver:
            driver.set_script_timeout(60)
            paint = driver.execute_script("return performance.getEntriesByType('paint').at(-1).startTime")
            clicks = {**CLICKS, **(COMPARING_CLICKS if against else {})}
            rounds = [
                [driver.execute_async_script(TIMED % script) for script in clicks.values()] for _ in range(ROUNDS)
            ]
            rows = table("", ["click"], ["script ms", "ms"])
            for click, times in zip(clicks, zip(*rounds, strict=True), strict=True):
                rows.add_row(click, *(f"{min(t):.0f}" for t in zip(*times, strict=True)))
    Console().print(f"{name}: {size}, first paint {paint:.0f} ms", rows)
