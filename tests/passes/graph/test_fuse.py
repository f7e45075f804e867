"""Fusion: what becomes one kernel, what does not, and why."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.cost.machine import AVX512, GPU, Machine
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import Fused
from compiler.ir.interpret.tile import run_program
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_program
from compiler.lowering.kernel import KernelLowering
from compiler.lowering.program import lower
from compiler.passes.base import Context
from compiler.passes.graph.fuse import Fuse, Group, GroupSearch
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass


def kernels(text: str, pipeline: str = "fuse") -> list[list[str]]:
    """The ops of each kernel, in order."""
    graph = run_pipeline(parse_graph(text), pipeline)
    bodies: list[Graph] = [n.attrs["body"] for n in graph.nodes if isinstance(n.structure, Fused)]
    return [[n.op.name for n in body.nodes if n.operands] for body in bodies]


def refusals(text: str) -> list[str]:
    """What fusion says it did not do."""
    context = Context()
    run_pipeline(parse_graph(text), "fuse", context)
    return [r.message for r in context.remarks if r.kind == "missed"]


def test_an_elementwise_chain_is_one_kernel() -> None:
    check_pass(
        "fuse",
        before="graph(%x: f32[4]) { %s = sigmoid %x  %y = mul %s, %x  return %y }",
        after="""graph(%x: f32[4]) {
          %y = fused %x {body=graph @mul(%x0: f32[4]) { %s = sigmoid %x0  %y = mul %s, %x0  return %y }}
          return %y }""",
    )


def test_broadcast_operands_join() -> None:
    text = "graph(%x: f32[4, 8], %b: f32[8]) { %e = mul %b, 2.0  %y = add %x, %e  return %y }"
    assert kernels(text) == [["mul", "add"]]


GATED = """graph(%x: f32[{rows}, 64], %v: f32[64, 256], %w: f32[64, 256]) {{
  %g = matmul %x, %v  %u = matmul %x, %w  %y = mul %g, %u  return %y }}"""


def test_products_of_a_vector_with_two_matrices_are_one_kernel() -> None:
    assert kernels(GATED.format(rows=1)) == [["matmul", "matmul", "mul"]]


def test_products_that_reread_their_matrices_are_separate_kernels() -> None:
    assert kernels(GATED.format(rows=8)) == [["matmul"], ["matmul", "mul"]]
    assert "matmul shrinks its operands: materialized" in refusals(GATED.format(rows=8))[0]


def test_products_that_are_added_are_separate_if_they_share_rows() -> None:
    """A sum over the columns of a product would take each column of the matrix alone, for all rows of %x."""
    text = "graph(%x: f32[16, 64], %w: f32[64, 96]) {{ %p = matmul %x, %w  %y = {op} %p {{dims=[1]}}  return %y }}"
    assert kernels(text.format(op="sum")) == [["matmul"], ["sum"]]
    assert kernels(text.format(op="amax").replace("16,", "1,")) == [["matmul", "amax"]]


def test_products_whose_rows_and_columns_are_added_are_separate() -> None:
    text = """graph(%x: f32[16, 64], %w: f32[64, 96]) {
      %p = matmul %x, %w  %r = reshape %p {shape=[8, 2, 48, 2]}  %y = sum %r {dims=[1, 3]}  return %y }"""
    assert kernels(text) == [["matmul"], ["reshape", "sum"]]


def test_disabled_fusion_makes_a_kernel_of_every_op() -> None:
    text = "graph(%x: f32[4]) { %s = sigmoid %x  %y = mul %s, %x  return %y }"
    assert kernels(text, "fuse{enabled=false}") == [["sigmoid"], ["mul"]]


def test_a_reduction_takes_what_feeds_and_what_follows_it() -> None:
    text = "graph(%x: f32[4, 8]) { %a = exp %x  %s = sum %a {dims=[1]}  %y = sqrt %s  return %y }"
    assert kernels(text) == [["exp", "sum", "sqrt"]]


SOFTMAX = """graph(%x: f32[4, 8]) {
  %m = amax %x {dims=[1], keepdim=true}  %d = sub %x, %m  %e = exp %d  %s = sum %e {dims=[1], keepdim=true}
  %y = div %e, %s  return %y }"""


def test_softmax_is_one_kernel() -> None:
    assert kernels(SOFTMAX) == [["amax", "sub", "exp", "sum", "div"]]


def test_layer_norm_is_one_kernel() -> None:
    text = "graph(%x: f32[4, 8], %w: f32[8], %b: f32[8]) { %y = layer_norm %x, %w, %b {dims=1, eps=1e-05}  return %y }"
    assert len(kernels(text, "decompose,fuse")) == 1


def test_a_contraction_takes_its_epilogue_and_views() -> None:
    text = """graph(%x: f32[8, 16], %w: f32[32, 16], %b: f32[32]) {
      %t = permute %w {dims=[1, 0]}  %m = matmul %x, %t  %a = add %m, %b  %y = relu %a  return %y }"""
    assert kernels(text) == [["permute", "matmul", "add", "relu"]]


def test_a_large_operand_is_not_read_again_for_every_block_of_rows() -> None:
    text = """graph(%x: f32[64, 512], %w: f32[512, 512]) {
      %m = amax %x {dims=[1], keepdim=true}  %d = sub %x, %m  %e = exp %d  %y = matmul %e, %w  return %y }"""
    assert kernels(text) == [["amax", "sub", "exp"], ["matmul"]]
    assert any("read" in r for r in refusals(text))


def test_work_is_not_repeated_for_every_column() -> None:
    text = "graph(%x: f32[64, 32], %w: f32[32, 640]) { %a = mul %x, 2.0  %y = matmul %a, %w  return %y }"
    assert kernels(text) == [["mul"], ["matmul"]]
    assert any("separate kernels" in r for r in refusals(text))


def test_a_value_that_others_need_is_a_further_result() -> None:
    text = """graph(%x: f32[4, 8], %r: f32[4, 8]) {
      %h = add %x, %r  %s = sum %h {dims=[1], keepdim=true}  %n = div %h, %s  return %n, %h }"""
    assert kernels(text) == [["add", "sum", "div"]]


def test_a_view_that_kernels_repeat_is_no_way_from_one_to_the_other() -> None:
    text = """graph(%x: f32[8, 64], %z: f32[8, 32]) {
      %s = slice %x {dim=1, start=0, size=32}  %e = erf %z  %a = tanh %s  %b = sin %s
      %p = mul %e, %a  %q = add %e, %b  return %p, %q }"""
    assert kernels(text) == [["erf", "slice", "tanh", "mul"], ["slice", "sin", "add"]]


def test_a_further_result_never_makes_a_cycle() -> None:
    text = """graph(%x: f32[4]) {
      %a = exp %x  %t = sort %a {dim=0}  %i = tuple_get %t {index=0}  %y = add %a, %i  return %y }"""
    graph = run_pipeline(parse_graph(text), "fuse")
    assert [n.op.name for n in graph.nodes if n.operands] == ["fused", "sort", "tuple_get", "fused"]


def test_opaque_ops_stay_outside() -> None:
    text = (
        "graph(%x: f32[4]) { %a = exp %x  %t = sort %a {dim=0}  %i = tuple_get %t {index=0}  %y = neg %i  return %y }"
    )
    assert kernels(text) == [["exp"], ["neg"]]


def test_views_are_repeated_in_every_user() -> None:
    text = """graph(%x: f32[4, 8]) {
      %t = permute %x {dims=[1, 0]}  %a = exp %t  %s = sum %t {dims=[1]}  return %a, %s }"""
    assert sorted(kernels(text)) == [["permute", "exp"], ["permute", "sum"]]


def convs(between: str, last: str = "%p") -> str:
    return f"""graph(%x: f32[1, 32, 130], %v: f32[32, 32, 3], %w: f32[32, 32, 3], %u: f32[32, 64, 3]) {{
      %a = conv %x, %v {{stride=[1], dilation=[1]}}  {between} return {last} }}"""


def test_padding_of_a_computed_value_costs_its_gaps_and_stays_apart() -> None:
    text = convs(
        """%r = relu %a  %p = pad %r {before=[0, 0, 1], after=[0, 0, 1]}
      %y = conv %p, %w {stride=[1], dilation=[1]}""",
        "%y",
    )
    assert kernels(text) == [["conv", "relu"], ["pad"], ["conv"]]


def test_concatenations_of_computed_values_cost_nothing() -> None:
    text = convs(
        """%b = conv %x, %w {stride=[1], dilation=[1]}  %s = mul %b, 2.0  %p = cat %a, %s {dim=1}
      %y = conv %p, %u {stride=[1], dilation=[1]}""",
        "%y",
    )
    assert kernels(text) == [["conv"], ["conv", "mul"], ["cat"], ["conv"]]


def test_what_nobody_computes_is_concatenated_where_it_is_used() -> None:
    text = "graph(%x: f32[4, 8], %z: f32[4, 8]) { %c = cat %x, %z {dim=0}  %y = relu %c  return %y }"
    assert kernels(text) == [["cat", "relu"]]


def price(between: str, machine: Machine = AVX512) -> float | str:
    """The price in seconds of the pad or concatenation `%p` by itself."""
    graph = parse_graph(convs(between))
    node = next(n for n in graph.nodes if n.name == "p")
    return GroupSearch(Fuse().for_machine(machine), graph, Context(machine)).cost(Group(node, {node}))


def test_the_price_of_putting_values_side_by_side() -> None:
    value, launch, byte = 32 * 128 * 4, AVX512.launch_seconds, AVX512.traffic_seconds(1)
    gap = "%p = pad {x} {{before=[0, 0, 1], after=[0, 0, 0]}}"
    assert price(gap.format(x="%a")) == pytest.approx(32 * 4 * byte + launch)
    assert price("%r = relu %a " + gap.format(x="%r")) == pytest.approx(32 * 4 * byte + launch)
    assert price(gap.format(x="%x")) == pytest.approx((32 * 4 + 2 * 32 * 130 * 4) * byte + launch)
    assert price("%b = neg %a %c = neg %b %p = cat %b, %c {dim=0}") == pytest.approx(
        2 * value * byte + launch
    )  # %b has two users
    assert price("%b = exp %x %c = slice %b {dim=2, size=128} %p = cat %a, %c {dim=0}") == pytest.approx(
        2 * value * byte + launch
    )
    assert price("%b = conv %x, %w {stride=[1], dilation=[1]} %p = cat %a, %b {dim=0}") == 0


def test_each_margin_is_a_launch_on_a_gpu() -> None:
    h100 = GPU()
    margins = "%p = pad %a {before=[0, 1, 1], after=[0, 2, 1]}"  # above, below, left and right
    assert price(margins, h100) == pytest.approx(
        h100.traffic_seconds((35 * 130 - 32 * 128) * 4) + 4 * h100.launch_seconds
    )
    assert price("%b = neg %a %c = neg %b %p = cat %b, %x, %a {dim=2}", h100) == pytest.approx(
        h100.traffic_seconds(2 * 32 * (128 + 130) * 4) + 2 * h100.launch_seconds
    )


POOL = """graph(%x: f32[1, 8, 33, 33], %w: f32[16, 8, 3, 3]) {{ %c = conv %x, %w {{stride=[1, 1], dilation=[1, 1]}}
  %r = relu %c  %y = max_pool %r {{size=[{n}, {n}], stride=[2, 2], dilation=[1, 1]}}  return %y }}"""


@pytest.mark.parametrize(("window", "first"), [(3, ["conv", "relu"]), (2, ["conv", "relu", "max_pool"])])
def test_what_overlapping_windows_would_repeat_ends_the_sum_below(window: int, first: list[str]) -> None:
    fused = run_pipeline(parse_graph(POOL.format(n=window)), "fuse")
    bodies = [n.attrs["body"] for n in fused.nodes if isinstance(n.structure, Fused)]
    assert [n.op.name for n in bodies[0].nodes if n.operands] == first


def test_zeros_of_both_signs_make_two_kernels() -> None:
    text = """graph(%x: f32[4]) {
      %a = neg %x  %b = pad %a {before=[1], after=[1], value=0.0}  %c = reciprocal %b
      %d = neg %x  %e = pad %d {before=[1], after=[1], value=-0.0}  %f = reciprocal %e
      return %c, %f }"""
    program = lower(run_pipeline(parse_graph(text), "fuse"))
    plus, minus = run_program(program, [np.ones(4, np.float32)])
    assert (plus[0], minus[0]) == (np.inf, -np.inf)


def test_what_was_lowered_to_try_it_is_not_lowered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two like kernels among them: lowering takes the one that was tried for both."""
    text = """graph(%x: f32[4, 8], %y: f32[4, 8]) {
      %a = sigmoid %x  %b = mul %a, %x  %c = sum %b {dims=[1], keepdim=false}
      %d = sigmoid %y  %e = mul %d, %y  %f = sum %e {dims=[1], keepdim=false}
      return %c, %f }"""
    context = Context()
    fused = run_pipeline(parse_graph(text), "fuse", context)
    program = print_program(lower(fused))
    monkeypatch.setattr(KernelLowering, "run", None)
    assert print_program(lower(fused, context.lowered_kernels)) == program


