"""Smaller IR that shows the same fault, and the files that repeat it."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.graph.structure import Leaf
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.options import Options
from compiler.passes.base import Context, Pass
from compiler.passes.instrument import verify
from compiler.passes.manager import run_on_nested_graphs
from compiler.passes.pipeline_text import Pipeline, print_pipeline
from compiler.passes.semantic_check import CheckWarning, SemanticCheck
from compiler.target import Target
from compiler.testing.bisection.search import Finding
from compiler.testing.bisection.subject import Limit, Stage, Subject, subject_with
from compiler.testing.fuzz.reduce import shrink, simplifications
from compiler.testing.fuzz.reduce_tile import kernel_simplifications, program_simplifications

MAX_TRIES, MAX_NATIVE_TRIES = 400, 60
"""Most simplifications to try: interpreted ones take milliseconds, native ones a compilation."""

RADII = (1, 2, 4, 8, 16)
"""Distances from a rewritten node up to which a graph is kept, the smallest that still fails first."""


def pass_problem(pass_: Pass[Any], ir: AnyIR, target: Target) -> str:
    """Return what is wrong with the result of a pass on IR, as far as verifier and interpreter see; "" if nothing."""
    context = Context.for_target(target)
    try:
        new = run_on_nested_graphs(pass_, ir, context)
        verify(new)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckWarning)
            SemanticCheck().after_pass(pass_, ir, new, 0.0, context)
    except TilewrightError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def reduce_finding(finding: Finding, subject: Subject) -> tuple[AnyIR, Pipeline]:
    """Return small IR before the pass that a finding names, and the passes that spoil it: that one alone if it does so."""
    run = finding.run
    if run is None:
        return subject.ir, subject.passes
    pass_, ir = run.pass_, run.before
    kind = problem_kind(pass_problem(pass_, ir, subject.target))
    if kind:
        return reduce_ir(
            ir, finding, lambda x: problem_kind(pass_problem(pass_, x, subject.target)) == kind, MAX_TRIES
        ), (pass_,)
    rest = passes_from(pass_, ir, subject.passes)
    if finding.limited_to or not fails_natively(ir, rest, pass_, subject.target):
        return ir, rest
    return reduce_ir(ir, finding, lambda x: fails_natively(x, rest, pass_, subject.target), MAX_NATIVE_TRIES), rest


def problem_kind(problem: str) -> str:
    """Return the words of a problem up to its first number or name."""
    return re.split(" for @| on @| the result of |:", problem, maxsplit=1)[0]


def passes_from(pass_: Pass[Any], ir: AnyIR, passes: Pipeline) -> Pipeline:
    """Return the passes from one on that a graph, program or kernel still goes through."""
    position = next((k for k, p in enumerate(passes) if p is pass_), 0)
    rest = passes[position:]
    return tuple(p for p in rest if p.ir_type is Kernel) if isinstance(ir, Kernel) else rest


def fails_natively(ir: AnyIR, passes: Pipeline, pass_: Pass[Any], target: Target) -> bool:
    """Return True if native code of `ir` is wrong, and right without the rewrites of one pass."""
    try:
        subject = subject_with(ir, passes, target)
    except Exception:  # what cannot be interpreted is no example
        return False
    if not subject.attempt(Limit(), Stage.NATIVE).problem:
        return False
    return not subject.attempt(Limit(0, pass_.name), Stage.NATIVE).problem


def reduce_ir(ir: AnyIR, finding: Finding, still_fails: Callable[[AnyIR], bool], limit: int) -> AnyIR:
    """Return smaller IR that still fails: the part around the rewritten node, then what the fuzzer's reducer makes of it."""
    if isinstance(ir, Kernel):
        return shrink(ir, kernel_simplifications, still_fails, limit)
    if isinstance(ir, Program):
        return shrink(ir, program_simplifications, still_fails, limit)
    about = finding.rewrite.node if finding.rewrite else ""
    parts = (neighbourhood(ir, about, radius) for radius in RADII if about)
    small = next((g for g in parts if g is not None and len(g.nodes) < len(ir.nodes) and still_fails(g)), ir)
    return shrink(small, simplifications, still_fails, limit)


