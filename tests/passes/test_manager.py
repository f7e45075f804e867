"""Pipelines as text, and what watches them."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.errors import PassError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.passes import reproducer
from compiler.passes.base import Context, GraphPass, ProgramPass, TilePass, register
from compiler.passes.instrument import PassTiming, PrintIR, Verify
from compiler.passes.manager import PassInstrument, run_pipeline
from compiler.passes.pipeline_text import parse_pipeline, print_pipeline
from compiler.passes.semantic_check import SemanticCheck

GRAPH = "graph @g(%x: f32[4]) { %a = add %x, 1.0  %y = exp %a  return %y }"
KERNEL = "kernel @k(in %x: f32[8], out %y: f32[8]) { for %i in 0..8 { store %x[%i] + 1.0, %y[%i] } }"
PROGRAM = """program { input %a: f32[8]  output %b: f32[8]  output %c: f32[8]
  kernel @k(in %x: f32[8], out %y: f32[8]) { for %i in 0..8 { store %x[%i] + 1.0, %y[%i] } }
  kernel @l(in %x: f32[8], out %y: f32[8]) { for %i in 0..8 { store -%x[%i], %y[%i] } }
  launch @k(%a, %b)  launch @l(%b, %c) }"""


@register
@dataclass(frozen=True)
class Tuned(GraphPass):
    """Does nothing, with options of every kind."""

    name = "test-tuned"
    width: int = 8
    ratio: float = 0.5
    deep: bool = False
    only: tuple[str, ...] = ()
    max_size: int | None = None

    def run(self, ir: Graph, context: Context) -> Graph:
        context.may_apply(self, f"width {self.width}", ir.outputs[0])
        return ir


@register
@dataclass(frozen=True)
class WrongAnswer(GraphPass):
    """Replaces exp by tanh."""

    name = "test-wrong"

    def run(self, ir: Graph, context: Context) -> Graph:
        return replace(ir, outputs=tuple(ops.tanh(n.operands[0]).with_name(n.name) for n in ir.outputs))


@register
@dataclass(frozen=True)
class WrongType(GraphPass):
    """Loses the types."""

    name = "test-invalid"

    def run(self, ir: Graph, context: Context) -> Graph:
        broken = replace(ir.outputs[0], result_type=ir.inputs[0].type.with_shape((9,)))
        return replace(ir, outputs=(broken,))


@register
@dataclass(frozen=True)
class Shorter(TilePass):
    """Forgets the last step of the outer loop."""

    name = "test-shorter"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        loop = ir.body[0]
        return ir.with_body((replace(loop, range=loop.range.with_(hi=loop.range.hi - 1)),))  # type: ignore[union-attr]


@register
@dataclass(frozen=True)
class Swapped(ProgramPass):
    """Runs the steps from last to first."""

    name = "test-swapped"
    invalid: bool = True

    def run(self, ir: Program, context: Context) -> Program:
        if self.invalid:
            return replace(ir, steps=ir.steps[::-1])
        return replace(ir, steps=tuple(replace(s, arguments=("a", s.arguments[1])) for s in ir.steps))  # type: ignore[union-attr, arg-type, call-arg]  # all are launches


@register
@dataclass(frozen=True)
class Crash(GraphPass):
    name = "test-crash"

    def run(self, ir: Graph, context: Context) -> Graph:
        raise ZeroDivisionError("oh")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cse",
        "canonicalize,cse",
        "test-tuned{width=4, deep=true, only=[a, b], max-size=3}",
        "test-tuned{ratio=0.25}",
        "test-tuned{only=[x]},cse",
    ],
)
def test_pipelines_print_as_they_are_written(text: str) -> None:
    assert print_pipeline(parse_pipeline(text)) == text
    assert parse_pipeline(print_pipeline(parse_pipeline(text))) == parse_pipeline(text)


def test_spaces_and_defaults_vanish() -> None:
    assert print_pipeline(parse_pipeline(" cse , test-tuned{ width = 8 ,max-size=none} ")) == "cse,test-tuned"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("canonicalise", "column 1: no pass is called canonicalise; did you mean canonicalize"),
        ("cse,,cse", "column 5: expected the name of a pass"),
        ("cse cse", "expected ','"),
        ("test-tuned{wide=3}", "column 12: test-tuned has no option wide; did you mean width"),
        ("test-tuned{width=many}", r"column 18: test-tuned\{width\} takes an integer, not many"),
        ("test-tuned{deep=1}", "takes true or false, not 1"),
        ("test-tuned{width=3", "expected ','"),
        ("cse;", "expected ','"),
        ("cse{fast=true}", "cse has no option fast; there are none"),
    ],
)
def test_bad_pipelines_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        parse_pipeline(text)


def test_remarks_name_the_pass_and_the_node() -> None:
    context = Context()
    run_pipeline(parse_graph(GRAPH), "test-tuned{width=2}", context)
    (remark,) = context.remarks.select("test-tuned", "applied")
    assert str(remark) == "applied test-tuned: width 2 (%y)"


def test_the_first_pass_that_changes_an_answer_is_named() -> None:
    with pytest.raises(PassError, match="pass test-wrong changed the result of @g: output 0: 4 of 4 elements differ"):
        run_pipeline(parse_graph(GRAPH), "canonicalize,test-wrong,cse", instruments=[SemanticCheck()])
    with pytest.raises(PassError, match="pass test-shorter changed the result of @k: output 0: 1 of 8"):
        run_pipeline(parse_kernel(KERNEL), "test-shorter", instruments=[SemanticCheck()])


def test_sizes_at_which_a_graph_faults_are_not_tried() -> None:
    """A position may be one in the arrays that the graph is for, and none in small ones."""
    text = """graph(size n in 8..4096 hint 500, %x: f32[n], %z: f32[1]) {
      %k = constant i64[1] [9]  %y = take %x, %k {dim=0}  %a = add %y, %z  %b = mul %a, 1.0  return %b }"""
    run_pipeline(parse_graph(text), "canonicalize", instruments=[SemanticCheck()])
    with pytest.raises(PassError, match="where n = 13"):
        run_pipeline(parse_graph(text), "test-wrong", instruments=[SemanticCheck()])


def test_invalid_ir_is_blamed_on_its_pass() -> None:
    with pytest.raises(PassError, match="pass test-invalid produced invalid IR for @g"):
        run_pipeline(parse_graph(GRAPH), "test-invalid", instruments=[Verify()])


def test_a_crash_names_the_pass_and_its_place() -> None:
    with pytest.raises(PassError, match=r"pass test-crash \(number 2 of 2\) on @g failed: ZeroDivisionError: oh"):
        run_pipeline(parse_graph(GRAPH), "cse,test-crash")


def test_the_other_kind_of_ir_is_refused() -> None:
    with pytest.raises(PassError, match=r"pass cse .*: takes a Graph, not a Kernel"):
        run_pipeline(parse_kernel(KERNEL), "cse")


def test_a_pipeline_over_a_program_mixes_both_kinds() -> None:
    timing = PassTiming()
    result = run_pipeline(
        parse_program(PROGRAM), "unroll,layout,peel,unroll,split-kernels", instruments=[timing, Verify()]
    )
    assert isinstance(result, Program)
    names = [r.pass_.name for r in timing.runs]
    assert names == ["unroll"] * 2 + ["layout"] + ["peel", "unroll"] * 2 + ["split-kernels"]


def test_a_wrong_program_pass_is_named() -> None:
    with pytest.raises(
        PassError, match=r"pass test-swapped produced invalid IR for (.|\n)*%b is read before it is written"
    ):
        run_pipeline(parse_program(PROGRAM), "unroll,test-swapped", instruments=[Verify()])
    with pytest.raises(PassError, match=r"pass test-swapped changed the result of .* output 1: 8 of 8 elements differ"):
        run_pipeline(parse_program(PROGRAM), "test-swapped{invalid=false}", instruments=[SemanticCheck()])


def test_tile_passes_are_checked_on_each_kernel_of_a_program() -> None:
    with pytest.raises(PassError, match="pass test-shorter changed the result of @k: output 0: 1 of 8"):
        run_pipeline(parse_program(PROGRAM), "layout,test-shorter", instruments=[SemanticCheck()])


def test_a_program_pass_takes_programs() -> None:
    with pytest.raises(PassError, match=r"pass layout .*: takes a Program, not a Kernel"):
        run_pipeline(parse_kernel(KERNEL), "layout")
    with pytest.raises(PassError, match=r"pass cse .*: takes a Graph, not a Program"):
        run_pipeline(parse_program(PROGRAM), "cse")


def test_printing_and_timing() -> None:
    out, timing = io.StringIO(), PassTiming()
    printer = PrintIR(before_passes=["test-tuned"], on_change=True, file=out)
    run_pipeline(parse_graph(GRAPH), "cse,test-tuned,test-wrong", instruments=[printer, timing])
    titles = [line for line in out.getvalue().splitlines() if line.startswith("//")]
    assert titles == ["// before test-tuned (@g)", "// after test-wrong (@g)"]
    assert [r.pass_.name for r in timing.runs] == ["cse", "test-tuned", "test-wrong"]


def test_kernels_are_ready_one_by_one() -> None:
    """After the last passes over kernels, not after those that a pass over programs follows; each before the passes run on the next."""
    seen: list[str] = []

    class Log(PassInstrument):
        def after_pass(self, pass_: Any, old: Any, new: Any, seconds: float, context: Context) -> None:
            seen.append(f"{pass_.name} {new.name}")

    def finished(kernel: Kernel, program: Program) -> None:
        assert set(program.kernels) == {"k", "l"}
        seen.append(f"ready {kernel.name}")

    program = parse_program(PROGRAM)
    run_pipeline(program, "tighten-reductions,layout,unroll,peel", instruments=[Log()], finished=finished)
    one_by_one = [f"{what} {kernel}" for kernel in "kl" for what in ("unroll", "peel", "ready")]
    assert seen == ["tighten-reductions k", "tighten-reductions l", f"layout {program.name}", *one_by_one]


@pytest.mark.parametrize(
    ("edit", "result"),
    [
        ("default", "dce,cse,fuse"),
        ("default,-cse", "dce,fuse"),
        ("default,+test-tuned{width=2}@before:fuse,-dce", "cse,test-tuned{width=2},fuse"),
        ("default,+unroll@after:cse,canonicalize", "dce,cse,unroll,fuse,canonicalize"),
        ("default,+unroll", "dce,cse,fuse,unroll"),
    ],
)
def test_default_pipelines_are_edited(edit: str, result: str) -> None:
    assert print_pipeline(parse_pipeline(edit, "dce,cse,fuse")) == result


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("default,-cze", "column 10: the pipeline so far has no pass cze; did you mean dce or cse"),
        ("default,+unroll@near:cse", "column 17: expected before or after, not near"),
    ],
)
def test_bad_edits_say_what_is_wrong(edit: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        parse_pipeline(edit, "dce,cse")
    with pytest.raises(PassError, match="there is no default pipeline here"):
        parse_pipeline(edit)


def test_a_failed_pass_leaves_a_reproducer() -> None:
    def written() -> Path:
        with pytest.raises(
            PassError, match=r"to repeat: tilewright opt \S+ -p test-crash --load \S+ --verify --check"
        ) as caught:
            run_pipeline(parse_graph(GRAPH), "cse,test-crash")
        return Path(caught.value.reproducer)

    file = written()
    assert file.parent == reproducer.FOLDER
    assert "exp %a" in file.read_text()
    assert written() == file


def test_code_generation_that_refuses_a_partial_tile_names_kernel_and_passes() -> None:
    def finished(kernel: Kernel, program: Program) -> None:
        emit_kernel(kernel, target_by_name("x86-64-v3"))

    program = parse_program(PROGRAM.replace("0..8 {", "0..8 tile 3 {"))
    with pytest.raises(PassError, match=r"no code .* for @k after the passes unroll: the last tile of %i .*`peel`"):
        run_pipeline(program, "unroll", finished=finished)
