"""The interpreter of Tile IR against NumPy, at several tilings of the same loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir import scalar
from compiler.ir.interpret.tile import run_kernel, run_program
from compiler.ir.scalar import Const, Load, Ref
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile.kernel import BoundsCheck, For, Kernel, Let, Local, Param, Range, Reduce, Store, map_ranges
from compiler.ir.tile.program import Copy, Launch, Program
from compiler.ir.types import TensorType, bf16, boolean, f32, i8, i64

i, j, k = var("i"), var("j"), var("k")


def tensor(*shape: int, dtype: Any = f32) -> TensorType:
    return TensorType(dtype, shape)


def load(name: str, *index: Any, dtype: Any = f32, **mask: Any) -> Load:
    return Load(dtype, name, index, **mask)


def retiled(kernel: Kernel, **tiles: int) -> Kernel:
    return kernel.with_body(map_ranges(kernel.body, lambda r, _: replace(r, tile=tiles.get(r.var, r.tile))))


MATMUL = Kernel(
    "matmul",
    (Param("x", tensor(5, 7)), Param("w", tensor(6, 7)), Param("y", tensor(5, 6), "out")),
    (
        For(Range("i", 0, 5), (
            For(Range("j", 0, 6), (
                Reduce("acc", "add", (Range("k", 0, 7),), (), load("x", i, k) * load("w", j, k)),
                Store("y", (i, j), Ref(f32, "acc") + 1.0),
            )),
        ), parallel=True),
    ),
)  # fmt: skip


@pytest.mark.parametrize("tiles", [{}, {"i": 2}, {"j": 4}, {"i": 3, "j": 4, "k": 2}, {"k": 8}])
def test_matmul_at_any_tiling(tiles: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    x, w, y = rng.normal(size=(5, 7)).astype("f"), rng.normal(size=(6, 7)).astype("f"), np.empty((5, 6), "f")
    run_kernel(retiled(MATMUL, **tiles), {"x": x, "w": w, "y": y})
    np.testing.assert_allclose(y, x.astype(float) @ w.T.astype(float) + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tiles", [{}, {"i": 2}, {"i": 3, "j": 2, "m": 2}, {"j": 4, "k": 3}])
def test_local_buffers_have_a_copy_per_tiled_index(tiles: dict[str, int]) -> None:
    """softmax over rows: exp into a local row, then divide by its sum."""
    body = (
        For(Range("i", 0, 5), (
            Local("row", tensor(4)),
            For(Range("j", 0, 4), (Store("row", (j,), scalar.exp(load("x", i, j))),)),
            Reduce("sum", "add", (Range("k", 0, 4),), (), load("row", k)),
            For(Range("m", 0, 4), (Store("y", (i, var("m")), load("row", var("m")) / Ref(f32, "sum")),)),
        )),
    )  # fmt: skip
    kernel = Kernel("softmax", (Param("x", tensor(5, 4)), Param("y", tensor(5, 4), "out")), body)
    x, y = np.random.default_rng(1).normal(size=(5, 4)).astype("f"), np.empty((5, 4), "f")
    run_kernel(retiled(kernel, **tiles), {"x": x, "y": y})
    e = np.exp(x.astype(float))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("tile", [1, 2, 4])
def test_a_value_that_does_not_vary_counts_once_per_index(tile: int) -> None:
    kernel = Kernel("count", (Param("y", tensor(dtype=i64), "out"),), (
        Reduce("n", "add", (Range("k", 0, 5, tile),), (), scalar.const(1, i64)), Store("y", (), Ref(i64, "n")),
    ))  # fmt: skip
    y = np.zeros((), np.int64)
    run_kernel(kernel, {"y": y})
    assert y == 5


@pytest.mark.parametrize(
    ("op", "expected"), [("max", 127), ("min", -3), ("mul", -3 * 4 * 127 + 6 * 256), ("add", 129 - 256)]
)
def test_integer_reductions_wrap_in_their_type(op: str, expected: int) -> None:
    kernel = Kernel("r", (Param("x", tensor(4, dtype=i8)), Param("y", tensor(dtype=i8), "out")), (
        Reduce("v", op, (Range("k", 0, 4, 2),), (), load("x", k, dtype=i8)), Store("y", (), Ref(i8, "v")),
    ))  # fmt: skip
    y = np.zeros((), np.int8)
    run_kernel(kernel, {"x": np.array([-3, 4, 1, 127], np.int8), "y": y})
    assert y == expected


@pytest.mark.parametrize(("op", "expected"), [("add", 0.0), ("max", -np.inf), ("min", np.inf), ("mul", 1.0)])
def test_reducing_nothing_gives_the_identity(op: str, expected: float) -> None:
    kernel = Kernel("r", (Param("x", tensor(0)), Param("y", tensor(), "out")), (
        Reduce("v", op, (Range("k", 0, 0, 2),), (), load("x", k)), Store("y", (), Ref(f32, "v")),
    ))  # fmt: skip
    y = np.full((), 7, "f")
    run_kernel(kernel, {"x": np.zeros(0, "f"), "y": y})
    assert y == expected


def pad_kernel(tile: int, rows: int = 3) -> Kernel:
    """Copies `x` with two elements of padding before and one after."""
    at = scalar.index_value(i - 2)
    inside = (at >= 0) & (at < rows)
    value = load("x", i - 2, mask=inside, other=Const(f32, 9.0))
    params = (Param("x", tensor(rows)), Param("y", tensor(rows + 3), "out"))
    return Kernel("pad", params, (For(Range("i", 0, rows + 3, tile), (Store("y", (i,), value),)),))


@pytest.mark.parametrize("tile", [1, 4])
def test_masked_loads_read_nothing_where_false(tile: int) -> None:
    y = np.zeros(6, "f")
    run_kernel(pad_kernel(tile), {"x": np.array([1, 2, 3], "f"), "y": y})
    np.testing.assert_array_equal(y, [9, 9, 1, 2, 3, 9])
    y = np.zeros(3, "f")
    run_kernel(pad_kernel(tile, rows=0), {"x": np.zeros(0, "f"), "y": y})
    np.testing.assert_array_equal(y, [9, 9, 9])


def gather_kernel(tile: int) -> Kernel:
    params = (Param("t", tensor(4)), Param("n", tensor(3, dtype=i64)), Param("y", tensor(3), "out"))
    body = (Let("at", load("n", i, dtype=i64)), BoundsCheck("at", 0, 4), Store("y", (i,), load("t", var("at"))))
    return Kernel("gather", params, (For(Range("i", 0, 3, tile), body),))


@pytest.mark.parametrize("tile", [1, 2])
def test_failed_checks_are_reported_at_the_end(tile: int) -> None:
    table, y = np.arange(4, dtype="f"), np.zeros(3, "f")
    run_kernel(gather_kernel(tile), {"t": table, "n": np.array([3, 0, 2]), "y": y})
    np.testing.assert_array_equal(y, [3, 0, 2])
    with pytest.raises(IndexError, match=r"index 4 of %at is outside 0\.\.3"):
        run_kernel(gather_kernel(tile), {"t": table, "n": np.array([4, 1, 2]), "y": y})
    np.testing.assert_array_equal(y[1:], [1, 2])


@pytest.mark.parametrize("shift", [-1, 1])
def test_leaving_a_buffer_is_an_error_and_never_wraps(shift: int) -> None:
    params = (Param("x", tensor(4)), Param("y", tensor(4), "out"))
    kernel = Kernel("shift", params, (For(Range("i", 0, 4), (Store("y", (i,), load("x", i + shift)),)),))
    with pytest.raises(VerifyError, match=r"%x\[i [+-] 1\]: index 0 ranges over"):
        run_kernel(kernel, {"x": np.zeros(4, "f"), "y": np.zeros(4, "f")})


def test_bf16_rounds_after_every_operation() -> None:
    params = (Param("x", tensor(dtype=bf16)), Param("y", tensor(dtype=bf16), "out"))
    kernel = Kernel("half", params, (Store("y", (), load("x", dtype=bf16) + 1.0),))
    y = np.zeros((), "f")
    run_kernel(kernel, {"x": np.array(2.0**-9, "f"), "y": y})
    assert y == 1.0


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(VerifyError, match=r"%x must be f32\[5, 7\], got float64\[5, 7\]"):
        run_kernel(MATMUL, {"x": np.zeros((5, 7)), "w": np.zeros((6, 7), "f"), "y": np.zeros((5, 6), "f")})


def test_program_runs_launches_and_copies() -> None:
    double = Kernel("double", (Param("x", tensor(2)), Param("y", tensor(2), "out")), (
        For(Range("i", 0, 2), (Store("y", (i,), load("x", i) + load("x", i)),)),
    ))  # fmt: skip
    types = {"x": tensor(2), "t": tensor(2), "y": tensor(2), "c": tensor(2, dtype=bf16), "z": tensor(2, dtype=bf16)}
    steps = (Launch("double", ("x", "t")), Launch("double", ("t", "y")), Copy("c", "z"))
    bits = np.array([0x3F80, 0x4000], np.uint16)
    program = Program(types, ("x",), ("y", "z"), {"c": bits}, {"double": double}, steps)
    y, z = run_program(program, [np.array([1, 2], "f")])
    np.testing.assert_array_equal(y, [4, 8])
    np.testing.assert_array_equal(z, [1, 2])


def test_unwritten_buffers_show() -> None:
    kernel = Kernel("idle", (Param("x", tensor(2)), Param("y", tensor(2), "out")), ())
    program = Program(
        {"x": tensor(2), "y": tensor(2)}, ("x",), ("y",), {}, {"idle": kernel}, (Launch("idle", ("x", "y")),)
    )
    assert np.isnan(run_program(program, [np.zeros(2, "f")])[0]).all()


def test_bool_reductions_are_any_and_all() -> None:
    x = np.array([[True, False], [True, True], [False, False]])
    for op, expected in (("max", x.any(1)), ("min", x.all(1))):
        params = (Param("x", tensor(3, 2, dtype=boolean)), Param("y", tensor(3, dtype=boolean), "out"))
        body = (
            Reduce("v", op, (Range("k", 0, 2),), (), load("x", i, k, dtype=boolean)),
            Store("y", (i,), Ref(boolean, "v")),
        )
        y = np.zeros(3, np.bool_)
        run_kernel(Kernel("r", params, (For(Range("i", 0, 3, 2), body),)), {"x": x, "y": y})
        np.testing.assert_array_equal(y, expected)