def neighbourhood(graph: Graph, name: str, radius: int) -> Graph | None:
    """Return the part of a graph at most `radius` edges from the node of a name; other operands become inputs."""
    centre = next((n for n in graph.nodes if name in (n.name, n.op.name)), None)
    if centre is None:
        return None
    near, frontier = {centre}, {centre}
    for _ in range(radius):
        frontier = {m for n in frontier for m in (*n.operands, *graph.users[n])} - near
        near |= frontier
    new: dict[Node, Node] = {}
    inside = [n for n in graph.nodes if n in near and not isinstance(n.structure, Leaf)]
    for n in inside:
        for o in (o for o in n.operands if o not in new):
            if isinstance(o.result_type, tuple):
                return None
            is_constant = isinstance(o.structure, Leaf) and o not in graph.inputs
            new[o] = o if is_constant else input_node(o.name or f"v{len(new)}", o.type, o.loc)
        new[n] = n.with_operands(tuple(new[o] for o in n.operands))
    outputs = tuple(new[n] for n in inside if n in graph.outputs or any(u not in inside for u in graph.users[n]))
    inputs = tuple(v for v in new.values() if isinstance(v.structure, Leaf) and v not in graph.constants)
    return Graph(inputs, outputs, graph.name) if outputs else None


# files

SCRIPT = """\"\"\"{summary}\"\"\"

from pathlib import Path

{imports}

IR = parse_ir(Path(__file__).with_suffix(".ir").read_text(encoding="utf-8"))


def test_reduced() -> None:
    {body}


if __name__ == "__main__":
    test_reduced()
"""
"""Text of a reproducer in Python, which pytest runs too; it fails as long as the fault is there."""

ONE_PASS = (
    """from compiler.codegen.backend import target_by_name
from compiler.passes.base import Context
from compiler.passes.instrument import Verify
from compiler.passes.manager import run_pipeline
from compiler.passes.semantic_check import SemanticCheck
from compiler.testing import parse_ir""",
    """context = Context.for_target(target_by_name({target!r}))
    run_pipeline(IR, {passes!r}, context, [Verify(), SemanticCheck()])""",
)
"""Imports and body of a reproducer in which a pass spoils the IR by itself."""

NATIVE_CODE = (
    """from compiler.options import Options
from compiler.testing import bisect, parse_ir""",
    """found = bisect(IR, options=Options(target={target!r}), passes={passes!r}, reduce=False)
    assert found is None, str(found)""",
)
"""The same where only native code is wrong."""


def write_files(
    folder: Path, ir: AnyIR, passes: Pipeline, finding: Finding, options: Options
) -> tuple[Path, Path, str]:
    """Write reduced IR and a Python reproducer; return their names and the command that repeats the fault."""
    folder.mkdir(parents=True, exist_ok=True)
    name = finding.pass_name.partition("{")[0].replace("-", "_") or "reduced"
    file, script, text = folder / f"{name}.ir", folder / f"{name}.py", print_pipeline(passes)
    if len(passes) == 1:
        command, (imports, body) = ["tilewright", "opt", str(file), "-p", text, "--verify", "--check"], ONE_PASS
    else:
        command, (imports, body) = ["tilewright", "bisect", str(file), "-p", text], NATIVE_CODE
    command += [] if options.target == "host" else ["--target", options.target]
    file.write_text(f"# {shlex.join(command)}\n{print_ir(ir, full=True)}\n", encoding="utf-8")
    summary = next(iter(finding.problem.splitlines()), finding.cause).replace('"', "'")
    body = body.format(target=options.target, passes=text)
    script.write_text(SCRIPT.format(summary=summary, imports=imports, body=body), encoding="utf-8")
    return file, script, shlex.join(command)
