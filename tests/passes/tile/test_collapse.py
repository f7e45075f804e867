"""collapse: nested loops that walk memory in order."""

from __future__ import annotations

import pytest

from compiler.codegen.llvm.targets import CPU_TARGETS
from compiler.codegen.triton.targets import GPU_TARGETS
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Reduce, walk
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.target import Target
from compiler.testing.checks import check_pass


def test_loops_over_dense_arrays_become_one() -> None:
    check_pass(
        "collapse",
        before="""kernel @k(in %x: f32[3, 4, 5], in %b: f32[3], out %y: f32[3, 4, 5]) {
          parallel %i in 0..3 { parallel %j in 0..4 { parallel %k in 0..5 { store %x[%i, %j, %k] + 1.0, %y[%i, %j, %k] } } }
        }""",
        after="""kernel @k(in %x: f32[3, 4, 5], in %b: f32[3], out %y: f32[3, 4, 5]) {
          parallel %i in 0..60 { store %x[%i//20, %i%20//5, %i%20%5] + 1.0, %y[%i//20, %i%20//5, %i%20%5] }
        }""",
        remark="%i and %j collapsed",
    )


def test_only_the_inner_loops_where_an_operand_is_stretched() -> None:
    check_pass(
        "collapse",
        before="""kernel @k(in %x: f32[3, 4, 5], in %b: f32[3], out %y: f32[3, 4, 5]) {
          parallel %i in 0..3 { parallel %j in 0..4 { parallel %k in 0..5 { store %x[%i, %j, %k] + %b[%i], %y[%i, %j, %k] } } }
        }""",
        after="""kernel @k(in %x: f32[3, 4, 5], in %b: f32[3], out %y: f32[3, 4, 5]) {
          parallel %i in 0..3 { parallel %j in 0..20 { store %x[%i, %j//5, %j%5] + %b[%i], %y[%i, %j//5, %j%5] } }
        }""",
    )


def test_index_values_and_masks_and_checks_follow() -> None:
    check_pass(
        "collapse",
        before="""kernel @k(in %x: i64[3, 5], out %y: i64[3, 5]) {
          parallel %i in 0..3 { parallel %j in 0..5 {
            %n = %x[%i, %j]
            check %n in -%j..%i + 9
            store load(%x[%i, %j], index(%j) >= 1, 7) + index(%i*10 + %j), %y[%i, %j]
          } }
        }""",
        after="""kernel @k(in %x: i64[3, 5], out %y: i64[3, 5]) {
          parallel %i in 0..15 {
            %n = %x[%i//5, %i%5]
            check %n in -(%i%5)..%i//5 + 9
            store load(%x[%i//5, %i%5], index(%i%5) >= 1, 7) + index((%i//5)*10 + %i%5), %y[%i//5, %i%5]
          }
        }""",
    )


def test_positions_that_no_joined_loop_changes_may_come_from_data() -> None:
    check_pass(
        "collapse",
        before="""kernel @k(in %x: f32[5, 3, 4], in %z: i64[2], out %y: f32[2, 3, 4]) {
          parallel %b in 0..2 { parallel %i in 0..3 { parallel %j in 0..4 {
            %n = min(max(%z[%b], 0), 4)
            store %x[%n, %i, %j], %y[%b, %i, %j]
          } } }
        }""",
        after="""kernel @k(in %x: f32[5, 3, 4], in %z: i64[2], out %y: f32[2, 3, 4]) {
          parallel %b in 0..2 { parallel %i in 0..12 {
            %n = min(max(%z[%b], 0), 4)
            store %x[%n, %i//4, %i%4], %y[%b, %i//4, %i%4]
          } }
        }""",
    )


