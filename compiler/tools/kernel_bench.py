"""Kernel bench: check kernels of Tile IR against their scalar meaning and each other, and time them in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from rich.table import Table

from compiler.codegen.llvm.targets import CPUTarget
from compiler.cost.estimates import count_flops, roofline_seconds
from compiler.cost.kernel_time import predicted_seconds
from compiler.cost.machine import Machine
from compiler.driver.given_kernels import native_difference, signature_difference
from compiler.ir.float_format import Array
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.interpret.size_sampling import interpreted_statements
from compiler.ir.tile.kernel import Kernel
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.remark import format_seconds
from compiler.passes.semantic_check import describe_difference, run_on, run_with_valid_range, tolerance
from compiler.report.render import table
from compiler.runtime.native_kernel import NativeKernel
from compiler.runtime.profile import sharing_threads
from compiler.runtime.timing import Timing, interleaved_timings

BURST_SECONDS = 2e-4
"""Seconds of the calls that are timed together, at least: to read the clock and to call from Python takes about a microsecond."""

MAX_INTERPRETED = 1_000_000
"""Most statements that are interpreted to check a kernel."""


@dataclass(frozen=True)
class KernelBench:
    """One kernel on the bench: what it was checked against, the problem that was found or "", and seconds of a call."""

    name: str
    checked: str
    problem: str
    timing: Timing
    flops: int
    predicted: float
    roofline: float


def bench(kernels: Mapping[str, Kernel], target: CPUTarget, seconds: float = 0.5) -> list[KernelBench]:
    """Check each kernel, and time all in turns, about `seconds` for each; dynamic sizes have the values of their hints."""
    for kernel in kernels.values():
        verify_kernel(kernel)
    native = {name: NativeKernel(k, target) for name, k in kernels.items()}
    checks = {name: _check(name, native) for name in native}
    calls = [k.bind(_valid_inputs(k)) for k in native.values()]
    counts = [ceil(BURST_SECONDS / max(t.minimum, 1e-9)) for t in interleaved_timings(calls, 0.0, 2)]
    bursts = interleaved_timings([_repeated(c, n) for c, n in zip(calls, counts, strict=True)], seconds)
    timings = [Timing(tuple(s / n for s in t.seconds)) for t, n in zip(bursts, counts, strict=True)]
    return [
        KernelBench(name, *checks[name], timing, count_flops(k), *_estimates(k, target))
        for (name, k), timing in zip(kernels.items(), timings, strict=True)
    ]


def bench_table(rows: list[KernelBench]) -> Table:
    """Return the kernels as a rich table; "speed" is relative to the first."""
    heads = ["us", "fastest", "spread", "speed", "predicted", "roofline", "GFLOP/s"]
    result = table("", ["kernel"], heads, ["checked against", "problem"])
    for r in rows:
        result.add_row(
            r.name,
            *(f"{s * 1e6:.2f}" for s in (r.timing.median, r.timing.minimum)),
            f"{100 * r.timing.spread:.0f} %",
            f"{rows[0].timing.median / r.timing.median:.2f}x",
            format_seconds(r.predicted),
            f"{100 * r.roofline / r.timing.median:.0f} %",
            f"{r.flops / r.timing.median / 1e9:.1f}",
            r.checked,
            r.problem,
        )
    return result


def _check(name: str, native: Mapping[str, NativeKernel]) -> tuple[str, str]:
    """Return what a kernel was checked against, and how its results differ."""
    first, kernel = next(iter(native)), native[name].kernel
    checked, problems = list[str](), list[str]()
    if interpreted_statements(kernel, native[name].sizes) <= MAX_INTERPRETED:
        checked.append("interpreter")
        problems.append(_interpreter_difference(native[name]))
    if name != first:
        checked.append(first)
        problem = signature_difference(native[first].kernel, kernel)
        problems.append(problem or native_difference(native[first], native[name]))
    return ", ".join(checked) or "nothing: too large to interpret", next(filter(None, problems), "")


def _interpreter_difference(native: NativeKernel) -> str:
    """Describe how native results differ from those of the scalar program."""
    inputs, kernel = _valid_inputs(native), native.kernel
    pairs = zip(run_on(kernel, inputs, native.sizes), native(inputs), strict=True)
    return next(filter(None, (describe_difference(want, got, tolerance(kernel)) for want, got in pairs)), "")


def _valid_inputs(native: NativeKernel) -> list[Array]:
    """Return random arrays for the parameters with which no index is out of range."""
    types = [native.type_of(p) for p in native.kernel.params]

    def run(low: int, high: int) -> list[Array]:
        inputs = random_inputs(types, 0, low, high)
        native(inputs)
        return inputs

    return run_with_valid_range(run)


def _repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    def burst() -> None:
        for _ in range(times):
            call()

    return burst


def _estimates(kernel: Kernel, target: CPUTarget) -> tuple[float, float]:
    """Return the seconds that the cost model predicts, and those of the roofline."""
    machine, threads = target.machine or Machine(), sharing_threads(kernel)
    return predicted_seconds(kernel, machine) / threads, roofline_seconds(kernel, machine, threads)
