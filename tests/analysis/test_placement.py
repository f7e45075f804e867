"""Values computed where they will stand: which are, which are copied, and that nothing is lost or written over."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.analysis.placement import uncovered_boxes
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.interpret.tile import run_program
from compiler.ir.symbolic.index_expr import dynamic_size, evaluate
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_printer import print_program
from compiler.ir.tile.kernel import For
from compiler.ir.tile.program import Launch, Program
from compiler.ir.torch_types import as_array
from compiler.ir.types import TensorType, f32
from compiler.ir.verify.program import verify_program
from compiler.lowering.program import lower
from compiler.passes.instrument import Verify
from compiler.passes.manager import run_pipeline
from compiler.passes.semantic_check import SemanticCheck, describe_difference, tolerance

APART = "fuse{enabled=false}"
"""A kernel for every op, so that small examples keep theirs."""


def lowered(graph: Graph, pipeline: str = APART) -> Program:
    """The graph's program, valid and with the graph's answers in float64."""
    program = lower(run_pipeline(graph, pipeline, instruments=[Verify(), SemanticCheck()]))
    verify_program(program)
    given = random_inputs([n.type for n in graph.inputs], 0)
    truth = [as_array(r) for r in interpret(graph, given, dtype=torch.float64)]
    for want, got in zip(truth, run_program(program, given), strict=True):
        problem = describe_difference(want.astype(got.dtype), got, tolerance(graph))
        assert not problem, f"{problem}\n{print_graph(graph)}\n{print_program(program)}"
    return program


def launches(program: Program) -> list[str]:
    """The kernels run, without the numbers in their names."""
    return [s.kernel.rsplit("_", 1)[0] for s in program.steps if isinstance(s, Launch)]


def copied(program: Program) -> list[str]:
    """What the kernels that put values side by side read."""
    found = []
    for s in program.steps:
        if isinstance(s, Launch) and s.kernel.startswith(("cat_", "pad_")):
            roles = [p.role for p in program.kernels[s.kernel].params]
            found += [a for a, role in zip(s.arguments, roles, strict=True) if role != "out"]
    return found


def result_types(program: Program) -> dict[str, str]:
    """What each kernel that computes something writes, by the first part of its name."""
    names = {s.kernel for s in program.steps if isinstance(s, Launch)}
    return {n.rsplit("_", 1)[0]: str(p.type) for n in names for p in program.kernels[n].params if p.role == "out"}


def program_of(text: str, pipeline: str = APART) -> Program:
    return lowered(parse_graph(f"graph {text}"), pipeline)


# what is placed


def test_a_padded_value_is_computed_in_the_middle() -> None:
    program = program_of("(%x: f32[2, 3]) { %a = neg %x  %y = pad %a {before=[1, 0], after=[0, 2]}  return %y }")
    assert launches(program) == ["neg", "pad"]
    assert copied(program) == []
    assert result_types(program)["neg"] == "f32[2, 3]{0+1:0, 1+0:2}"


def test_concatenated_values_are_computed_side_by_side() -> None:
    program = program_of("""(%x: f32[2, 3]) {
      %a = neg %x  %b = exp %x  %c = abs %x  %y = cat %a, %b, %c {dim=1}  return %y }""")
    assert launches(program) == ["neg", "exp", "abs"]
    assert set(program.buffers) == {"x", "y"}
    assert result_types(program) == {
        "neg": "f32[2, 3]{0, 1+0:6}",
        "exp": "f32[2, 3]{0, 1+3:3}",
        "abs": "f32[2, 3]{0, 1+6:0}",
    }


def test_the_outermost_array_holds_all_that_is_nested() -> None:
    program = program_of("""(%x: f32[2, 3]) {
      %a = neg %x  %b = exp %x  %c = cat %a, %b {dim=0}
      %d = abs %c  %e = cat %c, %d {dim=1}  %y = pad %e {before=[1, 1], after=[1, 1], value=-1.0}  return %y }""")
    assert launches(program) == ["neg", "exp", "abs", "pad"]
    assert copied(program) == []
    assert set(program.buffers) == {"x", "y"}
    assert result_types(program)["exp"] == "f32[2, 3]{0+3:1, 1+1:4}"


def test_a_kernel_may_read_one_part_of_an_array_and_write_another() -> None:
    """Dense blocks: each layer reads all before it."""
    program = program_of("""(%x: f32[2, 2], %w0: f32[2, 3], %w1: f32[4, 3]) {
      %a = neg %x  %b = matmul %x, %w0  %s = slice %b {dim=1, size=2}  %c = cat %a, %s {dim=1}
      %d = matmul %c, %w1  %y = cat %c, %d {dim=1}  return %y }""")
    assert copied(program) == []
    (step,) = (s for s in program.steps if isinstance(s, Launch) and list(s.arguments).count("y") == 2)
    assert step.kernel.startswith("matmul")


def test_padding_by_nothing_leaves_nothing_to_do() -> None:
    program = program_of("(%x: f32[2]) { %a = neg %x  %y = pad %a {before=[0], after=[0]}  return %y }")
    assert launches(program) == ["neg"]


def test_an_item_of_a_kernel_with_several_results_is_placed() -> None:
    program = program_of("""(%x: f32[2, 3]) {
      %f = fused %x {body=graph @two(%x0: f32[2, 3]) { %p = neg %x0  %q = abs %p  return %q, %p }}
      %p = tuple_get %f {index=0}  %q = tuple_get %f {index=1}
      %y = fused %p, %q {body=graph @cat(%x0: f32[2, 3], %x1: f32[2, 3]) { %c = cat %x0, %x1 {dim=0}  return %c }}
      return %y }""")
    assert launches(program) == ["two"]


def test_gaps_beside_rows_follow_the_rows() -> None:
    """So that one loop can write both."""
    program = program_of("(%x: f32[4, 5]) { %y = pad %x {before=[1, 1], after=[1, 1]}  return %y }")
    (kernel,) = program.kernels.values()
    outermost = [s.range for s in kernel.body if isinstance(s, For)]
    assert [(r.lo, r.hi) for r in outermost] == [(1, 5), (1, 5), (1, 5), (0, 7), (0, 7)]


def test_gaps_have_their_own_value() -> None:
    program = program_of("(%x: f32[3]) { %a = neg %x  %y = pad %a {before=[1], after=[2], value=-inf}  return %y }")
    assert "store -inf, %out0[0]" in print_program(program)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "i64", "u8"])
def test_any_dtype(dtype: str) -> None:
    program = program_of(f"""(%x: {dtype}[2, 3]) {{
      %a = add %x, %x  %p = pad %a {{before=[0, 1], after=[1, 0], value=3}}  %y = cat %p, %p {{dim=0}}  return %y }}""")
    assert launches(program)[0] == "add"


def test_empty_parts() -> None:
    program = program_of("""(%x: f32[2, 0], %z: f32[2, 3]) {
      %a = neg %x  %b = exp %z  %y = cat %b, %a {dim=1}  return %y }""")
    assert copied(program) == []


# what is copied

COPIES = {
    "an input": ("(%x: f32[2]) { %y = pad %x {before=[1], after=[0]}  return %y }", ["x"]),
    "inputs": ("(%x: f32[2], %z: f32[3]) { %y = cat %x, %z {dim=0}  return %y }", ["x", "z"]),
    "a constant": (
        "(%x: f32[2]) { %c = constant f32[2] [1, 2]  %a = neg %x  %y = cat %a, %c {dim=0}  return %y }",
        ["c"],
    ),
    "a value put twice": ("(%x: f32[2]) { %a = neg %x  %y = cat %a, %a {dim=0}  return %y }", ["a"]),
    "twice, and another between": (
        "(%x: f32[2]) { %a = neg %x  %b = exp %x  %y = cat %a, %b, %a {dim=0}  return %y }",
        ["a"],
    ),
    "an output": ("(%x: f32[2]) { %a = neg %x  %y = pad %a {before=[1], after=[0]}  return %y, %a }", ["a"]),
    "what PyTorch reads": (
        """(%x: f32[2]) { %a = neg %x  %s = sort %a {dim=0}  %i = tuple_get %s {index=0}
           %y = pad %a {before=[1], after=[0]}  return %y, %i }""",
        ["a"],
    ),
    "what PyTorch makes": (
        """(%x: f32[2]) { %s = sort %x {dim=0}  %i = tuple_get %s {index=0}
           %y = pad %i {before=[1], after=[0]}  return %y }""",
        ["s.0"],
    ),
}


@pytest.mark.parametrize("case", COPIES)
def test_values_that_are_copied(case: str) -> None:
    text, expected = COPIES[case]
    assert copied(program_of(text)) == expected


def test_a_value_has_one_place() -> None:
    program = program_of("""(%x: f32[2]) {
      %a = neg %x  %y = pad %a {before=[1], after=[0]}  %z = pad %a {before=[0], after=[1]}  return %y, %z }""")
    assert copied(program) == ["z"] or copied(program) == ["y"]
    assert "a" not in program.buffers


def test_a_value_that_stands_twice_in_one_array_is_copied_once() -> None:
    """Both parts lie in one array, but the value has its place in one of them only."""
    program = program_of("""(%x: f32[2, 3]) {
      %p = neg %x  %q = exp %x  %r = abs %x  %a = cat %p, %q {dim=0}  %b = cat %p, %r {dim=0}
      %y = cat %a, %b {dim=1}  return %y }""")
    assert copied(program) == ["y"]


def test_a_value_that_the_outer_array_copies_is_no_part_of_it() -> None:
    """A kernel that writes the whole array would read a part of it."""
    program = program_of("""(%x: f32[2, 2]) {
      %a = neg %x  %p = pad %a {before=[1, 0], after=[1, 0]}  %y = cat %p, %a, %a {dim=0}  return %y }""")
    assert copied(program) == ["a", "a"]
    assert result_types(program)["neg"] == "f32[2, 2]"
    assert result_types(program)["pad"] == "f32[4, 2]{0+0:4, 1}"


def test_graphs_of_unknown_size_copy() -> None:
    graph = parse_graph("graph(%x: f32[n]) { %a = neg %x  %y = cat %a, %x {dim=0}  return %y }")
    lowered(graph.specialize({"n": 3}))
    assert "fused" in str(run_pipeline(graph, APART))


# many


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Chains of elementwise ops, products, pads and concatenations over matrices, some of their values outputs."""
    x = input_node("x", TensorType(f32, (2, 3)))
    values: list[Node] = [x]

    def any_value() -> Node:
        return draw(st.sampled_from(values[-4:]))

    for k in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(["neg", "relu", "matmul", "sum", "pad", "cat", "cat"]))
        a = any_value()
        dim = draw(st.sampled_from([0, 1]))
        if kind == "pad":
            before, after = (draw(st.tuples(st.integers(0, 2), st.integers(0, 1))) for _ in range(2))
            made = ops.pad(a, before=before, after=after, value=draw(st.sampled_from([0, -1.5, float("-inf")])))
            made = ops.maximum(made, -9.0) if draw(st.booleans()) else made
        elif kind == "cat":
            fits = [v for v in values if v.shape[1 - dim] == a.shape[1 - dim]]
            others = draw(st.lists(st.sampled_from(fits), min_size=1, max_size=2))
            made = ops.cat(a, *others, dim=dim)
        elif kind == "matmul":
            made = ops.maximum(ops.matmul(a, ops.permute(any_of_width(a, values, draw), dims=(1, 0))), -3.0)
        elif kind == "sum":
            made = ops.amax(a, dims=(dim,), keepdim=True)
        else:
            made = {"neg": ops.neg, "relu": ops.relu}[kind](a)
        if isinstance(made.type.numel, int) and made.type.numel <= 160:
            values.append(made.with_name(f"v{k}"))
    others = draw(st.lists(st.sampled_from(values[1:] or values), max_size=1))
    return Graph((x,), (values[-1], *others), "random")


