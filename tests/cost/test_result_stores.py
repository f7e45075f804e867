"""result_stores: contractions whose results leave the caches before their sums could hide it."""

from __future__ import annotations

import pytest

from compiler.analysis.accesses import Accesses
from compiler.analysis.operand_reuse import match_contraction_reuse
from compiler.cost.machine import Machine
from compiler.cost.result_stores import cycles_per_line, streams_results
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.loop_nest import perfect_nest

NEAR = Machine(l2=64 * 32 * 4 - 1)
"""Whose second-level cache is a byte too small for the results of `product`."""


def judged(
    machine: Machine, depth: int = 4, result: str = "%y[%i, %j]", shape: str = "64, 32", dtype: str = "f32"
) -> tuple[bool, float]:
    kernel = parse_kernel(f"""kernel @k(in %x: {dtype}[64, {depth}], in %w: {dtype}[{depth}, 32], out %y: {dtype}[{shape}]) {{
      parallel %i in 0..64 {{ parallel %j in 0..32 {{
        %s = reduce add %k in 0..{depth} {{ yield %x[%i, %k] * %w[%k, %j] }} store %s, {result} }} }} }}""")
    table = Accesses(kernel)
    reuse = match_contraction_reuse(table, perfect_nest(kernel.body))
    assert reuse is not None
    return streams_results(table, reuse, machine), cycles_per_line(table, reuse, machine)


@pytest.mark.parametrize(
    ("why", "machine", "depth", "streams"),
    [
        ("results leave the cache", NEAR, 4, True),
        ("results stay in the cache", Machine(l2=64 * 32 * 4), 4, False),
        ("long sums hide their lines", NEAR, 28, True),
        ("long sums hide their lines", Machine(l2=NEAR.l2, l3_latency=14), 28, False),
        ("panels leave half of the cache", NEAR, 31, True),
        ("panels leave half of the cache", NEAR, 32, False),
    ],
)
def test_short_sums_whose_results_leave_the_cache(why: str, machine: Machine, depth: int, streams: bool) -> None:
    assert judged(machine, depth)[0] == streams, why


def test_results_that_are_contiguous_along_rows_stay_in_panels() -> None:
    assert not judged(NEAR, result="%y[%j, %i]", shape="32, 64")[0]


def test_a_line_is_several_vectors_of_a_narrow_machine() -> None:
    assert judged(Machine(), 10)[1] == 10 / 2
    assert judged(Machine(vector_bits=256), 10)[1] == 10 * 2 / 2
    assert judged(Machine(), 10, dtype="f64")[1] == 10 / 2


@pytest.mark.parametrize(
    ("x", "index", "streams"), [("9, 64, 4", "%b, %i, %k", True), ("64, 9, 4", "%i, %b, %k", False)]
)
def test_rows_of_several_batches_reread_panels_of_the_first_level_cache(x: str, index: str, streams: bool) -> None:
    """Nine panels of 512 bytes are more than it holds; matrices one behind the other have one each."""
    kernel = parse_kernel(f"""kernel @k(in %x: f32[{x}], in %w: f32[9, 4, 32], out %y: f32[64, 9, 32]) {{
      parallel %b in 0..9 {{ parallel %i in 0..64 {{ parallel %j in 0..32 {{
        %s = reduce add %k in 0..4 {{ yield %x[{index}] * %w[%b, %k, %j] }} store %s, %y[%i, %b, %j] }} }} }} }}""")
    table = Accesses(kernel)
    reuse = match_contraction_reuse(table, perfect_nest(kernel.body))
    assert reuse is not None
    assert streams_results(table, reuse, Machine(l1=4096, l2=4 * 4096)) == streams
