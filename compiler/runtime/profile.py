"""Profile of a compiled program: time, operations and memory traffic of each step."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from compiler.analysis.arithmetic_dtypes import arithmetic_dtypes
from compiler.codegen.llvm.call_frame import THREADS, WORKSPACE
from compiler.codegen.llvm.program_entry import SubBuffer
from compiler.cost.estimates import count_bytes, count_flops
from compiler.errors import TargetError
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, Step, View, execution_counts
from compiler.ir.torch_types import TORCH_DTYPES, as_tensor, strides
from compiler.ir.types import TensorType
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.executable import Executable
from compiler.runtime.native_call_stub import empty_strided
from compiler.runtime.pool import GLOBAL_POOL
from compiler.runtime.threads import prepare_call


@dataclass(frozen=True)
class StepProfile:
    """Totals of one step over its `runs` in a call: median seconds, operations, and least bytes of memory traffic.

    `flops` and `bytes` are 0 for a call into PyTorch.  `dtypes` are those of the arithmetic, see `arithmetic_dtypes`.
    """

    name: str
    node: str
    seconds: float
    flops: int
    bytes: int
    runs: int = 1
    dtypes: str = ""

    @property
    def gflops(self) -> float:
        """Arithmetic rate in 10^9 operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes_per_second(self) -> float:
        """Memory rate in 10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


def profile_steps(exe: Executable, inputs: Sequence[torch.Tensor], repeats: int = 20) -> list[StepProfile]:
    """Run the program `repeats` times step by step and time each step; ArgumentError as for a call."""
    if not isinstance(exe, CPUExecutable):
        raise TargetError(f"programs of {exe.target.name} are not timed step by step; use torch.profiler")
    exe.run(inputs)  # checks the inputs
    bound = _BoundSteps(exe, inputs)
    rows = list(execution_counts(exe.program.steps))
    times: list[list[float]] = [[] for _ in rows]
    for _ in range(repeats):
        for step_times in times:
            step_times.append(0.0)
        for number, step in bound.steps:
            start = time.perf_counter()
            step()
            times[number][-1] += time.perf_counter() - start
    return [_make_step_profile(exe, *row, statistics.median(t)) for row, t in zip(rows, times, strict=True)]


def _make_step_profile(exe: CPUExecutable, step: Step, runs: int, seconds: float) -> StepProfile:
    program = exe.program
    if isinstance(step, Launch):
        kernel = program.kernels[step.kernel]
        totals = runs * count_flops(kernel, exe.size_values), runs * count_bytes(kernel, exe.size_values)
        return StepProfile(kernel.name, step.node, seconds, *totals, runs, arithmetic_dtypes(kernel))
    if isinstance(step, OpaqueCall):
        return StepProfile(step.op, step.node, seconds, 0, 0, runs)
    assert isinstance(step, Copy)
    return StepProfile("copy", "", seconds, 0, 2 * runs * _copied_bytes(program, step), runs)


def _copied_bytes(program: Program, step: Copy) -> int:
    size = program.buffers[step.source].nbytes
    assert isinstance(size, int)
    return size


class _BoundSteps:
    """Runs of a program's steps as functions without arguments, on fixed buffers, each with its row in the profile."""

    def __init__(self, exe: CPUExecutable, inputs: Sequence[torch.Tensor]) -> None:
        self.exe, self.program = exe, exe.program
        self.words, self.frame, self.block = exe.new_frame()
        if self.block is None and exe.memory_plan.size:
            self.block = GLOBAL_POOL.allocate(exe.memory_plan.size)
            self.words[WORKSPACE] = self.block.address
        self.words[THREADS] = prepare_call()
        types = self.program.buffers
        self.tensors = {name: _empty_tensor(types[name]) for name in exe.frame_words if name not in exe.constants}
        self.tensors |= {name: as_tensor(a, types[name].dtype) for name, a in exe.constants.items()}
        for name, x in zip(self.program.inputs, inputs, strict=True):
            self.tensors[name].copy_(x.detach())
        for name, word in exe.frame_words.items():
            if name not in exe.constants:
                self.words[word] = self.tensors[name].data_ptr()
        self.steps = list(self._bind(self.program.steps, {}, 0))

    def _bind(
        self, steps: Sequence[Step], counters: Mapping[str, int], row: int
    ) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yield (row, function) for each run of each step in execution order; rows count from `row`."""
        for step in steps:
            if isinstance(step, Repeat):
                for k in range(evaluate(step.count, {})):
                    yield from self._bind(step.steps, {**counters, step.var: k}, row)
                row += sum(1 for _ in execution_counts(step.steps))
            elif not isinstance(step, View):
                yield row, self._bind_step(step, counters)
                row += 1

    def _bind_step(self, step: Launch | OpaqueCall | Copy, counters: Mapping[str, int]) -> Callable[[], object]:
        if isinstance(step, Copy):
            target, source = self._address(step.target, counters), self._address(step.source, counters)
            return partial(ctypes.memmove, target, source, _copied_bytes(self.program, step))
        if isinstance(step, OpaqueCall):
            return partial(self._run_eager, step, self.exe.eager_call(step).function())
        sizes = [self.exe.size_values[s] for s in self.exe.kernel_size_names(step.kernel)]
        types = [*[ctypes.c_void_p] * len(step.arguments), *[ctypes.c_int64] * len(sizes), ctypes.c_void_p]
        kernel = ctypes.CFUNCTYPE(None, *types)(self.exe.library[self.exe.build.symbols[step.kernel]])
        return partial(kernel, *(self._address(a, counters) for a in step.arguments), *sizes, self.frame)

    def _run_eager(self, step: OpaqueCall, function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        with torch.no_grad():
            results = function(*(self.tensors[a] for a in step.arguments))
        for name, result in zip(step.results, results, strict=True):
            self.tensors[name].copy_(result)

    def _address(self, name: str, counters: Mapping[str, int]) -> int:
        if name in self.program.views:
            view = self.exe.buffer_address(name)
            assert isinstance(view, SubBuffer)
            parent = self._address(self.program.views[name].buffer, counters)
            return parent + evaluate(view.index, counters) * evaluate(view.entry_bytes, {})
        if name in self.exe.frame_words:
            return int(self.words[self.exe.frame_words[name]])
        return int(self.words[WORKSPACE] + self.exe.memory_plan.offsets[name])


def _empty_tensor(t: TensorType) -> torch.Tensor:
    return empty_strided(t.static_shape(), strides(t), TORCH_DTYPES[t.dtype])
