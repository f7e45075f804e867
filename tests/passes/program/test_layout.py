"""layout: how intermediate tensors lie in memory."""

from __future__ import annotations

import pytest

from compiler.ir.tile.program import Program
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.passes.program.layout import LayoutAssignment, LayoutSearch
from compiler.target import MatrixShape
from compiler.testing.checks import canonical_text, check_pass, parse_ir


def conv(name: str, x: str, y: str) -> str:
    """A 1x1 convolution from 16 channels to 16: lanes want channels side by side."""
    return f"""kernel @{name}(in %x: {x}, const %w: f32[16, 16], out %y: {y}) {{
      parallel %c in 0..16 {{ parallel %p in 0..6 {{
        %s = reduce add %k in 0..16 {{ yield %x[%k, %p] * %w[%c, %k] }}
        store max(%s, 0.0), %y[%c, %p] }} }} }}"""


ROWS, LAST = "f32[16, 6]", "f32[16, 6]{1, 0}"
WEIGHT = "constant %w: f32[16, 16] [" + ", ".join("[" + ", ".join(str(k % 3 - 1) for k in range(j, j + 16)) + "]" for j in range(16)) + "]"  # fmt: skip


def program(kernels: str, steps: str, t: str = ROWS, more: str = "") -> str:
    return f"""program {{ input %a: {ROWS}  output %b: {ROWS}  {more} {WEIGHT}  buffer %t: {t}
      {kernels}
      {steps} }}"""


def test_channels_come_last_where_lanes_are_channels() -> None:
    check_pass(
        "layout",
        before=program(conv("k", ROWS, ROWS) + conv("l", ROWS, ROWS), "launch @k(%a, %w, %t)  launch @l(%t, %w, %b)"),
        after=program(
            conv("k", ROWS, LAST) + conv("l", LAST, ROWS), "launch @k(%a, %w, %t)  launch @l(%t, %w, %b)", LAST
        ),
        remark="%t is stored with dimension 0 innermost",
        special=False,
    )


def test_launches_of_one_kernel_that_now_differ_have_their_own() -> None:
    check_pass(
        "layout",
        before=program(conv("k", ROWS, ROWS), "launch @k(%a, %w, %t)  launch @k(%t, %w, %b)"),
        after=program(
            conv("k", ROWS, LAST) + conv("k_1", LAST, ROWS), "launch @k(%a, %w, %t)  launch @k_1(%t, %w, %b)", LAST
        ),
        special=False,
    )


def test_a_new_kernel_takes_no_name_that_is_taken() -> None:
    made = run_pipeline(
        parse_ir(
            program(
                conv("k_2", ROWS, ROWS).replace("max(%s", "min(%s") + conv("k", ROWS, ROWS),
                "launch @k_2(%a, %w, %u)  launch @k(%u, %w, %t)  launch @k(%t, %w, %b)",
                more=f"output %u: {ROWS}",
            )
        ),
        "layout",
        Context(),
    )
    assert len(made.kernels) == 3
    assert [p.name for p in made.kernels["k_2"].params] == ["x", "w", "y"]
    assert "min(" in canonical_text(made)


def test_a_box_in_an_array_turns_with_it() -> None:
    """The gaps around it have a kernel of their own."""
    box, turned = "f32[16, 6]{0, 1+1:1}", "f32[16, 6]{1+1:1, 0}"
    gap = """kernel @gap(out %y: {0}) {{
      parallel %c in 0..16 {{ store 0.0, %y[%c, 0] }} parallel %d in 0..16 {{ store 0.0, %y[%d, 7] }} }}"""
    window = """kernel @window(in %x: {0}, const %w: f32[16, 16], out %y: f32[16, 6]) {{
      parallel %c in 0..16 {{ parallel %p in 0..6 {{
        %s = reduce add %k in 0..16 {{ yield %x[%k, %p + 2] * %w[%c, %k] }}
        store %s, %y[%c, %p] }} }} }}"""
    steps = "launch @k(%a, %w, %t)  launch @gap(%t)  launch @window(%t, %w, %b)"
    wide, last = "f32[16, 8]", "f32[16, 8]{1, 0}"
    check_pass(
        "layout",
        before=program(conv("k", ROWS, box) + gap.format(wide) + window.format(wide), steps, wide),
        after=program(conv("k", ROWS, turned) + gap.format(last) + window.format(last), steps, last),
        special=False,
    )


PLUS = """program { input %a: f32[16, 64]  output %b: f32[16, 64]  buffer %t: f32[16, 64]
  kernel @plus(in %x: f32[16, 64], out %y: f32[16, 64]) {
    parallel %c in 0..16 { parallel %p in 0..64 { store %x[%c, %p] + 1.0, %y[%c, %p] } } }
  launch @plus(%a, %t)  launch @plus(%t, %b) }"""

