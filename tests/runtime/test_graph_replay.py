"""Recorded launches, with graphs that replay by computing again: what is read where it lies, copied, and recorded again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from compiler.runtime.graph_replay import GraphReplay

T = TypeVar("T")
CPU = torch.device("cpu")


class FakeGraphs:
    """Graphs whose replay computes the same function of the same tensors into the same results."""

    def __init__(self) -> None:
        self.current_stream, self.recorded, self.replayed, self.recording = 0, 0, 0, False

    def stream(self, device: torch.device) -> Hashable:
        return self.current_stream

    def is_recording(self) -> bool:
        return self.recording

    def record(self, function: Callable[[], T]) -> tuple[Callable[[], None], T]:
        self.recorded += 1
        results = function()

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(results, function(), strict=True):  # type: ignore[call-overload]  # lists of tensors
                old.copy_(new)

        return replay, results


def scale(inputs: Sequence[Tensor]) -> list[Tensor]:
    x, weight = inputs
    return [x * weight]


def update(inputs: Sequence[Tensor]) -> list[Tensor]:
    cache, row = inputs
    cache[0] = row
    return [cache, row + 1]


def both() -> tuple[FakeGraphs, GraphReplay]:
    graphs = FakeGraphs()
    return graphs, GraphReplay(scale, graphs)


def test_the_second_call_records_and_results_belong_to_the_caller() -> None:
    graphs, replay = both()
    weight, xs = torch.randn(3), [torch.randn(3) for _ in range(4)]
    results = [replay(CPU, [x, weight])[0] for x in xs]
    assert (graphs.recorded, graphs.replayed) == (1, 3)
    for x, result in zip(xs, results, strict=True):
        assert torch.equal(result, x * weight)


def test_a_weight_is_read_where_it_lies_until_it_moves() -> None:
    graphs, replay = both()
    weight, xs = torch.randn(3), [torch.randn(3) for _ in range(6)]
    for x in xs[:3]:
        replay(CPU, [x, weight])
    weight.mul_(2)
    assert torch.equal(replay(CPU, [xs[3], weight])[0], xs[3] * weight)
    assert graphs.recorded == 1
    others = [torch.randn(3), torch.randn(3)]
    for x, other in zip(xs[4:], others, strict=True):
        assert torch.equal(replay(CPU, [x, other])[0], x * other)
    assert graphs.recorded == 2, "copied from then on"


@pytest.mark.parametrize("moves", [False, True])
def test_an_input_that_is_written_is_the_callers(moves: bool) -> None:
    graphs, cache = FakeGraphs(), torch.zeros(2, 3)
    replay = GraphReplay(update, graphs)
    kept = [cache]
    for k in range(4):
        cache = torch.zeros(2, 3) if moves else cache
        kept.append(cache)
        row = torch.full((3,), float(k))
        written, more = replay(CPU, [cache, row])
        assert written is cache
        assert torch.equal(cache[0], row)
        assert torch.equal(more, row + 1)
    assert graphs.recorded == 1


def test_each_stream_has_its_own_recording() -> None:
    graphs, replay = both()
    weight = torch.randn(3)
    for _ in range(2):
        for graphs.current_stream in (0, 1):
            replay(CPU, [torch.randn(3), weight])
    assert graphs.recorded == 2


def test_inside_a_users_graph_nothing_is_recorded() -> None:
    graphs, replay = both()
    graphs.recording = True
    for _ in range(3):
        replay(CPU, [torch.ones(3), torch.ones(3)])
    assert (graphs.recorded, graphs.replayed) == (0, 0)
