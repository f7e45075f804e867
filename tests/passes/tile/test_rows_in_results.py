"""rows-in-results: a long row of intermediates lies in the result that overwrites it."""

from __future__ import annotations

import pytest

from compiler.cost.machine import Machine
from compiler.ir.text.tile_parser import parse_kernel
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass

SMALL = Machine(l1=256)
BEFORE = """kernel @k(in %x: f32[3, {n}], out %y: f32[3, {n}]) {{
  parallel %i in 0..3 {{
    local %e: {dtype}[{n}]
    %s = reduce add %k in 0..{n} {{ %v = exp(%x[%i, %k])  store %v, %e[%k]  yield %v }}
    {rest}
  }} }}"""
DIVIDED = "for %j in 0..{n} tile 64 lanes 16 {{ store %e[%j] / %s, %y[%i, %j] }}"
AFTER = """kernel @k(in %x: f32[3, {n}], out %y: f32[3, {n}]) {{
  parallel %i in 0..3 {{
    %s = reduce add %k in 0..{n} {{ %v = exp(%x[%i, %k])  store %v, %y[%i, %k]  yield %v }}
    for %j in 0..{n} tile 64 lanes 16 {{ store %y[%i, %j] / %s, %y[%i, %j] }}
  }} }}"""


def text(rest: str = DIVIDED, n: int = 96, dtype: str = "f32") -> str:
    return BEFORE.format(n=n, dtype=dtype, rest=rest.format(n=n, half=n // 2))


def test_a_long_row_is_computed_where_it_is_stored() -> None:
    check_pass("rows-in-results", before=text(), after=AFTER.format(n=96), remark="%e is computed in %y", machine=SMALL)


def test_a_row_that_is_a_result_is_not_copied() -> None:
    """The copy disappears, also of a short row."""
    copy = "store %s, %t[%i]  for %j in 0..{n} tile 64 lanes 16 {{ store %e[%j], %y[%i, %j] }}"
    head = "out %y: f32[3, 60], out %t: f32[3]"
    check_pass(
        "rows-in-results",
        before=text(copy, n=60).replace("out %y: f32[3, 60]", head),
        after=f"""kernel @k(in %x: f32[3, 60], {head}) {{
          parallel %i in 0..3 {{
            %s = reduce add %k in 0..60 {{ %v = exp(%x[%i, %k])  store %v, %y[%i, %k]  yield %v }}
            store %s, %t[%i]
          }} }}""",
        machine=SMALL,
    )


def test_rows_of_several_loops() -> None:
    """A remainder has a loop of its own, which reads and stores other elements."""
    parts = """for %j in 0..{half} {{ store %e[%j] / %s, %y[%i, %j] }}  for %l in {half}..{n} {{ store %e[%l] / %s, %y[%i, %l] }}"""
    assert "%e" not in str(run_pipeline(parse_kernel(text(parts)), "rows-in-results", Context(machine=SMALL)))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(text(n=60), id="short"),
        pytest.param(text("for %j in 0..{n} {{ store %e[{n} - 1 - %j] / %s, %y[%i, %j] }}"), id="reversed"),
        pytest.param(text("for %j in 0..{n} {{ store (%e[%j] + %e[0]) / %s, %y[%i, %j] }}"), id="read again"),
        pytest.param(text("for %j in 0..{half} {{ store %e[%j] / %s, %y[%i, %j] }}" * 2), id="stored twice"),
        pytest.param(text(DIVIDED + "  %m = reduce max %l in 0..{n} {{ yield %e[%l] }}"), id="read later"),
        pytest.param(text("for %j in 0..{n} {{ store %e[%j] / %s, %y[%i, %j] nontemporal }}"), id="streamed"),
        pytest.param(text("for %j in 0..{n} {{ store cast<f32>(%e[%j]), %y[%i, %j] }}", dtype="f64").replace("store %v", "store cast<f64>(%v)"), id="dtype"),
        pytest.param(text().replace("parallel %i in 0..3 {", "parallel %i in 0..3 tile 3 {"), id="tiled"),
    ],
)  # fmt: skip
def test_what_stays(kernel: str) -> None:
    before = parse_kernel(kernel)
    assert run_pipeline(before, "rows-in-results", Context(machine=SMALL)) is before
