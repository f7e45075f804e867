"""Scans along contiguous rows: what the loop and its accesses must be."""

from __future__ import annotations

import pytest

from compiler.analysis.accesses import Accesses
from compiler.analysis.scanned_rows import is_scan_of_rows
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import For

SUMS = """kernel @k(in %x: f32[64, 40], out %y: f32[64, 40]) {
  parallel %i in 0..64 {
    local %c: f32[]
    store 0.0, %c[]
    for %k in 0..40 {
      %s = %c[] + %x[%i, %k]
      store %s, %c[]
      store %s, %y[%i, %k]
    }
  }
}"""
"""Sums of the first elements of each row."""


def scanned(text: str, size: int = 16, v: str = "k") -> bool:
    table = Accesses(parse_kernel(text))
    return is_scan_of_rows(table, table.loops[v][1], size)


def test_sums_along_rows_are_a_scan() -> None:
    assert scanned(SUMS)


def test_the_loop_over_the_rows_is_none() -> None:
    assert not scanned(SUMS, v="i")


def test_statements_other_than_loops_are_none() -> None:
    kernel = parse_kernel(SUMS)
    (rows,) = kernel.body
    assert isinstance(rows, For)
    assert not any(is_scan_of_rows(Accesses(kernel), s, 16) for s in rows.body[:2])


@pytest.mark.parametrize(("size", "expected"), [(1, True), (40, True), (64, True), (80, True), (81, False)])
def test_rows_fill_half_of_a_block(size: int, expected: bool) -> None:
    """The distance of rows is their length here."""
    assert scanned(SUMS.replace("64", "81"), size) is expected


@pytest.mark.parametrize(("rows", "expected"), [(15, False), (16, True)])
def test_there_are_as_many_rows_as_lanes(rows: int, expected: bool) -> None:
    assert scanned(SUMS.replace("64", str(rows))) is expected


@pytest.mark.parametrize(("steps", "expected"), [(7, False), (8, True)])
def test_a_row_has_half_as_many_steps_as_lanes(steps: int, expected: bool) -> None:
    assert scanned(SUMS.replace("in 0..40", f"in 0..{steps}")) is expected


@pytest.mark.parametrize("other", ["%w[%k]", "%w[%i]", "%w[0]"])
def test_lanes_may_share_other_values_or_read_them_side_by_side(other: str) -> None:
    assert scanned(SUMS.replace("in %x", "in %w: f32[64], in %x").replace("%x[%i, %k]", f"%x[%i, %k]*{other}"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SUMS.replace("for %k", "parallel %k"), id="a parallel loop"),
        pytest.param(SUMS.replace("%c[] + %x[%i, %k]", "%x[%i, %k]").replace("store %s, %c[]", ""), id="independent steps"),
        pytest.param(SUMS.replace("local %c: f32[]", "").replace("out %y", "inout %c: f32[], out %y"), id="a sum over all rows"),
        pytest.param(SUMS.replace("%x[%i, %k]", "%x[%i, 2]"), id="one element of each row"),
        pytest.param(SUMS.replace("[%i, %k]", "[%k, %i]").replace("[64, 40]", "[40, 64]"), id="columns"),
        pytest.param(SUMS.replace("[%i, %k]", "[%i, 39 - %k]"), id="backwards"),
        pytest.param(SUMS.replace("[%i, %k]", "[%i, %k*2]").replace("[64, 40]", "[64, 80]"), id="every other element"),
        pytest.param(SUMS.replace("%x[%i, %k]", "%x[%k, %i]").replace("in %x: f32[64, 40]", "in %x: f32[40, 128]").replace(
            "[%k, %i]", "[%k, %i*2]"), id="an operand whose rows are apart"),
        pytest.param(SUMS.replace("%c[] + %x[%i, %k]", "%c[] + load(%x[%i, %k], %k < 30, 0.0)"), id="a mask"),
        pytest.param(SUMS.replace("in %x: f32[64, 40], out %y", "inout %x").replace("%y", "%x"), id="results in place"),
        pytest.param(SUMS.replace("%s = %c[]", "for %r in 0..2 { store 0.0, %y[%i, %k] } %s = %c[]"), id="a loop inside"),
    ],
)  # fmt: skip
def test_other_loops_are_no_scans(text: str) -> None:
    assert not scanned(text)