STAY = {
    "a transposed operand": "parallel %i in 0..3 { parallel %j in 0..5 { store %x[%i, %j], %t[%j, %i] } }",
    "a part of each row": "parallel %i in 0..3 { parallel %j in 0..4 { store %x[%i, %j], %y[%i, %j] } }",
    "a gather": "parallel %i in 0..3 { parallel %j in 0..5 { %n = min(%z[%j], 4) store %x[%i, %n], %y[%i, %j] } }",
    "a serial loop": "parallel %i in 0..3 { for %j in 0..5 { store %x[%i, %j], %y[%i, %j] } }",
    "a reduction inside": "parallel %i in 0..3 { parallel %j in 0..5 { %s = reduce add %r in 0..5 { yield %x[%i, %r] } store %s, %y[%i, %j] } }",
    "a loop inside": "parallel %i in 0..3 { parallel %j in 0..5 { for %k in 0..2 { store %x[%i, %j], %y[%i, %j] } } }",
    "no columns": "parallel %i in 0..3 { parallel %j in 0..0 { store %x[%i, %j], %y[%i, %j] } }",
    "a start other than 0": "parallel %i in 0..3 { parallel %j in 1..5 { store %x[%i, %j], %y[%i, %j] } }",
    "one loop": "parallel %i in 0..3 { store %x[%i, 0], %y[%i, 0] }",
}


@pytest.mark.parametrize("case", STAY)
def test_loops_that_stay_nested(case: str) -> None:
    params = "in %x: f32[3, 5], in %z: i64[5], out %y: f32[3, 5], out %t: f32[5, 3]"
    check_pass("collapse", unchanged=f"kernel @k({params}) {{ {STAY[case]} }}")


def test_long_rows_fill_the_lanes_by_themselves() -> None:
    text = """kernel @k(in %x: f32[2, 8], out %y: f32[2, 8]) {
      parallel %i in 0..2 { parallel %j in 0..8 { store %x[%i, %j], %y[%i, %j] } }
    }"""
    check_pass("collapse{max-inner-extent=8}", unchanged=text)


@pytest.mark.parametrize(("columns", "value", "joined"), [
    (39, "index(%j) <= index(%i)", False), (48, "index(%j) <= index(%i)", True), (7, "index(%j) <= index(%i)", True),
    (39, "index(%i*39 + %j) >= 50", True),
])  # fmt: skip
def test_lanes_do_not_divide_for_values(columns: int, value: str, joined: bool) -> None:
    """Rows of whole vectors and a part keep their loop, where the index of a lane in it is a value."""
    text = f"""kernel @k(in %x: f32[5, {columns}], out %y: f32[5, {columns}]) {{
      parallel %i in 0..5 {{ parallel %j in 0..{columns} {{ store where({value}, %x[%i, %j], 0.0), %y[%i, %j] }} }} }}"""
    context = Context()
    run_pipeline(parse_kernel(text), "collapse", context)
    assert [r.message for r in context.remarks] == (["%i and %j collapsed"] if joined else [])


def test_rows_of_open_length_are_joined_unless_all_are_long() -> None:
    text = """kernel @k(size n in {sizes}, in %x: f32[3, n], out %y: f32[3, n]) {{
      {loops}
    }}"""
    two = "parallel %i in 0..3 { parallel %j in 0..n { store %x[%i, %j], %y[%i, %j] } }"
    one = "parallel %i in 0..n*3 { store %x[%i//n, %i%n], %y[%i//n, %i%n] }"
    few, long = "1..901 hint 800", "512..901 hint 800"
    check_pass("collapse", before=text.format(sizes=few, loops=two), after=text.format(sizes=few, loops=one))
    check_pass("collapse", unchanged=text.format(sizes=long, loops=two))


def test_ranges_of_a_sum_over_whole_rows_become_one() -> None:
    check_pass(
        "collapse",
        before="""kernel @k(in %x: f32[2, 3, 4, 5], out %y: f32[2]) {
          parallel %i in 0..2 { %s = reduce add %a in 0..3, %b in 0..4, %c in 0..5 { yield %x[%i, %a, %b, %c] } store %s, %y[%i] }
        }""",
        after="""kernel @k(in %x: f32[2, 3, 4, 5], out %y: f32[2]) {
          parallel %i in 0..2 { %s = reduce add %a in 0..60 { yield %x[%i, %a//20, %a%20//5, %a%20%5] } store %s, %y[%i] }
        }""",
        remark="%a and %b collapsed",
    )


