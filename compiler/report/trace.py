"""Trace of a call in Chrome's trace event format, which Perfetto and chrome://tracing show: a track for each thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from compiler.report.profile import Profile
from compiler.report.render import abbreviate, format_location
from compiler.runtime.timeline import Span

TraceEvent: TypeAlias = dict[str, Any]


def trace_events(profile: Profile) -> dict[str, Any]:
    """Return the fastest of the recorded calls as a trace; times in microseconds."""
    fastest = min(profile.timelines, key=lambda call: sum(t.runs[-1].end for t in call if t.runs), default=())
    events, threads, begin, first = list[TraceEvent](), {0}, 0.0, 0
    for timeline in fastest:
        events += (_event(profile, span, begin, first, "step") for span in timeline.runs)
        events += (_event(profile, span, begin, first, "chunks") for span in timeline.spans)
        threads.update(span.thread for span in timeline.spans)
        begin += timeline.runs[-1].end if timeline.runs else 0.0
        first += 1 + max((run.step for run in timeline.runs), default=-1)
    return {"traceEvents": [*_track_names(sorted(threads)), *events], "displayTimeUnit": "ns"}


def _event(profile: Profile, span: Span, begin: float, first: int, category: str) -> TraceEvent:
    step, origin = profile.steps[first + span.step]
    work = {"flops": step.flops // step.runs, "bytes": step.bytes // step.runs}
    return {
        "name": step.name,
        "cat": category,
        "ph": "X",
        "ts": (begin + span.begin) * 1e6,
        "dur": (span.end - span.begin) * 1e6,
        "pid": 0,
        "tid": span.thread,
        "args": {"ops": abbreviate(origin.ops), "where": format_location(origin.place), **work},
    }


def _track_names(threads: list[int]) -> Iterator[TraceEvent]:
    for thread in threads:
        name = f"worker {thread}" if thread else "caller"
        yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}
