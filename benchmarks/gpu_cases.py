"""What is measured on a GPU: kernels as graphs and in PyTorch, and networks; each also in a size for Triton's interpreter."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import compiler
from benchmarks.networks import NETWORKS, Network, network
from benchmarks.networks.gpt import Block
from benchmarks.networks.resnet import ResNet, basic
from compiler.driver.compiled_graph import CompiledGraph
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.text.type_parser import parse_type
from compiler.ir.torch_types import to_torch
from compiler.options import Options

Call = Callable[[], Sequence[Tensor]]
"""Runs something on inputs that it knows, and returns its results."""


@dataclass(frozen=True)
class Problem:
    """A function on tensors of a device: as PyTorch runs it, in float64, and as `ours` for a target, which is made when it is asked for.

    A call moves at least `bytes` and takes `flops` operations, 0 if nobody counted them.
    """

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    truth: Call
    ours: Callable[[str], Call]
    bytes: int = 0
    flops: int = 0


class Case(ABC):
    """A named row."""

    name: str

    @abstractmethod
    def problem(self, device: str, small: bool = False) -> Problem:
        """Return the problem on a device, or a `small` one."""


@dataclass(frozen=True)
class KernelCase(Case):
    """One function as a graph and in PyTorch, the types of its inputs, and its operations in matrix units."""

    name: str
    types: tuple[str, ...]
    build: Callable[..., Node]
    torch: Callable[..., Tensor]
    small: tuple[str, ...] = ()
    flops: int = 0

    def graph(self, small: bool = False) -> Graph:
        """Return the graph."""
        types = self.small if small else self.types
        inputs = tuple(input_node(f"x{k}", parse_type(text)) for k, text in enumerate(types))
        return Graph(inputs, (self.build(*inputs),), "benchmark")

    def problem(self, device: str, small: bool = False) -> Problem:
        """Return the function on normal operands, scaled by 0.2 so that contractions stay in the range of half precision."""
        torch.manual_seed(0)
        graph = self.graph(small)
        types = [n.type for n in graph.inputs]
        inputs = tuple(torch.randn(t.static_shape()).mul(0.2).to(to_torch(t.dtype)).to(device) for t in types)

        def ours(target: str) -> Call:
            run = CompiledGraph(graph, Options(target=target)).run
            return lambda: run(inputs)

        size = sum(int(t.nbytes) for t in (*types, graph.outputs[0].type))  # type: ignore[arg-type]  # static
        return Problem(
            self.torch, inputs, lambda: [self.torch(*(x.double() for x in inputs))], ours, size, self.flops
        )  # fmt: skip


@dataclass(frozen=True)
class NetworkCase(Case):
    """A network of batch size 1 in f32, whose calls are recorded as CUDA graphs."""

    name: str
    network: Network
    small: Network | None = None

    def problem(self, device: str, small: bool = False) -> Problem:
        """Return the network on a device."""
        model, args = (self.small if small and self.small else self.network)()
        model, inputs = model.to(device), tuple(x.to(device) for x in args)

        def truth() -> list[Tensor]:
            wide = [x.double() if x.is_floating_point() else x for x in inputs]
            return tensors(copy.deepcopy(model).double()(*wide))

        def ours(target: str) -> Call:
            options = {"target": target, "cuda_graphs": device == "cuda"}
            compiled = compiler.compile(model, inputs, options=options)
            return lambda: tensors(compiled(*inputs))

        return Problem(model, inputs, truth, ours)


def tensors(results: Any) -> list[Tensor]:
    """Return the tensors among nested results."""
    return [x for x in tree_leaves(results) if isinstance(x, Tensor)]


def product(size: int) -> KernelCase:
    """Return a product of square matrices in bf16."""
    return KernelCase(
        f"matmul {size}, bf16", (f"bf16[{size}, {size}]",) * 2, ops.matmul, torch.matmul,
        small=("bf16[32, 32]",) * 2, flops=2 * size**3,
    )  # fmt: skip


def attention(dtype: str, shape: tuple[int, int, int, int], causal: bool = False) -> KernelCase:
    """Return attention of queries, keys and values of a shape: batch, heads, tokens, width."""
    batch, heads, tokens, width = shape
    return KernelCase(
        f"{'causal ' * causal}attention {tokens} x {width}, {dtype}", (f"{dtype}{list(shape)}",) * 3,
        lambda q, k, v: ops.attention(q, k, v, scale=q.shape[-1] ** -0.5, causal=causal),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        small=(f"{dtype}[1, 2, 32, 16]",) * 3, flops=4 * batch * heads * tokens**2 * width // (1 + causal),
    )  # fmt: skip


KERNELS = (
    KernelCase(
        "silu(x * 2 + b), f32", ("f32[8192, 4096]", "f32[4096]"),
        lambda x, b: ops.silu(ops.add(ops.mul(x, 2.0), b)), lambda x, b: F.silu(x * 2 + b), ("f32[9, 40]", "f32[40]"),
    ),
    KernelCase(
        "softmax, f32", ("f32[65536, 1000]",), lambda x: ops.softmax(x, dim=1), lambda x: F.softmax(x, 1), ("f32[9, 40]",),
    ),
    KernelCase(
        "layer norm, f32", ("f32[65536, 768]", "f32[768]", "f32[768]"),
        ops.layer_norm, lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ("f32[9, 40]", "f32[40]", "f32[40]"),
    ),
    KernelCase(
        "column sums, f32", ("f32[65536, 4096]",), lambda x: ops.sum_(x, dims=[0]), lambda x: x.sum(0), ("f32[9, 40]",),
    ),
    product(4096),
    product(8192),
    attention("bf16", (4, 16, 4096, 128)),
    attention("bf16", (4, 16, 4096, 128), causal=True),
    *(
        KernelCase(
            f"gelu(linear), {dtype}", (f"{dtype}[4096, 1024]", f"{dtype}[4096, 1024]", f"{dtype}[4096]"),
            lambda x, w, b: ops.gelu(ops.linear(x, w, b)), lambda x, w, b: F.gelu(F.linear(x, w, b)),
            (f"{dtype}[16, 32]", f"{dtype}[48, 32]", f"{dtype}[48]"), 2 * 4096**2 * 1024,
        )
        for dtype in ("f32", "f16", "bf16")
    ),
    attention("f32", (8, 12, 512, 64)),
    attention("f16", (8, 12, 512, 64)),
)  # fmt: skip

SMALL_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": lambda: ResNet(basic, (1,), 16),
    "GPT-2 decode": lambda: Block(32, 4),
}
SHAPES = {"ResNet-18": ((1, 3, 16, 16),), "GPT-2 decode": ((1, 1, 32), (1, 4, 5, 8), (1, 4, 5, 8))}

MODELS = tuple(
    NetworkCase(name, build, network(SMALL_NETWORKS[name], *SHAPES[name]) if name in SHAPES else None)
    for name, build in NETWORKS.items()
)

ROWS: dict[str, Case] = {case.name: case for case in (*KERNELS, *MODELS)}