def test_ranges_of_a_sum_of_squares_become_one() -> None:
    text = """kernel @k(in %x: f32[2, 3, 4], out %y: f32[2]) {{
      parallel %i in 0..2 {{ %s = reduce add {} store %s, %y[%i] }}
    }}"""
    check_pass(
        "collapse",
        before=text.format("%a in 0..3, %b in 0..4 { yield %x[%i, %a, %b] * %x[%i, %a, %b] }"),
        after=text.format("%a in 0..12 { yield %x[%i, %a//4, %a%4] * %x[%i, %a//4, %a%4] }"),
    )


@pytest.mark.parametrize(
    "sum_",
    [
        "reduce add %a in 0..3, %b in 0..4 { yield %x[%i, %a, 0, %b] }",  # other planes
        "reduce add %a in 0..3, %b in 1..4 { yield %x[%i, 0, %a, %b] }",  # parts of rows
        "reduce add %a in 0..3, %b in 0..4 { yield %x[%i, %a, %b, 0] * %w[%a, %b] }",  # a contraction that rereads weights
    ],
)
def test_ranges_that_stay(sum_: str) -> None:
    check_pass(
        "collapse",
        unchanged=f"""kernel @k(in %x: f32[2, 3, 4, 5], const %w: f32[3, 4], out %y: f32[2]) {{
          parallel %i in 0..2 {{ %s = {sum_} store %s, %y[%i] }}
        }}""",
    )


def scanned(x: str) -> str:
    """A kernel that adds along the middle of three dimensions; rows and columns of the other two are `x` of %i and %k."""
    return f"""kernel @k(in %x: f32[3, 6, 4, 5], out %y: f32[3, 6, 4, 5]) {{
      parallel %i in 0..3 {{ {x} {{
        local %c: f32[]  store 0.0, %c[]
        for %r in 0..6 {{ %s = %c[] + %x[%i, %r, INDEX]  store %s, %c[]  store %s, %y[%i, %r, INDEX] }} }} }} }}"""


def test_scans_have_one_loop_over_the_dimensions_behind_theirs() -> None:
    check_pass(
        "collapse",
        before=scanned("parallel %j in 0..4 { parallel %k in 0..5")
        .replace("INDEX", "%j, %k")
        .replace("} } }", "} } } }", 1),
        after=scanned("parallel %j in 0..20").replace("INDEX", "%j//5, %j%5"),
        remark="%j and %k collapsed",
    )


def test_rows_of_a_scan_are_one_loop() -> None:
    """Blocks of rows are transposed, so that lanes go across all of them."""
    text = """kernel @k(in %x: f32[3, 4, {n}], out %y: f32[3, 4, {n}]) {{
      {rows} {{
        local %c: f32[]  store 0.0, %c[]
        for %r in 0..{n} {{ %s = %c[] + %x[{i}, %r]  store %s, %c[]  store %s, %y[{i}, %r] }} }} {end} }}"""
    before = {"rows": "parallel %i in 0..3 { parallel %j in 0..4", "i": "%i, %j", "end": "}"}
    after = {"rows": "parallel %i in 0..12", "i": "%i//4, %i%4", "end": ""}
    check_pass(
        "collapse", before=text.format(n=8, **before), after=text.format(n=8, **after), remark="%i and %j collapsed"
    )
    check_pass("collapse", unchanged=text.format(n=7, **before))


def test_loops_around_a_sum_along_memory_stay() -> None:
    """Short rows of a scan along the last dimension: no loop around it follows memory."""
    check_pass(
        "collapse",
        unchanged="""kernel @k(in %x: f32[3, 4, 5], out %y: f32[3, 4]) {
          parallel %i in 0..3 { parallel %j in 0..4 {
            local %c: f32[]  store 0.0, %c[]
            for %r in 0..5 { store %c[] + %x[%i, %j, %r], %c[] }
            store %c[], %y[%i, %j] } } }""",
    )