def test_groups_whose_nodes_come_in_another_order_are_one_kernel() -> None:
    """The second group's mask comes before its other nodes; its operands are in the order in which its root meets them."""
    text = """graph(%x: f32[4, 8], %y: f32[4, 8], %c: f32[8]) {
      %m = neg %c
      %a = exp %x  %b = add %a, %m
      %d = exp %y  %e = add %d, %m
      return %b, %e }"""
    program = lower(run_pipeline(parse_graph(text), "fuse"))
    assert [launch.arguments[:2] for launch in program.launches] == [("x", "c"), ("y", "c")]
    assert len(program.kernels) == 1
    x, y = (np.random.default_rng(k).standard_normal((4, 8)).astype(np.float32) for k in range(2))
    c = np.arange(8, dtype=np.float32)
    for found, given in zip(run_program(program, [x, y, c]), (x, y), strict=True):
        np.testing.assert_allclose(found, np.exp(given.astype(np.float64)) - c, rtol=1e-5, atol=1e-6)


def test_sums_that_ask_for_ever_more_elements_are_parted() -> None:
    """Rows and columns divided by their sums in turns: each row asks for all columns, and these for all rows before them."""
    steps = "\n".join(
        f"%s{k} = sum %y{k} {{dims=[{k % 2}], keepdim=true}}  %y{k + 1} = div %y{k}, %s{k}" for k in range(24)
    )
    text = f"graph(%x: f32[4, 4]) {{ %y0 = exp %x {steps} return %y24 }}"
    assert len(kernels(text)) > 1
    assert "too many distinct index expressions" in "".join(refusals(text))
    graph, x = parse_graph(text), np.random.default_rng(0).standard_normal((4, 4), np.float32)
    truth = np.exp(x.astype(np.float64))
    for k in range(24):
        truth /= truth.sum(k % 2, keepdims=True)
    (found,) = run_program(lower(run_pipeline(graph, "fuse")), [x])
    np.testing.assert_allclose(found, truth, rtol=1e-5)


