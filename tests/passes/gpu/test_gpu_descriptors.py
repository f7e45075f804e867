"""gpu-descriptors: operands of matrix products that are copied as boxes of tensors."""

from __future__ import annotations

import pytest

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass

CHEAP = GPU(load_latency=1)

TEXT = """program {
  input %a: f16[2, ROWS, COLUMNS]
  input %b: f16[64, 128]
  output %c: f16[64, 64]
  kernel @k(in %x: f16[ROWS, COLUMNS]LHS, in %w: f16[64, 128]RHS, out %y: f16[64, 64]) warps 4 {
    parallel %i in 0..64 tile 64 {
      parallel %j in 0..64 tile 64 {
        %s = reduce add %k in 0..128 tile 64 stages 2 { yield cast<f32>(%x[INDEX]) * cast<f32>(%w[%j, %k]) }
        store cast<f16>(%s), %y[%i, %j]
      }
    }
  }
  view %v = %a[1]
  launch @k(%v, %b, %c)
}"""


def program(lhs: str, rhs: str, index: str = "%i, %k", rows: int = 64, columns: int = 128) -> str:
    new = {"LHS": lhs, "RHS": rhs, "INDEX": index, "ROWS": str(rows), "COLUMNS": str(columns)}
    text = TEXT
    for old, value in new.items():
        text = text.replace(old, value)
    return text


def check(lhs: str, index: str = "%i, %k", rows: int = 64, columns: int = 128) -> None:
    """Check that the second operand gets a descriptor, and the first the given one."""
    given = index, rows, columns
    before, after = program("", "", *given), program(lhs, " descriptor", *given)
    check_pass("gpu-descriptors", before=before, after=after, machine=CHEAP, special=False)


def test_blocks_that_are_boxes() -> None:
    check(" descriptor")


@pytest.mark.parametrize("columns", [132, 129])
def test_rows_that_are_not_aligned(columns: int) -> None:
    check("", columns=columns)


def test_blocks_that_are_not_aligned() -> None:
    check("", "%i, %k + 4", columns=136)
    check(" descriptor", "%i, %k + 8", columns=136)


def test_indices_that_count_twice() -> None:
    check("", "2*%i, %k", rows=128)


def test_transposed_operands() -> None:
    check(" descriptor", "%k, %i", rows=128, columns=64)


def test_short_sums_do_not_pay_for_descriptors() -> None:
    check_pass("gpu-descriptors", unchanged=program("", ""), machine=GPU(), special=False)


def test_targets_without_them() -> None:
    check_pass(
        "gpu-descriptors",
        unchanged=program("", ""),
        machine=GPU(load_latency=1, copies_boxes=False),
        special=False,
    )
