"""cache-blocking: blocks of the reduction, of rows and of columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.cost.machine import Machine
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass, parse_ir

BLOCKS = "cache-blocking{depth-block=4,min-depth=8,conflict-stride=32}"
ALONE, TWO = Machine(threads=1), Machine(threads=2)
PARAMS = "in %x: f32[10, 6], in %w: f32[10, 3], out %y: f32[6, 3]"


def kernel(body: str, params: str = PARAMS) -> str:
    return f"kernel @k({params}) {{ {body} }}"


def in_parallel(body: str, *loops: str) -> str:
    return f"{' '.join(f'parallel {loop} {{' for loop in loops)} {body} {'}' * len(loops)}"


def product(value: str = "%x[%r, %i] * %w[%r, %j]", stored: str = "%s", length: str = "10") -> str:
    return f"""parallel %i in 0..6 {{ parallel %j in 0..3 {{
        %s = reduce add %r in 0..{length} {{ yield {value} }}  store {stored}, %y[%i, %j] }} }}"""


def added(rows: str, columns: str, steps: str) -> str:
    return f"""for %q in {columns} {{ for %p in {rows} {{
        %s = reduce add %r in {steps} {{ yield %x[%r, %p] * %w[%r, %q] }}  store %y[%p, %q] + %s, %y[%p, %q] }} }}"""


def in_blocks(rows: str = "0..6", columns: str = "0..3", rest: str = "8..10", whole: str = "2") -> str:
    last = added(rows, columns, rest)
    for name, other in (("%p", "%t"), ("%q", "%u"), ("%s", "%z"), ("%r", "%v")):
        last = last.replace(name, other)
    return f"""for %a in {rows} {{ for %b in {columns} {{ store 0.0, %y[%a, %b] }} }}
        for %n in 0..{whole} {{ {added(rows, columns, "%n*4..%n*4 + 4")} }}  {last}"""


def test_rows_of_a_block_pass_while_they_are_near() -> None:
    """What the blocks leave over comes behind them."""
    check_pass(BLOCKS, before=kernel(product()), after=kernel(in_blocks()), machine=TWO, remark="%r in blocks of 4")


@pytest.mark.parametrize("long", ["rows", "columns"])
def test_threads_have_parts_of_the_longer_side(long: str) -> None:
    """Of 40, two parts of whole vectors and what is left of the second."""
    part = "%h*32..%h*32 + min(32, 40 - %h*32)"
    if long == "rows":
        params, body = PARAMS.replace("6]", "40]").replace("[6", "[40"), in_blocks(rows=part)
        before = product().replace("0..6", "0..40")
    else:
        params, body = PARAMS.replace("3]", "40]"), in_blocks(columns=part)
        before = product().replace("0..3", "0..40")
    after = f"parallel %h in 0..2 {{ {body} }}"
    check_pass(BLOCKS, before=kernel(before, params), after=kernel(after, params), machine=TWO)


def copied(first: str, last: str, x: str, name: str) -> str:
    """The loops over columns `first` to `last` that read a copy of theirs, and %x or a copy as `x` says."""
    return f"""local %{name}: f32[8, {last}-{first}]
        for %{name}c in 0..8 {{ for %{name}d in {first}..{last} {{ store %w[%{name}c, %{name}d], %{name}[%{name}c, %{name}d - {first}] }} }}
        for %{name}i in 0..9 {{ for %{name}j in {first}..{last} {{
          %{name}s = reduce add %{name}r in 0..8 {{ yield {x.format(name)} * %{name}[%{name}r, %{name}j - {first}] }}
          store %{name}s, %y[%{name}i, %{name}j] }} }}"""


@pytest.mark.parametrize("rereads", [4, 16])
def test_blocks_of_operands_are_copied_that_enough_rows_or_columns_reread(rereads: int) -> None:
    """%x by 70 columns, %w by 9 rows: 24 columns at a time, 3 vectors of accumulators.  One block needs no sum of blocks."""
    params = "in %x: f32[8, 9], in %w: f32[8, 70], out %y: f32[9, 70]"
    before = product(length="8").replace("0..6", "0..9").replace("0..3", "0..70")
    copy = "local %a: f32[8, 9]  for %b in 0..8 { for %c in 0..9 { store %x[%b, %c], %a[%b, %c] } }"
    if rereads == 4:
        panels = copied("%n*24", "%n*24 + 24", "%a[%{0}r, %{0}i]", "p").replace("%n*24 + 24-%n*24", "24")
        body = f"for %n in 0..2 {{ {panels} }} {copied('48', '70', '%a[%{0}r, %{0}i]', 'q').replace('70-48', '22')}"
    else:
        body = """for %q in 0..70 { for %p in 0..9 {
          %s = reduce add %r in 0..8 { yield %a[%r, %p] * %w[%r, %q] }  store %s, %y[%p, %q] } }"""
    check_pass(
        f"cache-blocking{{depth-block=8,min-depth=8,min-reuse={rereads}}}",
        before=kernel(before, params),
        after=kernel(copy + body, params),
        machine=Machine(threads=1, vector_bits=256),
        remark="%r in blocks of 8, %x and %w copied" if rereads == 4 else "%r in blocks of 8, %x copied",
    )


def test_copies_of_rows_have_a_limit() -> None:
    """Of 4 steps and 9 rows, 3 fit in 16 elements."""
    params = "in %x: f32[8, 9], in %w: f32[8, 20], out %y: f32[9, 20]"
    before = product(length="8").replace("0..6", "0..9").replace("0..3", "0..20")
    after = """for %a in 0..9 { for %b in 0..20 { store 0.0, %y[%a, %b] } }
      for %n in 0..2 { for %m in 0..3 {
        local %x.copy: f32[4, 3]
        for %c in %n*4..%n*4 + 4 { for %d in %m*3..%m*3 + 3 { store %x[%c, %d], %x.copy[%c - %n*4, %d - %m*3] } }
        for %q in 0..20 { for %p in %m*3..%m*3 + 3 {
          %s = reduce add %r in %n*4..%n*4 + 4 { yield %x.copy[%r - %n*4, %p - %m*3] * %w[%r, %q] }
          store %y[%p, %q] + %s, %y[%p, %q] } } } }"""
    passes = "cache-blocking{depth-block=4,min-depth=8,min-reuse=10,max-elements=16}"
    check_pass(passes, before=kernel(before, params), after=kernel(after, params), machine=ALONE)


@pytest.mark.parametrize("steps", [12, 15])
def test_short_reductions_have_copies_of_operands_that_take_much_of_a_cache(steps: int) -> None:
    """9 rows of floats for each of 15 steps are more than 512 bytes."""
    body = product(length=f"{steps}").replace("0..6", "0..9").replace("0..3", "0..9")
    text = kernel(body, f"in %x: f32[{steps}, 9], in %w: f32[{steps}, 9], out %y: f32[9, 9]")
    context = Context(Machine(threads=1, l2=2048))
    run_pipeline(parse_ir(text), "cache-blocking{min-reuse=4}", context)
    assert ("copied" in str([str(r) for r in context.remarks])) == (steps == 15)


@pytest.mark.parametrize(
    ("columns", "l1", "is_copied"), [(50, 6144, True), (48, 6144, False), (50, 8192, False), (50, 2048, False)]
)
def test_panels_are_copied_whose_rows_end_inside_lines(columns: int, l1: int, is_copied: bool) -> None:
    """64 rows of a vector of 64 bytes touch two lines each, unless every row begins where a line does."""
    body = product("%x[%i, %r] * %w[%r, %j]", length="64").replace("0..6 ", "0..20 ").replace("0..3 ", f"0..{columns} ")
    text = kernel(body, f"in %x: f32[20, 64], in %w: f32[64, {columns}], out %y: f32[20, {columns}]")
    context = Context(Machine(threads=1, l1=l1, vector_bits=512, registers=8))
    run_pipeline(parse_ir(text), "cache-blocking{min-reuse=16}", context)
    assert ("%w copied" in str([str(r) for r in context.remarks])) is is_copied


def test_panels_beside_a_constant_are_parallel() -> None:
    """One thread has each panel and its copy, and one the columns after the last whole panel."""
    params = "const %w: f32[4, 3], in %x: f32[3, 112], out %y: f32[4, 112]"
    before = (
        product("%w[%i, %r] * %x[%r, %j]", length="3").replace("0..6", "0..4").replace("in 0..3 {", "in 0..112 {", 1)
    )

    def panel(first: str, last: str, a: str, size: str) -> str:
        return f"""local %{a}: f32[3, {size}]
          for %{a}r in 0..3 {{ for %{a}c in {first}..{last} {{ store %x[%{a}r, %{a}c], %{a}[%{a}r, %{a}c - {first}] }} }}
          for %{a}i in 0..4 {{ for %{a}j in {first}..{last} {{
            %{a}s = reduce add %{a}k in 0..3 {{ yield %w[%{a}i, %{a}k] * %{a}[%{a}k, %{a}j - {first}] }}
            store %{a}s, %y[%{a}i, %{a}j] }} }}"""

    panels = f"""parallel %p in 0..1 {{ {panel("%p*80", "%p*80 + 80", "a", "80")} }}
      parallel %q in 0..1 {{ {panel("80", "112", "b", "32")} }}"""
    check_pass(
        "cache-blocking{min-conflict-reuse=4}",
        before=kernel(before, params),
        after=kernel(panels, params),
        machine=Machine(threads=2, l1=64, l1_ways=1, usable_ways=1),
        remark="%r in blocks of 3, %x copied",
    )


@pytest.mark.parametrize(("columns", "copies"), [(1024, "%w copied"), (1000, "")])
def test_rows_that_share_few_sets_are_copied_for_fewer_rereads(columns: int, copies: str) -> None:
    """Of rows 4096 bytes apart a set holds 12; rows 4000 bytes apart are spread over all sets."""
    body = product(length="64").replace("0..6", "0..20").replace("0..3", f"0..{columns}")
    text = kernel(body, f"in %x: f32[64, 20], in %w: f32[64, {columns}], out %y: f32[20, {columns}]")
    context = Context(Machine(threads=1, l1_ways=12, usable_ways=12))
    run_pipeline(parse_ir(text), "cache-blocking{min-reuse=2000,min-conflict-reuse=16}", context)
    assert copies in str([str(r) for r in context.remarks])
    assert bool(copies) == ("copied" in str(context.remarks))


def test_a_sum_of_open_length_has_what_is_left_behind_its_blocks() -> None:
    sizes = "size m in 8..64 hint 20, in %x: f32[m, 6], in %w: f32[m, 3], out %y: f32[6, 3]"
    body = in_blocks(rest="m//4*4..m", whole="m//4")
    check_pass(BLOCKS, before=kernel(product(length="m"), sizes), after=kernel(body, sizes), machine=ALONE)


def test_rows_that_share_cache_sets_are_read_in_blocks_although_the_other_operand_lies_along_the_sum() -> None:
    params = "in %x: f32[6, 10], in %w: f32[10, 8], out %y: f32[6, 8]"
    before = kernel(product("%x[%i, %r] * %w[%r, %j]").replace("0..3", "0..8"), params)
    after = kernel(in_blocks(columns="0..8"), params)
    for r, i in (("r", "p"), ("v", "t")):
        after = after.replace(f"%x[%{r}, %{i}]", f"%x[%{i}, %{r}]")
    check_pass(BLOCKS, before=before, after=after, machine=ALONE)
    rare = BLOCKS.replace("conflict-stride=32", "conflict-stride=64")
    check_pass(rare, before=before, after=interchanged(before, "0..8"), machine=ALONE, idempotent=False)


@pytest.mark.parametrize(("rows", "l2", "blocked"), [(64, 512, True), (64, 1024, False), (16, 512, False)])
def test_operands_that_many_tiles_of_rows_reread_are_blocked(rows: int, l2: int, blocked: bool) -> None:
    """64 steps of 3 columns are 768 bytes; 16 rows are two tiles."""
    body = product("%x[%i, %r] * %w[%r, %j]", length="64").replace("0..6 ", f"0..{rows} ")
    context = Context(Machine(threads=1, l2=l2))
    text = kernel(body, f"in %x: f32[{rows}, 64], in %w: f32[64, 3], out %y: f32[{rows}, 3]")
    run_pipeline(parse_ir(text), "cache-blocking{depth-block=16,min-depth=32,conflict-stride=4096}", context)
    assert ("in blocks of 16" in str([str(r) for r in context.remarks])) is blocked


def interchanged(text: str, columns: str = "0..3") -> str:
    """The kernel with its rows inside of the loop over columns, and its reduction in one piece."""
    rows, columns = "parallel %i in 0..6 {", f"parallel %j in {columns} {{"
    assert f"{rows} {columns}" in text
    return text.replace(f"{rows} {columns}", f"{columns} {rows}")


WHOLE = {
    "a short sum": kernel(product(length="7")),
    "a sum of nothing": kernel(product(length="0"), PARAMS.replace("[10", "[0")),
    "constants are packed": kernel(
        product("%x[%i, %r] * %w[%r, %j]"), "in %x: f32[6, 10], const %w: f32[10, 3], out %y: f32[6, 3]"
    ),
    "more is done with the sum": kernel(product(stored="tanh(%s)")),
    "both operands lie along it": kernel(
        product("%x[%i, %r] * %w[%j, %r]"), "in %x: f32[6, 10], in %w: f32[3, 10], out %y: f32[6, 3]"
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_reductions_that_are_not_blocked(case: str) -> None:
    check_pass(BLOCKS, before=WHOLE[case], after=interchanged(WHOLE[case]), machine=ALONE, idempotent=False)


def test_columns_that_read_the_same_stay() -> None:
    check_pass(BLOCKS, unchanged=kernel(product("%x[%r, %i] * %x[%r, %i]")), machine=ALONE)


# rows and columns


def matmul(
    loops: tuple[str, ...], role: str = "const", body: str = "%x[%i, %k] * %w[%j, %k]", kind: str = "parallel"
) -> str:
    heads = " ".join(f"{kind} {loop} {{" for loop in loops)
    return f"""kernel @k(in %x: f32[32, 2], {role} %w: f32[3, 2], out %y: f32[32, 3]) {{
      {heads} %s = reduce add %k in 0..2 {{ yield {body} }} store %s, %y[%i, %j] {"}" * len(loops)}
    }}"""


ROWS, COLUMNS = "%i in 0..32", "%j in 0..3"
SMALL = Machine(l2=2 * 16 * 2 * 4, l3_latency=0)
"""Half of whose second-level cache just holds 16 rows of `matmul`."""


def test_rows_that_fit_in_cache_go_inside() -> None:
    check_pass(
        "cache-blocking",
        before=matmul((ROWS, COLUMNS)),
        after=matmul((COLUMNS, ROWS)),
        remark="%w is read once per cached row block",
    )
    check_pass("cache-blocking", unchanged=matmul((COLUMNS, ROWS)))


def test_more_rows_go_inside_in_blocks() -> None:
    inner = "%i in %i.block*16..%i.block*16 + 16"
    check_pass(
        "cache-blocking",
        before=matmul((ROWS, COLUMNS)),
        after=matmul(("%i.block in 0..2", COLUMNS, inner)),
        machine=SMALL,
        idempotent=False,
    )


def test_rows_that_no_block_divides_leave_some_over() -> None:
    """41 rows, of which 16 fit: two blocks, and 9 behind them."""
    before = matmul(("%i in 0..41", COLUMNS)).replace("[32", "[41")
    blocks = matmul(("%i.block in 0..2", COLUMNS, "%i in %i.block*16..%i.block*16 + 16")).replace("[32", "[41")
    rest = """parallel %q in 0..3 { parallel %p in 32..41 {
        %t = reduce add %r in 0..2 { yield %x[%p, %r] * %w[%q, %r] } store %t, %y[%p, %q] } } }"""
    after = blocks.rsplit("}", 1)[0] + rest
    check_pass("cache-blocking", before=before, after=after, machine=SMALL, idempotent=False)


def test_results_of_short_sums_that_leave_the_cache_are_stored_row_by_row() -> None:
    check_pass("cache-blocking", unchanged=matmul((ROWS, COLUMNS)), machine=replace(SMALL, l3_latency=50))


def test_of_an_open_number_as_many_rows_as_fit_are_a_block() -> None:
    """Of seven or so with five pixels each, four fit: whatever the number is, the last ones follow behind the blocks."""

    def nest(*loops: str, end: str = "") -> str:
        heads = " ".join(f"parallel {loop} {{" for loop in loops)
        sums = f"%s{end} = reduce add %k{end} in 0..2 {{ yield %x[%i{end}, %p{end}, %k{end}] * %w[%j{end}, %k{end}] }}"
        return f"{heads} {sums} store %s{end}, %y[%i{end}, %p{end}, %j{end}] {'}' * len(loops)}"

    def kernel(body: str) -> str:
        sizes = "size n in 1..100 hint 7, in %x: f32[n, 5, 2], const %w: f32[3, 2], out %y: f32[n, 5, 3]"
        return f"kernel @k({sizes}) {{ {body} }}"

    before = kernel(nest("%i in 0..n", "%p in 0..5", "%j in 0..3"))
    blocks = nest("%i.block in 0..n//4", "%j in 0..3", "%i in %i.block*4..%i.block*4 + 4", "%p in 0..5")
    rest = nest("%j1 in 0..3", "%i1 in n//4*4..n", "%p1 in 0..5", end="1")
    check_pass(
        "cache-blocking",
        before=before,
        after=kernel(f"{blocks} {rest}"),
        machine=Machine(l2=2 * 4 * 5 * 2 * 4, l3_latency=0),
        idempotent=False,
    )


def test_rows_that_fit_in_no_block_go_inside_whole() -> None:
    check_pass("cache-blocking", before=matmul((ROWS, COLUMNS)), after=matmul((COLUMNS, ROWS)), machine=Machine(l2=16))


def test_without_a_constant_the_operand_of_the_inner_loop_counts() -> None:
    check_pass(
        "cache-blocking",
        before=matmul((ROWS, COLUMNS), "in"),
        after=matmul((COLUMNS, ROWS), "in"),
        idempotent=False,
        machine=Machine(vector_bits=64),
    )


def test_lanes_need_a_long_loop_where_a_window_is_short() -> None:
    """The weights of 32 channels, not the four columns of an image, lie in panels; three taps in a row hold no lanes."""
    product = (
        "%s = reduce add %r in 0..8, %t in TAPS { yield %x[%r, %j*2 + %t] * %w[%i, %r, %t] }  store %s, %y[%i, %j]"
    )
    params = "in %x: f32[8, 40], in %w: f32[32, 8, 24], out %y: f32[32, 4]"

    def nest(taps: str, *loops: str) -> str:
        return kernel(in_parallel(product.replace("TAPS", taps), *loops), params)

    channels, columns = "%i in 0..32", "%j in 0..4"
    for taps, outer, inner in (("0..3", channels, columns), ("0..24", columns, channels)):
        before, after = nest(taps, inner, outer), nest(taps, outer, inner)
        check_pass("cache-blocking", before=before, after=after, machine=ALONE, idempotent=False)


def test_serial_loops_and_other_reductions_stay() -> None:
    check_pass("cache-blocking", unchanged=matmul((ROWS, COLUMNS), kind="for"))
    check_pass("cache-blocking", unchanged=matmul((ROWS, COLUMNS), body="max(%x[%i, %k], %w[%k, %k])"))


def test_rows_follow_the_memory_of_what_they_read() -> None:
    """The columns of the result come first, but neighbours in the image lie along %i."""
    product = "%s = reduce add %r in 0..4 { yield %x[%r, %j, %i] * %w[%k, %r] }  store %s, %y[%k, %i, %j]"
    params = "in %x: f32[4, 8, 8], const %w: f32[32, 4], out %y: f32[32, 8, 8]"

    def nest(*loops: str) -> str:
        return kernel(in_parallel(product, *loops), params)

    before, after = nest("%i in 0..8", "%j in 0..8", "%k in 0..32"), nest("%k in 0..32", "%j in 0..8", "%i in 0..8")
    check_pass("cache-blocking", before=before, after=after, machine=ALONE)
