"""Gain of autotuning over the cost model for matrix products, convolutions and networks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.convolution import layers
from benchmarks.matmul import SHAPES, SKINNY_SHAPES
from benchmarks.networks import NETWORKS
from benchmarks.peer_comparison import burst_medians, format_milliseconds
from compiler.report.render import table

TuningCase = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
"""Returns a model and its arguments."""


def tuning_cases() -> dict[str, TuningCase]:
    """Return all cases by name."""
    products = {" x ".join(map(str, shape)): partial(linear_case, *shape) for shape in (*SHAPES, *SKINNY_SHAPES)}
    convolutions = {name: partial(convolution_case, layer, shape) for name, shape, layer in layers()}
    return {**products, **convolutions, **NETWORKS}


def linear_case(m: int, k: int, n: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Linear(k, n, bias=False).eval(), (torch.randn(m, k),)


def convolution_case(layer: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return layer.eval(), (torch.randn(shape),)


def main(arguments: BenchmarkArguments) -> None:
    """Print milliseconds untuned and tuned, seconds of tuning, and the changes in each kernel."""
    cases = tuning_cases()
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        made = table(
            f"tuning, {threads} thread(s): ms",
            ["case"],
            ["model", "tuned", "gain", "tuning, s", "kernels", "changed"],
            ["changes"],
        )
        for name in arguments.select_rows(cases):
            made.add_row(name, *cells(*cases[name]()))
        print_table(made)


def cells(model: nn.Module, args: tuple[Tensor, ...]) -> list[str]:
    """Format one row."""
    program = torch.export.export(model, args)
    plain = compiler.compile(program, args)
    with tempfile.TemporaryDirectory() as folder:
        tuned = compiler.compile(program, args, options=compiler.Options(effort="tune", cache=folder))
    before, after = burst_medians([partial(plain, *args), partial(tuned, *args)], rounds=5, burst=0.1)
    remarks, changed = tuned.remarks.select("tune"), tuned.remarks.select("tune", "applied")
    changes = "; ".join(f"@{r.kernel} {r.message.partition(';')[0]}" for r in changed)
    times = [format_milliseconds(before), format_milliseconds(after), f"{before / after:.2f}"]
    return [*times, f"{tuned.compile_seconds['passes']:.1f}", f"{len(remarks)}", f"{len(changed)}", changes]
