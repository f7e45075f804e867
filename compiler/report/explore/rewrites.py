"""Rewrites inside a pass: the IR after each of them, from runs of the pass that stop there."""

from __future__ import annotations

from dataclasses import replace

from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context
from compiler.passes.instrument import ir_size
from compiler.passes.manager import run_on_nested_graphs
from compiler.passes.remark import Remarks
from compiler.report.explore.line_delta import line_delta
from compiler.report.explore.origins import OriginLoc, name_by_origin, subject_of
from compiler.report.explore.page_data import Rewrite
from compiler.report.explore.recording import PassRun

MAX_WORK = 20_000
"""Most nodes or statements, over all runs of one pass, that are visited to show its rewrites."""


def printed_lines(ir: AnyIR) -> list[str]:
    """Return the lines of the text of IR as the page shows it."""
    return print_ir(name_by_origin(ir) if isinstance(ir, Graph) else ir).splitlines()


def rewrites_of(run: PassRun, context: Context) -> tuple[list[Rewrite], str]:
    """Return the rewrites of a run of a pass, and which are left out and why ("": none).

    A pass is a pure function, so the IR after k rewrites is what it makes of its input if it may make k.  `context` is that of the
    recorded compilation.
    """
    count = min(len(run.rewrites), MAX_WORK // max(1, ir_size(run.before)))
    text, rewrites = printed_lines(run.before), list[Rewrite]()
    for k in range(count + 1) if run.rewrites else ():
        try:
            new = printed_lines(limited_run(run, context, k))
        except TilewrightError as error:
            return rewrites, f"not shown: the other rewrites, since the pass fails after {k} of them: {error}"
        delta, text = line_delta(text, new), new
        if k:
            made = run.rewrites[k - 1]
            origins = [made.loc.number] if isinstance(made.loc, OriginLoc) else []
            rewrites.append(Rewrite(made.message, subject_of(made), origins, delta))
        elif delta:
            rewrites.append(Rewrite("what the pass does in any case", "", [], delta))
    omitted = len(run.rewrites) - count
    return rewrites, f"not shown: {omitted} more rewrites of this large graph" if omitted else ""


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
