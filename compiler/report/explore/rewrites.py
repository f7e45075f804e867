"""Rewrites inside a pass: the IR after each of them, from runs of the pass that stop there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context
from compiler.passes.instrument import ir_size
from compiler.passes.manager import run_on_nested_graphs
from compiler.passes.remark import Remark, Remarks
from compiler.report.explore.line_delta import Hunk, line_delta
from compiler.report.explore.origins import OriginLoc, name_by_origin, subject_of
from compiler.report.explore.page_data import Rewrite
from compiler.report.explore.recording import PassRun

MAX_WORK = 60_000
"""Most nodes or statements, over all runs of one pass, that are visited to show its rewrites."""

MAX_SUBJECTS = 4
"""Most subjects of a step of several rewrites that are named."""


def printed_lines(ir: AnyIR) -> list[str]:
    """Return the lines of the text of IR as the page shows it."""
    return print_ir(name_by_origin(ir) if isinstance(ir, Graph) else ir).splitlines()


def rewrites_of(run: PassRun, context: Context) -> tuple[list[Rewrite], str]:
    """Return the rewrites of a run of a pass, each as a step, and what is left out and why ("": nothing).

    A pass is a pure function, so the IR after k rewrites is what it makes of its input if it may make k.  Where that takes too
    long, a step makes several rewrites.  `context` is that of the recorded compilation.
    """
    count = len(run.rewrites)
    stride = -(-count // max(1, MAX_WORK // max(1, ir_size(run.before))))
    text, rewrites = printed_lines(run.before), list[Rewrite]()
    for k in (*range(0, count, stride), count) if count else ():
        try:
            new = printed_lines(limited_run(run, context, k))
        except TilewrightError as error:
            return rewrites, f"not shown: the other rewrites, since the pass fails after {k} of them: {error}"
        delta, text = line_delta(text, new), new
        if k:
            rewrites.append(joint_rewrite(run.rewrites[(k - 1) // stride * stride : k], delta))
        elif delta:
            rewrites.append(Rewrite("what the pass does in any case", "", [], delta))
    return rewrites, f"each step makes up to {stride} rewrites of this large graph" if stride > 1 else ""


def joint_rewrite(made: Sequence[Remark], delta: list[Hunk]) -> Rewrite:
    """Return rewrites as one step, which changes the text by `delta`."""
    subjects = [subject_of(r) for r in made]
    more = f" and {len(made) - MAX_SUBJECTS} more" if len(made) > MAX_SUBJECTS else ""
    origins = sorted({r.loc.number for r in made if isinstance(r.loc, OriginLoc)})
    messages = "; ".join(dict.fromkeys(r.message for r in made))
    return Rewrite(messages, ", ".join(filter(None, subjects[:MAX_SUBJECTS])) + more, origins, delta)


def limited_run(run: PassRun, context: Context, limit: int) -> AnyIR:
    """Return what a pass makes of the input of `run` in at most `limit` rewrites."""
    kernel = run.before.name if isinstance(run.before, Kernel) else ""
    fresh = replace(
        context,
        kernel=kernel,
        rewrite_limit=limit,
        refuses_required=True,
        rewrites=[],
        remarks=Remarks(),
        alternatives=[],
    )
    return run_on_nested_graphs(run.pass_, run.before, fresh)