def test_a_strided_convolution_turned_round_is_not_computed_row_by_row_for_statistics() -> None:
    """Guards choose which taps meet; a row of its result for each channel would read the whole image again."""
    text = """graph(%x: f32[8, 32, 16, 16], %w: f32[32, 32, 3, 3]) {
      %c = conv_transposed %x, %w {stride=[2, 2], padding=[1, 1], dilation=[1, 1], output_padding=[1, 1]}
      %e = relu %c  %s = sum %e {dims=[0, 2, 3], keepdim=true}  %y = sub %e, %s  return %y }"""
    assert kernels(text, "decompose,canonicalize,fuse")[-2:] == [["conv_phases", "relu"], ["sum", "sub"]]


# IR before and after


def test_fuses_prologue_and_epilogue_of_reduction() -> None:
    check_pass(
        "fuse",
        before="graph(%x: f32[4, 8]) { %a = exp %x  %s = sum %a {dims=[1]}  %y = sqrt %s  return %y }",
        after="""graph(%x: f32[4, 8]) {
          %y = fused %x {body=graph @sqrt(%x0: f32[4, 8]) {
            %a = exp %x0  %s = sum %a {dims=[1]}  %y = sqrt %s  return %y }}
          return %y }""",
        remark="fused into the kernel of sqrt",
    )


