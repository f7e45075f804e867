"""Two-level search for the index of an extreme value: when, and with the same result."""

from __future__ import annotations

import pytest

from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass

SMALL = "two-level-argmax{min-seconds=0, min-block=2, lookup-ops=0}"


def test_only_one_block_is_searched() -> None:
    check_pass(
        SMALL,
        before="""graph(%x: i32[3, 12]) {
          %m = amax %x {dims=[1], keepdim=true}  %e = eq %x, %m  %i = iota {size=12}  %j = reshape %i {shape=[1, 12]}
          %w = where %e, %j, 12  %y = amin %w {dims=[1]} return %y }""",
        after="""graph(%x: i32[3, 12]) {
          %b = reshape %x {shape=[3, 4, 3]}
          %p = amax %b {dims=[2]}
          %t = amax %p {dims=[1], keepdim=true}
          %e = eq %p, %t
          %i = iota {size=4}
          %j = reshape %i {shape=[1, 4]}
          %w = where %e, %j, 4
          %first = amin %w {dims=[1], keepdim=true}
          %s = mul %first, 3
          %n = reshape %first {shape=[3, 1, 1]}
          %a = expand %n {shape=[3, 1, 3]}
          %g = gather %b, %a {dim=1, in_bounds=true}
          %r = reshape %g {shape=[3, 3]}
          %u = amax %r {dims=[1], keepdim=true}
          %q = eq %r, %u
          %v = iota {size=3}
          %z = reshape %v {shape=[1, 3]}
          %o = where %q, %z, 3
          %c = amin %o {dims=[1], keepdim=true}
          %d = add %s, %c
          %y = reshape %d {shape=[3]}
          return %y }""",
        remark="searched in blocks of 3, then in one of them",
    )


@pytest.mark.parametrize(
    "text",
    [
        "graph(%x: f32[2, 12]) { %y = argmax %x {dim=1} return %y }",
        "graph(%x: f32[12, 3]) { %y = argmin %x {dim=0, keepdim=true} return %y }",
        "graph(%x: f32[12]) { %y = argmax %x {dim=0} return %y }",
        "graph(%x: bf16[2, 12, 3]) { %y = argmin %x {dim=1} return %y }",
        "graph(%x: i64[2, 18]) { %y = argmax %x {dim=1} return %y }",
        "graph(%x: f32[2, 3, 4]) { %r = reshape %x {shape=[2, 12]}  %y = argmax %r {dim=1} return %y }",
    ],
)  # fmt: skip
def test_every_first_index_is_kept(text: str) -> None:
    """Special inputs have NaN, infinities and zeros of both signs."""
    before = run_pipeline(parse_graph(text), "decompose,canonicalize")
    after = run_pipeline(before, SMALL)
    assert "gather" in {n.op.name for n in after.nodes}
    check_equivalent(before, after)


@pytest.mark.parametrize(
    "text",
    [
        "graph(%x: f32[2, 13]) { %y = argmax %x {dim=1} return %y }",
        "graph(%x: i32[11, 3]) { %y = argmin %x {dim=0, keepdim=true} return %y }",
        "graph(%x: bf16[2, 17, 3]) { %y = argmax %x {dim=1} return %y }",
        "graph(%x: f32[1, 13]) { %v = amax %x {dims=[1]}  %y = argmax %x {dim=1} return %v, %y }",
    ],
)
def test_what_blocks_leave_over_is_a_block_of_its_own(text: str) -> None:
    """No number of blocks divides these rows."""
    before = run_pipeline(parse_graph(text), "decompose,canonicalize")
    after = run_pipeline(before, SMALL)
    assert {"gather", "slice", "cat"} <= {n.op.name for n in after.nodes}
    check_equivalent(before, after)


def test_the_value_comes_from_the_same_blocks() -> None:
    text = "graph(%x: f32[1, 12]) { %v = amax %x {dims=[1]}  %y = argmax %x {dim=1} return %v, %y }"
    before = run_pipeline(parse_graph(text), "decompose,canonicalize")
    after = run_pipeline(before, f"{SMALL},cse")
    assert len([n for n in after.nodes if n.op.name == "amax" and n.operands[0].type.numel == 12]) == 1
    check_equivalent(before, after)


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        ("graph(%x: f32[1, 800000]) { %y = argmax %x {dim=1} return %y }", True),
        ("graph(%x: f32[1, 800]) { %y = argmax %x {dim=1} return %y }", False),  # takes no time
        ("graph(%x: f32[1000, 800]) { %y = argmax %x {dim=1} return %y }", False),  # short rows
        ("graph(%x: f32[1, 799999]) { %y = argmax %x {dim=1} return %y }", True),  # a prime, with a rest
        ("graph(%x: f32[4000, 256]) { %y = argmax %x {dim=0} return %y }", True),  # in blocks of some dozen rows
        ("graph(%x: f32[16, 65536]) { %y = argmax %x {dim=0} return %y }", False),  # looking up takes longer than all comparisons
        ("graph(%x: f32[1, 800000]) { %e = exp %x  %y = argmax %e {dim=1} return %y }", False),  # not in memory
        ("graph(%x: f32[1, 800000], %z: f32[1, 800000]) { %m = amax %z {dims=[1], keepdim=true}  %e = eq %x, %m  %n = isnan %x"
         "  %o = or %e, %n  %i = iota {size=800000}  %w = where %o, %i, 800000  %y = amin %w {dims=[1]} return %y }", False),
    ],
)  # fmt: skip
def test_long_rows_in_memory_are_searched(text: str, searched: bool) -> None:
    context = Context()
    run_pipeline(parse_graph(text), "decompose,canonicalize,two-level-argmax", context)
    assert any("searched in blocks" in r.message for r in context.remarks) == searched


def test_nodes_with_several_results_are_left_alone() -> None:
    check_pass(
        SMALL,
        unchanged="""graph(%x: f32[4, 9]) { %t = topk %x {k=3, dim=1}  %i = tuple_get %t {index=1}
          %y = amin %i {dims=[1]} return %y }""",
    )
