"""Call stub of a program of GPU kernels: buffers are tensors, and each launch is a call of Python.

        device = argument_device(inputs)
        ...                                                      the checks of the inputs
        t2, = constants(device)
        workspace = torch.empty(640, dtype=torch.uint8, device=device)    PyTorch's allocator for the device
        t3 = workspace[0:512].view(dtype3)
        t1 = torch.empty_strided(shape1, stride1, dtype=dtype1, device=device)
        launch0(t0, t2, t3)                                      on the device's current stream; nothing waits
        for i0 in range(7):
            t5 = t4[i0]
            launch1(t5, t3)

The whole body stands in `with on_device(device):`.  With CUDA graphs it ends after the checks,

        return replay(device, [t0])

and the rest is a function that `replay` records (see compiler.runtime.graph_replay).  A profile has `mark()` around the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from compiler.analysis.tensor_box import ALIGNMENT
from compiler.ir.symbolic.index_atoms import format_index
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.program import Copy, Launch, Program, Repeat, Step, View, non_launch_buffers, walk_steps
from compiler.ir.torch_types import TORCH_DTYPES, strides
from compiler.runtime.call_stub import CallStub, EagerSegment, RunFunction
from compiler.runtime.graph_replay import DeviceGraphs, GraphReplay
from compiler.runtime.memory import MemoryPlan


@dataclass(frozen=True)
class LaunchSegment:
    """Consecutive steps that launch kernels, copy or loop, after `new_tensors` have been allocated."""

    steps: Sequence[Step]
    new_tensors: tuple[str, ...]
    accessed: tuple[str, ...]


@dataclass
class GPUCallStub(CallStub):
    """Generator of the function.  The globals are also `argument_device`, `on_device` and `constants`.

    `launchers` launch a kernel on tensors and its dynamic sizes, whose values are in `size_arguments`.  `mark` is called as
    each segment begins, and after each step.  `graphs` record the launches; without `checks_inputs`, inputs must fit.
    """

    program: Program
    memory_plan: MemoryPlan
    launchers: Mapping[str, Callable[..., None]]
    size_arguments: Mapping[str, Sequence[int]]
    mark: Callable[[], object] | None = None
    graphs: DeviceGraphs | None = None
    checks_inputs: bool = True

    def compile(self) -> tuple[RunFunction, str]:
        """Return the function and its source."""
        self.bindings |= {"torch": torch, "mark": self.mark}
        if self.graphs is not None:
            unchecked = replace(self, bindings={**self.bindings}, graphs=None, checks_inputs=False)
            self.bindings["replay"] = GraphReplay(unchecked.compile()[0], self.graphs)
        return super().compile()

    def _body(self) -> list[str]:
        body = (f"    {line}" for line in super()._body())
        return ["device = argument_device(inputs)", "with on_device(device):", *body]

    def _emit_checks(self) -> None:
        if self.checks_inputs:
            super()._emit_checks()
        else:
            self._emit_line(f"{''.join(f'{self._variable(name)}, ' for name in self.inputs) or '() '}= inputs")

    def _emit_call(self) -> None:
        if self.graphs is None:
            super()._emit_call()
        else:
            self._emit_line(f"return replay(device, [{', '.join(map(self._variable, self.inputs))}])")

    def _residence_test(self, name: str) -> str:
        unaligned = f" or {self._variable(name)}.data_ptr() % {ALIGNMENT}" if name in self._boxed_buffers else ""
        return f"{self._variable(name)}.device != device{unaligned}"

    @cached_property
    def _boxed_buffers(self) -> set[str]:
        """The buffers that kernels load by tensor descriptors."""
        launches = ((s.arguments, self.program.kernels[s.kernel].params) for s in self.program.launches)
        pairs = (pair for arguments, params in launches for pair in zip(arguments, params, strict=True))
        return {self.program.root_buffer(argument) for argument, param in pairs if param.descriptor}

    def _conversion(self, k: int, variable: str) -> str:
        return f"convert_input({k}, {variable}, device)"

    def _emit_preparation(self) -> None:
        if self.program.constants:
            variables = "".join(f"{self._variable(name)}, " for name in self.program.constants)
            self._emit_line(f"{variables}= constants(device)")
        if self.memory_plan.offsets:
            self._emit_line(f"workspace = torch.empty({self.memory_plan.size}, dtype=torch.uint8, device=device)")
        shaped = set[str]().union(*map(non_launch_buffers, walk_steps(self.program.steps)))
        for name, offset in self.memory_plan.offsets.items():
            t = self.types[name]
            assert isinstance(t.nbytes, int)
            view = f".as_strided({t.static_shape()}, {strides(t)})" * (name in shaped)
            dtype = self._bind("dtype", name, TORCH_DTYPES[t.dtype])
            self._emit_line(f"{self._variable(name)} = workspace[{offset}:{offset + t.nbytes}].view({dtype}){view}")

    def _emit_completion(self) -> None:
        """Emit nothing: the device may still be at work."""

    def _emit_kernels(self, k: int, segment: Any) -> None:
        for name in segment.new_tensors:
            shape, stride, dtype = self._new_tensor_arguments(name)
            tensor = f"torch.empty_strided({shape}, {stride}, dtype={dtype}, device=device)"
            self._emit_line(f"{self._variable(name)} = {tensor}")
        self._emit_mark()
        self._emit_steps(segment.steps, "", {})

    def _emit_eager_call(self, segment: EagerSegment) -> None:
        self._emit_mark()
        super()._emit_eager_call(segment)
        self._emit_mark()

    def _emit_mark(self, indent: str = "") -> None:
        if self.mark is not None:
            self._emit_line(f"{indent}mark()")

    def _emit_steps(self, steps: Sequence[Step], indent: str, counters: Mapping[str, str]) -> None:
        """Emit steps inside loops whose variables are `counters`, by their names in the program."""
        for step in steps:
            if isinstance(step, Repeat):
                inner = {**counters, step.var: f"i{len(counters)}"}
                self._emit_line(f"{indent}for {inner[step.var]} in range({index_text(step.count, counters)}):")
                self._emit_steps(step.steps, f"{indent}    ", inner)
            else:
                self._emit_line(f"{indent}{self._step_text(step, counters)}")
                if not isinstance(step, View):
                    self._emit_mark(indent)

    def _step_text(self, step: Step, counters: Mapping[str, str]) -> str:
        """Return the statement of one step."""
        if isinstance(step, Copy):
            return f"{self._variable(step.target)}.copy_({self._variable(step.source)})"
        if isinstance(step, View):
            ends = (step.index,) if step.count is None else (step.index, step.stop)
            entries = ":".join(index_text(d, counters) for d in ends)
            return f"{self._variable(step.name)} = {self._variable(step.buffer)}[{entries}]"
        assert isinstance(step, Launch)
        arguments = [*map(self._variable, step.arguments), *map(str, self.size_arguments[step.kernel])]
        return f"{self._launcher(step.kernel)}({', '.join(arguments)})"

    def _launcher(self, kernel: str) -> str:
        """Return the name of the function that launches a kernel."""
        name = f"launch{list(self.launchers).index(kernel)}"
        self.bindings[name] = self.launchers[kernel]
        return name


def index_text(d: Dim, names: Mapping[str, str]) -> str:
    """Return an index expression as Python, its variables renamed."""
    return format_index(d, lambda v: names[v])