def test_value_with_other_users_becomes_second_result() -> None:
    check_pass(
        "fuse",
        before="""graph(%x: f32[4, 8], %r: f32[4, 8]) {
          %h = add %x, %r  %s = sum %h {dims=[1], keepdim=true}  %n = div %h, %s  return %n, %h }""",
        after="""graph(%x: f32[4, 8], %r: f32[4, 8]) {
          %f = fused %x, %r {body=graph @div(%x0: f32[4, 8], %x1: f32[4, 8]) {
            %h = add %x0, %x1  %s = sum %h {dims=[1], keepdim=true}  %n = div %h, %s  return %n, %h }}
          %n = tuple_get %f {index=0}  %h = tuple_get %f {index=1}  return %n, %h }""",
        special=False,  # a sum may be zero
    )


def test_recomputes_cheap_operand_in_every_user() -> None:
    check_pass(
        "fuse",
        before="graph(%x: f32[8]) { %a = mul %x, 2.0  %b = sin %a  %s = sum %a {dims=[0]}  return %b, %s }",
        after="""graph(%x: f32[8]) {
          %b = fused %x {body=graph @sin(%x0: f32[8]) { %a = mul %x0, 2.0  %b = sin %a  return %b }}
          %s = fused %x {body=graph @sum(%x0: f32[8]) { %a = mul %x0, 2.0  %s = sum %a {dims=[0]}  return %s }}
          return %b, %s }""",
        remark="fused into the kernel of sum",
    )