def any_of_width(a: Node, values: list[Node], draw: st.DrawFn) -> Node:
    return draw(st.sampled_from([v for v in values if v.shape[1] == a.shape[1]]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs(), st.sampled_from([APART, "canonicalize,cse,fuse"]))
def test_any_chain_of_pads_and_concatenations(graph: Graph, pipeline: str) -> None:
    with np.errstate(all="ignore"):
        lowered(graph, pipeline)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, int], ...]]]:
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple))
    holes = []
    for _ in range(draw(st.integers(0, 4))):
        ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
        holes.append(tuple((a, b) for a, b in ends))
    return shape, holes


@settings(deadline=None)
@given(boxes())
def test_what_is_uncovered_is_covered_once(case: tuple[tuple[int, ...], list[tuple[tuple[int, int], ...]]]) -> None:
    shape, holes = case
    count = np.zeros(shape, int)
    for box in uncovered_boxes(shape, holes):
        count[tuple(slice(*ends) for ends in box)] += 1
    expected = np.ones(shape, int)
    for hole in holes:
        expected[tuple(slice(*ends) for ends in hole)] = 0
    np.testing.assert_array_equal(count, expected)


@pytest.mark.parametrize("n", range(12))
def test_what_is_uncovered_of_an_open_array_is_covered_once_at_any_size(n: int) -> None:
    """Also where the end of one hole may lie before the beginning of the other."""
    rows = dynamic_size("n", 0, 4096, 500)
    shape, holes = (rows + 5, 4), [((2, rows + 3), (0, 2)), ((1, rows + 1), (2, 4))]
    count = np.zeros((n + 5, 4), int)
    for box in uncovered_boxes(shape, holes):
        low, high = ([evaluate(end, {"n": n}) for end in ends] for ends in zip(*box, strict=True))
        assert all(0 <= a <= b <= whole for a, b, whole in zip(low, high, count.shape, strict=True))
        count[tuple(map(slice, low, high))] += 1
    expected = np.ones((n + 5, 4), int)
    expected[2 : n + 3, :2] = expected[1 : n + 1, 2:] = 0
    np.testing.assert_array_equal(count, expected)
