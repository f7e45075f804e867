"""The benchmark of predictions: what it records, and how it compares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import predictions
from benchmarks.predictions import (
    Launched,
    group_table,
    kernel_groups,
    measured,
    predicted_launches,
    program_tau,
    quality,
    read_record,
    record,
)
from compiler.ir.text.tile_parser import parse_kernel
from compiler.report.render import render_plain

COPY = parse_kernel("kernel @k(in %x: f32[64], out %y: f32[64]) { for %i in 0..64 { store %x[%i], %y[%i] } }")
SUM = parse_kernel("""kernel @s(in %x: f32[64], out %y: f64[]) {
  %s = reduce add %i in 0..64 { yield cast<f64>(%x[%i]) }  store %s, %y[]
}""")


class Scale(nn.Module):
    """Scale an image by a sum over a matrix."""

    def forward(self, image: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return image * matrix.sum()


def launched(predicted: float, seconds: float = 1e-3, program: str = "a") -> Launched:
    return Launched(program, "host", COPY, seconds, predicted)


def test_what_is_recorded_can_be_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def programs(seed: int, count: int):  # type: ignore[no-untyped-def]
        yield from measured("net", "host", nn.Linear(40, 30), (torch.randn(5, 40),))

    monkeypatch.setattr(predictions, "recorded_programs", programs)
    record(tmp_path / "r.jsonl.gz", 0, 1)
    (program,) = read_record(tmp_path / "r.jsonl.gz")
    kernels = predicted_launches(program)
    assert kernels
    assert all(k.seconds > 0 and k.predicted > 0 for k in kernels)


def test_arguments_in_another_memory_order_are_measured() -> None:
    image, matrix = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last), torch.randn(6, 5).t()
    (program,) = measured("net", "host", Scale(), (image, matrix))
    assert all(seconds > 0 for seconds in program.seconds)


def test_errors_are_relative_to_the_measured_time() -> None:
    q = quality([launched(1.1e-3), launched(0.8e-3), launched(2e-3)])
    assert q is not None
    assert q.median_error == pytest.approx(0.2)


def test_groups_follow_the_structure() -> None:
    assert [*kernel_groups(launched(1.0))] == ["target host", "kind: elementwise", "time: longer"]
    groups = {*kernel_groups(Launched("a", "x86-64", SUM, 1e-6, 1e-6))}
    assert groups == {"target x86-64", "kind: reduction", "dtype f64", "time < 2 us"}
    assert "kind: elementwise" in render_plain(group_table([launched(1e-3), launched(2e-3)]))


def test_programs_are_ranked_by_all_of_their_kernels() -> None:
    fast, slow = [launched(1e-3, 1e-3), launched(1e-3, 5e-3)], [launched(3e-3, 4e-3, "b"), launched(3e-3, 4e-3, "b")]
    assert program_tau([*fast, *slow]) == 1
    assert program_tau([*fast, *(launched(0.1e-3, 4e-3, "b") for _ in slow)]) == -1
