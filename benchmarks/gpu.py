"""Triton kernels on a GPU against PyTorch eager and torch.compile: `python -m benchmarks gpu`.

Each kernel is checked against float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from compiler.driver.compiled_graph import CompiledGraph
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.text.type_parser import parse_type
from compiler.ir.torch_types import to_torch
from compiler.options import Options
from compiler.torch_backend import target_of_device


@dataclass(frozen=True)
class KernelCase:
    """One function as a graph and in PyTorch, and the types of its inputs."""

    name: str
    types: tuple[str, ...]
    build: Callable[..., Node]
    torch: Callable[..., torch.Tensor]

    def graph(self) -> Graph:
        inputs = tuple(input_node(f"x{k}", parse_type(text)) for k, text in enumerate(self.types))
        return Graph(inputs, (self.build(*inputs),), "benchmark")


CASES = (
    KernelCase(
        "silu(x * 2 + b), f32", ("f32[8192, 4096]", "f32[4096]"),
        lambda x, b: ops.silu(ops.add(ops.mul(x, 2.0), b)), lambda x, b: F.silu(x * 2 + b),
    ),
    KernelCase("softmax, f32", ("f32[8192, 1000]",), lambda x: ops.softmax(x, dim=1), lambda x: F.softmax(x, 1)),
    KernelCase(
        "layer norm, f32", ("f32[8192, 768]", "f32[768]", "f32[768]"),
        ops.layer_norm, lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    ),
    KernelCase("column sums, f32", ("f32[8192, 4096]",), lambda x: ops.sum_(x, dims=[0]), lambda x: x.sum(0)),
    *(
        KernelCase(
            f"gelu(linear), {dtype}", (f"{dtype}[4096, 1024]", f"{dtype}[4096, 1024]", f"{dtype}[4096]"),
            lambda x, w, b: ops.gelu(ops.linear(x, w, b)), lambda x, w, b: F.gelu(F.linear(x, w, b)),
        )
        for dtype in ("f32", "f16", "bf16")
    ),
    *(
        KernelCase(
            f"attention, {dtype}", (f"{dtype}[8, 12, 512, 64]",) * 3,
            lambda q, k, v: ops.attention(q, k, v, scale=0.125), F.scaled_dot_product_attention,
        )
        for dtype in ("f32", "f16")
    ),
)  # fmt: skip


def make_inputs(case: KernelCase, device: str) -> list[torch.Tensor]:
    """Return normal operands, scaled by 0.2 so that contractions stay in the range of half precision."""
    torch.manual_seed(0)
    types = map(parse_type, case.types)
    return [torch.randn(t.static_shape(), device=device).mul(0.2).to(to_torch(t.dtype)) for t in types]


def measure_row(case: KernelCase) -> list[str]:
    """Return one row: error against float64, milliseconds, and speed-ups over PyTorch."""
    from triton.testing import do_bench

    inputs = make_inputs(case, "cuda")
    run = CompiledGraph(case.graph(), Options(target=target_of_device(inputs))).run
    (output,) = run(inputs)
    truth = case.torch(*(t.double() for t in inputs))
    error = float((output.double() - truth).abs().max() / truth.abs().max())
    compiled: Any = torch.compile(case.torch)
    eager_ms, compiled_ms, ours_ms = (
        do_bench(f, return_mode="median")
        for f in (lambda: case.torch(*inputs), lambda: compiled(*inputs), lambda: run(inputs))
    )
    times = [f"{ms:.3f}" for ms in (eager_ms, compiled_ms, ours_ms)]
    return [case.name, f"{error:.1e}", *times, f"{eager_ms / ours_ms:.2f}x", f"{compiled_ms / ours_ms:.2f}x"]


def main() -> None:
    console = Console()
    if not torch.cuda.is_available():
        console.print("This benchmark needs a GPU.  tests/runtime/test_gpu_executable.py runs programs without one.")
        return
    table = Table(title=f"Triton on {torch.cuda.get_device_name()}, milliseconds (median)")
    for head in ("kernel", "error", "eager", "torch.compile", "tilewright", "to eager", "to torch.compile"):
        table.add_column(head, justify="left" if head == "kernel" else "right")
    for case in CASES:
        table.add_row(*measure_row(case))
    console.print(table)
