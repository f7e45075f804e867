"""Recurrences as repeated steps: where states lie, what passes do to bodies, and that nothing grows with the number of steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compiler.driver.compiled_graph import CompiledGraph
from compiler.errors import ArgumentError, LoweringError
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.tile import run_program
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, execution_counts, walk_steps
from compiler.ir.verify.program import verify_program
from compiler.lowering.program import lower
from compiler.options import Options
from compiler.passes.manager import run_pipeline
from compiler.pipeline import lower_and_schedule
from compiler.testing.checks import check_pass

CELL = """graph @cell(%x: f32[STEPS, 2, 8], %h: f32[2, 8], %w: f32[8, 8]) {
  %r = recurrence %x, %h, %w {body=graph @step(%x: f32[2, 8], %h: f32[2, 8], %w: f32[8, 8]) {
    %p = linear %h, %w
    %s = add %p, %x
    %new = tanh %s
    return RESULTS
  }, reverse=REVERSE}
  REST
}"""
KEPT = "%last = tuple_get %r {index=0}  %all = tuple_get %r {index=1}  %y = mul %all, 2.0  return %y, %last"


def cell(steps: int | str = 6, kept: bool = True, reverse: bool = False) -> str:
    """A cell of a recurrent network; with `kept`, its states are wanted for every step."""
    text = CELL.replace("STEPS", str(steps)).replace("REVERSE", str(reverse).lower())
    return text.replace("RESULTS", "%new, %new" if kept else "%new").replace("REST", KEPT if kept else "return %r")


def lowered(text: str) -> Program:
    program = lower(run_pipeline(parse_graph(text), "decompose,canonicalize,fuse"))
    verify_program(program)
    return program


def test_a_sequence_of_states_is_their_ring() -> None:
    program = lowered(cell())
    (loop,) = (s for s in program.steps if isinstance(s, Repeat))
    assert loop.count == 6
    assert [str(program.views[n].index) for n in ("r.x0", "r.old0", "r.new0")] == ["r.t", "(r.t + 5)%6", "r.t"]
    assert {program.root_buffer(n) for n in ("r.old0", "r.new0", "r.first0", "r.last0")} == {"r.1"}
    assert [type(s) for s, _ in execution_counts(program.steps)] == [
        Copy,
        Launch,
        Launch,
        Copy,
    ]  # in, the step, mul, out


def test_a_lone_state_goes_between_two_entries() -> None:
    program = lowered(cell(kept=False))
    assert program.buffers["r.state0"].shape == (2, 2, 8)
    assert [str(program.views[n].index) for n in ("r.old0", "r.new0", "r.last0")] == ["(r.t + 1)%2", "r.t%2", "1"]


def test_backward_the_last_entry_is_the_first() -> None:
    program = lowered(cell(reverse=True))
    indices = [str(program.views[n].index) for n in ("r.x0", "r.old0", "r.new0", "r.first0", "r.last0")]
    assert indices == ["-r.t + 5", "(-r.t)%6", "-r.t + 5", "0", "0"]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_every_stage_means_what_the_graph_means(steps: int, kept: bool, reverse: bool) -> None:
    graph = parse_graph(cell(steps, kept, reverse))
    inputs = [torch.randn(*n.shape) for n in graph.inputs]
    expected = interpret(graph, inputs, dtype=torch.float64)
    stages = lower_and_schedule(graph, Options(verify=True, check=True))
    results = CompiledGraph(graph)(inputs)
    for program in (stages.lowered, stages.scheduled):
        for want, got in zip(expected, run_program(program, [x.numpy() for x in inputs]), strict=True):
            np.testing.assert_allclose(got, want.numpy(), atol=1e-5)
    for want, result in zip(expected, results, strict=True):
        torch.testing.assert_close(result.double(), want, atol=1e-5, rtol=0)


def test_kernels_and_steps_do_not_grow_with_the_sequence() -> None:
    short, long = (lower_and_schedule(parse_graph(cell(steps)), Options()).scheduled for steps in (3, 300))
    assert list(short.kernels) == list(long.kernels)
    assert sum(1 for _ in walk_steps(short.steps)) == sum(1 for _ in walk_steps(long.steps))


def test_states_that_trade_places_are_copied() -> None:
    text = """graph @fibonacci(%x: f32[7], %a: f32[], %b: f32[]) {
      %r = recurrence %x, %a, %b {body=graph @step(%x: f32[], %a: f32[], %b: f32[]) {
        %c = add %a, %b
        return %b, %c
      }, num_carried=2}
      %y = tuple_get %r {index=1}
      return %y
    }"""
    for program_passes in ("decompose,fuse", "decompose,canonicalize,fold,cse,fuse"):
        verify_program(lower(run_pipeline(parse_graph(text), program_passes)))
    (y,) = CompiledGraph(parse_graph(text))([torch.zeros(7), torch.tensor(0.0), torch.tensor(1.0)])
    assert y.item() == 21


def test_loops_nest() -> None:
    text = """graph @table(%x: f32[3, 4, 2], %h: f32[2]) {
      %r = recurrence %x, %h {body=graph @row(%x: f32[4, 2], %h: f32[2]) {
        %i = recurrence %x, %h {body=graph @cell(%x: f32[2], %h: f32[2]) {
          %s = add %x, %h
          return %s, %s
        }}
        %last = tuple_get %i {index=0}
        %all = tuple_get %i {index=1}
        return %last, %all
      }}
      %y = tuple_get %r {index=1}
      return %y
    }"""
    x, h = torch.randn(3, 4, 2), torch.randn(2)
    (y,) = CompiledGraph(parse_graph(text), Options(verify=True))([x, h])
    expected = (x.double().reshape(12, 2).cumsum(0) + h.double()).reshape(3, 4, 2)
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=0)


def test_passes_work_on_bodies() -> None:
    body = "recurrence %x, %h {{body=graph @step(%x: f32[4], %h: f32[4]) {{ {} return %s }}}}"
    before = body.format("%one = mul %x, 1.0 %s = add %one, %h")
    check_pass(
        "canonicalize",
        before=f"graph(%x: f32[3, 4], %h: f32[4]) {{ %r = {before} return %r }}",
        after=f"graph(%x: f32[3, 4], %h: f32[4]) {{ %r = {body.format('%s = add %x, %h')} return %r }}",
    )


def test_a_call_into_pytorch_has_no_place_in_a_loop() -> None:
    text = """graph(%x: f32[3, 4], %h: f32[4]) {
      %r = recurrence %x, %h {body=graph @step(%x: f32[4], %h: f32[4]) {
        %s = eager %x {overload="aten.sinh.default", args=["%0"], dtypes=[f32], shapes=[[4]]}
        %n = add %s, %h
        return %n
      }}
      return %r
    }"""
    with pytest.raises(LoweringError, match="the body of %r contains an opaque call"):
        lowered(text)
    assert not any(isinstance(s, OpaqueCall) for s in lowered(cell()).steps)


@pytest.mark.parametrize("fewest", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_one_compilation_serves_every_number_of_steps_and_rows(fewest: int, reverse: bool) -> None:
    """Where there may be one step only, the states go between two entries of their own."""
    torch.manual_seed(0)
    graph = parse_graph(cell("t", True, reverse).replace("2, 8]", "b, 8]"))
    compiled = CompiledGraph(graph, Options(verify=True, check=True), {"t": (fewest, 500), "b": (1, 64)})
    for steps, rows in ((6, 3), (fewest, 1), (2, 64), (31, 17)):
        inputs = [torch.randn(steps, rows, 8), torch.randn(rows, 8), torch.randn(8, 8) / 3]
        expected = interpret(graph.specialize({"t": steps, "b": rows}), inputs, dtype=torch.float64)
        for want, result in zip(expected, compiled(inputs), strict=True):
            torch.testing.assert_close(result.double(), want, atol=1e-5, rtol=0)
    (once,) = compiled.specializations
    assert once.default_variant.executable.size_names == ("b", "t")
    rings = {once.default_variant.stages.lowered.root_buffer(n) for n in once.default_variant.stages.lowered.views}
    assert ("r.state0" in rings) == (fewest == 1)


def test_steps_that_may_be_none_are_known_when_compiled() -> None:
    compiled = CompiledGraph(parse_graph(cell("t")), bounds={"t": (0, 500)})
    compiled([torch.randn(6, 2, 8), torch.randn(2, 8), torch.randn(8, 8)])
    assert "has trip count t, which may be 0" in str(compiled.specializations[0].default_variant.stages.context.remarks)
    with pytest.raises(ArgumentError, match="1 or more"):
        compiled([torch.randn(0, 2, 8), torch.randn(2, 8), torch.randn(8, 8)])
