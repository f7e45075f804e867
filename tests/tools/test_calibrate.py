"""Calibration, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from compiler.codegen.llvm.targets import host_target
from compiler.cost.machine import Machine, read_machine
from compiler.tools.calibrate import Measurement, calibrate, measurement_table, write_description
from compiler.tools.cli import main
from compiler.tools.microbenchmarks import MICROBENCHMARKS, Bench, VectorLoop, least_seconds

SMALL = Machine(l1=4096, l2=8192, l3=16384)


def one_second(run: Callable[[], None]) -> float:
    run()
    return 1.0


def bench() -> Bench:
    return Bench(host_target(), SMALL, one_second, one_second, steps=4)


@pytest.mark.parametrize("name", MICROBENCHMARKS)
def test_every_microbenchmark_runs(name: str) -> None:
    assert MICROBENCHMARKS[name](bench()) > 0


def test_one_thread_cannot_measure_what_others_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.tools.microbenchmarks.prepare_call", lambda: 1)
    seconds = MICROBENCHMARKS["parallel_seconds"](bench())
    assert not Measurement("parallel_seconds", 4.5e-7, (seconds,) * 5).is_reliable


def test_what_calibrate_writes_is_a_description(tmp_path: Path) -> None:
    measurements = calibrate(bench(), rounds=2)
    assert [m.field for m in measurements] == list(MICROBENCHMARKS)
    write_description(tmp_path / "m.toml", measurements)
    machine = read_machine(tmp_path / "m.toml")
    assert machine.frequency == measurements[0].value
    host = host_target().machine
    assert host is not None
    assert machine.l2 == host.l2


def test_noise_changes_nothing(tmp_path: Path) -> None:
    steady, noisy = Measurement("unaligned_cost", 1.5, (1.2, 1.2, 9.0, 1.2)), Measurement("fma_latency", 4, (1, 9))
    assert (steady.is_reliable, noisy.is_reliable) == (True, False)
    assert steady.value == 1.2
    assert Measurement("fma_per_cycle", 2, (0.9, 1.1)).is_reliable  # both are one
    write_description(tmp_path / "m.toml", [steady, noisy])
    text = (tmp_path / "m.toml").read_text()
    assert "unaligned_cost = 1.2 " in text
    assert "fma_latency" not in text
    assert measurement_table([steady, noisy]).row_count == 2


def test_the_least_time_counts() -> None:
    assert least_seconds(lambda: None, tries=3) >= 0


def test_the_command_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.tools.calibrate.calibrate", lambda: [Measurement("l2_bytes_per_cycle", 16, (24.0,))])
    assert main(["calibrate", "--to", str(tmp_path / "m.toml")]) == 0
    assert read_machine(tmp_path / "m.toml").l2_bytes_per_cycle == 24


def test_loops_visit_their_data() -> None:
    """Two iterations store two vectors."""
    target = host_target()
    data = numpy.zeros(target.vector_bits // 8, numpy.float32)
    data[0] = 2
    loop = VectorLoop("  store {t} %s, ptr %p{c}, align 4", 1).compile(target)
    loop(2, data.ctypes.data, (1 << 20) - 1)
    assert (data.reshape(-1, target.lanes(32))[:, 0] == 2).sum() == 2