def test_what_is_broadcast_from_cache_does_not_count_as_read() -> None:
    check_pass(
        "fuse",
        before="graph(%x: f32[8], %m: f32[1]) { %a = sub %x, %m  %b = sin %a  %s = sum %a {dims=[0]}  return %b, %s }",
        after="""graph(%x: f32[8], %m: f32[1]) {
          %b = fused %x, %m {body=graph @sin(%x0: f32[8], %x1: f32[1]) { %a = sub %x0, %x1  %b = sin %a  return %b }}
          %s = fused %x, %m {body=graph @sum(%x0: f32[8], %x1: f32[1]) {
            %a = sub %x0, %x1  %s = sum %a {dims=[0]}  return %s }}
          return %b, %s }""",
    )


def test_computes_expensive_operand_of_two_users_once() -> None:
    check_pass(
        "fuse",
        before="graph(%x: f32[8]) { %a = erf %x  %b = sin %a  %s = sum %a {dims=[0]}  return %b, %s }",
        after="""graph(%x: f32[8]) {
          %f = fused %x {body=graph @sin(%x0: f32[8]) { %a = erf %x0  %b = sin %a  return %b, %a }}
          %b = tuple_get %f {index=0}  %a = tuple_get %f {index=1}
          %s = fused %a {body=graph @sum(%x0: f32[8]) { %s = sum %x0 {dims=[0]}  return %s }}
          return %b, %s }""",
    )


