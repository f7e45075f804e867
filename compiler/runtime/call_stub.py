"""The Python function behind a compiled program, written for it line by line.

For small tensors the call itself is the cost.  So the checks of each input, the creation of each output and the calls into
machine code are spelled out as straight-line Python (about a microsecond in all), with every constant bound as a global:

    def run(inputs):
        try: x0, = inputs
        except ValueError: raise wrong_count(inputs) from None
        try:
            if x0.dtype is not dtype0 or x0.shape != shape0 or not x0.is_cpu or not x0.is_contiguous(): x0 = admit(0, x0)
        except AttributeError: raise not_tensors(inputs) from None
        try: frame = frames.pop()
        except IndexError: frame = new_frame()
        words, at, _ = frame
        words[3] = x0.data_ptr()
        y1 = empty_strided(shape1, stride1, dtype1)
        words[4] = y1.data_ptr()
        segment0(at)
        if words[0]: raise fault(words)
        frames.append(frame)
        return [y1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from compiler.codegen.llvm.program_entry import STATUS, WORKSPACE
from compiler.errors import VerifyError
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.ir.types import TensorType
from compiler.runtime import threads
from compiler.runtime.pool import GLOBAL_POOL


def _torch_empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
empty_strided = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _torch_empty_strided)
"""An uninitialised tensor on the CPU, made as Inductor makes its own: at a third of the cost of `torch.empty_strided`."""

POOL_THRESHOLD = 512 << 10
"""Bytes from which outputs and workspaces come from the pool: below, malloc recycles as well and costs 3 us less."""

RunFunction: TypeAlias = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True)
class NativeSegment:
    """One stretch of kernels: the function that runs them on a frame, and the tensors to make for it first."""

    function: Callable[[int], None]
    new_tensors: tuple[str, ...]


@dataclass(frozen=True)
class EagerSegment:
    """A call into PyTorch: `function` takes the tensors `arguments` and returns as many as there are `results`."""

    function: Callable[..., tuple[torch.Tensor, ...]]
    arguments: tuple[str, ...]
    results: tuple[str, ...]


@dataclass
class CallStub:
    """What the function is written from.  `words` gives the frame word of each buffer outside the workspace."""

    types: dict[str, TensorType]
    frame_words: dict[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    segments: list[NativeSegment | EagerSegment]
    workspace: int
    parallel: bool
    unchecked_inputs: frozenset[str]
    """Inputs whose shapes the caller has compared."""
    bindings: dict[str, Any]
    """Globals: `frames`, `new_frame`, `admit`, `wrong_count`, `not_tensors`, `fault`; a tensor per constant PyTorch reads."""
    lines: list[str] = field(default_factory=list)

    def compile(self) -> tuple[RunFunction, str]:
        """The function, and its source."""
        self.bindings |= {
            "empty_strided": empty_strided,
            "pooled": GLOBAL_POOL.empty_tensor,
            "take": GLOBAL_POOL.allocate,
            "give": GLOBAL_POOL.release,
        }
        self.bindings["settle"] = threads.sync_thread_count
        source = self._source()
        space = dict(self.bindings)
        exec(compile(source, "<tilewright entry>", "exec"), space)
        run: RunFunction = space["run"]
        return run, source

    def _source(self) -> str:
        variables = [self._variable(name) for name in self.inputs]
        self._emit_line(f"try: {''.join(f'{v}, ' for v in variables) or '() '}= inputs")
        self._emit_line("except ValueError: raise wrong_count(inputs) from None")
        if self.inputs:
            self._emit_line("try:")
            for k, name in enumerate(self.inputs):
                self._emit_check(k, name)
            self._emit_line("except AttributeError: raise not_tensors(inputs) from None")
        if any(isinstance(p, NativeSegment) for p in self.segments):
            self._emit_frame()
            for name in self.inputs:
                self._emit_line(f"words[{self.frame_words[name]}] = {self._variable(name)}.data_ptr()")
        if self.parallel:
            self._emit_line("settle()")
        for k, part in enumerate(self.segments):
            self._emit_native(k, part) if isinstance(part, NativeSegment) else self._emit_eager_call(k, part)
        if any(isinstance(p, NativeSegment) for p in self.segments):
            self._emit_line(f"if words[{STATUS}]: raise fault(words)")
            if self._uses_pool:
                self._emit_line("give(block)")
            self._emit_line("frames.append(frame)")
        self._emit_line(f"return [{', '.join(self._variable(name) for name in self.outputs)}]")
        return "def run(inputs):\n" + "".join(f"    {line}\n" for line in self.lines)

    @property
    def _uses_pool(self) -> bool:
        """Whether the workspace is taken from the pool for each call; a small one belongs to the frame."""
        return self.workspace >= POOL_THRESHOLD

    def _emit_line(self, text: str) -> None:
        self.lines.append(text)

    def _variable(self, name: str) -> str:
        return f"t{self.frame_words[name]}"

    def _bind(self, kind: str, name: str, value: Any) -> str:
        spelled = f"{kind}{self.frame_words[name]}"
        self.bindings[spelled] = value
        return spelled

    def _emit_check(self, k: int, name: str) -> None:
        v, t = self._variable(name), self.types[name]
        dtype = self._bind("dtype", name, TORCH_DTYPES[t.dtype])
        shape = f"{v}.shape != {self._bind('shape', name, t.static_shape())} or " * (name not in self.unchecked_inputs)
        order = f"{v}.stride() != {self._bind('stride', name, strides(t))}" if t.layout else f"not {v}.is_contiguous()"
        self._emit_line(f"    if {v}.dtype is not {dtype} or {shape}not {v}.is_cpu or {order}: {v} = admit({k}, {v})")

    def _emit_frame(self) -> None:
        self._emit_line("try: frame = frames.pop()")
        self._emit_line("except IndexError: frame = new_frame()")
        self._emit_line("words, at, _ = frame")
        if self._uses_pool:
            self._emit_line(f"block = take({self.workspace})")
            self._emit_line(f"words[{WORKSPACE}] = block.address")

    def _emit_native(self, k: int, segment: NativeSegment) -> None:
        for name in segment.new_tensors:
            self._emit_allocation(name)
        self.bindings[f"segment{k}"] = segment.function
        self._emit_line(f"segment{k}(at)")

    def _emit_allocation(self, name: str) -> None:
        t = self.types[name]
        shape = self._bind("shape", name, t.static_shape())
        stride = self._bind("stride", name, strides(t))
        dtype = self._bind("dtype", name, TORCH_DTYPES[t.dtype])
        assert isinstance(t.numel, int)
        large = t.numel * t.dtype.bytes >= POOL_THRESHOLD
        make = (
            f"pooled({shape}, {stride}, {dtype}, {t.numel})" if large else f"empty_strided({shape}, {stride}, {dtype})"
        )
        self._emit_line(f"{self._variable(name)} = {make}")
        self._emit_line(f"words[{self.frame_words[name]}] = {self._variable(name)}.data_ptr()")

    def _emit_eager_call(self, k: int, segment: EagerSegment) -> None:
        self.bindings[f"foreign{k}"] = segment.function
        arguments = ", ".join(self._variable(a) for a in segment.arguments)
        self._emit_line(f"{''.join(f'{self._variable(r)}, ' for r in segment.results)}= foreign{k}({arguments})")
        if any(isinstance(p, NativeSegment) for p in self.segments):
            for r in segment.results:
                self._emit_line(f"words[{self.frame_words[r]}] = {self._variable(r)}.data_ptr()")


def strides(type: TensorType) -> tuple[int, ...]:
    """The strides of a PyTorch tensor stored as `type` says; VerifyError for a blocked layout, which has none."""
    shape = type.static_shape()
    order = range(len(shape)) if type.layout is None else [d.dim for d in type.layout.physical_dims]
    if type.layout is not None and (not type.layout.is_permutation or sorted(order) != list(range(len(shape)))):
        raise VerifyError(f"{type}: a blocked layout cannot cross into PyTorch")
    result, step = [0] * len(shape), 1
    for d in reversed(order):
        result[d] = step
        step *= max(1, shape[d])
    return tuple(result)
