"""Bisection from a model or IR to the rewrite that breaks it, and to a smaller example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from compiler.driver.compiled_graph import infer_sizes
from compiler.driver.specialization import size_buckets
from compiler.driver.variant import Plan
from compiler.frontend.call_adapter import CallAdapter
from compiler.frontend.export import import_exported
from compiler.frontend.model_source import Model, as_exported_program
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.ir.torch_types import as_array
from compiler.options import Options, as_options
from compiler.passes.pipeline_text import parse_pipeline, print_pipeline
from compiler.testing.bisection.reduction import reduce_finding, write_files
from compiler.testing.bisection.search import Finding, Measure, Search, SlownessSearch, fastest_seconds
from compiler.testing.bisection.subject import Subject, subject_of


@dataclass(frozen=True)
class Bisection:
    """Result of a bisection: the rewrite that breaks a program.

    `pass_name` and `message` name the rewrite, number `number` of `total`; `node`, `kernel` and `line` say where it is, the last in the
    user's program.  Where no rewrite is to blame, `stage` says what is.  `compilations` were made.  `reduced` is the text of smaller IR
    that `passes` spoil too; `file` holds it and `script` is a Python reproducer, if a folder was given, and `command` repeats the fault.
    """

    problem: str
    stage: str
    pass_name: str
    number: int
    total: int
    message: str
    node: str
    kernel: str
    line: str
    compilations: int
    reduced: str = ""
    passes: str = ""
    file: str = ""
    script: str = ""
    command: str = ""

    @staticmethod
    def of(finding: Finding) -> Bisection:
        """Return what a finding says, without files."""
        r = finding.rewrite
        where = (r.message, r.node, r.kernel, str(r.loc or "")) if r else ("", "", "", "")
        stage = f"{finding.cause} of {finding.stage.value}" if r else finding.cause
        return Bisection(
            finding.problem, stage, finding.pass_name, finding.number, finding.total, *where, finding.attempts
        )

    def __str__(self) -> str:
        lines = [f"problem: {self.problem}"]
        lines += [f"pass: {self.pass_name}"] if self.pass_name else []
        if self.message:
            about = f" (%{self.node})" if self.node else f" (@{self.kernel})" if self.kernel else ""
            lines.append(f"rewrite: number {self.number} of {self.total}: {self.message}{about}")
        else:
            lines.append(f"caused by: {self.stage}")
        lines += [f"line: {self.line}"] if self.line else []
        lines.append(f"found in {self.compilations} compilations")
        if self.file:
            lines += [f"reduced: {self.file}", f"script: {self.script}", f"repeat: {self.command}"]
        elif self.reduced:
            lines += [f"reduced, for the passes {self.passes}:", self.reduced]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def bisect(
    model: Model | AnyIR,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: Options | dict[str, Any] | None = None,
    passes: str = "",
    slower_than: str = "",
    reduce: bool = True,
    folder: Path | None = None,
    isolated: bool = False,
    measure: Measure = fastest_seconds,
) -> Bisection | None:
    """Return the rewrite with which a model, graph, program or kernel becomes wrong, fails, or is slow; None if it is right.

    Results are compared with float64 on `args`, or on random inputs if IR is given; rounding counts as in `check`.  `passes` replace
    or edit all passes, those over the graph followed by those over the program.  `slower_than` is another such pipeline, as
    fast as it should be: the result is None if the model is not slower.  With `reduce`, the result has smaller IR too, which is written
    to `folder` with a script, if that is given.  `isolated` says that native code may crash; it then runs in copies of this process.
    """
    chosen = as_options(options)
    ir, inputs = (model, None) if isinstance(model, (Graph, Program, Kernel)) else imported(model, args, kwargs, chosen)
    usual = subject_of(ir, chosen, inputs)
    subject = with_passes(usual, passes)
    if slower_than:
        finding = SlownessSearch(subject, with_passes(usual, slower_than).passes, measure).run()
    else:
        finding = Search(subject, isolated).run()
    if finding is None:
        return None
    result = Bisection.of(finding)
    if not reduce:
        return result
    small, rest = reduce_finding(finding, subject)
    result = replace(result, reduced=print_ir(small, full=True), passes=print_pipeline(rest))
    if folder is None:
        return result
    file, script, command = write_files(folder, small, rest, finding, chosen)
    return replace(result, file=str(file), script=str(script), command=command)


def imported(
    model: Model, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: Options
) -> tuple[Graph, list[Array]]:
    """Return the graph of a model, and its inputs for the arguments given, or for those it was exported with.

    Dynamic sizes have the ranges of a compilation that these arguments ask for.
    """
    program, given, named = as_exported_program(model, args, kwargs)
    made = import_exported(program, fallback=options.fallback)
    inputs = CallAdapter(made, None).graph_inputs(given, named)
    sizes = infer_sizes(made.graph.inputs, inputs)
    plan = Plan.for_sizes(made.graph, options, size_buckets(sizes, made.bounds), sizes, DEFAULT_SIZE_HINT)
    return plan.specialized_graph(), [as_array(t) for t in inputs]


def with_passes(subject: Subject, text: str) -> Subject:
    """Return the subject with its passes replaced or edited."""
    return replace(subject, passes=parse_pipeline(text, print_pipeline(subject.passes))) if text else subject
