"""Steps inside passes are the states that `rewrite_limit` stops at, however the page comes by them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler.codegen.backend import target_by_name
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.text.ir_text import parse_ir
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.instrument import PassRecorder, PassRun
from compiler.passes.manager import run_pipeline
from compiler.passes.pattern import Match, RulePass, any_value, rewrite
from compiler.passes.pipeline_text import parse_pipeline
from compiler.report.explore import rewrites
from compiler.report.explore.origins import OriginTable
from compiler.report.explore.page_data import PageStep
from compiler.report.explore.recording import record
from compiler.report.explore.rewrites import printed_lines, rewrites_of
from compiler.report.explore.steps import steps_of
from compiler.tools.cli import main
from tests.report.explore.pages import apply_delta

GRAPH = """graph @g(%x: f32[8, 16], %w: f32[16, 16]) {
  %a: f32[8, 16] = neg %x
  %b: f32[8, 16] = neg %a
  %c: f32[8, 16] = exp %b
  %d: f32[8, 16] = exp %b
  %e: f32[8, 16] = add %c, %d
  %f: f32[8, 16] = mul 2.0, %e
  %g: f32[8, 16] = matmul %f, %w
  %m: f32[8, 1] = amax %g {dims=[1], keepdim=true}
  %h: f32[8, 16] = sub %g, %m
  %y: f32[8, 16] = tanh %h
  return %y, %c
}"""
PASSES = "canonicalize,cse,fuse"


def steps_with_texts(runs: tuple[PassRun, ...], context: Context) -> Iterator[tuple[PageStep, int, str]]:
    """Yield each rewrite of a page with its pass, its number, and the text after it."""
    steps = steps_of(runs, context)
    text = steps.text
    for step in steps.steps:
        inner = text
        for r in step.rewrites:
            inner = apply_delta(inner, r.delta)
            yield step, r.number, "\n".join(inner)
        text = apply_delta(text, step.delta)


def test_step_k_is_what_opt_prints_for_rewrite_limit_k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.ir").write_text(GRAPH)
    recorder, context = PassRecorder(), Context.for_target(target_by_name("x86-64-v4"))
    run_pipeline(parse_ir(GRAPH), PASSES, context, [recorder])
    numbers = list[int]()
    for step, number, text in steps_with_texts(tuple(recorder.runs), context):
        passes = PASSES[: PASSES.index(step.name) + len(step.name)]  # later ones make the rewrites that are required
        limit = ["--target", "x86-64-v4", "--rewrite-limit", str(number)]
        assert main(["opt", str(tmp_path / "g.ir"), "-p", passes, *limit]) == 0
        assert capsys.readouterr().out.strip() == text
        numbers.append(number)
    assert numbers == list(range(1, len(context.rewrites) + 1))
    assert len(numbers) > 8


def test_numbers_go_on_over_all_passes() -> None:
    """Those of kernels follow those of the graph and of the program."""
    recording = record(parse_ir(GRAPH), Options(target="x86-64-v3", cache=""), OriginTable())
    counted = [r.number for run in recording.runs for r in rewrites_of(run, recording.context)[0] if r.number]
    assert counted == list(range(1, len(recording.context.rewrites) + 1))


def test_offered_states_are_those_of_runs_that_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, context = PassRecorder(), Context()
    run_pipeline(parse_ir(GRAPH), PASSES, context, [recorder])
    offered = [rewrites_of(run, context) for run in recorder.runs]
    stopped = list[int]()
    limited = rewrites.RewriteSteps._limited_run
    monkeypatch.setattr(rewrites.RewriteSteps, "_limited_run", lambda s, k: stopped.append(k) or limited(s, k))
    assert [rewrites_of(run, context) for run in recorder.runs] == offered
    assert stopped == [0, 0, 0]
    monkeypatch.setattr(Context, "reached", lambda self, state: None)
    assert [rewrites_of(run, context) for run in recorder.runs] == offered
    assert len(stopped) > 8


x = any_value("x", dtype="float")


@rewrite(ops.neg(ops.neg(x)))
def negate_twice(m: Match) -> Node:
    """-(-x) -> x"""
    return m[x]


def test_rules_offer_each_match(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_ir("graph(%x: f32[4]) { %a = neg %x  %b = neg %a  %c = exp %b  %d = neg %c  %y = neg %d  return %y }")
    assert isinstance(graph, Graph)
    context, pass_ = Context(), RulePass("negate-twice", (negate_twice,))
    run = PassRun(pass_, graph, pass_.run(graph, context), rewrites=tuple(context.rewrites))
    steps, omitted = rewrites_of(run, context)
    assert (len(steps), omitted) == (2, "")
    text = printed_lines(graph)
    for k, step in enumerate(steps, 1):
        text = apply_delta(text, step.delta)
        assert text == printed_lines(run_pipeline(graph, [pass_], Context(rewrite_limit=k)))
    assert parse_pipeline("negate-twice")
