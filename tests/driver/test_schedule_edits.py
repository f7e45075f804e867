"""Random edits of schedules are refused, or the kernel still computes the same."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.backend import backend_of
from compiler.codegen.llvm.targets import host_target
from compiler.driver.given_kernels import given_kernel, legalized, require_same
from compiler.errors import PassError, TargetError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel, stmt_ranges, walk
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import parse_pipeline, split_at_kernels
from compiler.passes.schedule import directives
from compiler.passes.schedule.record import ScheduleRecorder

TARGET = host_target()
KERNELS = (
    """kernel @k(in %x: f32[7, 20], const %w: f32[40, 20], out %y: f32[7, 40]) {
      parallel %i in 0..7 { parallel %j in 0..40 {
        %s = reduce add %r in 0..20 { yield %x[%i, %r] * %w[%j, %r] }
        store max(%s, 0.0), %y[%i, %j]
      } } }""",
    """kernel @k(in %x: f32[2, 6, 33], out %y: f32[2, 6, 31]) {
      parallel %b in 0..2 { parallel %i in 0..6 { parallel %j in 0..31 {
        %s = reduce max %r in 0..3 { yield %x[%b, %i, %j + %r] }
        store %s, %y[%b, %i, %j]
      } } } }""",
    """kernel @k(in %x: f32[5, 40], inout %y: f32[5, 41]) {
      parallel %i in 0..5 { for %j in 0..40 { store %y[%i, %j] + %x[%i, %j], %y[%i, %j + 1] } } }""",
    """kernel @k(in %x: f32[5, 40], out %y: f32[5, 40]) {
      parallel %i in 0..5 {
        %m = reduce max %r in 0..40 { yield %x[%i, %r] }
        for %j in 0..40 { store exp(%x[%i, %j] - %m), %y[%i, %j] }
      } }""",
)
DIRECTIVES = (
    "tile %{v} by {n}", "vectorize %{v} by {n}", "unroll %{v} by {n}", "split %{v} by {n} -> %o", "reorder %{v}, %{w}",
    "collapse %{v} %{w}", "parallel %{v}", "serial",
)  # fmt: skip


def edited(steps: list[str], kernel: Kernel, rng: random.Random) -> list[str]:
    """The steps with up to three lines deleted, exchanged, inserted or with other factors."""
    steps, loops = list(steps), [r.var for s in walk(kernel.body) for r in stmt_ranges(s)]
    for _ in range(rng.randint(1, 3)):
        k, m = (rng.randrange(len(steps) or 1) for _ in range(2))
        match rng.randrange(4) if steps else 3:
            case 0:
                del steps[k]
            case 1:
                steps[k], steps[m] = steps[m], steps[k]
            case 2:
                steps[k] = re.sub(r"by \d+", f"by {rng.choice((0, 1, 2, 3, 5, 8, 16))}", steps[k])
            case 3:
                v, w = rng.choice(loops), rng.choice(loops)
                steps.insert(k, rng.choice(DIRECTIVES).format(v=v, w=w, n=rng.choice((2, 3, 4, 8))))
    return steps


def refusal(kernel: Kernel, seed: int) -> str:
    """Edit the schedule of a kernel at random; return why it is refused, or how results differ, "" if neither."""
    context, recorder = Context.for_target(TARGET), ScheduleRecorder()
    run_pipeline(kernel, split_at_kernels(parse_pipeline(backend_of(TARGET).pipelines.program))[1], context, [recorder])
    steps = edited([str(s) for s in recorder.schedules["k"].steps], kernel, random.Random(seed))
    text = "\n".join(["schedule @k {", *steps, "}"])
    try:
        require_same(given_kernel(text, kernel, TARGET, context), [legalized(kernel, TARGET)], TARGET)
    except (PassError, TargetError) as error:
        return f"{error}\n{text}"
    return ""


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from(KERNELS), st.integers(0, 10_000))
def test_random_edits(text: str, seed: int) -> None:
    reason = refusal(parse_kernel(text), seed)
    assert "elements differ" not in reason
    assert " failed: " not in reason


def test_many_edits_are_legal() -> None:
    assert [refusal(parse_kernel(KERNELS[0]), seed) for seed in range(8)].count("") >= 3


def test_edits_find_a_missing_dependence_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the iterations of a recurrence taken for independent, its results would differ."""
    monkeypatch.setattr(directives, "require_independent", lambda *_: None)
    assert any("elements differ" in refusal(parse_kernel(KERNELS[2]), seed) for seed in range(12))
