"""hoist-operand: the arithmetic of an operand, once for all row tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.cost.machine import AVX512
from compiler.testing.checks import check_pass

CODES = "(cast<f32>(%w[%j, {r}] << 28 >> 28) * %s[%j, {r}//4])"
PARAMS = "in %x: f32[32, 8], const %w: i32[64, 8], const %s: f32[64, 2], out %y: f32[32, 64]"


def product(
    operand: str = CODES.format(r="%r"),
    before: str = "",
    rows: str = "for %i in 0..32 tile 8 {",
    lanes: str = "parallel %j in 0..64 tile 32 lanes 16",
    params: str = PARAMS,
) -> str:
    return f"""kernel @k({params}) {{ {lanes} {{ {before} {rows}
      %a = reduce add %r in 0..8 {{ yield %x[%i, %r] * {operand} }}
      store %a, %y[%i, %j]
    }} }} }}"""


def test_weights_are_unpacked_once_for_all_row_tiles() -> None:
    copy = f"local %u: f32[8] for %c in 0..8 {{ store {CODES.format(r='%c')}, %u[%c] }}"
    check_pass(
        "hoist-operand",
        before=product(),
        after=product("%u[%r]", copy),
        remark="an operand of %a computed once per %i",
    )


def test_values_bound_in_the_loop_are_computed_before_it() -> None:
    params, rows = PARAMS.replace("%s: f32[64, 2]", "%s: bf16[64]"), "for %i in 0..32 tile 8 { %v = cast<f32>(%s[%j])"
    copy = "local %u: f32[8] for %c in 0..8 { store cast<f32>(%w[%j, %c] << 28 >> 28) * cast<f32>(%s[%j]), %u[%c] }"
    check_pass(
        "hoist-operand",
        before=product("(cast<f32>(%w[%j, %r] << 28 >> 28) * %v)", "", rows, params=params),
        after=product("%u[%r]", copy, rows, params=params),
    )


def test_a_buffer_has_a_dimension_for_each_loop_inside() -> None:
    loops = "for %i in 0..8 tile 4 {{ for %p in 0..4 tile 2 {{ {}  store %a, %y[%i, %p, %j] }} }}"
    text = """kernel @k(in %x: f32[8, 8], const %w: i32[4, 64, 8], out %y: f32[8, 4, 64]) {{
      for %j in 0..64 tile 32 lanes 16 {{ {} }} }}"""
    operand = "(sqrt(cast<f32>(%w[{p}, %j, {r}])) / 3.0)"
    copy = f"local %u: f32[4, 8] for %q in 0..4 {{ for %c in 0..8 {{ store {operand.format(p='%q', r='%c')}, %u[%q, %c] }} }}"
    sums = [
        "%a = reduce add %r in 0..8 {{ yield {} * {} }}".format("%x[%i, %r]", o)
        for o in (operand.format(p="%p", r="%r"), "%u[%p, %r]")
    ]
    check_pass(
        "hoist-operand", before=text.format(loops.format(sums[0])), after=text.format(copy + loops.format(sums[1]))
    )


def test_conversions_in_the_units_of_multiply_adds_are_done_once() -> None:
    """Where they have units of their own, they cost nothing beside the products of a tile."""
    plain = product("cast<f32>(%w[%j, %r])").replace("0..32 tile", "0..64 tile").replace("f32[32, ", "f32[64, ")
    copy = "local %u: f32[8] for %c in 0..8 { store cast<f32>(%w[%j, %c]), %u[%c] }"
    hoisted = product("%u[%r]", copy).replace("0..32 tile", "0..64 tile").replace("f32[32, ", "f32[64, ")
    shared = replace(AVX512, converts_beside_products=False)
    check_pass("hoist-operand", before=plain, after=hoisted, machine=shared)
    check_pass("hoist-operand", unchanged=plain, machine=AVX512)


def test_an_operand_that_lanes_share_is_computed_before_the_loops_that_reuse_it() -> None:
    """Its conversions end in a broadcast, where a load from memory needs none."""
    text = """kernel @k(in %x: f32[64, 8, 32], const %w: f16[64, 8], out %y: f32[64, 64, 32]) {{
      parallel %i in 0..64 tile 16 {{ {} for %p in 0..64 {{ for %j in 0..32 tile 16 lanes 16 {{
        %a = reduce add %r in 0..8 {{ yield %x[%p, %r, %j] * {} }}
        store %a, %y[%i, %p, %j]
      }} }} }} }}"""
    copy = "local %u: f32[8] for %c in 0..8 { store cast<f32>(%w[%i, %c]), %u[%c] }"
    check_pass(
        "hoist-operand",
        before=text.format("", "cast<f32>(%w[%i, %r])"),
        after=text.format(copy, "%u[%r]"),
        remark="an operand of %a computed once per %p",
    )
    check_pass("hoist-operand", unchanged=text.format("", "cast<f32>(%w[%p, %r])"))
    shared = text.format("", "cast<f32>(%w[%i, %r])").replace("for %p", "parallel %p")
    check_pass("hoist-operand", unchanged=shared, machine=replace(AVX512, threads=8))


LONG = """kernel @k(in %x: f32[2, 12288], const %w: i32[16, 12288], out %y: f32[2, 16]) { parallel %j in 0..16 tile 16 lanes 16 {
  for %i in 0..2 { %a = reduce add %r in 0..12288 { yield %x[%i, %r] * sqrt(cast<f32>(%w[%j, %r] << 28 >> 28)) }
    store %a, %y[%i, %j] } } }"""


@pytest.mark.parametrize(
    "text",
    [
        product(rows="for %i in 0..8 tile 8 {"),
        product("%s[%j, %r//4]"),
        product("cast<f32>(%w[%j, %r])"),
        product("(cast<f32>(%w[%i, %r] << 28 >> 28) * %s[%j, %r//4])"),
        product(lanes="parallel %j in 0..64"),
        product("(cast<f32>(%w[%j, %r] << 28 >> 28) * %y[%r, %j])", params=PARAMS.replace("out %y", "inout %y")),
        product(
            "(cast<f32>(%w[%j, %r] << 28 >> 28) * %t)",
            rows="for %i in 0..32 tile 8 { %t = reduce add %k in 0..2 { yield %s[%j, %k] }",
        ),
        LONG,
    ],
    ids=["one row tile", "a load", "a conversion", "rows", "no lanes", "results", "a sum", "more than a cache"],
)
def test_what_stays(text: str) -> None:
    check_pass("hoist-operand", unchanged=text)


def test_widened_integers_stay_in_their_products() -> None:
    machine = replace(AVX512, converts_beside_products=False)
    kernel = """kernel @k(in %x: u8[64, 64], const %w: i8[9, 64], out %y: i32[64, 64]) {
      parallel %j in 0..64 tile 16 lanes 16 { for %i in 0..48 tile 12 {
        %a = reduce add %r in 0..9 unroll 9 { yield cast<i32>(%x[%i + %r, %j]) * cast<i32>(%w[%r, %j]) }
        store %a, %y[%i, %j]
      } } }"""
    check_pass("hoist-operand", unchanged=kernel, machine=machine)
