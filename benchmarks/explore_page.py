"""Size of pages that explore compilations, and the time of loads and clicks in headless Chromium.

    python -m benchmarks explore_page

Budgets: a page below 3 MB, first paint below 1 s, and each click below 100 ms, for 12 encoder layers and for 5,000 nodes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.browser import missing_browser, opened_page
from compiler.api import explore
from compiler.report.render import format_bytes, table

CLICKS = {
    "kernel": "document.querySelectorAll('#dock tbody tr')[1].click()",
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
    measure_page("5,000 nodes", Chain(1666).eval(), torch.randn(64))


def measure_page(name: str, model: nn.Module, x: Tensor) -> None:
    """Save the page of a model, open it, and print its size and times."""
    with tempfile.TemporaryDirectory() as folder:
        file = explore(model, Path(folder) / "page.html", (x,), repeats=5)
        with opened_page(file) as driver:
            driver.set_script_timeout(60)
            paint = driver.execute_script("return performance.getEntriesByType('paint').at(-1).startTime")
            rows = table(
                f"{name}: {format_bytes(file.stat().st_size)}, first paint {paint:.0f} ms",
                ["click"],
                ["script ms", "ms"],
            )
            for click, script in CLICKS.items():
                scripted, shown = driver.execute_async_script(TIMED % script)
                rows.add_row(click, f"{scripted:.0f}", f"{shown:.0f}")
    Console().print(rows)
