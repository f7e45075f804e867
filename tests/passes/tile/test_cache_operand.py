"""stage: an operand turned once for many steps."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Local, Reduce, walk
from compiler.passes.base import Context
from compiler.passes.tile.cache_operand import CacheOperand, lanes_follow_sum
from compiler.testing.checks import check_pass

PARAMS = "in %x: f32[2, 16, 6], in %w: f32[2, 5, 6], out %y: f32[2, 16, 5]"


def attention(i: str, copy: str, second: str, params: str = PARAMS) -> str:
    return f"""kernel @k({params}) {{
      parallel %h in 0..2 {{ {copy} {i} {{ for %j in 0..5 {{
        %s = reduce add %r in 0..6 {{ yield %x[%h, %i, %r] * {second} }}
        store %s, %y[%h, %i, %j]
      }} }} }}
    }}"""


SCALARS = attention("for %i in 0..16", "", "%w[%h, %j, %r]")


def test_the_operand_is_turned_before_the_loop_that_uses_it_again() -> None:
    copy = "local %t: f32[6, 5] for %a in 0..6 { for %b in 0..5 { store %w[%h, %b, %a], %t[%a, %b] } }"
    check_pass(
        "cache-operand",
        before=SCALARS,
        after=attention("for %i in 0..16", copy, "%t[%r, %j]"),
        remark="%w cached transposed per %i",
    )


def test_weights_of_an_iteration_do_not_lie_along_its_loop() -> None:
    """Lanes along %i would have a buffer each, side by side, but would compute what fills it as well."""
    before = """kernel @k(in %x: f32[2, 16, 6], in %w: f32[2, 5, 6], out %y: f32[2, 16, 5]) {
      parallel %h in 0..2 { parallel %i in 0..16 {
        local %p: f32[6]
        for %q in 0..6 { store exp(%x[%h, %i, %q]), %p[%q] }
        for %j in 0..5 { %s = reduce add %r in 0..6 { yield %p[%r] * %w[%h, %j, %r] } store %s, %y[%h, %i, %j] }
      } } }"""
    copy = "local %t: f32[6, 5] for %a in 0..6 { for %b in 0..5 { store %w[%h, %b, %a], %t[%a, %b] } } parallel %i"
    after = before.replace("parallel %i", copy).replace("%w[%h, %j, %r]", "%t[%r, %j]")
    check_pass("cache-operand", before=before, after=after, remark="%w cached transposed per %i")


def vectors_across(depth: int, rows: int = 16, w: str = "{d}, 4", w_index: str = "%r, %h", copy: str = "") -> str:
    return f"""kernel @k(in %x: f32[4, {rows}, {depth}], in %w: f32[{w.format(d=depth)}], out %y: f32[4, {rows}]) {{
      parallel %h in 0..4 {{ {copy} parallel %i in 0..{rows} {{
        %s = reduce add %r in 0..{depth} {{ yield %x[%h, %i, %r] * {f"%w[{w_index}]" if not copy else "%t[%r]"} }}
        store %s, %y[%h, %i]
      }} }}
    }}"""


def test_an_operand_across_the_sum_is_copied_where_the_other_one_lies_along_it() -> None:
    copy = "local %t: f32[40] for %a in 0..40 { store %w[%a, %h], %t[%a] }"
    check_pass(
        "cache-operand",
        before=vectors_across(40),
        after=vectors_across(40, copy=copy),
        remark="%w cached transposed per %i",
    )


def few_columns(columns: int, copy: str = "", x: str = "%x[%r, %j]") -> str:
    return f"""kernel @k(in %x: f32[64, {columns}], in %w: f32[16, 64], out %y: f32[16, {columns}]) {{ {copy}
      parallel %i in 0..16 {{ parallel %j in 0..{columns} {{
        %s = reduce add %r in 0..64 {{ yield {x} * %w[%i, %r] }}
        store %s, %y[%i, %j]
      }} }}
    }}"""


def test_few_columns_across_a_long_sum_are_copied_along_it() -> None:
    """Lanes along so few columns would be idle."""
    copy = "local %t: f32[3, 64] for %a in 0..3 { for %b in 0..64 { store %x[%b, %a], %t[%a, %b] } }"
    check_pass("cache-operand", before=few_columns(3), after=few_columns(3, copy, "%t[%j, %r]"))
    check_pass("cache-operand", unchanged=few_columns(12))


@pytest.mark.parametrize(
    "text",
    [
        vectors_across(8),
        vectors_across(40, rows=2),
        vectors_across(40, w="4, {d}", w_index="%h, %r"),
        vectors_across(40).replace("%x[%h, %i, %r]", "%x[%h, %r, %i]").replace("[4, 16, 40]", "[4, 40, 16]"),
        vectors_across(40, w_index="%r, %n")
        .replace("%s =", "%n = min(%q[%h], 3) %s =")
        .replace("in %w", "in %q: i64[4], in %w"),
    ],
    ids=["few products", "few rows", "along the sum", "contiguous rows", "a gather"],
)
def test_operands_of_sums_that_stay(text: str) -> None:
    check_pass("cache-operand", unchanged=text)


def heads_innermost(heads: int, x: str, x_index: str, copy: str = "", w: str = "%w[%r, %j, %h]") -> str:
    return f"""kernel @k(in %x: f32[{x}], in %w: f32[6, 5, {heads}], out %y: f32[{heads}, 64, 5]) {{
      parallel %h in 0..{heads} {{ {copy} parallel %i in 0..64 {{ for %j in 0..5 {{
        %s = reduce add %r in 0..6 {{ yield %x[{x_index}] * {w} }}
        store %s, %y[%h, %i, %j]
      }} }} }}
    }}"""


@pytest.mark.parametrize(
    ("heads", "x", "x_index"),
    [(8, "8, 64, 6", "%h, %i, %r"), (8, "64, 6, 8", "%i, %r, %h"), (32, "32, 64, 6", "%h, %i, %r")],
)
def test_columns_that_lie_apart_are_moved_side_by_side(heads: int, x: str, x_index: str) -> None:
    """Lanes along the heads would be too few, or gather the other operand."""
    copy = "local %t: f32[6, 5] for %a in 0..6 { for %b in 0..5 { store %w[%a, %b, %h], %t[%a, %b] } }"
    before = heads_innermost(heads, x, x_index)
    check_pass("cache-operand", before=before, after=heads_innermost(heads, x, x_index, copy, "%t[%r, %j]"))


def test_lanes_lie_along_many_heads() -> None:
    check_pass("cache-operand", unchanged=heads_innermost(32, "64, 6, 32", "%i, %r, %h"))


def test_two_register_tiles_read_columns_where_they_lie() -> None:
    few = heads_innermost(8, "8, 64, 6", "%h, %i, %r").replace("64", "16")
    check_pass("cache-operand", unchanged=few)


def test_copies_count_from_where_their_loops_start() -> None:
    text = """kernel @k(in %x: f32[32, 6], in %w: f32[5, 6], out %y: f32[32, 5]) {{
      for %b in 0..2 {{ for %i in %b*16..%b*16 + 16 {{ {copy} for %j in 2..5 {{
        %s = reduce add %r in 1..6 {{ yield {value} }}
        store %s, %y[%i, %j]
      }} }} }}
    }}"""
    swapped = text.replace(
        "for %i in %b*16..%b*16 + 16 {{ {copy} for %j in 2..5 {{",
        "{copy} for %j in 0..5 {{ for %i in %b*16..%b*16 + 16 {{",
    )
    check_pass(
        "cache-operand{min-reuse=5}",
        before=swapped.format(copy="", value="%x[%i, %r] * %w[%j, 5]"),
        after=swapped.format(
            copy="local %t: f32[5, 16] for %a in 1..6 { for %c in %b*16..%b*16 + 16 { store %x[%c, %a], %t[%a - 1, %c - %b*16] } }",
            value="%t[%r - 1, %i - %b*16] * %w[%j, 5]",
        ),
    )


def test_siblings_of_one_name_are_told_apart() -> None:
    check_pass(
        "cache-operand",
        before="""kernel @k(in %x: f32[16, 6], in %w: f32[5, 6], in %v: f32[3, 4], out %y: f32[16, 5], out %z: f32[16, 3]) {
          for %i in 0..16 { for %j in 0..5 {
            %s = reduce add %r in 0..6 { yield %x[%i, %r] * %w[%j, %r] }
            store %s, %y[%i, %j] } }
          for %i in 0..16 { for %j in 0..3 {
            %s = reduce add %r in 0..4 { yield %x[%i, %r] * %v[%j, %r] }
            store %s, %z[%i, %j] } }
        }""",
        after="""kernel @k(in %x: f32[16, 6], in %w: f32[5, 6], in %v: f32[3, 4], out %y: f32[16, 5], out %z: f32[16, 3]) {
          local %t: f32[6, 5] for %a in 0..6 { for %b in 0..5 { store %w[%b, %a], %t[%a, %b] } }
          for %i in 0..16 { for %j in 0..5 {
            %s = reduce add %r in 0..6 { yield %x[%i, %r] * %t[%r, %j] }
            store %s, %y[%i, %j] } }
          local %u: f32[4, 3] for %c in 0..4 { for %d in 0..3 { store %v[%d, %c], %u[%c, %d] } }
          for %k in 0..16 { for %l in 0..3 {
            %n = reduce add %m in 0..4 { yield %x[%k, %m] * %u[%m, %l] }
            store %n, %z[%k, %l] } }
        }""",
    )


STAY = {
    "the other operand lies along a loop of whole lanes": SCALARS.replace("%x[%h, %i, %r]", "%x[%h, %r, %i]").replace(
        "16, 6]", "6, 16]"
    ),
    "constants are packed instead": SCALARS.replace("in %w", "const %w"),
    "too few steps": SCALARS.replace("16", "15"),
    "neighbours lie along the lanes already": SCALARS.replace("%w[%h, %j, %r]", "%w[%h, %r, %j]").replace(
        "5, 6]", "6, 5]"
    ),
    "a gather": SCALARS.replace("%s =", "%n = min(%q[%j], 4) %s =")
    .replace("%w[%h, %j, %r]", "%w[%h, %n, %r]")
    .replace("in %w", "in %q: i64[5], in %w"),
    "guarded by a mask": SCALARS.replace("%w[%h, %j, %r]", "load(%w[%h, %j, %r + 1], index(%r) < 5, 0.0)"),
    "written by the kernel": SCALARS.replace("in %w", "inout %w"),
    "one operand": SCALARS.replace("%x[%h, %i, %r] *", "2.0 +"),
}


@pytest.mark.parametrize("case", STAY)
def test_operands_that_stay(case: str) -> None:
    check_pass("cache-operand", unchanged=STAY[case])


def test_a_copy_has_a_greatest_size() -> None:
    check_pass("cache-operand{max-elements=29}", unchanged=SCALARS)


def test_few_columns_leave_lanes_to_a_long_reduction() -> None:
    few = """kernel @k(in %x: f32[512, 64], in %w: f32[3, 64], out %y: f32[512, 3]) {
      for %i in 0..512 { for %j in 0..3 {
        %s = reduce add %r in 0..64 { yield %x[%i, %r] * %w[%j, %r] }
        store %s, %y[%i, %j]
      } }
    }"""
    check_pass("cache-operand", unchanged=few)


@pytest.mark.parametrize(
    ("columns", "depth", "follow"), [(3, 64, True), (9, 64, False), (9, 200, True), (1, 16, True), (5, 15, False)]
)
def test_lanes_follow_long_sums_of_few_columns(columns: int, depth: int, follow: bool) -> None:
    """The lanes of each result are added; a vector of columns is added as it is."""
    assert lanes_follow_sum(columns, depth, 16) == follow


def test_few_columns_have_lanes_along_the_sum_only_if_all_operands_do() -> None:
    before = """kernel @k(in %x: f32[4, 3, 64], in %w: f32[32, 64, 9], out %y: f32[4, 3, 32]) {
      for %a in 0..4 { for %b in 0..3 { for %i in 0..32 {
        %s = reduce add %r in 0..64 { yield %x[%a, %b, %r] * %w[%i, %r, 2] }
        store %s, %y[%a, %b, %i]
      } } }
    }"""
    copy = "for %b in 0..3 { local %t: f32[64] for %c in 0..64 { store %x[%a, %b, %c], %t[%c] }"
    after = before.replace("for %b in 0..3 {", copy).replace("%x[%a, %b, %r] *", "%t[%r] *")
    check_pass("cache-operand", before=before, after=after)
    along = before.replace("[32, 64, 9]", "[32, 9, 64]").replace("%w[%i, %r, 2]", "%w[%i, 2, %r]")
    check_pass("cache-operand", unchanged=along)


PRODUCT = """kernel @k(in %x: f32[40, 32], in %w: f32[70, 32], out %y: f32[40, 70]) {{ {} }}"""
SUM = "%s = reduce add %r in 0..32 {{ yield %x[%i, %r] * {} }} store %s, %y[%i, %j]"


def test_columns_in_panels_as_wide_as_a_register_tile() -> None:
    """The copy of a panel has lanes of its own; the few columns that are left have a copy too."""
    check_pass(
        "cache-operand",
        before=PRODUCT.format(f"parallel %j in 0..70 {{ parallel %i in 0..40 {{ {SUM.format('%w[%j, %r]')} }} }}"),
        after=PRODUCT.format(f"""
          parallel %p in 0..2 {{
            local %t: f32[32, 32]
            for %a in 0..32 {{ for %b in %p*32..%p*32 + 32 {{ store %w[%b, %a], %t[%a, %b - %p*32] }} }}
            parallel %i in 0..40 {{ parallel %j in %p*32..%p*32 + 32 {{ {SUM.format("%t[%r, %j - %p*32]")} }} }}
          }}
          local %e: f32[32, 6]
          for %c in 0..32 {{ for %d in 64..70 {{ store %w[%d, %c], %e[%c, %d - 64] }} }}
          parallel %k in 0..40 {{ parallel %l in 64..70 {{
            %u = reduce add %q in 0..32 {{ yield %x[%k, %q] * %e[%q, %l - 64] }}
            store %u, %y[%k, %l]
          }} }}"""),
        remark="%j in panels of 32",
    )


def test_keys_whose_heads_are_innermost_are_copied_and_queries_are_not() -> None:
    text = """kernel @k(in %x: f32[3, 20, 6], in %w: f32[64, 6, 3], out %y: f32[3, 20, 64]) {{
      parallel %h in 0..3 {{ {loops} {{ %s = reduce add %r in 0..6 {{ yield %x[%h, %i, %r] * {key} }} store %s, %y[%h, %i, %j] }} }} {end} }}
    }}"""
    check_pass(
        "cache-operand",
        before=text.format(loops="parallel %j in 0..64 { parallel %i in 0..20", key="%w[%j, %r, %h]", end=""),
        after=text.format(
            loops="""parallel %p in 0..1 { local %t: f32[6, 64]
              for %a in 0..6 { for %b in %p*64..%p*64 + 64 { store %w[%b, %a, %h], %t[%a, %b - %p*64] } }
              parallel %i in 0..20 { parallel %j in %p*64..%p*64 + 64""",
            key="%t[%r, %j - %p*64]",
            end="}",
        ),
    )


def test_the_operand_whose_lanes_store_in_order_is_copied() -> None:
    """To copy %x would move fewer elements, but its lanes would store columns."""
    loops = "parallel %j in 0..70 {{ {} parallel %i in 0..20 {{ {} }} }}"
    few = PRODUCT.replace("f32[40, 70]", "f32[70, 40]").replace("40", "20").format
    transposed = SUM.replace("%y[%i, %j]", "%y[%j, %i]")
    copy = "local %t: f32[32, 20] for %a in 0..32 { for %b in 0..20 { store %x[%b, %a], %t[%a, %b] } }"
    check_pass(
        "cache-operand",
        before=few(loops.format("", transposed.format("%w[%j, %r]"))),
        after=few(copy + loops.format("", transposed.replace("%x[%i, %r]", "%t[%r, %i]").format("%w[%j, %r]"))),
    )


def test_panels_of_a_short_sum_fill_half_of_the_first_level_cache() -> None:
    text = """kernel @k(in %x: f32[40, 5], in %w: f32[4000, 5], out %y: f32[40, 4000]) {
      parallel %j in 0..4000 { parallel %i in 0..40 {
        %s = reduce add %r in 0..5 { yield %x[%i, %r] * %w[%j, %r] } store %s, %y[%i, %j]
      } }
    }"""
    result = CacheOperand().for_machine(AVX512).run(parse_kernel(text), Context(AVX512))
    panel = next(s.type for s in walk(result.body) if isinstance(s, Local))
    assert isinstance(panel.nbytes, int)
    assert AVX512.l1 // 4 < panel.nbytes <= AVX512.l1 // 2


def test_a_panel_is_not_wider_than_the_loop() -> None:
    text = """kernel @k(in %x: f32[40, 92, 5], in %w: f32[40, 70, 5], out %y: f32[40, 92, 70]) {
      parallel %b in 0..40 { parallel %j in 0..70 { parallel %i in 0..92 {
        %s = reduce add %r in 0..5 { yield %x[%b, %i, %r] * %w[%b, %j, %r] } store %s, %y[%b, %i, %j]
      } } }
    }"""
    result = CacheOperand().for_machine(AVX512).run(parse_kernel(text), Context(AVX512))
    (sum_,) = [s for s in walk(result.body) if isinstance(s, Reduce)]
    assert [s.type.static_shape() for s in walk(result.body) if isinstance(s, Local)] == [(5, 70)], sum_


def test_operands_of_bound_values_are_copied() -> None:
    """A squared distance reads its operands in a value that it binds."""
    distance = "{ %v = %x[%h, %i, %r] - SECOND  yield %v * %v }"
    copy = "local %t: f32[6, 5] for %a in 0..6 { for %b in 0..5 { store %w[%h, %b, %a], %t[%a, %b] } }"
    before = SCALARS.replace("{ yield %x[%h, %i, %r] * %w[%h, %j, %r] }", distance.replace("SECOND", "%w[%h, %j, %r]"))
    after = attention("for %i in 0..16", copy, "%w[%h, %j, %r]").replace(
        "{ yield %x[%h, %i, %r] * %w[%h, %j, %r] }", distance.replace("SECOND", "%t[%r, %j]")
    )
    check_pass("cache-operand", before=before, after=after, remark="%w cached transposed per %i")


def image(columns: str, w: str, copy: str = "") -> str:
    """A convolution with weights that are arguments, whose channels lie apart; rows of the image are shorter than a vector."""
    return f"""kernel @k(in %x: f32[2, 8, 8], in %w: f32[17, 2, 2], out %y: f32[17, 4, {columns}]) {{
      {copy} for %i in 0..4 {{ for %j in 0..{columns} {{ for %c in 0..17 {{
        %s = reduce add %r in 0..2, %a in 0..2 {{ yield %x[%r, %i*2, %j*2 + %a] * {w} }}
        store %s, %y[%c, %i, %j]
      }} }} }}
    }}"""


COPIED = """local %t: f32[2, 2, 17]
  for %u in 0..2 { for %v in 0..2 { for %d in 0..17 { store %w[%d, %u, %v], %t[%u, %v, %d] } } }"""


def test_several_short_loops_reread_an_operand_often() -> None:
    """Four rows of four results are sixteen."""
    check_pass(
        "cache-operand",
        before=image("4", "%w[%c, %r, %a]"),
        after=image("4", "%t[%r, %a, %c]", COPIED),
        remark="%w cached transposed per %i",
    )
    check_pass("cache-operand{min-reuse=18}", unchanged=image("4", "%w[%c, %r, %a]"))
