"""Reuse of operands: the bytes that loops touch, and which loops of a contraction read which operand again."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.analysis.accesses import Accesses
from compiler.analysis.operand_reuse import (
    footprint_bytes,
    match_contraction_reuse,
    panel_operand,
    reread_bytes,
    touched_extent,
)
from compiler.ir.symbolic.index_expr import Dim, evaluate, var
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Kernel, Range, walk
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.testing.checks import parse_ir

P, Q = var("i"), var("j")
SMALL = st.integers(-4, 4)


def kernel(params: str, body: str) -> Kernel:
    ir = parse_ir(f"kernel @k({params}) {{ {body} }}")
    assert isinstance(ir, Kernel)
    return ir


def nest(params: str, value: str, *loops: str, combine: str = "add") -> Kernel:
    """A kernel of `loops` around a reduction of 16 values."""
    index = ", ".join(loop.split()[1] for loop in loops)
    body = f"%s = reduce {combine} %k in 0..16 {{ yield {value} }}  store %s, %y[{index}]"
    for loop in reversed(loops):
        body = f"{loop} {{ {body} }}"
    return kernel(params, body)


X, W, Y = "f32[8, 16]", "f32[16, 32]", "out %y: f32[8, 32]"
PRODUCT, LOOPS = "%x[%i, %k] * %w[%k, %j]", ("parallel %i in 0..8", "parallel %j in 0..32")
BATCHED = nest(
    "in %x: f32[3, 8, 16], in %w: bf16[3, 16, 32], out %y: f32[3, 8, 32]",
    "%x[%b, %i, %k] * cast<f32>(%w[%b, %k, %j])",
    "parallel %b in 0..3",
    *LOOPS,
)


@given(SMALL, SMALL, SMALL, st.integers(1, 5), st.integers(1, 5), st.integers(1, 40))
def test_an_affine_index_touches_what_lies_between_its_ends(a: int, b: int, c: int, m: int, n: int, size: int) -> None:
    values = [a * i + b * j + c for i, j in product(range(m), range(n))]
    assert touched_extent(P * a + Q * b + c, size, {"i": m, "j": n}) == min(size, max(values) - min(values) + 1)


@given(
    st.sampled_from([P // 3, P % 3, (P + Q) // 2, P // 2 + Q % 4, P % 5 * 2 + Q]), st.integers(1, 9), st.integers(1, 9)
)
def test_no_index_touches_more_than_what_is_counted(index: Dim, m: int, n: int) -> None:
    touched = {evaluate(index, {"i": i, "j": j}) for i, j in product(range(m), range(n))}
    assert touched_extent(index, 99, {"i": m, "j": n}) >= len(touched)


def test_an_index_touches_one_element_while_its_loop_stands_still() -> None:
    assert touched_extent(P * 2, 9, {}) == 1
    assert touched_extent(P + Q, 9, {"j": 3}) == 3


@pytest.mark.parametrize(
    ("params", "stored", "expected"),
    [
        ("in %x: f32[64]", "%x[%i]", 8 * 4),
        ("in %x: f64[8, 4]", "cast<f32>(%x[%i, 1])", 8 * 8),
        ("in %x: f32[64]", "%x[%i*2 + 1]", 15 * 4),
        ("in %x: f32[5]", "%x[%i//2]", 4 * 4),
        ("in %x: f32[64]", "%x[%i] + %x[3] + %x[%i*2]", 15 * 4),  # the widest access to a buffer
        ("in %x: f32[64], in %z: i8[8]", "%x[%i] + cast<f32>(%z[%i])", 8 * 4 + 8),
        ("size n in 1..99 hint 6, in %x: f32[n]", "%x[%i%n]", 6 * 4),
    ],
)
def test_bytes_that_a_loop_touches(params: str, stored: str, expected: int) -> None:
    table = Accesses(kernel(f"{params}, out %y: f32[8]", f"for %i in 0..8 {{ store {stored}, %y[%i] }}"))
    loads = [a for a in table.all if not a.is_store]
    assert footprint_bytes(table, loads, [Range("i", 0, 8)]) == expected
    assert footprint_bytes(table, [], [Range("i", 0, 8)]) == 0


@pytest.mark.parametrize(
    ("k", "panels", "rows", "loops", "panel_bytes", "has_reuse"),
    [
        (nest(f"in %x: {X}, in %w: {W}, {Y}", PRODUCT, *LOOPS), "w", "x", "j|i|", 2048, True),
        (nest(f"const %x: {X}, in %w: {W}, {Y}", PRODUCT, *LOOPS), "x", "w", "i|j|", 512, True),
        (BATCHED, "w", "x", "bj|i|b", 3072, True),
        (nest("in %x: f32[8, 16], in %w: f32[8, 16], out %y: f32[8]", "%x[%i, %k] * %w[%i, %k]", LOOPS[0]), "x", "w", "i||i", 512, False),
        (nest("in %x: f32[8, 16], out %y: f32[8]", "%x[%i, %k] * 2.0", LOOPS[0]), "x", "", "i||i", 512, False),
    ],
)  # fmt: skip
def test_reuse_in_a_nest(k: Kernel, panels: str, rows: str, loops: str, panel_bytes: int, has_reuse: bool) -> None:
    reuse = match_contraction_reuse(Accesses(k), perfect_nest(k.body))
    assert reuse is not None
    assert ["".join(a.buffer for a in part) for part in (reuse.panels, reuse.rows)] == [panels, rows]
    parts = reuse.panel_loops, reuse.row_loops, reuse.batch_loops
    assert "|".join("".join(f.range.var for f in part) for part in parts) == loops
    assert reuse.contractions == [s for s in walk(k.body) if is_contraction(s)]
    assert (reuse.panel_bytes, reuse.has_reuse) == (panel_bytes, has_reuse)


@pytest.mark.parametrize(
    ("x", "index", "interleaved"), [("3, 8, 16", "%b, %i, %k", False), ("8, 3, 16", "%i, %b, %k", True)]
)
def test_rows_of_batches_one_behind_the_other(x: str, index: str, interleaved: bool) -> None:
    """Groups of channels lie between each other; the matrices of a batch do not."""
    k = nest(
        f"in %x: f32[{x}], in %w: f32[3, 16, 32], out %y: f32[3, 8, 32]",
        f"%x[{index}] * %w[%b, %k, %j]",
        "parallel %b in 0..3",
        *LOOPS,
    )
    reuse = match_contraction_reuse(Accesses(k), perfect_nest(k.body))
    assert reuse is not None
    assert reuse.interleaves_batches == interleaved


def test_a_panel_that_two_contractions_share_counts_once() -> None:
    body = " ".join(f"%s{n} = reduce add %k in 0..16 {{ yield %x{n}[%i, %k] * %w[%k, %j] }}" for n in range(2))
    k = kernel(
        f"in %x0: {X}, in %x1: {X}, const %w: {W}, {Y}",
        f"for %i in 0..8 {{ for %j in 0..32 {{ {body}  store %s0 + %s1, %y[%i, %j] }} }}",
    )
    reuse = match_contraction_reuse(Accesses(k), perfect_nest(k.body))
    assert reuse is not None
    assert (len(reuse.contractions), reuse.panel_bytes, [a.buffer for a in reuse.rows]) == (2, 2048, ["x0", "x1"])


@pytest.mark.parametrize(
    "k",
    [
        nest(f"in %x: {X}, in %w: {W}, {Y}", "abs(%w[%k, %j])", *LOOPS),  # one operand
        nest(f"in %x: {X}, in %w: {W}, {Y}", PRODUCT.replace("%j", "%i"), *LOOPS),  # nothing varies with the last loop
    ],
)
def test_a_nest_without_panels_has_no_reuse(k: Kernel) -> None:
    assert match_contraction_reuse(Accesses(k), perfect_nest(k.body)) is None


def test_the_panel_operand_is_a_constant_else_one_of_the_last_loop() -> None:
    for role, last, expected in (("in", "j", "w"), ("in", "i", "x"), ("const", "j", "x"), ("in", "b", None)):
        table = Accesses(k := nest(f"{role} %x: {X}, in %w: {W}, {Y}", PRODUCT, *LOOPS))
        (s,) = (s for s in walk(k.body) if is_contraction(s))
        found = panel_operand(table, s, last)
        assert (found and found.buffer) == expected


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (nest(f"in %x: {X}, in %w: {W}, {Y}", PRODUCT, LOOPS[0], "for %j in 0..32"), 16 * 32 * 4),  # all of %w for each row
        (nest(f"in %x: {X}, in %w: {W}, {Y}", PRODUCT, *LOOPS), 16 * 4),
        (nest(f"in %x: {X}, in %w: {W}, {Y}", f"where(%k < 9, {PRODUCT}, 0.0)", *LOOPS), 16 * 4),
        (BATCHED, 16 * 4),
        (nest(f"in %x: {X}, in %w: {W}, {Y}", PRODUCT, "for %i in 0..8", "for %j in 0..32"), 0),
        (nest(f"in %x: {X}, in %w: {W}, {Y}", PRODUCT, *LOOPS, combine="max"), 16 * 4),
        (nest("in %x: f32[8, 16], out %y: f32[8]", "%x[%i, %k] * %x[%i, %k]", LOOPS[0]), 0),
        (kernel("out %y: f32[8]", """parallel %i in 0..8 { local %t: f32[16]
          %s = reduce add %k in 0..16 { yield %t[%k] * 2.0 }  store %s, %y[%i] }"""), 0),
    ],
)  # fmt: skip
def test_most_bytes_that_each_step_of_a_parallel_loop_reads_again(k: Kernel, expected: int) -> None:
    assert reread_bytes(k) == expected
