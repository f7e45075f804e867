"""Cost of dynamic shapes: one compilation for all sizes against one for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.export import Dim

import compiler
from benchmarks.arguments import BenchmarkArguments
from benchmarks.networks import NETWORKS
from compiler.runtime.timing import interleaved_timings

Sizes = tuple[int, ...]

ROW_COUNTS = (1, 2, 3, 8, 33, 128, 1000)
BATCH_SIZES = (1, 2, 3, 5, 8, 12, 16, 33, 128)
IMAGE_SIZES = ((14, 14), (33, 33), (56, 56), (112, 112), (250, 250))
"""Sizes of the dynamic dimensions that most cases run with."""

REPEATS = 3
"""Number of measurements of each size; their median counts."""


@dataclass(frozen=True)
class DynamicCase:
    """A model, a function from sizes to its input, the dynamic dimensions of the input, and the sizes to measure."""

    model: Callable[[], nn.Module]
    make_input: Callable[..., Tensor]
    dynamic_dims: Mapping[int, Dim]
    tested_sizes: tuple[Sizes, ...]


class SequenceOutput(nn.Module):
    """A recurrent layer that returns its output sequence only, without the last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)[0]
        return output


def matrix_case(model: Callable[[], nn.Module], width: int, rows: Sizes = ROW_COUNTS) -> DynamicCase:
    """Return a case with a matrix as input, with a dynamic number of rows."""
    dims = {0: Dim("n", min=1, max=4096)}
    return DynamicCase(model, lambda n: torch.randn(n, width), dims, tuple((n,) for n in rows))


def sequence_case(model: Callable[[], nn.Module], steps: int, width: int) -> DynamicCase:
    """Return a case of a recurrent layer with a dynamic batch size."""
    dims, sizes = {1: Dim("n", min=1, max=512)}, tuple((n,) for n in BATCH_SIZES)
    return DynamicCase(lambda: SequenceOutput(model()), lambda n: torch.randn(steps, n, width), dims, sizes)


def image_case(
    model: Callable[[], nn.Module], channels: int, tested_sizes: tuple[Sizes, ...] = IMAGE_SIZES, min_size: int = 8
) -> DynamicCase:
    """Return a case of an image network with dynamic height and width."""
    sides = {2: Dim("h", min=min_size, max=512), 3: Dim("w", min=min_size, max=512)}
    return DynamicCase(model, lambda h, w: torch.randn(1, channels, h, w), sides, tested_sizes)


def conv_relu(channels: int, outputs: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """Return a 3 x 3 convolution and a ReLU."""
    return nn.Sequential(nn.Conv2d(channels, outputs, 3, stride, 1, groups=groups), nn.ReLU())


def encoder_layer() -> nn.Module:
    """Return a transformer layer of width 256 with 4 heads."""
    return nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True)


CASES: dict[str, DynamicCase] = {
    "linear 256-1024": matrix_case(partial(nn.Linear, 256, 1024), 256),
    "linear 4096-4096": matrix_case(partial(nn.Linear, 4096, 4096), 4096, (1, 2, 3, 8, 16, 33, 64)),
    "MLP 256, 1024, 256": matrix_case(
        lambda: nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), 256
    ),
    "layer norm 256": matrix_case(partial(nn.LayerNorm, 256), 256),
    "softmax 256": matrix_case(partial(nn.Softmax, -1), 256),
    "transformer layer 256, batch 2": DynamicCase(
        encoder_layer, lambda n: torch.randn(2, n, 256), {1: Dim("n", min=1, max=4096)}, tuple((n,) for n in ROW_COUNTS)
    ),
    "LSTM 128-256": sequence_case(partial(nn.LSTM, 128, 256), 64, 128),
    "GRU 128-256": sequence_case(partial(nn.GRU, 128, 256), 64, 128),
    "3x3 64": image_case(partial(conv_relu, 64, 64), 64),
    "3x3 16": image_case(partial(conv_relu, 16, 16), 16),
    "3x3 64 in 4 groups": image_case(
        partial(conv_relu, 64, 64, groups=4), 64, ((14, 14), (28, 28), (48, 48), (56, 56))
    ),
    "depthwise 3x3 96": image_case(partial(conv_relu, 96, 96, groups=96), 96),
    "3x3 /2 64-128": image_case(partial(conv_relu, 64, 128, 2), 64),
    "1x1 64-256": image_case(lambda: nn.Conv2d(64, 256, 1), 64),
    "ResNet-18": image_case(lambda: NETWORKS["ResNet-18"]()[0], 3, ((64, 96), (129, 200), (224, 224), (300, 400)), 64),
}


def slowdowns(case: DynamicCase) -> list[tuple[Sizes, float, float]]:
    """Return for each size: the size, seconds of a static program, and the time of the dynamic one relative to it."""
    model, rows = case.model().eval(), []
    first = case.make_input(*case.tested_sizes[-1])
    dynamic = compiler.compile(model, (first,), dynamic_shapes=(dict(case.dynamic_dims),))
    for sizes in case.tested_sizes:
        x = case.make_input(*sizes)
        static = compiler.compile(model, (x,))
        timings = [interleaved_timings([partial(static, x), partial(dynamic, x)]) for _ in range(REPEATS)]
        pairs = [[t.median for t in pair] for pair in timings]
        rows.append((sizes, median(p[0] for p in pairs), median(p[1] / p[0] for p in pairs)))
    return rows


def main(arguments: BenchmarkArguments) -> None:
    """Print one table for each number of threads."""
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        table, ratios = Table(title=f"dynamic shapes, {threads} thread(s): slowdown over static"), list[float]()
        for name in ("model", "sizes: static ms, dynamic / static"):
            table.add_column(name)
        for name in arguments.select_rows(CASES):
            with torch.no_grad():
                rows = slowdowns(CASES[name])
            ratios += [r for _, _, r in rows]
            cells = [f"{'x'.join(map(str, s))}: {t * 1e3:.3g}, {r:.2f}" for s, t, r in rows]
            print(f"{name}: {'; '.join(cells)}", flush=True)
            table.add_row(name, "   ".join(cells))
        Console().print(table)
        slow = sum(r > 1.1 for r in ratios)
        print(
            f"geometric mean {geometric_mean(ratios):.2f}, worst {max(ratios):.2f}; {slow} of {len(ratios)} above 1.10"
        )