STAY = {
    "elementwise kernels between rows": PLUS,
    "an output": program(conv("k", ROWS, ROWS), "launch @k(%a, %w, %t)  launch @k(%a, %w, %b)", more="").replace(
        f"buffer %t: {ROWS}", f"output %t: {ROWS}"
    ),
    "what is copied": program(conv("k", ROWS, ROWS), "launch @k(%a, %w, %t)  copy %t -> %b"),
    "what PyTorch reads": program(
        conv("k", ROWS, ROWS), "launch @k(%a, %w, %t)  opaque @sort(%t) -> %b, %i {dim=0, descending=false, stable=false}", more="output %i: i64[16, 6]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAY)
def test_programs_that_stay(case: str) -> None:
    check_pass("layout", unchanged=STAY[case], special=False)


@pytest.mark.parametrize(("rows", "turned"), [("40", True), ("n", False)])
def test_no_open_dimension_lies_innermost(rows: str, turned: bool) -> None:
    size = "size n in 1..101 hint 40  " if rows == "n" else ""
    text = f"""program {{ {size}input %a: f32[16, {rows}]  output %b: f32[{rows}]  buffer %t: f32[{rows}, 3]
      kernel @k({size.strip()}{", " if size else ""}in %x: f32[16, {rows}], out %y: f32[{rows}, 3]) {{
        parallel %p in 0..{rows} {{ parallel %c in 0..3 {{
          %s = reduce add %k in 0..16 {{ yield %x[%k, %p] * %x[%k, %p] }} store %s, %y[%p, %c] }} }} }}
      kernel @l({size.strip()}{", " if size else ""}in %x: f32[{rows}, 3], out %y: f32[{rows}]) {{
        parallel %p in 0..{rows} {{ %s = reduce max %c in 0..3 {{ yield %x[%p, %c] }} store %s, %y[%p] }} }}
      launch @k(%a, %t)  launch @l(%t, %b) }}"""
    assert ("{1, 0}" in str(run_pipeline(parse_ir(text), "layout", Context()))) == turned


def byte_conv(name: str, x: str, y: str, channels: int) -> str:
    """A 1x1 convolution of bytes from 32 channels, on 64 pixels."""
    return f"""kernel @{name}(in %x: u8{x}, const %w: i8[{channels}, 32], out %y: {y}) {{
      parallel %p in 0..64 {{ parallel %c in 0..{channels} {{
        %s = reduce add %k in 0..32 {{ yield cast<i32>(%x[%k, %p]) * cast<i32>(%w[%c, %k]) }}
        store cast<u8>(min(cast<f32>(%s) * 0.01, 255.0)), %y[%c, %p] }} }} }}"""


@pytest.mark.parametrize(("shapes", "layout"), [((), ""), ((MatrixShape(1, 16, 4, "u8", "i8", "i32"),), "{1, 0}")])
def test_channels_come_last_where_four_products_are_added_at_once(shapes: tuple[MatrixShape, ...], layout: str) -> None:
    """24 channels leave lanes idle, which pixels do not: dot products decide, and save the loads of both operands too."""
    weights = "".join(f"constant %{w}: i8[{n}, 32] [{', '.join([str([1] * 32)] * n)}]  " for w, n in (("v", 32), ("w", 24)))  # fmt: skip
    kernels = byte_conv("k", "[32, 64]{1, 0}", "u8[32, 64]", 32) + byte_conv("l", "[32, 64]", "u8[24, 64]", 24)
    steps = "launch @k(%a, %v, %t)  launch @l(%t, %w, %b)"
    text = f"program {{ input %a: u8[32, 64]{{1, 0}}  output %b: u8[24, 64]  {weights} buffer %t: u8[32, 64] {kernels} {steps} }}"  # fmt: skip
    made = run_pipeline(parse_ir(text), "layout", Context(matrix_shapes=shapes))
    assert str(made.buffers["t"]) == f"u8[32, 64]{layout}"


ROWS_OF_HEADS = """program {
  input %x: f32[128, 8, 768]  output %s: f32[8, 4, 128, 128]  output %m: f32[8, 128, 4]  buffer %t: f32[128, 8, 768]
  kernel @relu(in %x: f32[128, 8, 768], out %y: f32[128, 8, 768]) {
    parallel %i in 0..128 { parallel %b in 0..8 { parallel %c in 0..768 { store max(%x[%i, %b, %c], 0.0), %y[%i, %b, %c] } } } }
  kernel @scores(in %x: f32[128, 8, 768], out %y: f32[8, 4, 128, 128]) {
    parallel %b in 0..8 { parallel %h in 0..4 { parallel %q in 0..128 { parallel %k in 0..128 {
      %s = reduce add %d in 0..64 { yield %x[%q, %b, %h*64 + %d] * %x[%k, %b, %h*64 + %d + 256] }
      store %s, %y[%b, %h, %q, %k] } } } } }
  kernel @largest(in %x: f32[8, 4, 128, 128], out %y: f32[8, 128, 4]) {
    parallel %b in 0..8 { parallel %q in 0..128 { parallel %h in 0..4 {
      %m = reduce max %k in 0..128 { yield %x[%b, %h, %q, %k] }
      store %m, %y[%b, %q, %h] } } } }
  launch @relu(%x, %t)  launch @scores(%t, %s)  launch @largest(%s, %m) }"""


def test_rows_that_will_be_cached_transposed_stay() -> None:
    """`cache-operand` gives @scores whole vectors of %q; %b innermost would fill half of each."""
    context = Context()
    made = run_pipeline(parse_ir(ROWS_OF_HEADS), "layout", context)
    assert canonical_text(made) == canonical_text(parse_ir(ROWS_OF_HEADS)), [str(r) for r in context.remarks]


PAIRS_OF_HEADS = """program {
  input %x: bf16[128, 384]  output %s: f32[12, 128, 128]  buffer %q: bf16[128, 384]  buffer %k: bf16[128, 384]
  input %v: bf16[384, 384]
  kernel @linear(in %x: bf16[128, 384], in %w: bf16[384, 384], out %y: bf16[128, 384]) {
    parallel %i in 0..128 { parallel %c in 0..384 {
      %s = reduce add %d in 0..384 { yield cast<f32>(%x[%i, %d]) * cast<f32>(%w[%c, %d]) }
      store cast<bf16>(%s), %y[%i, %c] } } }
  kernel @scores(in %q: bf16[128, 384], in %k: bf16[128, 384], out %y: f32[12, 128, 128]) {
    parallel %h in 0..12 { parallel %i in 0..128 { parallel %j in 0..128 {
      %s = reduce add %d in 0..32 { yield cast<f32>(%q[%i, %h*32 + %d]) * cast<f32>(%k[%j, %h*32 + %d]) }
      store %s, %y[%h, %i, %j] } } } }
  launch @linear(%x, %v, %q)  launch @linear(%x, %v, %k)  launch @scores(%q, %k, %s) }"""


def test_rows_of_pairs_that_will_be_cached_transposed_stay() -> None:
    """Pairs of @scores are neighbours of %d; with %i innermost, each would be put together from two loads."""
    context = Context(matrix_shapes=(MatrixShape(1, 16, 2, "bf16", "bf16", "f32"),))
    made = run_pipeline(parse_ir(PAIRS_OF_HEADS), "layout", context)
    assert canonical_text(made) == canonical_text(parse_ir(PAIRS_OF_HEADS)), [str(r) for r in context.remarks]


def sampled(ops: int) -> str:
    """A program that gathers each channel at the same places, which take `ops` operations to compute."""
    chain = "".join(f"%p{k + 1} = %p{k} * 3 + 1  " for k in range(ops // 2))
    return f"""program {{ input %a: f32[32, 60]  input %i: i64[56]  output %b: f32[32, 56]
      kernel @k(in %x: f32[32, 60], in %i: i64[56], out %y: f32[32, 56]) {{
        parallel %c in 0..32 {{ parallel %p in 0..56 {{
          %p0 = %i[%p]  {chain} %row = where((%p{ops // 2} >= 0) & (%p{ops // 2} < 60), %p{ops // 2}, 0)
          store %x[%c, %row], %y[%c, %p] }} }} }}
      launch @k(%a, %i, %b) }}"""


def test_places_are_computed_once_for_all_channels_where_that_saves_more_than_turning_costs() -> None:
    context = Context()
    check_pass("layout", unchanged=sampled(2))
    run_pipeline(parse_ir(sampled(80)), "layout", context)
    assert "dimension 0 innermost" in str(context.remarks)


@pytest.mark.parametrize(("steps", "layout"), [(1, "{1, 0}"), (100, "")])
def test_launches_in_a_loop_count_as_often_as_they_run(steps: int, layout: str) -> None:
    """@k has lanes along the first dimension once, @use along the last at each step."""
    text = f"""program {{ input %a: f32[16, 32]  output %b: f32[{steps}, 8, 32]  {WEIGHT}  buffer %t: f32[16, 32]
      {conv("k", "f32[16, 32]", "f32[16, 32]").replace("0..6", "0..32").replace("%x[%k, %p]", "%x[%k, 31 - %p]")}
      kernel @use(in %x: f32[16, 32], out %y: f32[8, 32]) {{
        parallel %c in 0..8 {{ parallel %p in 0..32 {{ store max(%x[%c, %p], 0.0), %y[%c, %p] }} }} }}
      launch @k(%a, %w, %t)
      repeat %n in 0..{steps} {{ view %b.n = %b[%n]  launch @use(%t, %b.n) }} }}"""
    assert str(run_pipeline(parse_ir(text), "layout", Context()).buffers["t"]) == f"f32[16, 32]{layout}"


def test_scans_keep_rows_where_lanes_follow_the_dimensions_behind_theirs() -> None:
    """44 x 3 results lie side by side: no need to store 44 of them together."""
    text = """program { input %a: f32[9, 44, 3]  output %b: f32[9, 44, 3]
      kernel @scan(in %x: f32[9, 44, 3], out %y: f32[9, 44, 3]) {
        parallel %j in 0..44 { parallel %k in 0..3 {
          local %c: f32[]  store 0.0, %c[]
          for %r in 0..9 { %s = %c[] + %x[%r, %j, %k]  store %s, %c[]  store %s, %y[%r, %j, %k] } } } }
      launch @scan(%a, %b) }"""
    check_pass("layout", unchanged=text, special=False)


SHARED_ROWS = """program {
  input %x: f32[7, 64, 10]  input %w: f32[1200, 10]  input %a: f32[7, 64, 1200]  input %v: f32[1200, 3]  output %y: f32[7, 64, 3]
  buffer %t: f32[7, 64, 1200]
  kernel @sum(in %x: f32[7, 64, 10], in %w: f32[1200, 10], in %a: f32[7, 64, 1200], out %t: f32[7, 64, 1200]) {
    parallel %b in 0..7 { parallel %i in 0..64 { parallel %j in 0..1200 {
      %s = reduce add %k in 0..10 { yield %x[%b, %i, %k] * %w[%j, %k] }
      store %s + %a[%b, %i, %j], %t[%b, %i, %j] } } } }
  kernel @product(in %t: f32[7, 64, 1200], in %v: f32[1200, 3], out %y: f32[7, 64, 3]) {
    parallel %b in 0..7 { parallel %i in 0..64 { parallel %j in 0..3 {
      %s = reduce add %k in 0..1200 { yield %t[%b, %i, %k] * %v[%k, %j] }
      store %s, %y[%b, %i, %j] } } } }
  launch @sum(%x, %w, %a, %t)  launch @product(%t, %v, %y) }"""


def test_kernels_with_cached_operands_are_scored_in_the_layout_under_trial() -> None:
    """@sum caches %w or %x transposed in either layout; what differs is whether it transposes %a as well."""
    context, program = Context(), parse_ir(SHARED_ROWS)
    assert isinstance(program, Program)
    search = LayoutSearch(LayoutAssignment(), program, context)
    launch = search.launches[0][0]
    rows, columns = (search.kernel_saved_ops(launch.kernel, search.param_types(launch, c)) for c in ({}, {"t": 1}))
    assert rows > columns


def test_lanes_may_follow_an_input_whose_layout_is_fixed() -> None:
    """Rows of %a lie across the lanes that a free choice takes, the last loop; results then lie as %a does."""

    def maxima(x: str, y: str) -> str:
        return f"""kernel @k(in %x: {x}, out %y: {y}) {{
          parallel %i in 0..32 {{ parallel %j in 0..48 {{
            %m = reduce max %r in 0..4 {{ yield %x[%r, %j, %i] }}
            for %r in 0..4 {{ store %x[%r, %j, %i] - %m, %y[%r, %i, %j] }} }} }} }}"""

    def exponentials(x: str, y: str) -> str:
        return f"""kernel @l(in %x: {x}, out %y: {y}) {{
          parallel %r in 0..4 {{ parallel %i in 0..32 {{ parallel %j in 0..48 {{
            store exp(exp(%x[%r, %i, %j])), %y[%r, %i, %j] }} }} }} }}"""

    fixed, rows, turned = "f32[4, 48, 32]", "f32[4, 32, 48]", "f32[4, 32, 48]{0, 2, 1}"

    def text(t: str) -> str:
        return f"""program {{ input %a: {fixed}  output %b: {rows}  buffer %t: {t}
          {maxima(fixed, t)} {exponentials(t, rows)}
          launch @k(%a, %t)  launch @l(%t, %b) }}"""

    check_pass("layout", before=text(rows), after=text(turned), special=False)
