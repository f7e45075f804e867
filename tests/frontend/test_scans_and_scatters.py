"""Scans and scatters from import to machine code, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend_kit import FunctionModule, check_import, to_float64

import compiler
from compiler import Options
from compiler.frontend.export import import_module
from compiler.ir.graph.structure import Opaque

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor(
    [[-INF, -INF, 1.0, 2.0, INF, 3.0], [1.0, NAN, 2.0, NAN, 3.0, INF], [2.0, 2.0, -1.0, 2.0, 5.0, 5.0]]
)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def whole(*shape: int, low: int = 0, high: int = 5) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape) + high))


def truth(*shape: int) -> torch.Tensor:
    return whole(*shape, high=2).bool()


def other(*shape: int) -> torch.Tensor:
    """Every index once, in no order: the answer of an assignment does not depend on who is last."""
    return torch.randperm(shape[-1], generator=torch.Generator().manual_seed(3)).expand(shape).clone()


SCANS = {
    "cumsum": (lambda a: a.cumsum(1), x(5, 37)),
    "cumsum first": (lambda a: a.cumsum(0), x(70, 41)),
    "cumsum middle": (lambda a: a.cumsum(-2), x(3, 19, 24)),
    "cumsum long": (lambda a: a.cumsum(0), x(1 << 14)),
    "cumsum of bools": (lambda a: a.cumsum(1), truth(3, 20)),
    "cumsum of i32": (lambda a: a.cumsum(0), whole(9, 3).int()),
    "cumsum as f32": (lambda a: a.cumsum(0, dtype=torch.float32), whole(9, 3)),
    "cumsum of rank 0": (lambda a: a.cumsum(0), x()),
    "cumsum of nothing": (lambda a: a.cumsum(1), x(3, 0)),
    "diff": (torch.diff, x(4, 7)),
    "diff twice": (lambda a: torch.diff(a, n=2, dim=0), x(5, 6)),
    "diff of too few": (lambda a: torch.diff(a, n=9, dim=0), x(5, 6)),
    "diff with ends": (lambda a: torch.diff(a, prepend=a[:, :1], append=a[:, :2]), x(4, 7)),
    "diff of bools": (torch.diff, truth(3, 20)),
    "cumsum special": (lambda a: a.cumsum(1), SPECIAL),
    "cumprod": (lambda a: a.cumprod(1), x(4, 9)),
    "cumprod of i64": (lambda a: a.cumprod(0), whole(9, 4)),
    "cummax": (lambda a: a.cummax(1), x(6, 50)),
    "cummax first": (lambda a: a.cummax(0), x(50, 33)),
    "cummax ties": (lambda a: a.cummax(0), whole(40, 5, high=3)),
    "cummax special": (lambda a: a.cummax(1), SPECIAL),
    "cummax of bools": (lambda a: a.cummax(0), truth(9)),
    "cummax of rank 0": (lambda a: a.cummax(0), x()),
    "cummin": (lambda a: a.cummin(0), x(21, 20)),
    "cummin special": (lambda a: a.cummin(1), SPECIAL),
    "cummin of u8": (lambda a: a.cummin(0), whole(30).to(torch.uint8)),
    "logcumsumexp": (lambda a: a.logcumsumexp(1) , 50 * x(4, 40)),
    "logcumsumexp first": (lambda a: a.logcumsumexp(0), x(40, 32)),
    "logcumsumexp special": (lambda a: a.logcumsumexp(1), SPECIAL),
    "masked and scaled": (lambda a, m: torch.where(m, a, 0.0).cumsum(1) * 2 + 1, x(6, 40), truth(6, 40)),
    "from the end": (lambda a: a.flip(1).cumsum(1).flip(1), x(6, 40)),
    "of a softmax": (lambda a: a.softmax(1).cumsum(1), x(6, 40)),
    "in a softmax": (lambda a: a.cumsum(1).softmax(1), x(6, 40)),
    "along both": (lambda a: a.cumsum(0).cumsum(1), x(17, 18)),
    "sliced": (lambda a: a.cumsum(1)[:, 1:-1], x(6, 40)),
    "stretched": (lambda a, b: a.cumsum(0)[:, None] * b, x(9), x(9, 16)),
    "moved": (lambda a: a.cumsum(1).transpose(0, 1).reshape(5, 12), x(6, 10)),
    "gathered": (lambda a, i: a.cumsum(1).gather(1, i), x(6, 10), whole(6, 3)),
}  # fmt: skip
SCATTERS = {
    "scatter": (lambda a, i, v: a.scatter(1, i, v), x(4, 9), other(4, 9), x(4, 9)),
    "scatter value": (lambda a, i: a.scatter(1, i, 7.0), x(3, 5), whole(3, 1)),
    "scatter part": (lambda a, i, v: a.scatter(0, i, v), x(9, 5), whole(1, 4, high=9), x(3, 5)),
    "scatter reduce": (lambda a, i, v: a.scatter(1, i, v, reduce="add"), x(3, 5), whole(3, 6), x(3, 6)),
    "scatter multiply": (lambda a, i: a.scatter(1, i, 2.0, reduce="multiply"), x(3, 5), whole(3, 6)),
    "scatter_add": (lambda a, i, v: a.scatter_add(1, i, v), x(3, 5), whole(3, 20), x(3, 20)),
    "scatter_add first": (lambda a, i, v: a.scatter_add(0, i, v), x(5, 40), whole(9, 40), x(9, 40)),
    "scatter_add i64": (lambda a, i, v: a.scatter_add(0, i, v), whole(5), whole(30), whole(30)),
    "scatter_add bool": (lambda a, i, v: a.scatter_add(0, i, v), truth(5), whole(3), truth(3)),
    "scatter_add rank 0": (lambda a, i, v: a.scatter_add(0, i, v), x(), whole(high=1), x()),
    "scatter_add nothing": (lambda a, i, v: a.scatter_add(0, i, v), x(5), whole(0), x(0)),
    **{
        f"scatter_reduce {r} {s}": (lambda a, i, v, r=r, s=s: a.scatter_reduce(1, i, v, r, include_self=s), x(4, 6), whole(4, 9), x(4, 9))
        for r in ("sum", "prod", "mean", "amax", "amin") for s in (True, False)
    },
    "scatter_reduce mean i64": (lambda a, i, v: a.scatter_reduce(0, i, v, "mean"), whole(6, low=-9), whole(9), whole(9, low=-9)),
    "index_reduce": (lambda a, i, v: a.index_reduce(0, i, v, "mean", include_self=False), x(5, 3), whole(8), x(8, 3)),
    "index_add": (lambda a, i, v: a.index_add(0, i, v, alpha=2), x(5, 40), whole(9), x(9, 40)),
    "index_add last": (lambda a, i, v: a.index_add(-1, i, v), x(3, 4, 5), whole(9), x(3, 4, 9)),
    "index_add rank 0": (lambda a, i, v: a.index_add(0, i, v), x(), whole(1, high=1), x()),
    "index_copy": (lambda a, i, v: a.index_copy(1, i, v), x(3, 8), other(8)[:5], x(3, 5)),
    "index_fill": (lambda a, i: a.index_fill(1, i, 9.0), x(3, 8), whole(2, low=-8)),
    "index_put": (lambda a, i, v: a.index_put((i,), v), x(9, 4), other(9)[:5], x(5, 4)),
    "index_put add": (lambda a, i, v: a.index_put((i,), v, accumulate=True), x(5, 20), whole(13, low=-5), x(13, 20)),
    "index_put two": (lambda a, i, j, v: a.index_put((i, j), v, accumulate=True), x(5, 5, 3), whole(6, 1), whole(1, 4), x(6, 4, 3)),
    "index_put apart": (lambda a, i, j, v: torch.ops.aten.index_put(a, [i, None, j], v, True), x(5, 2, 5), whole(6), whole(6), x(6, 2)),
    "index_put stretched": (lambda a, i, v: torch.ops.aten.index_put(a, [None, i], v, True), x(3, 5), whole(7), x(1)),
    "index_put mask": (lambda a, m, v: a.index_put((m,), v), x(3, 5), truth(3), x(5)),
    "index_put mask add": (lambda a, m, v: a.index_put((m,), v, accumulate=True), x(3, 5), truth(3, 5), x(1)),
    "assignment": (lambda a, i, v: torch.ops.aten.index_put(a, [None, i], v.relu() * 2), x(4, 9), other(9)[:6], x(4, 6)),
    "put": (lambda a, i, v: a.put(i, v, accumulate=True), x(3, 4), whole(2, 5, low=-12, high=12), x(2, 5)),
    "masked_scatter": (lambda a, m, v: a.masked_scatter(m, v), x(4, 6), truth(4, 6), x(30)),
    "scattered into a view": (lambda a, i, v: a.reshape(20).scatter_add(0, i, v).reshape(2, 10), x(4, 5), whole(9, high=20), x(9)),
    "then more": (lambda a, i, v: (a * 2).scatter_add(1, i, v.exp()).relu().sum(1), x(4, 9), whole(4, 30, high=9), x(4, 30)),
    "histogram": (lambda i: torch.zeros(7, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i)), whole(500, high=7)),
    "embedding": (lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 7, 2, False), x(3, 4, 20), whole(3, 4, high=7)),
    "embedding by count": (lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 7, -1, True), x(12, 5), whole(12, high=7)),
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {"scans": SCANS, "scatters": SCATTERS}


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("family", FAMILIES)
def test_native(family: str, fuse: bool) -> None:
    """Every case of the family in one program; none of it runs in PyTorch."""
    cases = FAMILIES[family]
    arguments = {name: tuple(args) for name, (_, *args) in cases.items()}

    def program(arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: case[0](*arguments[name]) for name, case in cases.items()}

    module = compiler.compile(FunctionModule(program), (arguments,), options=Options(fuse=fuse))
    got, want = module(arguments), program(to_float64(arguments))
    wrong = {}
    for name in cases:
        try:
            torch.testing.assert_close(
                to_float64(got[name]), to_float64(want[name]), rtol=2e-6, atol=2e-6, equal_nan=True
            )
        except AssertionError as problem:
            wrong[name] = str(problem)
    assert not wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_left_to_pytorch(family: str) -> None:
    for name, (function, *args) in FAMILIES[family].items():
        imported = import_module(FunctionModule(function), tuple(args))
        assert not [n for n in imported.graph if isinstance(n.structure, Opaque)], name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_half_types_accumulate_in_f32(dtype: torch.dtype) -> None:
    a = torch.rand(4, 3000, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = compiler.compile(FunctionModule(lambda a: a.cumsum(1)), (a,))(a)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), a.double().cumsum(1), rtol=torch.finfo(dtype).eps, atol=0)


def test_long_sums_lose_nothing() -> None:
    """PyTorch carries f64 on a CPU; carrying f32 would be wrong by 1e-4 here."""
    a = torch.rand(1, 1_000_003, generator=torch.Generator().manual_seed(1))
    got = compiler.compile(FunctionModule(lambda a: a.cumsum(1)), (a,))(a)
    torch.testing.assert_close(got.double(), a.double().cumsum(1), rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("index", [5, -1])
def test_an_index_out_of_range_is_an_error(index: int) -> None:
    a, v = x(5, 3), x(1, 3)
    module = compiler.compile(FunctionModule(lambda a, i, v: a.index_add(0, i, v)), (a, whole(1), v))
    with pytest.raises(IndexError):
        module(a, torch.tensor([index]), v)
    torch.testing.assert_close(module(a, torch.tensor([4]), v), a.index_add(0, torch.tensor([4]), v))


def test_a_duplicate_leaves_one_of_its_values() -> None:
    a, i, v = x(3, 4), torch.tensor([1, 1, 1]), x(3, 4)
    got = compiler.compile(FunctionModule(lambda a, i, v: a.index_put((i,), v)), (a, i, v))(a, i, v)
    assert any(torch.equal(got[1], row) for row in v)
    assert torch.equal(got[[0, 2]], a[[0, 2]])


def test_gradients_of_look_ups() -> None:
    def loss(table: torch.Tensor, i: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        pooled = torch.nn.functional.max_pool2d(image, 3, 2, 1)
        return (
            torch.nn.functional.embedding(i, table).square().sum()
            + pooled.exp().sum()
            + image.cumsum(2).cummax(3)[0].sum()
        )

    table, i, image = x(7, 12), whole(3, 5, high=7), x(2, 3, 9, 8)
    compiled = torch.compile(loss, backend="tilewright", fullgraph=True)
    leaves = [t.clone().requires_grad_() for t in (table, image)]
    exact = [t.double().requires_grad_() for t in (table, image)]
    compiled(leaves[0], i, leaves[1]).backward()
    loss(exact[0], i, exact[1]).backward()
    for got, want in zip(leaves, exact, strict=True):
        torch.testing.assert_close(got.grad.double(), want.grad, rtol=1e-5, atol=1e-5)


def test_no_value_for_a_mask_that_never_holds() -> None:
    check_import(lambda a, m, v: a.masked_scatter(m, v), x(3), torch.zeros(3, dtype=torch.bool), x(0))


def test_values_for_the_places_where_a_mask_holds() -> None:
    """PyTorch finds the places; that there are as many as values is checked by the call."""
    mask = torch.tensor([True, False, True])
    check_import(lambda a, m, v: a.index_put((m,), v), x(3), mask, x(2))
    check_import(lambda a, m, v: a.index_put((m,), v), x(3, 4), mask, x(2, 4))
    put = torch.ops.aten.index_put
    check_import(lambda a, m, v: put(a, [None, m], v, accumulate=True), x(4, 3), mask, x(4, 2))
    check_import(lambda a, m, v: put(a, [None, m], v), x(4, 3), mask, x(4, 1))
    check_import(lambda a, m, v: put(a, [None, m], v), x(4, 3, 2), mask, x(2))