def test_epilogue_stays_with_its_contraction() -> None:
    check_pass(
        "fuse",
        before="""graph(%x: f32[8, 16], %w: f32[16, 32], %v: f32[32, 16]) {
          %m = matmul %x, %w  %a = relu %m  %y = matmul %a, %v  return %y }""",
        after="""graph(%x: f32[8, 16], %w: f32[16, 32], %v: f32[32, 16]) {
          %a = fused %x, %w {body=graph @relu(%x0: f32[8, 16], %x1: f32[16, 32]) {
            %m = matmul %x0, %x1  %a = relu %m  return %a }}
          %y = fused %a, %v {body=graph @matmul(%x0: f32[8, 32], %x1: f32[32, 16]) {
            %y = matmul %x0, %x1  return %y }}
          return %y }""",
        remark="cheaper where its operand is computed",
        special=False,  # sums of infinities of both signs depend on their order
    )


def test_operand_of_concat_is_written_in_place() -> None:
    check_pass(
        "fuse",
        before="""graph(%x: f32[2, 3], %w: f32[4, 3]) {
          %t = sum %x {dims=[1]}  %u = sum %w {dims=[1]}  %y = cat %t, %u {dim=0}  return %y }""",
        after="""graph(%x: f32[2, 3], %w: f32[4, 3]) {
          %t = fused %x {body=graph @sum(%x0: f32[2, 3]) { %t = sum %x0 {dims=[1]}  return %t }}
          %u = fused %w {body=graph @sum(%x0: f32[4, 3]) { %u = sum %x0 {dims=[1]}  return %u }}
          %y = fused %t, %u {body=graph @cat(%x0: f32[2], %x1: f32[4]) { %y = cat %x0, %x1  return %y }}
          return %y }""",
        remark="written in place inside cat",
        special=False,
    )


def test_max_nodes_bounds_a_kernel() -> None:
    check_pass(
        "fuse{max-nodes=2}",
        before="graph(%x: f32[4]) { %a = neg %x  %b = abs %a  %c = relu %b  return %c }",
        after="""graph(%x: f32[4]) {
          %a = fused %x {body=graph @neg(%x0: f32[4]) { %a = neg %x0  return %a }}
          %c = fused %a {body=graph @relu(%x0: f32[4]) { %b = abs %x0  %c = relu %b  return %c }}
          return %c }""",
    )


SCALED = """graph(size n in 2..4096 hint {hint}, %x: f32[64, 32], %w: f32[32, n]) {{
  %a = mul %x, 2.0  %y = matmul %a, %w  return %y }}"""
"""Matrix product with a scaled operand: fused, each of the n columns scales it again."""


def test_recomputes_for_few_columns() -> None:
    check_pass(
        "fuse",
        before=SCALED.format(hint=8),
        after="""graph(size n in 2..4096 hint 8, %x: f32[64, 32], %w: f32[32, n]) {
          %y = fused %x, %w {body=graph @matmul(%x0: f32[64, 32], %x1: f32[32, n]) {
            %a = mul %x0, 2.0  %y = matmul %a, %x1  return %y }}
          return %y }""",
        remark="fused into the kernel of matmul",
        special=False,
    )


def test_materializes_for_many_columns() -> None:
    check_pass(
        "fuse",
        before=SCALED.format(hint=800),
        after="""graph(size n in 2..4096 hint 800, %x: f32[64, 32], %w: f32[32, n]) {
          %a = fused %x {body=graph @mul(%x0: f32[64, 32]) { %a = mul %x0, 2.0  return %a }}
          %y = fused %a, %w {body=graph @matmul(%x0: f32[64, 32], %x1: f32[32, n]) {
            %y = matmul %x0, %x1  return %y }}
          return %y }""",
        remark="of separate kernels",
        special=False,
    )


NORMALIZED = """graph(%x: f32[8, 32], %w: f32[32, 32]) {
  %m = amax %x {dims=[1], keepdim=true}  %d = sub %x, %m  %e = exp %d  %y = matmul %e, %w  return %y }"""


