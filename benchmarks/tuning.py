"""What measuring finds that the cost model does not: matrix products, convolutions and networks with and without `tune`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import compiler
from benchmarks.contest import in_bursts, milliseconds
from benchmarks.convolution import layers
from benchmarks.matmul import SHAPES, THIN
from benchmarks.networks import NETWORKS
from benchmarks.request import Request, show
from compiler.render import table

Case = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


def cases() -> dict[str, Case]:
    """Everything that can be tuned, by name."""
    products = {" x ".join(map(str, shape)): partial(product, *shape) for shape in (*SHAPES, *THIN)}
    convolutions = {name: partial(convolution, layer, shape) for name, shape, layer in layers()}
    return {**products, **convolutions, **NETWORKS}


def product(m: int, k: int, n: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Linear(k, n, bias=False).eval(), (torch.randn(m, k),)


def convolution(layer: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return layer.eval(), (torch.randn(shape),)


def main(asked: Request) -> None:
    """Milliseconds as the cost model has it and tuned, the seconds that tuning takes, and what it changes in which kernels."""
    known = cases()
    for threads in asked.threads:
        torch.set_num_threads(threads)
        made = table(
            f"tuning, {threads} thread(s): ms",
            ["what"],
            ["model", "tuned", "gain", "tuning, s", "kernels", "changed"],
            ["changes"],
        )
        for name in asked.chosen(known):
            made.add_row(name, *cells(*known[name]()))
        show(made)


def cells(model: nn.Module, args: tuple[Tensor, ...]) -> list[str]:
    """One row."""
    program = torch.export.export(model, args)
    plain = compiler.compile(program, args)
    with tempfile.TemporaryDirectory() as folder:
        tuned = compiler.compile(program, args, options=compiler.Options(tune=True, cache=folder))
    before, after = in_bursts([partial(plain, *args), partial(tuned, *args)], rounds=5, burst=0.1)
    remarks, changed = tuned.remarks.of("tune"), tuned.remarks.of("tune", "applied")
    spent = f"{tuned.seconds['passes']:.1f}"
    changes = "; ".join(f"@{r.kernel} {r.message.partition(';')[0]}" for r in changed)
    gain = f"{before / after:.2f}"
    return [milliseconds(before), milliseconds(after), gain, spent, f"{len(remarks)}", f"{len(changed)}", changes]
