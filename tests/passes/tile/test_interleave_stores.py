"""interleave-stores: stores that lie side by side for each lane become one row."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

KERNEL = """kernel @k(in %x: f32[16], inout %z: f32[16], out %y: f32[16, 3]) {{
  for %i in 0..16 tile 16 lanes 16 {{ {body} }} }}"""


def test_two_of_two_elements() -> None:
    kernel = """kernel @k(in %x: f32[16], out %y: f32[16, 2]) {{
      for %i in 0..16 tile 16 lanes 16 {{ {body} }} }}"""
    stores = "store %x[%i], %y[%i, 1]  %v = %x[%i] * 2.0  store %v, %y[%i, 0]"
    row = """%v = %x[%i] * 2.0
      for %column in 0..2 tile 2 { store where(index(%column - 1) < 0, %v, %x[%i]), %y[%i, %column] }"""
    check_pass(
        "interleave-stores",
        before=kernel.format(body=stores),
        after=kernel.format(body=row),
        remark="2 stores to %y side by side",
    )


def test_two_of_three_elements_lie_close_enough() -> None:
    check_pass(
        "interleave-stores",
        before=KERNEL.format(body="store 1.0, %y[%i, 1]  store %x[%i], %y[%i, 2]"),
        after=KERNEL.format(
            body="for %column in 0..2 tile 2 { store where(index(%column - 1) < 0, 1.0, %x[%i]), %y[%i, %column + 1] }"
        ),
    )


def test_rows_that_take_turns() -> None:
    """Each is stored where its last element was."""
    kernel = """kernel @k(in %x: f32[16], out %y: f32[2, 32]) {{
      for %i in 0..16 tile 16 lanes 16 {{ {body} }} }}"""
    stores = " ".join(f"store %x[%i] * {k}.0, %y[{k % 2}, %i*2 + {k // 2}]" for k in range(4))

    def row(k: int, column: str) -> str:
        value = f"where(index(%{column} - 1) < 0, %x[%i] * {k}.0, %x[%i] * {k + 2}.0)"
        return f"for %{column} in 0..2 tile 2 {{ store {value}, %y[{k}, %i*2 + %{column}] }}"

    rows = row(0, "column") + row(1, "column_1")
    check_pass("interleave-stores", before=kernel.format(body=stores), after=kernel.format(body=rows))


@pytest.mark.parametrize(
    "body",
    [
        "store %x[%i], %y[%i, 0]",
        "store %x[%i], %y[%i, 0]  store %x[%i], %y[%i, 2]",
        "store %z[%i], %y[%i, 0]  store 2.0, %z[%i]  store %x[%i], %y[%i, 1]",
        "store 1.0, %y[%i, 0]  %v = %y[%i, 0]  store %v, %y[%i, 1]",
        "store 1.0, %y[%i, 0]  for %j in 0..3 { store 3.0, %y[%i, %j] }  store 2.0, %y[%i, 1]",
    ],
    ids=["one", "apart", "what it stores is overwritten", "it is read", "a loop between them"],
)
def test_other_stores_stay(body: str) -> None:
    kernel = KERNEL.replace("out %y", "inout %y")
    check_pass("interleave-stores", unchanged=kernel.format(body=body))
