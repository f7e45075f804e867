"""Steps of a compilation: what each pass changes in the text of its IR, and each rewrite inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.cost.estimates import roofline_seconds
from compiler.cost.kernel_time import predicted_seconds
from compiler.cost.machine import Machine
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context
from compiler.passes.instrument import PassRun
from compiler.passes.manager import run_passes
from compiler.report.explore.drawing import DrawingBuilder
from compiler.report.explore.line_delta import line_delta
from compiler.report.explore.page_data import PageAlternative, PageStep, Steps
from compiler.report.explore.recording import RecordedCompilation
from compiler.report.explore.rewrites import printed_lines, rewrites_of
from compiler.runtime.profile import sharing_threads

MAX_ALTERNATIVES = 12
"""Most alternatives of a kernel that are predicted."""


def steps_of(
    runs: Sequence[PassRun],
    context: Context,
    drawings: DrawingBuilder | None = None,
    kernels: Mapping[str, str] | None = None,
) -> Steps:
    """Return the text before the first of `runs` and the changes that each makes; `drawings` draws the graph after each.

    `context` is that of the recorded compilation, `kernels` names the kernel of a node.
    """
    if not runs:
        return Steps([], [])
    text = first = printed_lines(runs[0].before)
    steps = list[PageStep]()
    for run in runs:
        new = text if run.after is None or run.after is run.before else printed_lines(run.after)
        delta = line_delta(text, new)
        drawn = (
            drawings.draw_step(run.after, kernels or {}) if drawings and delta and isinstance(run.after, Graph) else -1
        )
        effect = (type(run.pass_).__doc__ or "").strip().split("\n")[0]
        rewrites = rewrites_of(run, context) if delta else ([], "")
        failed = run.after is None
        steps.append(PageStep(run.pass_.name, str(run.pass_), effect, run.seconds, delta, *rewrites, drawn, failed))
        text = new
    return Steps(first, steps)


def predicted_alternatives(
    runs: Sequence[PassRun], recording: RecordedCompilation, machine: Machine
) -> list[PageAlternative]:
    """Return the alternatives that passes over one kernel proposed, with the time of the kernel that each leads to."""
    found = list[PageAlternative]()
    passes = [r.pass_ for r in runs]
    final = runs[-1].after if runs else None
    known = {kernel_digest(final)} if isinstance(final, Kernel) else set[str]()
    proposals = [(k, a) for k, r in enumerate(runs) for a in r.alternatives]
    for k, a in proposals[:MAX_ALTERNATIVES]:
        change = str(a.replacement) if a.replacement else f"without {a.pass_.name}"
        pipeline = (*([a.replacement] if a.replacement else []), *passes[k + 1 :])
        before = runs[k].before
        assert isinstance(before, Kernel)
        context = Context.for_target(recording.target)
        context.program = recording.context.program
        kernel = run_passes(before, pipeline, context)
        if kernel_digest(kernel) not in known:
            known.add(kernel_digest(kernel))
            found.append(PageAlternative(change, launch_seconds(kernel, machine)))
    omitted = len(proposals) - MAX_ALTERNATIVES
    return [*found, *([PageAlternative(f"{omitted} more, not predicted", None)] if omitted > 0 else [])]


def launch_seconds(kernel: Kernel, machine: Machine, sizes: Mapping[str, int] | None = None) -> float:
    """Return the predicted seconds of a launch; of one for other `sizes` than the hints, in proportion to the roofline."""
    scale = roofline_seconds(kernel, machine, 1, sizes) / (roofline_seconds(kernel, machine) or 1.0) if sizes else 1.0
    return scale * predicted_seconds(kernel, machine) / sharing_threads(kernel, sizes)
