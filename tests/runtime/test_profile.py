"""Every step is timed beside what it computes."""

import torch

from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.profile import StepProfile, step_profiles, timeline_recorder
from tests.runtime.test_cpu_executable import MATMUL, OPAQUE, build


def profile_steps(exe: CPUExecutable, x: torch.Tensor, repeats: int) -> list[StepProfile]:
    record = timeline_recorder(exe)
    record([x])
    return step_profiles(exe, [record([x]) for _ in range(repeats)])


def test_a_row_for_each_step():
    exe = build(MATMUL, w=torch.randn(40, 32).numpy())
    rows = profile_steps(exe, torch.randn(6, 40), repeats=3)
    assert [r.name for r in rows] == ["matmul", "relu", "copy"]
    assert [r.flops for r in rows] == [2 * 6 * 40 * 32, 6 * 32, 0]
    assert [r.bytes for r in rows] == [4 * (6 * 40 + 40 * 32 + 6 * 32), 8 * 6 * 32, 8 * 6 * 32]
    assert all(r.seconds > 0 for r in rows)
    assert rows[0].gflops == rows[0].flops / rows[0].seconds / 1e9


def test_calls_into_pytorch_are_timed_too():
    exe: CPUExecutable = build(OPAQUE, c=torch.randn(8, 4).numpy())
    assert [r.name for r in profile_steps(exe, torch.randn(8, 4), repeats=2)] == ["inc", "exp", "inc", "exp"]
