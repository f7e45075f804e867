"""Call stub of a compiled program: a Python function generated for it.

For small tensors the call overhead dominates.  So input checks, output allocation and calls into machine code are
generated as straight-line Python (about a microsecond in all), with every constant bound as a global:

    def run(inputs):
        try: t4, = inputs
        except ValueError: raise wrong_count(inputs) from None
        try:
            if (t4.dtype is not dtype4 or t4.shape != shape4 or not t4.is_cpu or not t4.is_contiguous()
                or t4.requires_grad and is_grad_enabled()): t4 = convert_input(0, t4)
        except (AttributeError, RuntimeError) as error: raise refusal(inputs, error) from None
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
        return [t5]

`t4` is the tensor whose address is in word 4 of the frame (see compiler.codegen.llvm.call_frame).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from compiler.codegen.llvm.call_frame import STATUS, WORKSPACE
from compiler.ir.torch_types import TORCH_DTYPES, strides
from compiler.ir.types import TensorType
from compiler.runtime.eager_calls import EagerCallEmitter
from compiler.runtime.pool import GLOBAL_POOL
from compiler.runtime.threads import prepare_call


def _torch_empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
empty_strided = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _torch_empty_strided)
"""Returns an uninitialised CPU tensor, as Inductor allocates its own: at a third of the cost of `torch.empty_strided`."""

POOL_THRESHOLD = 512 << 10
"""Bytes from which outputs and workspaces come from the pool.  Below, malloc reuses memory as well and costs 3 us less."""

RunFunction: TypeAlias = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True)
class NativeSegment:
    """Consecutive native steps: `function` runs them on a frame address, after `new_tensors` have been allocated.

    `accessed` are all buffers outside the workspace that they read or write.
    """

    function: Callable[[int], None]
    new_tensors: tuple[str, ...]
    accessed: tuple[str, ...]


@dataclass(frozen=True)
class EagerSegment:
    """Call into PyTorch, with `call` to write its code."""

    call: EagerCallEmitter
    arguments: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def new_tensors(self) -> tuple[str, ...]:
        return self.results

    @property
    def accessed(self) -> tuple[str, ...]:
        return *self.arguments, *self.results


@dataclass
class CallStub:
    """Generator of the function.  `frame_words` maps buffers outside the workspace to their word in the frame.

    `workspace` is its size in bytes.  `parallel` is set if some kernel runs on several threads.
    """

    types: dict[str, TensorType]
    frame_words: dict[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    segments: list[NativeSegment | EagerSegment]
    workspace: int
    parallel: bool
    unchecked_inputs: frozenset[str]
    """Inputs whose shapes the caller has checked."""
    bindings: dict[str, Any]
    """Globals: `frames`, `new_frame`, `convert_input`, `null_address`, the errors `wrong_count`, `refusal` and
    `index_error`; a tensor per constant that PyTorch reads; and perhaps `mark`, called around calls into PyTorch."""
    lines: list[str] = field(default_factory=list)

    def compile(self) -> tuple[RunFunction, str]:
        """Return the function and its source."""
        self.bindings |= {
            "empty_strided": empty_strided,
            "pool_tensor": GLOBAL_POOL.empty_tensor,
            "allocate": GLOBAL_POOL.allocate,
            "release": GLOBAL_POOL.release,
            "prepare_call": prepare_call,
            "is_grad_enabled": torch.is_grad_enabled,
            "set_grad_enabled": torch._C._set_grad_enabled,
        }
        source = self._source()
        namespace = dict(self.bindings)
        exec(compile(source, "<tilewright entry>", "exec"), namespace)
        run: RunFunction = namespace["run"]
        return run, source

    def _source(self) -> str:
        variables = [self._variable(name) for name in self.inputs]
        self._emit_line(f"try: {''.join(f'{v}, ' for v in variables) or '() '}= inputs")
        self._emit_line("except ValueError: raise wrong_count(inputs) from None")
        if self.inputs:
            self._emit_line("try:")
            for k, name in enumerate(self.inputs):
                self._emit_check(k, name)
            self._emit_line("except (AttributeError, RuntimeError) as error: raise refusal(inputs, error) from None")
        if self._has_native_segments:
            self._emit_frame()
            self._emit_input_addresses()
        if self.parallel:
            self._emit_line("prepare_call()")
        for k, segment in enumerate(self.segments):
            self._emit_native(k, segment) if isinstance(segment, NativeSegment) else self._emit_eager_call(segment)
            self._emit_deletions(k)
        if self._has_native_segments:
            self._emit_line(f"if words[{STATUS}]: raise index_error(words)")
            if self._uses_pool:
                self._emit_line("release(block)")
            self._emit_line("frames.append(frame)")
        self._emit_line(f"return [{', '.join(self._variable(name) for name in self.outputs)}]")
        lines = (
            self.lines if all(isinstance(s, NativeSegment) for s in self.segments) else without_gradients(self.lines)
        )
        return "def run(inputs):\n" + "".join(f"    {line}\n" for line in lines)

    @property
    def _has_native_segments(self) -> bool:
        return any(isinstance(s, NativeSegment) for s in self.segments)

    @property
    def _uses_pool(self) -> bool:
        """True if each call allocates its workspace from the pool; a small workspace belongs to the frame."""
        return self.workspace >= POOL_THRESHOLD

    def _emit_line(self, text: str) -> None:
        self.lines.append(text)

    def _variable(self, name: str) -> str:
        return f"t{self.frame_words[name]}"

    def _bind(self, kind: str, name: str, value: Any) -> str:
        """Bind `value` as a global of buffer `name` and return the global's name."""
        global_name = f"{kind}{self.frame_words[name]}"
        self.bindings[global_name] = value
        return global_name

    def _emit_address(self, name: str) -> None:
        self._emit_line(f"words[{self.frame_words[name]}] = {self._variable(name)}.data_ptr()")

    def _emit_input_addresses(self) -> None:
        if self.inputs:
            self._emit_line("try:")
            for k, name in enumerate(self.inputs):
                v = self._variable(name)
                self._emit_line(f"    words[{self.frame_words[name]}] = {v}.data_ptr() or null_address({k}, {v})")
            self._emit_line("except RuntimeError as error: raise refusal(inputs, error) from None")

    def _emit_check(self, k: int, name: str) -> None:
        v, t = self._variable(name), self.types[name]
        dtype = self._bind("dtype", name, TORCH_DTYPES[t.dtype])
        shape = f"{v}.shape != {self._bind('shape', name, t.static_shape())} or " * (name not in self.unchecked_inputs)
        stride = f"{v}.stride() != {self._bind('stride', name, strides(t))}" if t.layout else f"not {v}.is_contiguous()"
        gradient = f"{v}.requires_grad and is_grad_enabled()"
        # the imaginary part of a conjugate is negated lazily; its elements lie apart, unless it has only one
        negated = f" or {v}.is_neg()" * (t.numel == 1)
        mismatch = f"{v}.dtype is not {dtype} or {shape}not {v}.is_cpu or {stride} or {gradient}{negated}"
        self._emit_line(f"    if {mismatch}: {v} = convert_input({k}, {v})")

    def _emit_frame(self) -> None:
        self._emit_line("try: frame = frames.pop()")
        self._emit_line("except IndexError: frame = new_frame()")
        self._emit_line("words, frame_address, _ = frame")
        if self._uses_pool:
            self._emit_line(f"block = allocate({self.workspace})")
            self._emit_line(f"words[{WORKSPACE}] = block.address")

    def _emit_native(self, k: int, segment: NativeSegment) -> None:
        for name in segment.new_tensors:
            self._emit_allocation(name)
        self.bindings[f"segment{k}"] = segment.function
        self._emit_line(f"segment{k}(frame_address)")

    def _emit_deletions(self, k: int) -> None:
        """Free the tensors that segment `k` is the last to access, so that the next results can take their memory."""
        later = {name for s in self.segments[k + 1 :] for name in s.accessed}.union(self.outputs)
        made = (name for s in self.segments[: k + 1] for name in s.new_tensors)
        dead = [self._variable(n) for n in made if n in self.segments[k].accessed and n not in later]
        if dead and k < len(self.segments) - 1:
            self._emit_line(f"del {', '.join(dead)}")

    def _emit_allocation(self, name: str) -> None:
        t = self.types[name]
        shape = self._bind("shape", name, t.static_shape())
        stride = self._bind("stride", name, strides(t))
        dtype = self._bind("dtype", name, TORCH_DTYPES[t.dtype])
        assert isinstance(t.numel, int)
        is_large, arguments = t.numel * t.dtype.bytes >= POOL_THRESHOLD, f"{shape}, {stride}, {dtype}"
        tensor = f"pool_tensor({arguments}, {t.numel})" if is_large else f"empty_strided({arguments})"
        self._emit_line(f"{self._variable(name)} = {tensor}")
        self._emit_address(name)

    def _emit_eager_call(self, segment: EagerSegment) -> None:
        variables = ([self._variable(name) for name in names] for names in (segment.arguments, segment.results))
        marks = ["mark()"] * ("mark" in self.bindings)
        self.lines += [*marks, *segment.call.lines(*variables), *marks]
        self.bindings |= segment.call.bindings
        if self._has_native_segments:
            for r in segment.results:
                self._emit_address(r)


def without_gradients(lines: Sequence[str]) -> list[str]:
    """Return `lines` with gradients disabled around them: an attribute of the thread, which a context manager sets slowly."""
    body = (f"    {line}" for line in lines)
    before, after = "if grad: set_grad_enabled(False)", "    if grad: set_grad_enabled(True)"
    return ["grad = is_grad_enabled()", before, "try:", *body, "finally:", after]
