"""Two-level reductions: blocks of few long rows, and what stays one reduction."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from compiler.cost.machine import AVX512
from compiler.ir.interpret.structure import evaluate_graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.graph.two_level_reduction import TwoLevelReduction
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass

BLOCKS_OF_ANY_SIZE = "two-level-reduction{min-seconds=0, steps-per-thread=2}"
MACHINE = replace(AVX512, threads=2, launch_seconds=1e-11)
SMALL_CACHE = replace(MACHINE, l1=1 << 8)
"""Six blocks of 96 elements take half of it each."""
FAST_CACHES = replace(MACHINE, traffic_bytes_per_cycle=1 << 20)
"""Rows take no time to be read again."""


def test_a_long_row_is_reduced_in_blocks() -> None:
    check_pass(
        BLOCKS_OF_ANY_SIZE,
        before="graph(%x: f64[64]) { %y = sum %x {dims=[0]} return %y }",
        after="""graph(%x: f64[64]) {
          %reshape_0: f64[4, 16] = reshape %x {shape=[4, 16]}
          %sum_0: f64[4, 1] = sum %reshape_0 {dims=[1], keepdim=true}
          %sum_1: f64[1, 1] = sum %sum_0 {dims=[0, 1], keepdim=true}
          %y: f64[] = reshape %sum_1 {shape=[]}
          return %y }""",
        remark="reduced in 4 blocks, then these",
        machine=MACHINE,
        idempotent=False,
    )


@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin", "any", "all"])
@pytest.mark.parametrize("attrs", ["dims=[1, 2]", "dims=[0, 2], keepdim=true", "dims=[0, 1, 2]"])
def test_every_reduction_keeps_its_meaning(op: str, attrs: str) -> None:
    dtype = "bool" if op in ("any", "all") else "f32"
    before = parse_graph(f"graph(%x: {dtype}[32, 7, 6]) {{ %y = {op} %x {{{attrs}}} return %y }}")
    many_threads = Context(replace(MACHINE, threads=24))
    after = run_pipeline(before, "two-level-reduction{min-seconds=0, steps-per-thread=1}", many_threads)
    assert len(after.nodes) > len(before.nodes)
    check_equivalent(before, after)


def test_blocks_are_slices_of_memory() -> None:
    check_pass(
        BLOCKS_OF_ANY_SIZE,
        before="graph(%x: f64[64, 6]) { %t = permute %x {dims=[1, 0]} %y = sum %t {dims=[0, 1]} return %y }",
        after="""graph(%x: f64[64, 6]) {
          %t: f64[6, 64] = permute %x {dims=[1, 0]}
          %b: f64[6, 4, 16] = reshape %t {shape=[6, 4, 16]}
          %s: f64[1, 4, 1] = sum %b {dims=[0, 2], keepdim=true}
          %a: f64[1, 1, 1] = sum %s {dims=[0, 1, 2], keepdim=true}
          %y: f64[] = reshape %a {shape=[]}
          return %y }""",
        machine=MACHINE,
        idempotent=False,
    )


def test_blocks_fit_the_first_level_cache() -> None:
    graph = parse_graph("graph(%x: f32[1, 1048576]) { %y = amax %x {dims=[1]} return %y }")
    (n,) = graph.outputs
    machine = replace(AVX512, threads=2)
    blocks = TwoLevelReduction().for_machine(machine).blocks(graph, n, machine)
    assert (1048576 // blocks) * 4 <= machine.l1 // 2 < (1048576 // blocks) * 8


@pytest.mark.parametrize(
    "text",
    [
        "graph(%x: f32[2, 64]) { %y = sum %x {dims=[1]} return %y }",  # two rows for two threads
        "graph(%x: f32[61]) { %y = sum %x {dims=[0]} return %y }",  # a prime number
        "graph(%x: bf16[64]) { %y = sum %x {dims=[0]} return %y }",  # blocks would be rounded
        "graph(%x: f32[1, 9, 9]) { %y = max_pool %x {size=[3, 3], stride=[1, 1], dilation=[1, 1]} return %y }",
    ],
)
def test_other_reductions_stay(text: str) -> None:
    check_pass(BLOCKS_OF_ANY_SIZE, unchanged=text, machine=MACHINE)


def test_blocks_are_not_much_shorter_than_the_cache() -> None:
    """164 blocks would fit; the divisors of 2 * 3 * 82039 are far from that."""
    graph = parse_graph("graph(%x: f64[492234]) { %y = amin %x {dims=[0]} return %y }")
    (n,) = graph.outputs
    machine = replace(AVX512, threads=2)
    assert TwoLevelReduction().for_machine(machine).blocks(graph, n, machine) in (0, 6)


def test_rows_that_are_read_again_stay_in_cache() -> None:
    """Nine rows leave one of two threads idle for a tenth of the time; rows of 12 KiB are better kept for what follows."""
    rows = "graph(%x: f32[9, 3072]) { %e = exp %x  %s = sum %e {dims=[1], keepdim=true}"
    machine = replace(AVX512, threads=2, traffic_bytes_per_cycle=0.5)
    both = f"{rows}  %y = div %e, %s  return %y }}"
    check_pass("two-level-reduction{min-seconds=0}", unchanged=both, machine=machine)
    alone = run_pipeline(parse_graph(f"{rows}  return %s }}"), "two-level-reduction{min-seconds=0}", Context(machine))
    assert len(alone.nodes) > 4


EXPONENTIALS = """graph(%x: f64[64]) {
  %m = amax %x {dims=[0], keepdim=true}  %d = sub %x, %m  %e = exp %d  %s = sum %e {dims=[0], keepdim=true}  %y = div %e, %s
  return %y }"""


def test_exponentials_wait_for_the_maximum_of_their_block() -> None:
    check_pass(
        BLOCKS_OF_ANY_SIZE,
        before=EXPONENTIALS,
        after="""graph(%x: f64[64]) {
          %b: f64[4, 16] = reshape %x {shape=[4, 16]}
          %m: f64[4, 1] = amax %b {dims=[1], keepdim=true}
          %infinite: bool[4, 1] = isinf %m
          %shift: f64[4, 1] = where %infinite, 0.0, %m
          %d: f64[4, 16] = sub %b, %shift
          %p: f64[4, 16] = exp %d
          %above: bool[4, 1] = eq %m, inf
          %bounded: f64[4, 1] = where %above, 0.0, %m
          %b.1: f64[4, 16] = reshape %x {shape=[4, 16]}
          %m.1: f64[4, 1] = amax %b.1 {dims=[1], keepdim=true}
          %top: f64[1, 1] = amax %m.1 {dims=[0, 1], keepdim=true}
          %m.2: f64[1] = reshape %top {shape=[1]}
          %t: f64[1, 1] = reshape %m.2 {shape=[1, 1]}
          %rest: f64[4, 1] = sub %bounded, %t
          %f: f64[4, 1] = exp %rest
          %sum: f64[4, 1] = sum %p {dims=[1], keepdim=true}
          %scaled: f64[4, 1] = mul %sum, %f
          %total: f64[1, 1] = sum %scaled {dims=[0, 1], keepdim=true}
          %s: f64[1] = reshape %total {shape=[1]}
          %divisor: f64[1, 1] = reshape %s {shape=[1, 1]}
          %q: f64[4, 1] = div %f, %divisor
          %r: f64[4, 16] = mul %p, %q
          %y: f64[64] = reshape %r {shape=[64]}
          return %y }""",
        machine=FAST_CACHES,
        idempotent=False,
    )


@pytest.mark.parametrize(
    "rest",
    [
        "%y = div %e, %s",
        "%l = log %s  %n = sub %x, %m  %y = sub %n, %l",
        "%a = mul %e, %e  %q = div %e, %s  %y = add %q, %a",  # all uses of the exponentials
        "%y = div %s, %e",
    ],
)
@pytest.mark.parametrize("special", [None, -inf, inf, nan])
@pytest.mark.parametrize("guard", ["", "%i = isinf %t  %m = where %i, 0.0, %t"])
def test_rows_with_special_values(rest: str, special: float | None, guard: str) -> None:
    """Blocks of -inf, an infinite maximum, NaN, rows of -inf."""
    name = "%t" if guard else "%m"
    text = f"""graph(%x: f32[3, 64]) {{ {name} = amax %x {{dims=[1], keepdim=true}}  {guard}
      %d = sub %x, %m  %e = exp %d  %s = sum %e {{dims=[1], keepdim=true}}  {rest}  return %y }}"""
    before = parse_graph(text)
    after = run_pipeline(before, BLOCKS_OF_ANY_SIZE, Context(FAST_CACHES))
    assert sum(n.op.name == "amax" for n in after.nodes) > 1
    x = 3 * np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    if special is not None:
        x[0, 32:] = x[1, 40] = x[2] = special
    with np.errstate(all="ignore"):
        expected, got = (evaluate_graph(g, [x])[0] for g in (before, after))
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-7)


def test_long_rows_are_read_for_exponentials_while_they_are_in_cache() -> None:
    """Two rows for two threads: of 4 MiB, that no kernel keeps."""
    rows = EXPONENTIALS.replace("f64[64]", "f32[2, 1048576]").replace("dims=[0]", "dims=[1]")
    machine, both = replace(AVX512, threads=2), parse_graph(rows)
    assert len(run_pipeline(both, "two-level-reduction", Context(machine)).nodes) > len(both.nodes)
    short = parse_graph(rows.replace("1048576", "65536"))
    assert run_pipeline(short, "two-level-reduction", Context(machine)) is short


def test_blocks_that_are_joined_again_are_taken_as_they_are() -> None:
    """6 blocks of 16 elements would be enough for the cache, but 8 of 12 are there."""
    text = """graph(%x: f64[8, 12], %z: f64[96]) {{
      %r = reshape %x {{shape=[96]}} %m = mul {factors} %y = sum %m {{dims=[0]}} return %y }}"""
    for factors, blocks in (("%r, %z", 8), ("%z, %z", 6)):
        graph = run_pipeline(parse_graph(text.format(factors=factors)), BLOCKS_OF_ANY_SIZE, Context(SMALL_CACHE))
        shapes = [n.shape for n in graph.nodes if n.type.rank == 2 and n.operands]
        assert (blocks, 96 // blocks) in shapes
