"""Call stub of a program of native kernels: buffers are passed by their addresses in a frame (compiler.codegen.llvm.call_frame).

        try: frame = frames.pop()
        except IndexError: frame = new_frame()
        words, frame_address, _ = frame
        try:
            words[4] = t4.data_ptr() or null_address(0, t4)
        except RuntimeError as error: raise refusal(inputs, error) from None
        t5 = empty_strided(shape5, stride5, dtype5)
        words[5] = t5.data_ptr()
        segment0(frame_address)
        if words[0]: raise index_error(words)
        frames.append(frame)

`t4` is the tensor whose address is in word 4 of the frame.  In all, a call takes about a microsecond of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from compiler.codegen.llvm.call_frame import STATUS, WORKSPACE
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.runtime.call_stub import CallStub, EagerSegment, RunFunction
from compiler.runtime.pool import GLOBAL_POOL
from compiler.runtime.threads import prepare_call


def _torch_empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
empty_strided = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _torch_empty_strided)
"""Returns an uninitialised CPU tensor, as Inductor allocates its own: at a third of the cost of `torch.empty_strided`."""

POOL_THRESHOLD = 512 << 10
"""Bytes from which outputs and workspaces come from the pool.  Below, malloc reuses memory as well and costs less."""


@dataclass(frozen=True)
class NativeSegment:
    """Consecutive native steps: `function` runs them on a frame address, after `new_tensors` have been allocated."""

    function: Callable[[int], None]
    new_tensors: tuple[str, ...]
    accessed: tuple[str, ...]


@dataclass
class NativeCallStub(CallStub):
    """Generator of the function; the numbers of buffers are their words in the frame.

    `workspace` is its size in bytes.  `parallel` is set if some kernel runs on several threads.  The globals are also `frames`,
    `new_frame`, `null_address` and `index_error`, and perhaps `mark`, called around calls into PyTorch.
    """

    workspace: int
    parallel: bool

    def compile(self) -> tuple[RunFunction, str]:
        """Return the function and its source."""
        self.bindings |= {
            "empty_strided": empty_strided,
            "prepare_call": prepare_call,
        }
        return super().compile()

    @property
    def _has_native_segments(self) -> bool:
        return any(isinstance(s, NativeSegment) for s in self.segments)

    @property
    def _uses_pool(self) -> bool:
        """True if each call allocates its workspace from the pool; a small workspace belongs to the frame."""
        return self.workspace >= POOL_THRESHOLD

    def _residence_test(self, name: str) -> str:
        return f"not {self._variable(name)}.is_cpu"

    def _conversion(self, k: int, variable: str) -> str:
        return f"convert_input({k}, {variable})"

    def _emit_preparation(self) -> None:
        if self._has_native_segments:
            self._emit_frame()
            self._emit_input_addresses()
        if self.parallel:
            self._emit_line("prepare_call()")

    def _emit_completion(self) -> None:
        if self._has_native_segments:
            self._emit_line(f"if words[{STATUS}]: raise index_error(words)")
            self._emit_line("frames.append(frame)")

    def _emit_address(self, name: str) -> None:
        self._emit_line(f"words[{self.numbers[name]}] = {self._variable(name)}.data_ptr()")

    def _emit_input_addresses(self) -> None:
        if self.inputs:
            self._emit_line("try:")
            for k, name in enumerate(self.inputs):
                v = self._variable(name)
                self._emit_line(f"    words[{self.numbers[name]}] = {v}.data_ptr() or null_address({k}, {v})")
            self._emit_line("except RuntimeError as error: raise refusal(inputs, error) from None")

    def _emit_frame(self) -> None:
        self._emit_line("try: frame = frames.pop()")
        self._emit_line("except IndexError: frame = new_frame()")
        self._emit_line("words, frame_address, _ = frame")
        if self._uses_pool:
            self.bindings["new_workspace"] = GLOBAL_POOL.queue(self.workspace, torch.uint8).empty_tensor
            self._emit_line(f"workspace = new_workspace(({self.workspace},), (1,))")
            self._emit_line(f"words[{WORKSPACE}] = workspace.data_ptr()")

    def _emit_kernels(self, k: int, segment: Any) -> None:
        for name in segment.new_tensors:
            self._emit_allocation(name)
        self.bindings[f"segment{k}"] = segment.function
        self._emit_line(f"segment{k}(frame_address)")

    def _emit_allocation(self, name: str) -> None:
        t, (shape, stride, dtype) = self.types[name], self._new_tensor_arguments(name)
        assert isinstance(t.numel, int)
        nbytes = t.numel * t.dtype.bytes
        if nbytes >= POOL_THRESHOLD:
            new_tensor = self._bind("new_tensor", name, GLOBAL_POOL.queue(nbytes, TORCH_DTYPES[t.dtype]).empty_tensor)
            self._emit_line(f"{self._variable(name)} = {new_tensor}({shape}, {stride})")
        else:
            self._emit_line(f"{self._variable(name)} = empty_strided({shape}, {stride}, {dtype})")
        self._emit_address(name)

    def _emit_eager_call(self, segment: EagerSegment) -> None:
        marks = ["mark()"] * ("mark" in self.bindings)
        self.lines += marks
        super()._emit_eager_call(segment)
        self.lines += marks
        if self._has_native_segments:
            for r in segment.results:
                self._emit_address(r)
