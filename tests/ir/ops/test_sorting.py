"""Expansions of sorting: every way to select elements agrees with PyTorch, on ties, NaN, infinities and rows of any length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import pytest
import torch
from torch import Tensor

import compiler
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, Op, input_node
from compiler.ir.graph.structure import Opaque
from compiler.ir.interpret.graph import interpret
from compiler.ir.ops.sorting_network import smallest_sorted
from compiler.ir.symbolic.index_expr import var
from compiler.ir.torch_types import from_torch
from compiler.ir.types import TensorType, i32

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NAN, INF = float("nan"), float("inf")


def values(dtype: torch.dtype, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Random values, few different ones, and the extremes of a dtype among them."""
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    few = torch.randint(0, 7, shape, generator=generator)
    if dtype == torch.bool:
        yield few < 3
        return
    yield (few - 3 if dtype.is_signed else few).to(dtype)
    if dtype.is_floating_point:
        yield torch.randn(shape, generator=generator).to(dtype)
        yield torch.tensor([NAN, INF, -INF, 0.0, -0.0, -INF, 1.0]).to(dtype)[few]
        yield torch.full(shape, -INF, dtype=dtype)
    else:
        info = torch.iinfo(dtype)
        yield torch.tensor([info.min, info.max, info.min + 1, info.max - 1, 0, 1, info.max], dtype=dtype)[few]


def expanded(op: Op, x: Tensor, used: frozenset[int], **attrs: object) -> Iterator[Mapping[int, Tensor]]:
    """The results in use of each expansion, interpreted."""
    operand = input_node("x", TensorType(from_torch(x.dtype), tuple(x.shape)))
    node = op(operand, **attrs)
    assert isinstance(op.structure, Opaque)
    assert op.structure.expansions is not None
    for results in op.structure.expansions(node, used):
        graph = Graph((operand,), tuple(results[k] for k in sorted(used)))
        assert [n.type for n in graph.outputs] == [node.result_types[k] for k in sorted(used)]
        yield dict(zip(sorted(used), interpret(graph, [x]), strict=True))


def same(a: Tensor, b: Tensor) -> bool:
    """Whether values are equal, where NaN is NaN and zeros have no sign."""
    return a.dtype == b.dtype and torch.equal(a.double().nan_to_num(7e307), b.double().nan_to_num(7e307))


SHAPES = [((3, 37), 1), ((5, 8, 3), 1), ((2, 1), 1), ((130,), 0)]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_sorting_is_stable(dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    for x, descending in product(values(dtype, shape), (False, True)):
        want = torch.sort(x, dim=dim, descending=descending, stable=True)
        for used in (frozenset({0}), frozenset({0, 1})):
            ways = list(expanded(ops.sort, x, used, dim=dim, descending=descending))
            assert ways or (dtype.itemsize == 8 and used != {0} and shape[dim] > 1)
            for got in ways:
                assert same(got[0], want.values)
                assert 1 not in used or torch.equal(got[1], want.indices)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_selected_elements_are_different_ones(dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    length, used = shape[dim], frozenset({0, 1})
    for k, largest in product({1, min(length, 5), length}, (False, True)):
        for x in values(dtype, shape):
            want = x.topk(k, dim=dim, largest=largest)
            for got in expanded(ops.topk, x, used, dim=dim, k=k, largest=largest):
                assert same(got[0], want.values)
                assert same(x.gather(dim, got[1]), want.values)
                positions = got[1].movedim(dim, -1).sort(-1).values
                assert (positions.diff() > 0).all()


def test_each_way_of_selecting_is_covered() -> None:
    x = torch.randn(3, 37)
    assert len(list(expanded(ops.topk, x, frozenset({0, 1}), dim=1, k=5))) == 3, "by a network, in rounds, by digits"
    assert len(list(expanded(ops.topk, x, frozenset({0}), dim=1, k=30))) == 4, (
        "by a network and by digits, of values and of numbered ones"
    )
    assert not list(expanded(ops.sort, x.double(), frozenset({1}), dim=1)), "64 bits have no room for an index"


def test_nothing_is_selected() -> None:
    for x, k in ((torch.randn(3, 4), 0), (torch.randn(3, 0), 0), (torch.randn(0, 4), 2)):
        for got in expanded(ops.topk, x, frozenset({0, 1}), dim=1, k=k):
            assert got[0].shape == got[1].shape == (len(x), k)


def test_row_lengths_that_a_call_decides_have_no_expansion() -> None:
    size: Node = input_node("n", TensorType(i32, (4, var("n"))))
    structure = ops.sort.structure
    assert isinstance(structure, Opaque)
    assert structure.expansions is not None
    assert not list(structure.expansions(ops.sort(size, dim=1), frozenset({0})))
    assert list(structure.expansions(ops.sort(size, dim=0), frozenset({0})))


@pytest.mark.parametrize(("length", "count"), [(2, 2), (4, 4), (8, 8), (16, 16), (8, 1), (16, 2), (16, 4), (16, 8)])
def test_a_network_sorts_all_sequences_of_two_values(length: int, count: int) -> None:
    """A network that sorts every sequence of zeros and ones sorts every sequence (Knuth, 5.3.4, theorem Z)."""
    rows = (torch.arange(1 << length)[:, None] >> torch.arange(length) & 1).int()
    x = input_node("x", TensorType(i32, tuple(rows.shape)))
    (got,) = interpret(Graph((x,), (smallest_sorted(x, count),)), [rows])
    assert torch.equal(got, rows.sort(1).values[:, :count])


class Ranked(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            x.sort(1).values,
            x.sort(dim=1, descending=True, stable=True).indices,
            *x.topk(3, 1),
            *x.topk(20, 1, largest=False),
        )


@pytest.mark.parametrize("shape", [(5, 40), (300, 23), (1, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_programs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    x[:, 3], x[:, 7], x[:, ::11] = NAN, -INF, 0.0
    compiled = compiler.compile(Ranked(), (x,), options={"cache": "", "fallback": "strict"})
    assert not [r for r in compiled.remarks if "PyTorch:" in r.message]
    got, want = compiled(x), Ranked()(x)
    for k in (0, 2, 4):
        assert same(got[k], want[k])
    assert torch.equal(got[1], want[1])
    assert same(x.gather(1, got[3]), want[2])
    assert same(x.gather(1, got[5]), want[4])


def test_long_rows() -> None:
    x = torch.randn(2, 20_000).round(decimals=2)
    compiled = compiler.compile(lambda x: torch.sort(x, dim=1, stable=True), (x,), options={"cache": ""})
    assert any("sort expanded" in r.message for r in compiled.remarks)
    for got, want in zip(compiled(x), torch.sort(x, dim=1, stable=True), strict=True):
        assert torch.equal(got, want)


def test_rows_whose_number_changes_share_a_program() -> None:
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=512)}}
    compiled = compiler.compile(Ranked(), (torch.randn(6, 40),), dynamic_shapes=shapes, options={"cache": ""})
    for rows in (2, 6, 77):
        x = torch.randn(rows, 40)
        for a, b in zip(compiled(x), Ranked()(x), strict=True):
            assert torch.equal(a, b)


def test_stable_sorts_keep_the_order_of_zeros() -> None:
    x = torch.tensor([[0.0, -0.0, 1.0, 0.0, -0.0]] * 3)
    compiled = compiler.compile(lambda x: torch.sort(x, dim=1, stable=True)[0], (x,))
    assert torch.equal(torch.signbit(compiled(x)), torch.signbit(torch.sort(x, dim=1, stable=True)[0]))
