"""Survey of performance: programs drawn from seeds run and export, processes survive crashes, and rows are grouped by feature."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from benchmarks.survey.command import describe
from benchmarks.survey.drawing import DRAWING_MACHINE, KINDS, MOST_SECONDS, draw_from, draw_program
from benchmarks.survey.features import features
from benchmarks.survey.program import Program
from benchmarks.survey.roofline import eager_seconds, roofline_seconds, workload
from benchmarks.survey.rows import KernelRow, Row, append_row, read_rows
from benchmarks.survey.summary import group_by_feature, prediction_quality, summarize
from benchmarks.survey.worker import Workers
from compiler.ir.text.graph_parser import parse_graph

LINEAR = """
import torch
from torch import nn
model = nn.Linear(64, 32, bias=False)
args = (torch.randn(16, 64),)
dynamic_shapes = None
"""

SEED = 5


@pytest.mark.parametrize("index", range(8))
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_drawn_programs_run_and_export(kind: str, index: int) -> None:
    program = draw_program(SEED, index, kind)
    loaded = program.load()
    results = loaded.model(*loaded.args)
    exported = torch.export.export(loaded.model, loaded.args, dynamic_shapes=loaded.dynamic_shapes)
    again = exported.module()(*loaded.args)
    assert [t.shape for t in tree_leaves(results)] == [t.shape for t in tree_leaves(again)]
    assert eager_seconds(workload(program), DRAWING_MACHINE) < MOST_SECONDS


def test_drawing_is_deterministic() -> None:
    sources = [draw_program(seed, k, "operators").source for seed in (1, 1, 2) for k in range(4)]
    assert sources[:4] == sources[4:8] != sources[8:]
    assert [draw_program(1, k).kind for k in range(3)] == list(KINDS)


@pytest.mark.parametrize(("kind", "family"), [(k, f) for k in ("operators", "programs") for f in KINDS[k]])
def test_every_family_can_be_drawn(kind: str, family: str) -> None:
    assert "return" in draw_from(family, random.Random(0), 0, 0, kind).source


def test_a_family_that_cannot_be_drawn_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "broken", {"wrong": lambda b: b.value("torch.zeros(2) @ torch.zeros(3)")})
    with pytest.raises(RuntimeError, match=r"nothing can be drawn from 'wrong' of broken: .*size"):
        draw_program(0, 0, "broken")


def test_work_is_counted_on_the_graph() -> None:
    work = workload(Program(0, "operators", 0, "linear", LINEAR))
    assert work.eager.flops == 2 * 16 * 64 * 32
    assert work.compulsory_bytes == 4 * (16 * 64 + 64 * 32 + 16 * 32)
    one, two = (roofline_seconds(work, DRAWING_MACHINE, threads) for threads in (1, 2))
    assert one == pytest.approx(2 * two)


def test_rows_of_a_table_that_are_not_read_do_not_count() -> None:
    table = LINEAR.replace("nn.Linear(64, 32, bias=False)", "nn.Embedding(1000, 32)").replace(
        "torch.randn(16, 64)", "torch.arange(16)"
    )
    assert workload(Program(0, "operators", 0, "embedding", table)).compulsory_bytes < 4 * 16 * 32 * 3


def test_features_of_graphs() -> None:
    graph = parse_graph("""graph(%x: bf16[1, 16], %w: bf16[16, 64]) {
      %y = matmul %x, %w  %s = sum %y {dims=[0]}  return %s }""")
    found = features(graph)
    expected = {"matmul", "dtype bf16", "product: K <= 32", "product: matrix-vector", "product: of arguments alone"}
    assert expected <= {*found}
    assert "convolution" not in found


def row(index: int, speed: float, *names: str) -> Row:
    seconds = {"slow": 9.0, "fast": speed}
    return Row(1, "programs", index, "family", 1, [*names], 1.0, seconds, {"ours": 0.1}, 0.5)


def test_groups_name_what_losers_share() -> None:
    rows = [row(k, 0.25, "bad", "twin") for k in range(3)] + [row(k, 4.0, "good") for k in range(3, 8)]
    groups = {g.feature: g for g in group_by_feature(rows)}
    worst, all_of_them = groups["bad, twin"], groups["programs, family, call: longer"]
    assert worst.speed == pytest.approx(0.25)
    assert (worst.programs, worst.share, worst.loser_share) == (3, 3 / 8, 1.0)
    assert groups["good"].loser_share == 0
    assert all_of_them.speed == pytest.approx(math.exp((3 * math.log(0.25) + 5 * math.log(4)) / 8))
    assert next(iter(groups)) == "bad, twin"


def test_predictions_are_compared_with_times() -> None:
    kernels = [KernelRow("k", seconds, seconds * 1.5) for seconds in (1.0, 2.0, 3.0)]
    quality = prediction_quality([*kernels, KernelRow("unknown", 1.0, 0.0)])
    assert quality is not None
    assert (quality.kernels, quality.median_error, quality.tau) == (3, 0.5, 1.0)
    reversed_order = prediction_quality([KernelRow("k", 1.0, 2.0), KernelRow("k", 2.0, 1.0)])
    assert reversed_order is not None
    assert reversed_order.tau == -1


def test_wrong_results_slow_compilation_and_failures_are_lines() -> None:
    rows = [
        replace(row(0, 2.0), error=1e-2, eager_error=1e-6),
        replace(row(1, 2.0), first_seconds={"ours": 30.0}),
        replace(row(2, 2.0), failures={"fast": "crashed"}),
        Row(1, "programs", 3, "family", 1, failures={"ours": "did not compile"}),
    ]
    text = "\n".join(summarize(rows)[1])
    assert "WRONG by 1e-02 (eager 1e-06): --seed 1 --kind programs --only 0" in text
    assert "SLOW to compile, 30.0 s: --seed 1 --kind programs --only 1" in text
    assert "FAILED, fast: crashed: --seed 1 --kind programs --only 2" in text
    assert "FAILED, ours: did not compile: --seed 1 --kind programs --only 3" in text
    assert text.count("WRONG") == text.count("SLOW") == 1
    assert "4 programs, 3 measured" in text


def test_rows_survive_a_file_and_the_last_of_a_program_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first, second = replace(row(0, 1.0), kernels=[KernelRow("k", 1.0, 2.0)]), row(1, 1.0)
    for r in (first, second, replace(second, seconds=5.0)):
        append_row(path, r)
    assert [*read_rows([path])] == [first, replace(second, seconds=5.0)]


def dying(program: Program, peers: tuple[str, ...], threads: int, report: Callable[[str], None]) -> Row:
    """End the process in the stage of peer "crashes", and block it in that of "hangs"."""
    for name in peers:
        report(name)
        if name == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "hangs":
            time.sleep(60)
        if name == "raises":
            raise ValueError("no such thing")
    return Row(program.seed, program.kind, program.index, program.family, threads, seconds=1.0)


def test_a_crash_and_a_hang_are_failures_of_their_peer() -> None:
    program = Program(0, "operators", 0, "linear", LINEAR)
    with closing(Workers(("fine",), 1, 60, dying)) as workers:
        workers.measure(program)  # imports what further processes inherit
    with closing(Workers(("fine", "crashes", "hangs", "raises"), 1, 3, dying)) as workers:
        made = workers.measure(program)
    assert made.seconds == 1.0
    assert made.failures == {
        "crashes": "the process ended with SIGKILL",
        "hangs": "took more than 3 seconds",
        "raises": "ValueError: no such thing",
    }
    assert "linear" in describe(made)


def test_a_program_is_measured_in_a_process() -> None:
    with closing(Workers(("eager",), 1, 120)) as workers:
        made = workers.measure(Program(0, "operators", 0, "linear", LINEAR))
    assert not made.failures
    assert made.is_measured
    assert not made.is_wrong
    assert made.kernels
    assert made.features
