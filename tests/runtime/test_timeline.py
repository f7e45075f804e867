"""Timelines: which steps ran when, on which threads, from marks inside the call."""

from __future__ import annotations

import time

import pytest
import torch

from compiler.codegen.llvm.program_entry import CopyBytes, FrameSlot, Loop, Mark, with_marks
from compiler.ir.text.tile_parser import parse_program
from compiler.runtime.timeline import Span, Timeline, TimelineRecorder, attribute_spans, segment_runs
from compiler.runtime.timing import Timing
from tests.runtime.test_cpu_executable import MATMUL, OPAQUE, adding, build

LOOP = """
program {
  input %x: f32[3, 4]
  output %y: f32[3, 4]
  output %z: f32[3, 4]
  kernel @double(in %x: f32[4], out %y: f32[4]) { for %i in 0..4 { store %x[%i] * 2.0, %y[%i] } }
  kernel @inc(in %x: f32[4], out %y: f32[4]) { for %i in 0..4 { store %x[%i] + 1.0, %y[%i] } }
  repeat %k in 0..3 {
    view %a = %x[%k]
    view %b = %y[%k]
    view %c = %z[%k]
    launch @double(%a, %b)
    launch @inc(%b, %c)
  }
}
"""


def test_marks_stand_after_each_action_also_inside_loops() -> None:
    copy = CopyBytes(FrameSlot(4), FrameSlot(5), 8)
    marked = list(with_marks([copy, Loop("k", 3, (copy,))]))
    assert marked == [Mark(), copy, Mark(), Loop("k", 3, (copy, Mark()))]


def test_every_run_of_a_loop_is_recorded() -> None:
    program = parse_program(LOOP)
    assert segment_runs(program) == [[0, 1, 0, 1, 0, 1]]
    x = torch.randn(3, 4)
    exe = build(LOOP)
    timeline = TimelineRecorder(exe)([x])
    assert [run.step for run in timeline.runs] == [0, 1, 0, 1, 0, 1]
    ends = [t for run in timeline.runs for t in (run.begin, run.end)]
    assert ends == sorted(ends)
    assert ends[0] == 0
    assert ends[-1] > 0
    assert torch.equal(exe([x])[0], 2 * x)  # the executable itself is as it was


def test_calls_into_pytorch_are_segments_of_their_own() -> None:
    exe = build(OPAQUE, c=torch.randn(8, 4).numpy())
    assert segment_runs(exe.program) == [[0], [1], [2], [3]]
    timeline = TimelineRecorder(exe)([torch.randn(8, 4)])
    assert [run.step for run in timeline.runs] == [0, 1, 2, 3]
    assert min(timeline.step_seconds(4)) > 0


def test_threads_that_share_a_kernel() -> None:
    record = TimelineRecorder(adding(1 << 12, parallel=True))
    spans = [s for _ in range(20) for s in record([torch.randn(1 << 12), torch.randn(1 << 12)]).spans]
    assert {s.step for s in spans} == {0}
    assert 0 in {s.thread for s in spans}
    assert all(s.begin <= s.end for s in spans)


def test_a_serial_kernel_has_no_spans() -> None:
    exe = build(MATMUL, w=torch.randn(40, 32).numpy())
    assert not TimelineRecorder(exe)([torch.randn(6, 40)]).spans


def test_spans_belong_to_the_step_that_ran() -> None:
    runs = [Span(0, 0.0, 1.0), Span(1, 1.0, 2.0), Span(0, 2.0, 3.0)]
    spans = list(attribute_spans(runs, [(1, 2.5, 2.6), (0, 1.0, 1.9), (1, 0.5, 0.9)]))
    assert [(s.step, s.thread) for s in spans] == [(0, 1), (1, 0), (0, 1)]
    assert Timeline(tuple(runs), tuple(spans)).step_seconds(2) == [2.0, 1.0]


def test_noise_is_said() -> None:
    quiet, noisy = Timing((1.0, 1.02, 1.05, 1.01)), Timing((1.0, 1.1, 3.0, 4.0))
    assert (noisy.minimum, noisy.median) == (1.0, 2.05)
    assert not quiet.warning
    assert "noisy" in noisy.warning
    assert noisy.spread > quiet.spread > 0
    assert Timing((2.0,)).spread == 0
    assert Timing.total([quiet, noisy]).seconds == (2.0, 2.12, 4.05, 5.01)


def test_steps_are_timed_by_the_clock_of_the_thread() -> None:
    record = TimelineRecorder(adding(1 << 12), cpu_time=True)
    before = time.thread_time_ns()
    (run,) = record([torch.randn(1 << 12), torch.randn(1 << 12)]).runs
    marks = list(record._marks)
    assert before <= marks[0] <= marks[1] <= time.thread_time_ns()
    assert run.end - run.begin == pytest.approx((marks[1] - marks[0]) * 1e-9)
