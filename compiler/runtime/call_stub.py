"""Call stub of a compiled program: a Python function generated for it, which checks inputs, allocates, and runs the steps.

For small tensors the call overhead dominates.  So everything is straight-line Python, with every constant bound as a global:

    def run(inputs):
        try: t4, = inputs
        except ValueError: raise wrong_count(inputs) from None
        try:
            if (t4.dtype is not dtype4 or t4.shape != shape4 or not t4.is_cpu or not t4.is_contiguous()
                or t4.requires_grad and is_grad_enabled()): t4 = convert_input(0, t4)
        except (AttributeError, RuntimeError) as error: raise refusal(inputs, error) from None
        ...                                             what runs kernels (native_call_stub, gpu_call_stub)
        return [t5]

`t4` is the tensor of the buffer with number 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from compiler.ir.torch_types import TORCH_DTYPES, strides
from compiler.ir.types import TensorType
from compiler.runtime.eager_calls import EagerCallEmitter

RunFunction: TypeAlias = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


class Segment(Protocol):
    """Consecutive steps; `accessed` are all buffers outside the workspace that they access, `new_tensors` those made for them."""

    @property
    def new_tensors(self) -> tuple[str, ...]: ...

    @property
    def accessed(self) -> tuple[str, ...]: ...


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
class CallStub(ABC):
    """Generator of the function.  `numbers` has one for each buffer that is a variable.

    The caller has checked the shapes of `unchecked_inputs`.  `bindings` are the globals: `convert_input`, `wrong_count`,
    `refusal`, and a tensor per constant that PyTorch reads.
    """

    types: Mapping[str, TensorType]
    numbers: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    segments: Sequence[Segment]
    unchecked_inputs: frozenset[str]
    bindings: dict[str, Any]
    lines: list[str] = field(default_factory=list, init=False)

    def compile(self) -> tuple[RunFunction, str]:
        """Return the function and its source."""
        self.bindings |= {"is_grad_enabled": torch.is_grad_enabled, "set_grad_enabled": torch._C._set_grad_enabled}
        source = "def run(inputs):\n" + "".join(f"    {line}\n" for line in self._body())
        namespace = dict(self.bindings)
        exec(compile(source, "<tilewright entry>", "exec"), namespace)
        run: RunFunction = namespace["run"]
        return run, source

    def _body(self) -> list[str]:
        """Return the lines of the function."""
        self._emit_checks()
        self._emit_call()
        has_eager_calls = any(isinstance(s, EagerSegment) for s in self.segments)
        return without_gradients(self.lines) if has_eager_calls else self.lines

    def _emit_call(self) -> None:
        """Emit the part after the checks: allocation, segments and the return of the outputs."""
        self._emit_preparation()
        for k, segment in enumerate(self.segments):
            self._emit_eager_call(segment) if isinstance(segment, EagerSegment) else self._emit_kernels(k, segment)
            self._emit_deletions(k)
        self._emit_completion()
        self._emit_line(f"return [{', '.join(self._variable(name) for name in self.outputs)}]")

    @abstractmethod
    def _residence_test(self, name: str) -> str:
        """Return the test that an input lies where kernels cannot read it."""

    @abstractmethod
    def _conversion(self, k: int, variable: str) -> str:
        """Return the call that makes input `k` one that kernels can read."""

    @abstractmethod
    def _emit_preparation(self) -> None:
        """Emit the code between the checks and the first segment."""

    @abstractmethod
    def _emit_kernels(self, k: int, segment: Any) -> None:
        """Emit segment `k`, which runs kernels."""

    @abstractmethod
    def _emit_completion(self) -> None:
        """Emit the code after the last segment."""

    def _emit_line(self, text: str) -> None:
        self.lines.append(text)

    def _variable(self, name: str) -> str:
        return f"t{self.numbers[name]}"

    def _bind(self, kind: str, name: str, value: Any) -> str:
        """Bind `value` as a global of buffer `name` and return the global's name."""
        global_name = f"{kind}{self.numbers[name]}"
        self.bindings[global_name] = value
        return global_name

    def _emit_checks(self) -> None:
        """Emit the variables of the inputs and their checks."""
        variables = [self._variable(name) for name in self.inputs]
        self._emit_line(f"try: {''.join(f'{v}, ' for v in variables) or '() '}= inputs")
        self._emit_line("except ValueError: raise wrong_count(inputs) from None")
        if self.inputs:
            self._emit_line("try:")
            for k, name in enumerate(self.inputs):
                self._emit_check(k, name)
            self._emit_line("except (AttributeError, RuntimeError) as error: raise refusal(inputs, error) from None")

    def _emit_check(self, k: int, name: str) -> None:
        v, t = self._variable(name), self.types[name]
        dtype = self._bind("dtype", name, TORCH_DTYPES[t.dtype])
        shape = f"{v}.shape != {self._bind('shape', name, t.static_shape())} or " * (name not in self.unchecked_inputs)
        stride = f"{v}.stride() != {self._bind('stride', name, strides(t))}" if t.layout else f"not {v}.is_contiguous()"
        gradient = f"{v}.requires_grad and is_grad_enabled()"
        # the imaginary part of a conjugate is negated lazily; its elements lie apart, unless it has only one
        negated = f" or {v}.is_neg()" * (t.numel == 1)
        mismatch = f"{v}.dtype is not {dtype} or {shape}{self._residence_test(name)} or {stride} or {gradient}{negated}"
        self._emit_line(f"    if {mismatch}: {v} = {self._conversion(k, v)}")

    def _new_tensor_arguments(self, name: str) -> list[str]:
        """Return shape, strides and dtype of a new tensor as arguments."""
        t = self.types[name]
        values = {"shape": t.static_shape(), "stride": strides(t), "dtype": TORCH_DTYPES[t.dtype]}
        return [self._bind(kind, name, value) for kind, value in values.items()]

    def _emit_deletions(self, k: int) -> None:
        """Free the tensors that segment `k` is the last to access, so that the next results can take their memory."""
        later = {name for s in self.segments[k + 1 :] for name in s.accessed}.union(self.outputs)
        made = (name for s in self.segments[: k + 1] for name in s.new_tensors)
        dead = [self._variable(n) for n in made if n in self.segments[k].accessed and n not in later]
        if dead and k < len(self.segments) - 1:
            self._emit_line(f"del {', '.join(dead)}")

    def _emit_eager_call(self, segment: EagerSegment) -> None:
        variables = ([self._variable(name) for name in names] for names in (segment.arguments, segment.results))
        self.lines += segment.call.lines(*variables)
        self.bindings |= segment.call.bindings


def without_gradients(lines: Sequence[str]) -> list[str]:
    """Return `lines` with gradients disabled around them: an attribute of the thread, which a context manager sets slowly."""
    body = (f"    {line}" for line in lines)
    before, after = "if grad: set_grad_enabled(False)", "    if grad: set_grad_enabled(True)"
    return ["grad = is_grad_enabled()", before, "try:", *body, "finally:", after]