@pytest.mark.parametrize(("target", "loops"), [(CPU_TARGETS["x86-64-v4"], 1), (GPU_TARGETS["sm90"], 2)])
def test_sums_of_local_buffers_are_collapsed_where_these_have_addresses(target: Target, loops: int) -> None:
    kernel = parse_kernel("""kernel @k(in %x: f32[3, 2, 2], out %y: f32[3]) { parallel %i in 0..3 {
      local %c: f32[2, 2]
      for %a in 0..2 { for %b in 0..2 { store %x[%i, %a, %b] * 2.0, %c[%a, %b] } }
      %s = reduce add %r in 0..2, %q in 0..2 { yield %c[%r, %q] }
      store %s, %y[%i] } }""")
    result = run_pipeline(kernel, "collapse", Context.for_target(target))
    assert [len(s.ranges) for s in walk(result.body) if isinstance(s, Reduce)] == [loops]


@pytest.mark.parametrize(("role", "is_joined"), [("const", True), ("in", False)])
def test_loops_over_the_columns_of_packed_weights_become_one(role: str, is_joined: bool) -> None:
    """Lanes go across all columns, whatever the row inside computes; an operand that is not packed has its lanes along the sum."""
    nest = """kernel @k(in %x: f32[5, 32], ROLE %w: f32[12, 32], in %r: f32[5, 3, 4], out %y: f32[12, 5]) {{
      {loops} {{
        local %c: f32[5]
        for %k in 0..5 {{
          %s = reduce add %d in 0..32 {{ yield %x[%k, %d] * %w[{column}, %d] }}
          store %s + %r[%k, {place}], %c[%k] }}
        %m = reduce max %l in 0..5 {{ yield %c[%l] }}
        for %n in 0..5 {{ store %c[%n] - %m, %y[{column}, %n] }} }} {end} }}""".replace("ROLE", role)
    before = nest.format(loops="parallel %i in 0..3 { parallel %j in 0..4", column="%i*4 + %j", place="%i, %j", end="}")
    after = nest.format(loops="parallel %i in 0..12", column="%i", place="%i//4, %i%4", end="")
    check_pass("collapse", before=before, after=after if is_joined else before)


ROWS = """kernel @k(in %x: f32[3, 4, 2, 6], in %w: f32[4], out %y: f32[3, 4, 2, 6]) {{ parallel %i in 0..3 {{
  local %c: f32[4, 2, 6]
  {copy}
  %s = reduce add %r in 0..48 {{ yield %c[%r//12, (%r%12)//6, (%r%12)%6] }}
  for %k in 0..4 {{ {scale} }} }} }}"""
"""A row of three dimensions, which a scale for each of the first one follows."""


def test_sequential_loops_over_a_row_of_several_dimensions() -> None:
    """Loops that each element needs another number for stay around them; the copy becomes one loop whose iterations are independent."""
    check_pass(
        "collapse",
        before=ROWS.format(
            copy="for %a in 0..4 { for %b in 0..2 { for %d in 0..6 { store %x[%i, %a, %b, %d] * 2.0, %c[%a, %b, %d] } } }",
            scale="for %l in 0..2 { for %m in 0..6 { store %c[%k, %l, %m] * %s * %w[%k], %y[%i, %k, %l, %m] } }",
        ),
        after=ROWS.format(
            copy="for %a in 0..48 { store %x[%i, %a//12, (%a%12)//6, (%a%12)%6] * 2.0, %c[%a//12, (%a%12)//6, (%a%12)%6] }",
            scale="for %l in 0..12 { store %c[%k, %l//6, %l%6] * %s * %w[%k], %y[%i, %k, %l//6, %l%6] }",
        ),
        remark="%b and %d collapsed",
    )


def test_sequential_loops_that_fill_lanes_or_skip_memory_stay() -> None:
    long = "for %k in 0..2 {{ for %l in 0..{n} {{ store %x[%i, %k, %l], %y[%i, %k, %l] }} }}"
    kernel = "kernel @k(in %x: f32[3, 2, {n}], out %y: f32[3, 2, {n}]{layout}) {{ parallel %i in 0..3 {{ local %c: f32[]  store 0.0, %c[]  {body} }} }}"
    for n, layout in ((512, ""), (6, "{2, 1, 0}")):
        check_pass("collapse", unchanged=kernel.format(n=n, layout=layout, body=long.format(n=n)))
