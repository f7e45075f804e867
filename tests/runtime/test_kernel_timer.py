"""Kernels against the clock: which bursts are made, and which count."""

from __future__ import annotations

import ctypes
from itertools import cycle

import pytest

from compiler.codegen.llvm.targets import host_target
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel, Param
from compiler.ir.types import DTYPES, TensorType
from compiler.runtime import kernel_timer as stopwatch
from compiler.runtime.kernel_timer import KernelTimer, random_buffer
from compiler.runtime.native_kernel import bind_kernel


def kernel(tile: int) -> Kernel:
    return parse_kernel(f"""kernel @k(in %x: f32[64], in %i: i64[64], inout %y: f32[64]) {{
      for %n in 0..64 tile {tile} lanes {tile} {{ %v = %i[%n]   check %v in 0..64   store %x[%v] + %y[%n], %y[%n] }} }}""")


class Calls:
    """Calls that take made-up time, each its own, with a disturbance now and then."""

    def __init__(self, *seconds: float) -> None:
        self.now, self.made = 0.0, [0] * len(seconds)
        self.all = [lambda k=k, s=s: self.call(k, s) for k, s in enumerate(seconds)]

    def call(self, k: int, seconds: float) -> None:
        self.made[k] += 1
        self.now += seconds * (5 if self.made[k] % 3 == 0 else 1)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> KernelTimer:
    monkeypatch.setattr(stopwatch, "PAUSE_SECONDS", 0.0)
    return KernelTimer(host_target())


def test_the_fastest_burst_counts(watch: KernelTimer) -> None:
    calls = Calls(2e-3, 1e-3)
    watch.clock = lambda: calls.now
    assert watch._min_seconds(calls.all) == pytest.approx([2e-3, 1e-3])


def test_the_hopeless_are_not_called_again(watch: KernelTimer) -> None:
    calls = Calls(1e-3, 1.0)
    watch.clock = lambda: calls.now
    watch._min_seconds(calls.all)
    assert calls.made[1] == 2
    assert calls.made[0] > stopwatch.MIN_BURSTS


def test_short_calls_are_made_many_at_a_time(watch: KernelTimer) -> None:
    calls = Calls(1e-6)
    watch.clock = lambda: calls.now
    watch._min_seconds(calls.all)
    assert calls.made[0] > stopwatch.MAX_BURSTS * stopwatch.BURST_SECONDS / 1e-6


def test_kernels_run(watch: KernelTimer) -> None:
    seconds = watch([kernel(4), kernel(16), kernel(4)])
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert len(watch.linker.build.objects) == 2


def test_calls_take_turns_in_the_copies_of_constants(watch: KernelTimer) -> None:
    seen: list[tuple[int, ...]] = []
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
    note = signature(lambda *arguments: seen.append(arguments))
    frame = ctypes.c_uint64()
    call = bind_kernel(ctypes.cast(note, ctypes.c_void_p).value or 0, 2, [])
    arguments = zip(cycle([1]), cycle([20, 30, 40]))
    for _ in range(4):
        watch._call_next(call, arguments, frame)
    assert [s[:2] for s in seen] == [(1, 20), (1, 30), (1, 40), (1, 20)]
    assert {s[2] for s in seen} == {ctypes.addressof(frame)}


@pytest.mark.parametrize(("spread", "copies"), [(0, 1), (255, 1), (1024, 5), (1 << 26, stopwatch.MAX_CONSTANT_COPIES)])
def test_constants_are_spread(watch: KernelTimer, monkeypatch: pytest.MonkeyPatch, spread: int, copies: int) -> None:
    made: list[str] = []
    monkeypatch.setattr(stopwatch, "random_buffer", lambda p: made.append(p.name) or random_buffer(p))
    text = "kernel @k(in %x: f32[64], const %w: f32[64], out %y: f32[64]) { store %x[0] + %w[0], %y[0] }"
    watch([parse_kernel(text)], spread)
    assert sorted(made) == ["w"] * copies + ["x", "y"]


@pytest.mark.parametrize("name", DTYPES)
def test_buffers_of_every_type(name: str) -> None:
    assert len(random_buffer(Param("x", TensorType(DTYPES[name], (5, 3))))) == 15 * DTYPES[name].bytes
