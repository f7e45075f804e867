"""interchange, collapse, distribute, unroll-and-jam: other shapes of the same nest."""

from __future__ import annotations

import pytest

from compiler.errors import TransformError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Block, Reduce
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, substitute_indices
from compiler.transforms.collapse import collapse
from compiler.transforms.distribute import backward_slice, distribute, distribute_at
from compiler.transforms.interchange import interchange
from compiler.transforms.unroll_and_jam import unroll_and_jam
from tests.transforms.apply import body_of, check_transform, loop_of


def copy(outer: str, inner: str) -> str:
    return f"""kernel @k(in %x: f32[4, 6], out %y: f32[6, 4]) {{
      {outer} {{ {inner} {{ store %x[%i, %j], %y[%j, %i] }} }} }}"""


ROWS, COLUMNS = "parallel %i in 0..4", "parallel %j in 0..6"


def reverse(body: Block) -> Block:
    nest = perfect_nest(body)
    return interchange(nest[::-1], nest[-1].body)


def test_interchange() -> None:
    check_transform(reverse, copy(ROWS, COLUMNS), copy(COLUMNS, ROWS))


@pytest.mark.parametrize(
    ("inner", "reason"),
    [("for %j in 0..6", "the order of the steps of %j matters"), ("parallel %j in %i..6", "of %j depend on %i")],
)
def test_orders_that_are_refused(inner: str, reason: str) -> None:
    with pytest.raises(TransformError, match=reason):
        reverse(body_of(copy(ROWS, inner)))


def collapsed(body: Block) -> Block:
    outer, inner = perfect_nest(body)
    loop, index = collapse(outer, inner)
    return wrap_in_nest([loop], tuple(substitute_indices(s, index) for s in inner.body))


def test_collapse() -> None:
    after = """kernel @k(in %x: f32[4, 6], out %y: f32[6, 4]) {
      parallel %i in 0..24 { store %x[%i//6, %i%6], %y[%i%6, %i//6] } }"""
    check_transform(collapsed, copy(ROWS, COLUMNS), after)


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ("for %j in 0..6", "only one of the loops %i and %j is parallel"),
        ("parallel %j in 1..6", "%j does not start at 0"),
        ("parallel %j in 0..%i", "the extent of %j is not a positive number"),
    ],
)
def test_nests_that_are_not_collapsed(inner: str, reason: str) -> None:
    with pytest.raises(TransformError, match=reason):
        collapsed(body_of(copy(ROWS, inner)))


def summed(epilogue: str, value: str = "%x[%i, %k]") -> str:
    return f"""kernel @k(in %x: f32[8, 5], inout %y: f32[8]) {{
      for %i in 0..8 tile 8 {{ %s = reduce add %k in 0..5 {{ yield {value} }} {epilogue} }} }}"""


def distributed(body: Block) -> Block:
    loop = loop_of(body)
    first = backward_slice(loop.body, {s.name for s in loop.body if isinstance(s, Reduce)})
    return distribute(loop, first, NameSupply(parse_kernel(summed("")).with_body(body)))


def test_distribute() -> None:
    check_transform(
        distributed,
        summed("%v = tanh(%s)  store %v * %v, %y[%i]"),
        """kernel @k(in %x: f32[8, 5], inout %y: f32[8]) {
          local %t: f32[8]
          for %i in 0..8 tile 8 { %s = reduce add %k in 0..5 { yield %x[%i, %k] }  store %s, %t[%i] }
          for %i in 0..8 { %v = tanh(%t[%i])  store %v * %v, %y[%i] } }""",
    )


def test_loops_that_are_not_distributed() -> None:
    with pytest.raises(TransformError, match="%y is stored to while reductions read it"):
        distributed(body_of(summed("store %s, %y[%i]", "%x[%i, %k] + %y[0]")))
    with pytest.raises(TransformError, match="statements other than"):
        distributed(body_of(summed("for %j in 0..2 { store %s, %y[%i] }")))


SCALED = """kernel @k(in %x: f32[8], out %y: f32[5, 8]) {
  parallel %i in 0..8 { %v = exp(%x[%i])  %w = %v * 2.0  for %k in 0..5 { store %w, %y[%k, %i] } } }"""


def test_distribute_at() -> None:
    check_transform(
        lambda b: distribute_at(loop_of(b), [1, 2], NameSupply(parse_kernel(SCALED))),
        SCALED,
        """kernel @k(in %x: f32[8], out %y: f32[5, 8]) {
          local %t: f32[8]
          local %u: f32[8]
          parallel %i in 0..8 { %v = exp(%x[%i])  store %v, %t[%i] }
          parallel %i in 0..8 { %v = %t[%i]  %w = %v * 2.0  store %w, %u[%i] }
          parallel %i in 0..8 { %w = %u[%i]  for %k in 0..5 { store %w, %y[%k, %i] } } }""",
    )
    with pytest.raises(TransformError, match="the order of the steps of %i matters"):
        distribute_at(loop_of(body_of(SCALED.replace("parallel", "for"))), [1], NameSupply(parse_kernel(SCALED)))


def test_unroll_and_jam() -> None:
    before = """kernel @k(in %x: f32[8, 5], out %y: f32[8, 5]) {
      parallel %i in 0..8 { for %k in 0..5 { store %x[%i, %k], %y[%i, %k] } } }"""
    check_transform(
        lambda b: (unroll_and_jam(loop_of(b), 4),), before, before.replace("%i in 0..8", "%i in 0..8 tile 4")
    )
    with pytest.raises(TransformError, match="the order of the steps of %i matters"):
        unroll_and_jam(loop_of(body_of(before.replace("parallel", "for"))), 4)
    with pytest.raises(TransformError, match="the bounds of %k depend on %i"):
        unroll_and_jam(loop_of(body_of(before.replace("0..5", "%i//2..5"))), 4)