def test_max_reread_bytes_bounds_operands_of_each_row() -> None:
    """The 4 KiB of %w would be read again for each row block."""
    check_pass(
        "fuse{max-reread-bytes=4095}",
        before=NORMALIZED,
        after="""graph(%x: f32[8, 32], %w: f32[32, 32]) {
          %e = fused %x {body=graph @exp(%x0: f32[8, 32]) {
            %m = amax %x0 {dims=[1], keepdim=true}  %d = sub %x0, %m  %e = exp %d  return %e }}
          %y = fused %e, %w {body=graph @matmul(%x0: f32[8, 32], %x1: f32[32, 32]) {
            %y = matmul %x0, %x1  return %y }}
          return %y }""",
        remark="would reread 4 KiB",
        special=False,
    )


def test_rereads_operands_within_the_bound() -> None:
    check_pass(
        "fuse{max-reread-bytes=4096}",
        before=NORMALIZED,
        after="""graph(%x: f32[8, 32], %w: f32[32, 32]) {
          %y = fused %x, %w {body=graph @matmul(%x0: f32[8, 32], %x1: f32[32, 32]) {
            %m = amax %x0 {dims=[1], keepdim=true}  %d = sub %x0, %m  %e = exp %d  %y = matmul %e, %x1
            return %y }}
          return %y }""",
        special=False,
    )


def test_a_sum_with_guards_is_no_part_of_another_sum() -> None:
    """A transposed convolution alone is one convolution per remainder; inside a mean, each product would be tested."""
    up = """%c = conv_phases %x, %w {stride=[2, 2], start=[0, 0], size=[32, 32]}"""
    head = "graph(%x: f32[1, 16, 18, 18], %w: f32[16, 32, 3, 3])"
    text = f"{head} {{ {up}  %m = sum %c {{dims=[2, 3]}}  return %m }}"
    assert kernels(text) == [["conv_phases"], ["sum"]]
    assert any("would cost" in r for r in refusals(text))
    softmax = "%m = amax %c {dims=[1], keepdim=true}  %s = sub %c, %m"
    assert kernels(f"{head} {{ {up}  {softmax}  return %s }}") == [["conv_phases", "amax", "sub"]]


EXPONENTIALS = """graph(%x: f32[3, {columns}]) {{
  %e = exp %x  %b = reshape %e {{shape=[3, 64, {block}]}}  %p = sum %b {{dims=[2]}}  %s = sum %p {{dims=[1], keepdim=true}}
  %y = div %e, %s  return %y }}"""
"""Normalized exponentials of rows that are summed in blocks: both kernels read the exponentials."""


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (1 << 20, [["exp", "reshape", "sum"], ["sum"], ["exp", "div"]]),  # memory takes longer than exponentials
        (1 << 19, [["exp"], ["reshape", "sum"], ["sum"], ["div"]]),  # the last cache does not
    ],
)
def test_recomputes_what_takes_less_than_memory(columns: int, expected: list[list[str]]) -> None:
    assert kernels(EXPONENTIALS.format(columns=columns, block=columns // 64)) == expected


def test_does_not_recompute_the_epilogue_of_a_sum() -> None:
    """Its sums would be stored instead."""
    text = EXPONENTIALS.format(columns=1 << 20, block=1 << 14).replace("f32[3", "f32[8, 3").replace("exp %x", "exp %m")
    text = text.replace("%e =", "%m = sum %x {dims=[0]}  %e =")
    assert kernels(text)[0] == ["sum", "exp"]


def test_views_do_not_count_as_nodes_of_a_kernel() -> None:
    text = """graph(%x: f32[4, 4]) {
      %a = permute %x {dims=[1, 0]}  %b = abs %a  %c = slice %b {dim=0, start=1, size=2}  %d = neg %c  return %d }"""
    assert kernels(text, "fuse{max-nodes=2}") == [["permute", "abs", "slice", "neg"]]
    assert len(kernels(text, "fuse{max-nodes=1}")) == 2
