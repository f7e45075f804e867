"""block-sums: long sums of products, a block after the other."""

from __future__ import annotations

import pytest

from compiler.cost.machine import Machine
from compiler.testing.checks import check_pass

BLOCKS = "block-reductions{block-size=4,min-depth=8,conflict-stride=32}"
ALONE, TWO = Machine(threads=1), Machine(threads=2)
PARAMS = "in %x: f32[10, 6], in %w: f32[10, 3], out %y: f32[6, 3]"


def kernel(body: str, params: str = PARAMS) -> str:
    return f"kernel @k({params}) {{ {body} }}"


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
    part = "%n*32..min(%n*32 + 32, 40)".replace("%n", "%h")
    if long == "rows":
        params, body = PARAMS.replace("6]", "40]").replace("[6", "[40"), in_blocks(rows=part)
        before = product().replace("0..6", "0..40")
    else:
        params, body = PARAMS.replace("3]", "40]"), in_blocks(columns=part)
        before = product().replace("0..3", "0..40")
    after = f"parallel %h in 0..2 {{ {body} }}"
    check_pass(BLOCKS, before=kernel(before, params), after=kernel(after, params), machine=TWO)


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
    check_pass(BLOCKS.replace("conflict-stride=32", "conflict-stride=64"), unchanged=before, machine=ALONE)


STAY = {
    "a short sum": kernel(product(length="7")),
    "constants are packed": kernel(product(), PARAMS.replace("in %w", "const %w")),
    "more is done with the sum": kernel(product(stored="tanh(%s)")),
    "both operands lie along it": kernel(
        product("%x[%i, %r] * %w[%j, %r]"), "in %x: f32[6, 10], in %w: f32[3, 10], out %y: f32[6, 3]"
    ),
    "columns read the same": kernel(product("%x[%r, %i] * %x[%r, %i]")),
}


@pytest.mark.parametrize("case", STAY)
def test_what_stays(case: str) -> None:
    check_pass(BLOCKS, unchanged=STAY[case], machine=ALONE)
