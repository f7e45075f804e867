"""Lanes across memory, beside an axis along it: whole rows are loaded or stored, and turned in registers."""

from __future__ import annotations

import pytest
from native import check_kernel

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.ir.text.tile_parser import parse_kernel

LOADS = """
kernel @turn(in %x: {dtype}[{n}, 3, {m}], out %y: {dtype}[{m}, 3, {n}]) {{
  for %k in 0..3 {{ for %j in 0..{m} tile {columns} {{ for %i in 0..{n} tile {rows} lanes {lanes} {{
    store %x[%i, %k, %j], %y[%j, %k, %i]
  }} }} }}
}}"""

STORES = LOADS.replace("for %j in 0..{m} tile {columns}", "for %j in 0..{m} tile {rows} lanes {lanes}").replace(
    "for %i in 0..{n} tile {rows} lanes {lanes}", "for %i in 0..{n} tile {columns}"
)
"""Lanes along the source's rows: it is the results that lie across."""

SIZES = [
    (8, 8, 8, 8, 8), (16, 16, 16, 16, 16), (21, 5, 8, 5, 8), (19, 7, 16, 7, 16), (9, 30, 8, 30, 8), (32, 45, 32, 21, 16),
    (7, 6, 7, 6, 8), (6, 8, 4, 4, 4), (3, 9, 2, 9, 2), (17, 4, 16, 4, 16),
]  # fmt: skip
"""Rows and columns, and tiles of both in lanes: full, partial, more columns than lanes, fewer than half."""


@pytest.mark.parametrize(("n", "m", "rows", "columns", "lanes"), SIZES)
@pytest.mark.parametrize("form", [LOADS, STORES])
def test_blocks_of_any_size(form: str, n: int, m: int, rows: int, columns: int, lanes: int, target: str) -> None:
    check_kernel(form.format(dtype="f32", n=n, m=m, rows=rows, columns=columns, lanes=lanes), target)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "i64", "bool"])
@pytest.mark.parametrize("form", [LOADS, STORES])
def test_other_types(form: str, dtype: str, target: str) -> None:
    check_kernel(form.format(dtype=dtype, n=21, m=13, rows=16, columns=13, lanes=8), target)


def test_values_are_computed_column_by_column(target: str) -> None:
    check_kernel(
        """
kernel @sums(in %x: f32[20, 12, 9], in %b: f32[12], out %y: f32[20, 9]) {
  for %i in 0..20 tile 16 lanes 16 { for %j in 0..9 tile 5 {
    %s = reduce add %k in 0..12 { yield %x[%i, %k, %j] * %b[%k] }
    store max(%s, 0.0), %y[%i, %j]
  } }
}""",
        target,
    )


def test_no_element_is_gathered_or_scattered() -> None:
    for form in (LOADS, STORES):
        for columns, plain in ((4, True), (3, False)):
            text = form.format(dtype="f32", n=48, m=48, rows=16, columns=columns, lanes=16)
            module = emit_kernel(parse_kernel(text), target_by_name("x86-64-v4"))
            assert ("gather" not in module and "scatter" not in module) == plain


BESIDE = """
kernel @turn(in %x: f32[21, {n}], in %z: f32[{m}, {e}, 21], out %y: f32[21, {n}], out %v: f32[{m}, {e}, 21]) {{
  for %b in 0..{e} tile {e} {{ for %i in 0..{m} tile {t} {{ for %c in 0..21 tile {lanes} lanes {lanes} {{
    store %z[%i, %b, %c] + 1.0, %y[%c, %i*{e} + %b]
    store %x[%c, %i*{e} + %b] * 2.0, %v[%i, %b, %c]
  }} }} }}
}}"""


