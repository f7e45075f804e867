"""The benchmark of programs on a GPU, without one: its rows in Triton's interpreter."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import Measurement, Row, geometric_means, measure_row
from benchmarks.gpu_cases import KERNELS, MODELS, ROWS
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON

INTERPRETED = ("silu(x * 2 + b), f32", "column sums, f32", "matmul 4096, bf16", "causal attention 4096 x 128, bf16", "gelu(linear), f16", "GPT-2 decode")  # fmt: skip


def measured(names: tuple[str, ...]) -> list[list[Measurement | str]]:
    return [list(measure_row(name, ("eager", "tilewright"), True, True)) for name in names]


def broken() -> list[Measurement | str]:
    """Measure a contestant whose results are wrong."""
    gpu.CONTESTANTS["wrong"] = lambda problem, target: lambda: [y * 1.1 for y in gpu.eager(problem, target)()]
    return list(measure_row("softmax, f32", ("eager", "wrong", "unknown"), True, True))


def test_rows_in_the_interpreter(interpreter: ProcessPoolExecutor) -> None:
    """Results are near float64's, and nothing claims a time."""
    for found in interpreter.submit(measured, INTERPRETED).result():
        eager, ours = found
        assert isinstance(eager, Measurement)
        assert isinstance(ours, Measurement)
        assert ours.error <= max(8 * eager.error, 1e-5)
        assert ours.seconds is None


def test_wrong_results_are_not_timed(interpreter: ProcessPoolExecutor) -> None:
    _, wrong, unknown = interpreter.submit(broken).result()
    assert isinstance(wrong, str)
    assert wrong.startswith("wrong: wrong by")
    assert unknown == "unknown: KeyError: 'unknown'"


def test_cells_compare_with_ours() -> None:
    def seconds(c: str, s: float | None, size: int = 0, flops: int = 0) -> Measurement:
        return Measurement(c, 1e-7, s, size, flops)

    row = Row("softmax, f32", {"tilewright": seconds("tilewright", 1e-3, 9 * 10**8), "eager": seconds("eager", 2e-3)})
    assert row.cells(["tilewright", "eager", "Inductor"], 1e12) == [
        "1e-07",
        "1e-07",
        "1.00",
        "2.00 (2.00x)",
        "-",
        "90% of copy",
    ]
    product = Row("matmul 4096, bf16", {"tilewright": seconds("tilewright", 1e-3, 1, 5 * 10**11)})
    assert product.cells(["tilewright"], 1e12)[-1] == "500.0 TFLOP/s"
    networks = [
        Row(name, {c: seconds(c, s) for c, s in (("tilewright", 1e-3), ("max-autotune", t))})
        for name, t in (("MiniLM", 2e-3), ("U-Net", 8e-3), ("softmax, f32", 1.0))
    ]
    assert geometric_means(networks, ["tilewright", "eager", "max-autotune"]) == [
        "max-autotune / ours, 2 networks: 4.00x"
    ]


def test_rows_have_names_of_their_own() -> None:
    assert len(ROWS) == len(KERNELS) + len(MODELS)
    assert all(case.small for case in KERNELS)
    for case in KERNELS:
        assert all(a.split("[")[0] == b.split("[")[0] for a, b in zip(case.types, case.small, strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("kernels are interpreted")
    assert gpu.main([]) == 1
    assert "No GPU is here" in capsys.readouterr().out
