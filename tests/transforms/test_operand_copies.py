"""cache-operand and compute-at: where values are kept between loops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.errors import TransformError
from compiler.ir.scalar import Const
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.kernel import Block, loads, stmt_ranges, walk
from compiler.ir.types import boolean
from compiler.transforms.cache_operand import cache_operand
from compiler.transforms.compute_at import compute_at
from tests.transforms.apply import body_of, check_transform, loop_of

PRODUCT = """kernel @k(in %x: f32[4, 3], in %w: f32[2, 3], inout %y: f32[4, 2]) {
  for %i in 0..4 { for %j in 0..2 {
    %s = reduce add %r in 0..3 { yield %x[%i, %r] * %w[%j, %r] }  store %s, %y[%i, %j] } } }"""


def cached(body: Block, buffer: str = "w", masked: bool = False) -> Block:
    loop = loop_of(body)
    load = next(e for e in loads(body) if e.buffer == buffer)
    load = replace(load, mask=Const(boolean, True)) if masked else load
    ranges = {r.var: r for s in walk(body) for r in stmt_ranges(s)}
    return cache_operand((loop,), load, [ranges["r"], ranges["j"]], "copy", {})


def test_an_operand_is_copied_before_the_loop_that_rereads_it() -> None:
    check_transform(
        cached,
        PRODUCT,
        """kernel @k(in %x: f32[4, 3], in %w: f32[2, 3], inout %y: f32[4, 2]) {
          local %t: f32[3, 2]
          for %a in 0..3 { for %b in 0..2 { store %w[%b, %a], %t[%a, %b] } }
          for %i in 0..4 { for %j in 0..2 {
            %s = reduce add %r in 0..3 { yield %x[%i, %r] * %t[%r, %j] }  store %s, %y[%i, %j] } } }""",
    )


def test_copies_that_are_refused() -> None:
    with pytest.raises(TransformError, match="the operand depends on %i"):
        cached(body_of(PRODUCT), "x")
    with pytest.raises(TransformError, match="the operand depends on %j, bound in the loops that read it"):
        cache_operand(body_of(PRODUCT), next(e for e in loads(body_of(PRODUCT)) if e.buffer == "w"), [], "copy", {})
    with pytest.raises(TransformError, match="the load of %w is masked"):
        cached(body_of(PRODUCT), masked=True)
    with pytest.raises(TransformError, match="%y is stored to in the loops that read it"):
        cached(body_of(PRODUCT.replace("%w[%j, %r]", "%y[%r, %j]")), "y")


PRODUCER = parse_kernel("""kernel @pad(in %x: f32[4, 3], out %p: f32[4, 5]) {
  parallel %c in 0..4 { for %i in 0..3 { store %x[%c, %i], %p[%c, %i + 1] } }
  parallel %c in 0..4 { store 0.0, %p[%c, 0]  store 0.0, %p[%c, 4] } }""")
CONSUMER = """kernel @conv(in %p: f32[4, 5], out %y: f32[4, 3]) {
  parallel %d in 0..4 { for %j in 0..3 { store %p[%d, %j] + %p[%d, %j + 2], %y[%d, %j] } } }"""


def test_a_slice_is_computed_where_it_is_consumed() -> None:
    consumer = parse_kernel(CONSUMER)
    fused = compute_at(PRODUCER, consumer, PRODUCER.param("p"), consumer.param("p"), (0,), "both")
    expected = parse_kernel("""kernel @both(in %x: f32[4, 3], out %y: f32[4, 3]) {
      parallel %d in 0..4 {
        local %p: f32[5]
        for %i in 0..3 { store %x[%d, %i], %p[%i + 1] }
        store 0.0, %p[0]
        store 0.0, %p[4]
        for %j in 0..3 { store %p[%j] + %p[%j + 2], %y[%d, %j] } } }""")
    assert print_kernel(fused) == print_kernel(expected)


def test_dimensions_that_are_not_traversed_are_refused() -> None:
    consumer = parse_kernel(CONSUMER)
    with pytest.raises(TransformError, match="dimension 1 of %p is not traversed by one parallel loop"):
        compute_at(PRODUCER, consumer, PRODUCER.param("p"), consumer.param("p"), (1,), "both")
