"""Matrix products with constant weights against the multiply-add peak of the same run."""

from __future__ import annotations

from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import compiler
from benchmarks.peak import fma_peak
from compiler.measure import medians

SHAPES = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (128, 768, 3072))


def main() -> None:
    """One table for one thread and one for two: GFLOP/s of ours and of PyTorch, and the share of the peak."""
    for threads in (1, 2):
        torch.set_num_threads(threads)
        table = Table(title=f"f32 matmul, constant weights, {threads} thread(s)")
        for column in ("M", "K", "N", "peak", "ours", "of peak", "eager", "faster"):
            table.add_column(column, justify="right")
        for m, k, n in SHAPES:
            layer, x = nn.Linear(k, n, bias=False).eval(), torch.randn(m, k)
            ours = compiler.compile(layer, (x,))
            with torch.no_grad():
                peak = fma_peak(threads)
                mine, theirs = medians([partial(ours, x), partial(layer, x)], seconds=1.0)
                peak = max(peak, fma_peak(threads))
            rate = 2 * m * k * n / mine
            cells = [
                f"{peak / 1e9:.0f}",
                f"{rate / 1e9:.0f}",
                f"{rate / peak:.0%}",
                f"{2 * m * k * n / theirs / 1e9:.0f}",
            ]
            table.add_row(str(m), str(k), str(n), *cells, f"{theirs / mine:.2f}x")
        Console().print(table)
