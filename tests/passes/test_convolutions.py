"""Convolutions of every kind from the graph to ordered loops, with PyTorch's answers in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.analysis.accesses import Accesses, count_divisions
from compiler.codegen.backend import GRAPH_PASSES
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.interpret.tile import run_program
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.ir.torch_types import as_array
from compiler.ir.types import TensorType, f32
from compiler.ir.verify.program import verify_program
from compiler.lowering.program import lower
from compiler.passes.instrument import Verify
from compiler.passes.manager import run_pipeline
from compiler.passes.semantic_check import describe_difference, tolerance

LOOPS = "delinearize,layout,tighten-reductions,fuse-loops,collapse,reorder,fuse-siblings"


def scheduled(node: Node, inputs: tuple[Node, ...]) -> Program:
    """The program of one node, ordered, with the node's answer in float64 before and after."""
    graph = Graph(inputs, (node,))
    program = lower(run_pipeline(graph, GRAPH_PASSES, instruments=[Verify()]))
    ordered = run_pipeline(program, LOOPS, instruments=[Verify()])
    given = random_inputs([n.type for n in inputs], 0)
    (truth,) = (as_array(r) for r in interpret(graph, given, dtype=torch.float64))
    for p in (program, ordered):
        verify_program(p)
        (got,) = run_program(p, given)
        problem = describe_difference(truth.astype(got.dtype), got, tolerance(graph))
        assert not problem, f"{problem}\n{print_graph(graph)}"
    return ordered


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes, strides, paddings and dilations of one to three dimensions."""
    rank = draw(st.sampled_from([1, 1, 2, 2, 3]))

    def each(low: int, high: int) -> tuple[int, ...]:
        return draw(st.tuples(*[st.integers(low, high)] * rank))

    most = 5 - rank
    return {
        "image": each(1, most), "kernel": each(1, most), "stride": each(1, 3), "padding": each(0, 2),
        "dilation": each(1, 2), "groups": draw(st.sampled_from([1, 1, 2])), "bias": draw(st.booleans()),
        "batch": draw(st.sampled_from([1, 1, 2])), "channels": draw(st.sampled_from([1, 2])), "outputs": draw(st.sampled_from([1, 2])),
    }  # fmt: skip


def operands(w: dict[str, Any], transposed: bool) -> tuple[Node, ...]:
    groups, channels, outputs = w["groups"], w["channels"] * w["groups"], w["outputs"] * w["groups"]
    ends = (channels, w["outputs"]) if transposed else (outputs, w["channels"])
    shapes = [(w["batch"], channels, *w["image"]), (*ends, *w["kernel"])]
    shapes += [(outputs,)] if w["bias"] else []
    assert groups
    return tuple(input_node(name, TensorType(f32, shape)) for name, shape in zip("xwb", shapes, strict=False))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(windows(), st.data())
def test_transposed_convolutions(w: dict[str, Any], data: st.DataObject) -> None:
    limits = [max(s, d) - 1 for s, d in zip(w["stride"], w["dilation"], strict=True)]
    extra = data.draw(st.tuples(*(st.integers(0, n) for n in limits)))
    sizes = zip(w["image"], w["kernel"], w["stride"], w["padding"], w["dilation"], extra, strict=True)
    assume(all((n - 1) * s - 2 * p + d * (k - 1) + e + 1 > 0 for n, k, s, p, d, e in sizes))
    inputs = operands(w, transposed=True)
    attrs = {k: w[k] for k in ("stride", "padding", "dilation", "groups")}
    scheduled(ops.conv_transposed(*inputs, output_padding=extra, **attrs), inputs)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(windows())
def test_convolutions(w: dict[str, Any]) -> None:
    sizes = zip(w["image"], w["kernel"], w["padding"], w["dilation"], strict=True)
    assume(all(n + 2 * p >= d * (k - 1) + 1 for n, k, p, d in sizes))
    inputs = operands(w, transposed=False)
    scheduled(ops.convolution(*inputs, **{k: w[k] for k in ("stride", "padding", "dilation", "groups")}), inputs)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(windows(), st.data())
def test_windows_beyond_the_image(w: dict[str, Any], data: st.DataObject) -> None:
    """However far they reach, every tap that a kernel walks lies inside: no test is left, and no product with padding."""
    reach = st.tuples(*[st.integers(0, 5)] * len(w["image"]))
    before, after = data.draw(reach), data.draw(reach)
    sizes = [*zip(w["image"], w["kernel"], w["stride"], w["dilation"], before, after, strict=True)]
    assume(all(b + n + a >= d * (k - 1) + 1 for n, k, _, d, b, a in sizes))
    x, weight = operands({**w, "bias": False}, transposed=False)
    attrs = {k: w[k] for k in ("stride", "dilation", "groups")}
    (kernel,) = sums(scheduled(ops.conv(x, weight, **attrs, before=before, after=after), (x, weight)))
    assert not any(e.mask is not None for e in tile.loads(kernel.body))
    inside = 1
    for n, k, s, d, b, a in sizes:
        places = range(-b, n + a - d * (k - 1), s)
        inside *= sum(0 <= p + t * d < n for p in places for t in range(k))
    reads = sum(r.execution_count for r in Accesses(kernel).all if r.buffer == kernel.params[0].name)
    assert reads == inside * w["batch"] * w["channels"] * w["outputs"] * w["groups"]


def sums(program: Program) -> list[Kernel]:
    return [k for k in program.kernels.values() if "conv" in k.name]


def test_a_transposed_convolution_divides_nothing_and_multiplies_no_zeros() -> None:
    x, w = (input_node(n, TensorType(f32, s)) for n, s in (("x", (1, 2, 5)), ("w", (2, 32, 4))))
    node = ops.conv_transposed(x, w, stride=(2,), padding=(1,), dilation=(1,), output_padding=(0,))
    (kernel,) = sums(scheduled(node, (x, w)))
    table = Accesses(kernel)
    assert not any(count_divisions(d) for a in table.all for d in a.index)
    products = sum(a.execution_count for a in table.all if not a.is_store) // 2
    assert products == 10 * 32 * 2 * 2  # results, outputs, inputs, taps of each remainder


@pytest.mark.parametrize("padding", [0, 1])
def test_each_remainder_has_its_own_taps(padding: int) -> None:
    """Windows of 3 two apart: two taps for every other result, one for those between."""
    x, w = (input_node(n, TensorType(f32, s)) for n, s in (("x", (1, 2, 5)), ("w", (2, 32, 3))))
    node = ops.conv_transposed(x, w, stride=(2,), padding=(padding,), dilation=(1,), output_padding=(0,))
    (kernel,) = sums(scheduled(node, (x, w)))
    weights = kernel.params[1].name
    assert not any(e.mask is not None for e in tile.loads(kernel.body) if e.buffer == weights)
    even, odd = (6, 5) if padding == 0 else (4, 5)
    assert sum(a.execution_count for a in Accesses(kernel).all if a.buffer == weights) == (even * 2 + odd) * 32 * 2


def test_a_window_as_wide_as_the_stride_reads_each_input_where_it_is() -> None:
    """One tap for each remainder: no padding and no copy."""
    x, w = (input_node(n, TensorType(f32, s)) for n, s in (("x", (1, 2, 3, 16)), ("w", (2, 3, 2, 2))))
    node = ops.conv_transposed(x, w, stride=(2, 2), padding=(0, 0), dilation=(1, 1), output_padding=(0, 0))
    program = scheduled(node, (x, w))
    assert list(program.buffers) == ["x", "w", *program.outputs]
    assert len(program.steps) == 1
