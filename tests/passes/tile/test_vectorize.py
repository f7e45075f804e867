"""vectorize: the loop that lies across lanes."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX2, AVX512, Machine
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass, parse_ir

MACHINE = Machine(vector_bits=128)


def check(text: str, machine: Machine = MACHINE) -> None:
    """`text` with `LANES` where lanes are expected."""
    check_pass(
        "vectorize", before=text.replace(" LANES", ""), after=text.replace("LANES", "tile 4 lanes 4"), machine=machine
    )


def test_the_loop_along_memory() -> None:
    check("""kernel @k(in %x: f32[6, 8], out %y: f32[6, 8]) {
      parallel %i in 0..6 { parallel %j in 0..8 LANES { store exp(%x[%i, %j]), %y[%i, %j] } } }""")
    check("""kernel @k(in %x: f32[8, 8], in %z: f32[8, 8], in %u: f32[8], out %y: f32[8, 8]) {
      parallel %j in 0..8 { parallel %i in 0..8 LANES { store %x[%j, %i] + %z[%i, %j] + %u[%i], %y[%j, %i] } } }""")


def test_either_loop_of_a_copy_that_turns() -> None:
    """What lies across is turned in registers; the longer loop fills more of them."""
    check("""kernel @k(in %x: f32[6, 8], out %y: f32[8, 6]) {
      parallel %j in 0..8 LANES { parallel %i in 0..6 { store %x[%i, %j], %y[%j, %i] } } }""")


@pytest.mark.parametrize(("low", "along"), [(2, "row"), (64, "batch")])
def test_rows_rather_than_a_batch_that_may_be_small(low: int, along: str) -> None:
    """A batch fills all lanes, and a row of 34 leaves some idle; but a batch of two would leave more."""
    batch, row = (" tile 16 lanes 16" * (along == name) for name in ("batch", "row"))
    text = """kernel @k(size n in {low}..512 hint 500, in %x: f32[n, 34], out %y: f32[n, 136]) {{ parallel %i in 0..n{batch} {{ parallel %j in 0..34{row} {{
      parallel %k in 0..2 {{ parallel %l in 0..2 {{ store %x[%i, %j], %y[%i, 4*%j + 2*%k + %l] }} }} }} }} }}"""
    before, after = text.format(low=low, batch="", row=""), text.format(low=low, batch=batch, row=row)
    check_pass("vectorize", before=before, after=after, machine=AVX512)


def test_each_part_of_a_row_chooses_for_itself() -> None:
    check("""kernel @softmax(in %x: f32[6, 40], out %y: f32[6, 40]) {
      parallel %i in 0..6 {
        %m = reduce max %r in 0..40 LANES { yield %x[%i, %r] }
        for %j in 0..40 LANES { store %x[%i, %j] - %m, %y[%i, %j] }
      } }""")


def test_a_reduction_with_a_body_is_not_transposed() -> None:
    check("""kernel @variance(in %x: f32[64, 4, 8], in %m: f32[], out %y: f32[64]) {
      parallel %i in 0..64 {
        %s = reduce add %r in 0..4, %c in 0..8 LANES {
          %d = %x[%i, %r, %c] - %m[]
          yield %d * %d
        }
        store %s, %y[%i]
      } }""")


def test_rows_across_lanes_where_they_lie_side_by_side() -> None:
    check("""kernel @softmax(in %x: f32[40, 8], out %y: f32[40, 8]) {
      parallel %i in 0..8 LANES {
        %m = reduce max %r in 0..40 { yield %x[%r, %i] }
        for %j in 0..40 { store %x[%j, %i] - %m, %y[%j, %i] }
      } }""")


def test_constants_count_as_contiguous() -> None:
    check("""kernel @matmul(in %x: f32[6, 9], const %w: f32[8, 9], out %y: f32[6, 8]) {
      parallel %i in 0..6 { parallel %j in 0..8 LANES {
        %s = reduce add %k in 0..9 { yield %x[%i, %k] * %w[%j, %k] } store %s, %y[%i, %j] } } }""")


def test_a_dot_product_has_lanes_along_itself() -> None:
    check("""kernel @matvec(in %x: f32[300], in %w: f32[2, 300], out %y: f32[2]) {
      parallel %j in 0..2 { %s = reduce add %k in 0..300 LANES { yield %x[%k] * %w[%j, %k] } store %s, %y[%j] } }""")


LANES = {"f32[64]": 8, "f64[64]": 4, "f16[64]": 8, "bf16[64]": 8, "i8[64]": 8, "i64[64]": 4}


@pytest.mark.parametrize("type_", LANES)
def test_lanes_fill_a_register_with_the_widest_float(type_: str) -> None:
    text = f"kernel @k(in %x: {type_}, in %t: {type_}, out %y: {type_}) {{ for %i in 0..64 {{ store %x[%i] + %t[%i], %y[%i] }} }}"
    kernel = run_pipeline(parse_ir(text), "vectorize", Context(machine=AVX2))
    assert kernel.body[0].range.lanes == LANES[type_]


STAY = {
    "too short": "for %i in 0..3 { store %x[%i], %y[%i] }",
    "a step that needs the last one": "for %i in 1..8 { store %y[%i - 1] + %x[%i], %y[%i] }",
    "a place that every step writes": "for %i in 0..8 { store %x[%i] + %x[%i] * %x[%i], %y[3] }",
    "a sum kept in memory": "local %t: f32[1] store 0.0, %t[0] for %i in 0..8 { store %t[0] + %x[%i], %t[0] store %t[0], %y[%i] }",
    "columns": "for %i in 0..8 { store %x[7 - %i], %y[7 - %i] }",
}


@pytest.mark.parametrize("case", STAY)
def test_loops_without_lanes(case: str) -> None:
    text = f"kernel @k(in %x: f32[8], inout %y: f32[8]) {{ {STAY[case]} }}"
    check_pass("vectorize", unchanged=text, remark="no loop has contiguous accesses", machine=MACHINE)


def test_a_loop_that_others_start_from_has_no_lanes() -> None:
    check("""kernel @k(in %x: f32[64], in %z: f32[4], out %y: f32[16, 4]) {
      for %b in 0..16 { for %i in %b*4..%b*4 + 4 LANES { store %x[%i], %y[%b, %i - %b*4] } } }""")


def test_local_buffers_must_fit_in_cache() -> None:
    text = """kernel @k(in %x: f32[40, 8], out %y: f32[40, 8]) {
      parallel %i in 0..8 LANES {
        local %t: f32[40]
        for %j in 0..40 { store %x[%j, %i] * 2.0, %t[%j] }
        for %k in 0..40 { store %t[39 - %k], %y[%k, %i] }
      } }"""
    check(text)
    inner = text.replace(" LANES", "").replace("%j in 0..40", "%j in 0..40 LANES")
    check(inner, Machine(vector_bits=128, l2=4 * 160 - 1))


def test_siblings_of_one_name_choose_for_themselves() -> None:
    check_pass(
        "vectorize",
        before="""kernel @k(in %x: f32[8, 8], out %y: f32[8, 8], out %z: f32[8, 8]) {
          for %i in 0..8 { for %j in 0..8 { store %x[%i, %j], %y[%i, %j] } }
          for %i in 0..8 { for %j in 0..8 { store %x[%j, %i], %z[%j, %i] } } }""",
        after="""kernel @k(in %x: f32[8, 8], out %y: f32[8, 8], out %z: f32[8, 8]) {
          for %i in 0..8 { for %j in 0..8 tile 4 lanes 4 { store %x[%i, %j], %y[%i, %j] } }
          for %k in 0..8 tile 4 lanes 4 { for %l in 0..8 { store %x[%l, %k], %z[%l, %k] } } }""",
        machine=MACHINE,
    )


def test_lanes_of_a_copy_that_turns_do_not_lie_along_an_open_loop() -> None:
    """Vectors along it would end anywhere, and what is left of them would be gathered."""
    check("""kernel @k(size n in 1..101 hint 50, in %x: f32[n, 16], out %y: f32[16, n]) {
      parallel %j in 0..16 LANES { parallel %i in 0..n { store %x[%i, %j], %y[%j, %i] } } }""")


GATHER = """kernel @gather(in %x: f32[40, 64], in %k: i64[40, {columns}], out %y: f32[40, {columns}]) {{
  parallel %i in 0..40 {{
    parallel %j in 0..{columns}{lanes} {{
      %r = %k[%i, %j]
      check %r in 0..64
      store {value}, %y[%i, %j]
    }}
  }}
}}"""


def test_elements_that_are_gathered_have_lanes_if_much_is_computed() -> None:
    """A gather takes as long as its elements, of which a row may fill a part of a vector."""
    copy, computed = "%x[%i, %r]", "exp(%x[%i, %r])"
    remark = "lanes along %j would gather, which takes longer"
    for columns in (12, 64):
        check_pass(
            "vectorize", unchanged=GATHER.format(columns=columns, lanes="", value=copy), remark=remark, machine=AVX512
        )
        before, after = (GATHER.format(columns=columns, lanes=x, value=computed) for x in ("", " tile 16 lanes 16"))
        check_pass("vectorize", before=before, after=after, machine=AVX512, special=False)


GRADIENT = """kernel @gradient(in %x: f32[33, 70], in %g: f32[16, 16, 37], out %y: f32[16, 3, 7]) {{
  for %i in 0..16 {{ for %a in 0..3 {{ for %b in 0..7{result} {{
    %s = reduce add %r in 0..16, %c in 0..32{sum} {{
      yield %x[%a + %r*2, %b + %c*2] * %g[%i, %r, %c]
    }}
    store %s, %y[%i, %a, %b]
  }} }} }}
}}"""


def test_lanes_along_a_sum_are_compared_with_those_of_its_result() -> None:
    """The sum saves more operations, but accumulators of several %i share the loads of lanes along %b."""
    lanes, before = " tile 16 lanes 16", GRADIENT.format(result="", sum="")
    remark = "lanes along %c would take longer"
    check_pass("vectorize", before=before, after=GRADIENT.format(result=lanes, sum=""), machine=AVX512, remark=remark)
    one = before.replace("%i in 0..16", "%i in 0..1")  # with nothing to share them
    check_pass("vectorize", before=one, after=one.replace("0..32", "0..32" + lanes), machine=AVX512)


@pytest.mark.parametrize("columns", [12, 16, 20])
def test_a_short_sum_has_lanes_where_results_would_gather(columns: int) -> None:
    """Scores prefer the results, which share the multiply-adds but read an argument element by element."""
    text = f"""kernel @matvec(in %x: f32[48, {columns}], in %w: f32[{columns}], out %y: f32[48]) {{{{
      parallel %j in 0..48 {{{{ %s = reduce add %k in 0..{columns}{{lanes}} {{{{ yield %x[%j, %k] * %w[%k] }}}} store %s, %y[%j] }}}} }}}}"""
    before, after = text.format(lanes=""), text.format(lanes=" tile 16 lanes 16")
    check_pass("vectorize", before=before, after=after, machine=AVX512, remark="lanes along %j would take longer")


def test_values_that_a_loop_does_not_change_are_not_saved_by_its_lanes() -> None:
    """Positions are computed before the loop over channels: lanes along that gather as well, and save no arithmetic."""
    text = """kernel @sample(in %x: f32[16, 40], in %g: f32[64], out %y: f32[64, 16]) {{
      parallel %i in 0..64{lanes} {{
        parallel %j in 0..16 {{
          %g0 = %g[%i] * 3.0
          %a = where((%g0 > 0.0) & (%g0 < 39.0), floor(%g0), 0.0)
          %p = cast<i64>(%a)
          check %p in 0..40
          store %x[%j, %p] * (%g[%i] - %a), %y[%i, %j]
        }}
      }}
    }}"""
    before, after = (text.format(lanes=x) for x in ("", " tile 16 lanes 16"))
    check_pass("vectorize", before=before, after=after, machine=AVX512, special=False)


@pytest.mark.parametrize(("dtype", "lanes"), [("f32", "%i"), ("f16", "%j")])
def test_lanes_lie_along_what_has_to_be_converted(dtype: str, lanes: str) -> None:
    """A row of the stored result is contiguous, but weights of f16 would be converted one by one for each vector of it."""
    loops = {v: "LANES" if v == lanes else "" for v in ("%i", "%j")}
    check(f"""kernel @k(in %x: f32[16, 8], const %w: {dtype}[16, 8], out %y: f32[8, 8]) {{
      parallel %j in 0..8 {loops["%j"]} {{ parallel %i in 0..8 {loops["%i"]} {{
        %s = reduce add %r in 0..16 {{ yield %x[%r, %i] * cast<f32>(%w[%r, %j]) }}  store %s, %y[%j, %i] }} }} }}""")
