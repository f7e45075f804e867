"""split-prologue: operands of a contraction are computed row by row, tile by tile."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

PARAMS = "in %x: f32[40, 30], in %p: i64[8, 30], in %w: f32[30, 16], out %y: f32[8, 16]"
GATHER = "for %k in 0..30 { %q = %p[%i, %k] check %q in 0..40 store %x[%q, %k], %t[%k] }"
SUM = "%s = reduce add %k in 0..30 { yield %t[%k] * %w[%k, %j] } store %s, %y[%i, %j]"


def kernel(body: str) -> str:
    return f"kernel @k({PARAMS}) {{ {body} }}"


def rows(operand: str, rest: str = "", length: str = "0..8 tile 4") -> str:
    return kernel(
        f"parallel %i in {length} {{ local %t: f32[30] {operand} for %j in 0..16 tile 16 lanes 16 {{ {SUM} {rest} }} }}"
    )


def split(operand: str) -> str:
    columns = f"for %j in 0..16 tile 16 lanes 16 {{ {SUM} }}"
    return kernel(
        f"""parallel %b in 0..2 {{
          local %t.rows: f32[4, 48]
          for %i in %b*4..%b*4 + 4 {{ {operand} }}
          for %i in %b*4..%b*4 + 4 tile 4 {{ {columns} }} }}""".replace("%t[", "%t.rows[%i - %b*4, ")
    )


def test_a_gather_is_split_from_its_product() -> None:
    """Rows of 30 elements are padded to three lines."""
    check_pass("split-prologue", before=rows(GATHER), after=split(GATHER), remark="operand computed in %i row by row")


def test_long_code_is_split() -> None:
    operand = "for %k in 0..30 tile 30 lanes 16 { store exp(%x[%i, %k]), %t[%k] }"
    check_pass("split-prologue{max-ops=90}", before=rows(operand), after=split(operand))
    check_pass("split-prologue{max-ops=200}", unchanged=rows(operand))


def test_values_of_rows_are_stored() -> None:
    check_pass(
        "split-prologue{max-ops=1}",
        before=kernel("""parallel %i in 0..8 tile 8 {
          %m = reduce max %r in 0..30 { yield %x[%i, %r] }
          %e = exp(%m)
          for %j in 0..16 { %s = reduce add %k in 0..30 { yield %x[%i, %k] * %w[%k, %j] } store %s / %e, %y[%i, %j] } }"""),
        after=kernel("""local %e.rows: f32[8]
          for %i in 0..8 {
            %m = reduce max %r in 0..30 { yield %x[%i, %r] }
            %e = exp(%m)
            store %e, %e.rows[%i] }
          for %i in 0..8 tile 8 {
            for %j in 0..16 { %s = reduce add %k in 0..30 { yield %x[%i, %k] * %w[%k, %j] } store %s / %e.rows[%i], %y[%i, %j] } }"""),
    )


def test_threads_share_the_tiles_alone() -> None:
    before = rows(GATHER).replace("for %j", "parallel %j")
    check_pass("split-prologue", before=before, after=split(GATHER))


def test_buffers_belong_to_the_loops_that_access_them() -> None:
    """%t and %u go from the first loop to the second; %v is of the second alone."""
    sums = """for %j in 0..16 {
      %s = reduce add %k in 0..30 { yield %t[%k] * %u[%k] * %w[%k, %j] } store %s, %v[%j] store %v[%j], %y[%i, %j] }"""
    check_pass(
        "split-prologue",
        before=kernel(f"""parallel %i in 0..8 tile 8 {{
          local %t: f32[30] local %u: f32[3, 10] local %v: f32[16]
          {GATHER}
          for %l in 0..30 {{ store %x[%i, %l], %u[%l//10, %l%10] }}
          {sums.replace("%u[%k]", "%u[%k//10, %k%10]")} }}"""),
        after=kernel(f"""local %t: f32[8, 48] local %u: f32[8, 48]
          for %i in 0..8 {{
            {GATHER.replace("%t[", "%t[%i, ")}
            for %l in 0..30 {{ store %x[%i, %l], %u[%i, %l] }} }}
          for %i in 0..8 tile 8 {{ local %v: f32[16] {sums.replace("%t[", "%t[%i, ").replace("%u[", "%u[%i, ")} }}"""),
    )


@pytest.mark.parametrize(
    "unchanged",
    [
        rows(GATHER, length="0..8"),  # no tile of rows
        rows("for %k in 0..30 tile 30 lanes 16 { store %x[%i, %k], %t[%k] }"),  # short code with lanes
        rows("store 0.0, %t[0] for %k in 1..30 { store %t[%k - 1] + %x[%i, %k], %t[%k] }"),  # rows of a scan
    ],
)
def test_loops_that_stay(unchanged: str) -> None:
    check_pass("split-prologue", unchanged=unchanged)


@pytest.mark.parametrize(
    ("operand", "rest", "reason"),
    [
        (f"{GATHER} store 1.0, %y[%i, 0]", "", "%y is stored to in the loop that computes the operand"),
        (GATHER.replace("%x[%q, %k]", "%x[%q, %k] + %y[%i, 0]"), "", "%y is stored to while the operand is computed from it"),
        (f"%q = %p[%i, 0] check %q in 0..8 {GATHER.replace('%q', '%v')}", "store %s, %y[%q, %j]", "%q is an index"),
    ],
)  # fmt: skip
def test_refusals(operand: str, rest: str, reason: str) -> None:
    before = rows(operand, rest).replace("out %y", "inout %y")
    check_pass("split-prologue", unchanged=before, remark=reason)
