"""Operators whose conversion does more than name an op, each on arguments that only the right one survives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend_kit import FunctionModule, import_module, interpret_imported, to_float64
from torch import Tensor

from compiler.frontend.export import export_module, import_exported, needs_decomposition

NAN, INF = float("nan"), float("inf")


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def values(*numbers: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


WHOLE = values(-9, -2, -1, 0, 1, 2, 3, 7, dtype=torch.int64)
BAGS = values(3, 0, 4, 4, 1, 2, 0, dtype=torch.int64)


def bag(mode: str, offsets: list[int], **options: Any) -> Any:
    return lambda w: F.embedding_bag(BAGS, w, torch.tensor(offsets), mode=mode, **options)


def equal_bags(mode: str, **options: Any) -> Any:
    return lambda w: F.embedding_bag(torch.tensor([[3, 0], [4, 4], [1, 2]]), w, mode=mode, **options)


ELEMENTS = {
    "fmax": (torch.fmax, values(NAN, 1, NAN, -INF), values(2, NAN, NAN, 3)),
    "fmin": (torch.fmin, values(NAN, 1, NAN, -INF), values(2, NAN, NAN, 3)),
    "fmax of integers": (torch.fmax, WHOLE, WHOLE.flip(0)),
    "angle": (torch.angle, values(-2, 3, 0, NAN, INF)),
    "angle of integers": (torch.angle, WHOLE),
    "hardtanh of integers": (F.hardtanh, WHOLE),
    "linspace of integers": (lambda a: torch.linspace(4.3, -3, 50, dtype=torch.int64) + a[0], WHOLE),
    "linspace of a tensor's integers": (
        lambda a: torch.linspace(a, -3, 50, dtype=torch.int64) + torch.linspace(7.9, -a, 50, dtype=torch.int64),
        torch.tensor(4.3),
    ),
    "linspace of one": (lambda a: torch.linspace(4.5, a[1], 1) + torch.linspace(a[1], -3, 1), values(1, 2)),
    "ranges of integers": (
        lambda a: (
            torch.arange(0.1, -7.9, -4.0, dtype=torch.int64) + a[0],
            torch.arange(3.1, dtype=torch.int64) + a[0],
        ),
        WHOLE,
    ),
    "ranges of short integers": (lambda a: torch.arange(-0.9, 3.1, 1.5, dtype=torch.int32) + a[0], WHOLE),
    "filled tensors": (
        lambda a: (
            torch.arange(5) + a[0],
            torch.arange(2, 7) + a[0],
            torch.arange(1.0, 3.5) + a[0],
            torch.zeros(2, 3) + a[0],
            torch.ones(2, dtype=torch.int32) + a[0],
            torch.zeros_like(a) + a,
            torch.ones_like(a, dtype=torch.bool) & (a > 0),
            a.new_zeros(3) + a[0],
            a.new_ones(2, dtype=torch.int16) + a[0],
            a.new_full((2,), 7) + a[0],
            a.new_full((2,), 1.5, dtype=torch.float64) + a[0],
        ),
        WHOLE,
    ),
    "rounded integers": (lambda a: (a.floor(), a.ceil(), a.trunc(), a.round()), WHOLE),
    "integer power": (lambda a, b: a.pow(b), WHOLE[:, None], values(0, 1, 2, 63, 64, 65, -1, -2, dtype=torch.int64)),
    "integer power of a number": (lambda a: 3 ** a.abs(), WHOLE),
    "power of bytes": (lambda a: a.pow(a), values(0, 1, 3, 9, 200, dtype=torch.uint8)),
    "erfc": (torch.erfc, values(-30, -1, 0, 0.5, 3, 9, 20, 40, NAN, INF, -INF)),
    "erfcx": (torch.special.erfcx, values(-5, -1, 0, 0.5, 3, 9, 200, NAN, INF, -INF)),
    "lgamma": (torch.lgamma, values(-2.5, -1, 0, 0.5, 1, 2, 3, 9, 200, NAN, INF, -INF)),
    "digamma": (torch.digamma, values(-2.5, -1, 0, 0.5, 1, 2, 3, 9, 200, NAN, INF, -INF)),
    "i0": (torch.special.i0, values(-30, -9, -0.5, 0, 3, 20, 80, 90, NAN)),
    "i1": (torch.special.i1, values(-30, -9, -0.5, 0, 3, 20, 80, 90, NAN)),
    "i0e, i1e": (
        lambda a: (torch.special.i0e(a), torch.special.i1e(a)),
        values(-30, -9, -0.5, 0, 3, 20, 90, 4000, NAN, INF, -INF),
    ),
    "lgamma of integers": (torch.lgamma, WHOLE),
    "gradients of shrinkage": (
        lambda g, a: (torch.ops.aten.hardshrink_backward(g, a, 1), torch.ops.aten.softshrink_backward(g, a, 1)),
        values(2, 3, 4, 5, 6, 7),
        values(-3, -1, 0, 1, 2, NAN),
    ),
    "number shifted": (
        lambda a: torch.ops.aten.bitwise_left_shift(3, a) + torch.ops.aten.bitwise_right_shift(300, a),
        WHOLE[3:],
    ),
    "all and any": (lambda a: (torch._is_all_true(a), torch._is_any_true(a), torch._is_all_true(a[3:])), WHOLE > 0),
    "aminmax": (lambda a: (*torch.aminmax(a, dim=1, keepdim=True), *torch.aminmax(a)), x(3, 4)),
    "sum of powers": (lambda a: torch.ops.aten.linalg__powsum(a, 3, [1], True), x(3, 4)),
}
PRODUCTS = {
    "addbmm": (lambda c, a, b: torch.addbmm(c, a, b, beta=0.5, alpha=2), x(3, 5), x(2, 3, 4), x(2, 4, 5)),
    "addmv of integers": (
        lambda c, a, b: torch.addmv(c, a, b, beta=1.7, alpha=2.6),
        WHOLE[:2],
        WHOLE.reshape(2, 4),
        WHOLE[2:6],
    ),
    "sparse product of dense": (
        lambda c, a, b: torch.ops.aten._sparse_addmm(c, a, b, beta=0.5, alpha=2),
        x(3, 5),
        x(3, 4),
        x(4, 5),
    ),
    "bytes": (
        torch._int_mm,
        torch.full((3, 600), -128, dtype=torch.int8),
        torch.full((600, 5), -128, dtype=torch.int8),
    ),
    "bilinear": (F.bilinear, x(6, 3), x(6, 4), x(5, 3, 4), x(5)),
    "trilinear": (lambda a, b, c: torch.ops.aten._trilinear(a, b, c, [0], [], [1], [2]), x(3, 4), x(2, 3, 4), x(2, 4)),
}
WINDOWS = {
    "adaptive max 1d": (lambda a: F.adaptive_max_pool1d(a, 3, return_indices=True), x(2, 3, 7)),
    "adaptive max 2d": (lambda a: F.adaptive_max_pool2d(a, (3, 4), return_indices=True), x(2, 3, 7, 6)),
    "adaptive max even": (lambda a: F.adaptive_max_pool2d(a, (2, 3), return_indices=True), x(3, 4, 6)),
    "adaptive max 3d": (lambda a: F.adaptive_max_pool3d(a, (2, 1, 4), return_indices=True), x(1, 2, 3, 5, 6)),
    "replicate, cut": (lambda a: F.pad(a, (-1, 2, 3, -2), "replicate"), x(1, 2, 4, 5)),
    "replicate, all cut": (lambda a: F.pad(a, (-4, 5, 0, 0), "replicate"), x(1, 2, 4, 4)),
    "reflect, cut": (lambda a: F.pad(a, (-1, 2), "reflect"), x(1, 2, 5)),
    "circular, cut": (lambda a: F.pad(a, (-2, 3), "circular"), x(1, 2, 5)),
}
PLACES = {
    "diagonal": (lambda a, b: a.diagonal_scatter(b), x(4, 5), x(4)),
    "diagonal above": (lambda a, b: a.diagonal_scatter(b, 2, 0, 2), x(4, 3, 5), x(3, 3)),
    "diagonal below": (lambda a, b: a.diagonal_scatter(b, -1, 2, 0), x(4, 3, 5), x(3, 4)),
    "resize down": (lambda a: torch.ops.aten.resize(a, [3, 2]), x(4, 5)),
    "pdist": (F.pdist, x(5, 3)),
    "pdist 1": (lambda a: F.pdist(a, p=1), x(4, 3)),
    "histc": (lambda a: torch.histc(a, 5, -1, 1), x(50)),
    "histc of its own range": (lambda a: torch.histc(a, 4), x(7, 9)),
    "histc of equals": (lambda a: torch.histc(a * 0, 3), x(6)),
}  # fmt: skip
BAGGED = {
    "sum": (bag("sum", [0, 2, 2, 5]), x(5, 3)),
    "mean": (bag("mean", [0, 2, 2, 5]), x(5, 3)),
    "max": (bag("max", [0, 2, 2, 5]), x(5, 3)),
    "padding": (bag("mean", [0, 3], padding_idx=4), x(5, 3)),
    "weights": (
        lambda w, s: F.embedding_bag(BAGS, w, torch.tensor([0, 4]), mode="sum", per_sample_weights=s),
        x(5, 3),
        x(7),
    ),
    "last offset": (bag("sum", [0, 2, 7], include_last_offset=True), x(5, 3)),
    "equal sums": (equal_bags("sum"), x(5, 3)),
    "equal means": (equal_bags("mean"), x(5, 3)),
    "equal maxima": (equal_bags("max"), x(5, 3)),
    "equal, padding": (equal_bags("mean", padding_idx=4), x(5, 3)),
    "equal, all padding": (equal_bags("max", padding_idx=4), -x(5, 3)),
    "equal, weights": (lambda w, s: equal_bags("sum", per_sample_weights=s)(w), x(5, 3), x(3, 2)),
}
FAMILIES: dict[str, dict[str, Any]] = {
    "elements": ELEMENTS, "products": PRODUCTS, "windows": WINDOWS, "places": PLACES, "bags": BAGGED,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_import(family: str) -> None:
    """Every case of the family in one program, without gradients (embedding bags remember less then)."""
    cases = FAMILIES[family]
    arguments = {name: tuple(args) for name, (_, *args) in cases.items()}

    def program(arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: case[0](*arguments[name]) for name, case in cases.items()}

    with torch.no_grad():
        imported = import_module(FunctionModule(program), (arguments,))
        got, truth = interpret_imported(imported, (arguments,), dtype=torch.float64), program(to_float64(arguments))
    wrong = {}
    for name in cases:
        try:
            torch.testing.assert_close(
                to_float64(got[name]), to_float64(truth[name]), rtol=1e-6, atol=1e-6, equal_nan=True
            )
        except AssertionError as problem:
            wrong[name] = str(problem)
    assert not wrong


ENDS = [3, 3, 8]
GROUPED = {
    "batches": (x(3, 8, 8), x(3, 8, 16), None, lambda a, b: a @ b),
    "rows": (x(8, 8), x(3, 8, 16), ENDS, lambda a, b: torch.cat([p @ q for p, q in zip(_parts(a, 0), b, strict=True)])),
    "columns": (x(3, 8, 8), x(8, 8), ENDS, lambda a, b: torch.cat([p @ q for p, q in zip(a, _parts(b, 1), strict=True)], 1)),
    "inner": (x(8, 8), x(8, 16), ENDS, lambda a, b: torch.stack([p @ q for p, q in zip(_parts(a, 1), _parts(b, 0), strict=True)])),
}  # fmt: skip


def _parts(a: Tensor, dim: int) -> list[Tensor]:
    """The groups that `ENDS` cuts `a` into."""
    return [a.narrow(dim, start, end - start) for start, end in zip([0, *ENDS], ENDS, strict=False)]


@pytest.mark.parametrize("case", GROUPED)
def test_grouped_products(case: str) -> None:
    """PyTorch takes them in bf16 only, so the truth is put together from single products."""
    a, b, ends, truth = GROUPED[case]
    a, b = a.bfloat16(), b.bfloat16()
    arguments = (a, b) if ends is None else (a, b, torch.tensor(ends, dtype=torch.int32))
    imported = import_module(FunctionModule(torch.ops.aten._grouped_mm), arguments)
    got = interpret_imported(imported, arguments, dtype=torch.float64)
    torch.testing.assert_close(got, truth(a.double(), b.double()), rtol=1e-9, atol=1e-9)


WHOLE_OPERATORS = {
    "softmax": lambda a: a.softmax(1),
    "log_softmax of a dtype": lambda a: a.log_softmax(1, dtype=torch.float64),
    "var": lambda a: a.var(1),
    "std": lambda a: a.std((0, 1), unbiased=False),
    "argsort": lambda a: a.argsort(1, descending=True),
    "cdist": lambda a: torch.cdist(a, a + 1),
    "einsum": lambda a: torch.einsum("ij,kj->ik", a, a),
    "unfold": lambda a: F.unfold(a[None], 2, dilation=2, padding=(1, 2), stride=(2, 1)),
    "nearest": lambda a: F.interpolate(a[None], scale_factor=2.5),
    "linear": lambda a: F.interpolate(a[None], scale_factor=2.5, mode="linear"),
    "embedding_bag": lambda a: F.embedding_bag(torch.tensor([[3, 0, 4, 4, 1, 2, 0]]), a, mode="mean", padding_idx=-2),
}


@pytest.mark.parametrize("name", WHOLE_OPERATORS)
def test_operators_that_are_converted_without_a_second_trace(name: str) -> None:
    module, args = FunctionModule(WHOLE_OPERATORS[name]), (x(5, 6),)
    program = export_module(module, args, {}, None)
    assert not needs_decomposition(program)
    torch.testing.assert_close(interpret_imported(import_exported(program), args), module(*args))