@pytest.mark.parametrize(("m", "e", "t"), [(19, 2, 8), (11, 3, 5), (7, 2, 2), (8, 2, 4), (20, 4, 20), (4, 7, 2)])
@pytest.mark.parametrize("lanes", [8, 16])
def test_columns_may_be_on_two_axes(m: int, e: int, t: int, lanes: int, target: str) -> None:
    text = BESIDE.format(m=m, e=e, n=m * e, t=t, lanes=lanes)
    check_kernel(text, target)
    whole = text.replace("21", "32").replace(f"0..{m}", f"0..{m // t * t}")
    module = emit_kernel(parse_kernel(whole), target_by_name("x86-64-v4"))
    assert "gather" not in module
    assert "scatter" not in module


def test_rows_may_be_open_lengths_apart() -> None:
    """Half of a size, too."""
    module = emit_kernel(
        parse_kernel("""
kernel @turn(size s in 1..99 hint 50, in %x: f32[(s + 1)//2, 16], out %y: f32[16, (s + 1)//2]) {
  for %j in 0..16 tile 16 lanes 16 { for %i in 0..((s + 1)//2)//4*4 tile 4 { store %x[%i, %j], %y[%j, %i] } }
}"""),
        target_by_name("x86-64-v4"),
    )
    assert "scatter" not in module


INTERLEAVED = """
kernel @zip(in %x: {dtype}[3, {c}, {n}], out %y: {dtype}[3, {n}, {c}]) {{
  for %k in 0..3 {{ for %i in 0..{n} tile {tile} lanes {lanes} {{ for %j in 0..{c} tile {c} {{
    store %x[%k, %j, %i], %y[%k, %i, %j]
  }} }} }}
}}"""


@pytest.mark.parametrize("c", range(2, 9))
@pytest.mark.parametrize(
    ("n", "tile", "lanes"), [(16, 16, 16), (21, 16, 16), (35, 32, 16), (1, 8, 8), (13, 8, 8), (7, 4, 4)]
)
def test_short_rows_are_stored_as_whole_vectors(c: int, n: int, tile: int, lanes: int, target: str) -> None:
    check_kernel(INTERLEAVED.format(dtype="f32", c=c, n=n, tile=tile, lanes=lanes), target)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "i64", "bool"])
@pytest.mark.parametrize("c", [2, 3])
def test_short_rows_of_other_types(c: int, dtype: str, target: str) -> None:
    check_kernel(INTERLEAVED.format(dtype=dtype, c=c, n=21, tile=16, lanes=8), target)


@pytest.mark.parametrize("c", [2, 3, 4, 6])
def test_repeated_elements_are_stored_as_whole_vectors(c: int, target: str) -> None:
    text = INTERLEAVED.format(dtype="f32", c=c, n=21, tile=16, lanes=16)
    check_kernel(text.replace("%x[%k, %j, %i]", "%x[%k, %j//2, %i] + 1.0"), target)
    check_kernel(text.replace("%x[%k, %j, %i]", "%x[%k, 0, %i]"), target)


def test_dense_short_rows_are_neither_scattered_nor_stored_alone() -> None:
    for c in range(2, 9):
        text = INTERLEAVED.format(dtype="f32", c=c, n=48, tile=16, lanes=16)
        module = emit_kernel(parse_kernel(text), target_by_name("x86-64-v4"))
        stores = [line for line in module.splitlines() if line.lstrip().startswith("store <")]
        assert "scatter" not in module
        assert len(stores) == c
        assert all("<16 x float>" in line for line in stores)


def test_a_block_that_several_stores_read_is_loaded_once() -> None:
    kernel = """kernel @k(in %x: f32[16, 10], out %y: f32[10, 2, 16]) {
      for %i in 0..16 tile 16 lanes 16 { for %j in 0..10 tile 10 {
        %v = %x[%i, %j]  store %v, %y[%j, 0, %i]  store %v * 2.0, %y[%j, 1, %i] } } }"""
    text = emit_kernel(parse_kernel(kernel), target_by_name("x86-64-v4"))
    assert text.count("@llvm.masked.load") - text.count("declare") == 16
