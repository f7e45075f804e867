"""How long each step of a compiled program takes, beside what it has to do."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from compiler.codegen.llvm.main import WORKSPACE, Offset
from compiler.ir.interpret_graph import as_tensor
from compiler.ir.tile import Copy, Launch, OpaqueCall, Program, Step
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.ir.types import TensorType
from compiler.perf.cost import count_bytes, count_flops
from compiler.runtime import threads
from compiler.runtime.entry import empty_strided, strides
from compiler.runtime.executable import Executable
from compiler.runtime.pool import SHARED


@dataclass(frozen=True)
class StepProfile:
    """One step: the median of its times; what it computes and moves at least (0 for a call into PyTorch)."""

    name: str
    node: str
    seconds: float
    flops: int
    bytes: int

    @property
    def gflops(self) -> float:
        """Arithmetic rate in 10^9 operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gigabytes(self) -> float:
        """Memory rate in 10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


def profile(exe: Executable, inputs: Sequence[torch.Tensor], repeats: int = 20) -> list[StepProfile]:
    """Run the program `repeats` times step by step and time each step; `inputs` as for a call."""
    exe.run(inputs)  # refuses what does not fit
    bound = _Bound(exe, inputs)
    times: list[list[float]] = [[] for _ in bound.steps]
    threads.settle()
    for _ in range(repeats):
        for step, seen in zip(bound.steps, times, strict=True):
            start = time.perf_counter()
            step()
            seen.append(time.perf_counter() - start)
    return [_describe(exe.program, k, statistics.median(seen)) for k, seen in enumerate(times)]


def _describe(program: Program, k: int, seconds: float) -> StepProfile:
    step = program.steps[k]
    if isinstance(step, Launch):
        kernel = program.kernels[step.kernel]
        return StepProfile(kernel.name, step.node, seconds, count_flops(kernel), count_bytes(kernel))
    if isinstance(step, OpaqueCall):
        return StepProfile(step.op, step.node, seconds, 0, 0)
    return StepProfile("copy", "", seconds, 0, 2 * _bytes(program, step))


def _bytes(program: Program, step: Copy) -> int:
    size = program.buffers[step.source].nbytes
    assert isinstance(size, int)
    return size


class _Bound:
    """The program's steps as functions without arguments, on buffers made once."""

    def __init__(self, exe: Executable, inputs: Sequence[torch.Tensor]) -> None:
        self.exe, self.program = exe, exe.program
        self.words, self.frame, self.block = exe.new_frame()
        if self.block is None and exe.memory.size:
            self.block = SHARED.take(exe.memory.size)
            self.words[WORKSPACE] = self.block.address
        types = self.program.buffers
        self.tensors = {name: _dense(types[name]) for name in exe.words if name not in exe.constants}
        self.tensors |= {name: as_tensor(a, types[name].dtype) for name, a in exe.constants.items()}
        for name, x in zip(self.program.inputs, inputs, strict=True):
            self.tensors[name].copy_(x.detach())
        for name, word in exe.words.items():
            if name not in exe.constants:
                self.words[word] = self.tensors[name].data_ptr()
        self.steps = [self._step(s) for s in self.program.steps]

    def _step(self, step: Step) -> Callable[[], object]:
        if isinstance(step, Copy):
            return partial(
                ctypes.memmove, self._address(step.target), self._address(step.source), _bytes(self.program, step)
            )
        if isinstance(step, OpaqueCall):
            return partial(self._foreign, step, self.exe.foreign_function(step))
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(step.arguments) + 1))
        kernel = signature(self.exe.library[self.exe.build.symbols[step.kernel]])
        return partial(kernel, *(self._address(a) for a in step.arguments), self.frame)

    def _foreign(self, step: OpaqueCall, function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        for name, result in zip(step.results, function(*(self.tensors[a] for a in step.arguments)), strict=True):
            self.tensors[name].copy_(result)

    def _address(self, name: str) -> int:
        place = self.exe.place(name)
        return int(self.words[WORKSPACE] + place.bytes if isinstance(place, Offset) else self.words[place.word])


def _dense(t: TensorType) -> torch.Tensor:
    return empty_strided(t.static_shape(), strides(t), TORCH_DTYPES[t.dtype])
