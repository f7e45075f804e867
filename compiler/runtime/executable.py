"""Executables: compiled programs that are called with tensors, whatever runs their kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import torch

from compiler.errors import ArgumentError, TargetError, VerifyError
from compiler.ir.tile.dynamic_sizes import program_dynamic_sizes, specialize_buffers
from compiler.ir.tile.program import OpaqueCall, Program, Step
from compiler.ir.torch_types import strides
from compiler.runtime.arguments import argument_device, check_argument, is_host_scalar
from compiler.runtime.call_stub import CallStub, EagerSegment, RunFunction, Segment
from compiler.runtime.eager_calls import EagerCallEmitter
from compiler.runtime.memory import InPlacePairs, accessed_buffers, in_place_pairs, plan_memory
from compiler.runtime.output_reuse import reuse_outputs
from compiler.target import Target


class Executable(ABC):
    """A compiled program: `exe(inputs)` runs it and returns its outputs as new tensors on the device of its inputs.

    Raises ArgumentError if an input does not match its type or lies elsewhere.  Inputs with other strides are copied.
    Thread-safe: concurrent calls share no memory that they write.

        run          the generated function              source   its Python source
        memory_plan  offsets of the intermediates

    The code of a program with dynamic sizes serves all of their values: `for_sizes(values)` returns the executable for inputs
    of those sizes.
    """

    def __init__(self, program: Program, target: Target) -> None:
        _require_owned_outputs(program)
        if missing := target.missing_features():
            raise TargetError(f"target {target.name} needs {missing}, which this machine lacks")
        self.program, self.target = program, target
        self.in_place_pairs = self._in_place_pairs()
        self.program = program = reuse_outputs(program, self.in_place_pairs)
        self.size_names = tuple(s.name for s in program_dynamic_sizes(program))
        self.size_values: Mapping[str, int] = {}
        self.external_buffers = external_buffers(program)
        self.workspace_buffers = workspace_buffers(program)
        if not self.size_names:
            self.memory_plan = plan_memory(self.program, self.workspace_buffers, self.in_place_pairs)

    def for_sizes(self, values: Mapping[str, int]) -> Self:
        """Return an executable with the same code for inputs of the sizes `values`; plans memory, compiles nothing."""
        new = copy(self)
        new.program, new.size_values = specialize_buffers(self.program, values), values
        new.memory_plan = plan_memory(new.program, new.workspace_buffers, new.in_place_pairs)
        new._prepare_calls()
        return new

    def _in_place_pairs(self) -> InPlacePairs:
        """Return the parameters of each kernel that may alias."""
        return in_place_pairs(self.program)

    @abstractmethod
    def _prepare_calls(self) -> None:
        """Prepare what calls share; all sizes have values."""

    @abstractmethod
    def _call_stub(self, unchecked_inputs: frozenset[str] = frozenset()) -> CallStub:
        """Return the generator of `run`."""

    @cached_property
    def _compiled_stub(self) -> tuple[RunFunction, str]:
        return self._call_stub().compile()

    @property
    def run(self) -> RunFunction:
        """The function that a call runs (see compiler.runtime.call_stub)."""
        return self._compiled_stub[0]

    @property
    def source(self) -> str:
        """Python source of `run`."""
        return self._compiled_stub[1]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.run(inputs)

    def accepts_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return True if inputs of these shapes, by name, match the program's types."""
        return all(self.program.buffers[name].static_shape() == shape for name, shape in shapes.items())

    def without_shape_checks(self, names: Iterable[str]) -> RunFunction:
        """Return `run` without shape checks of the inputs `names`, for a caller that dispatches on their shapes."""
        return self._call_stub(frozenset(names)).compile()[0]

    def kernel_size_names(self, kernel: str) -> tuple[str, ...]:
        """Return the dynamic sizes that a kernel takes as arguments."""
        return tuple(s.name for s in self.program.kernels[kernel].dynamic_sizes) if self.size_names else ()

    def synchronize(self) -> None:  # noqa: B027  # nothing to do where calls wait
        """Wait until the calls so far are done, where a call returns before."""

    # segments

    def segments(self) -> Iterator[Segment]:
        """Yield the segments of a call in order; each has the tensors that are new to it."""
        allocated = set(self.program.inputs)
        for k, steps in enumerate(split_segments(self.program)):
            if isinstance(steps, OpaqueCall):
                allocated.update(steps.results)
                yield EagerSegment(self.eager_call(steps, f"e{k}"), steps.arguments, steps.results)
                continue
            accesses = [accessed_buffers(self.program, s) for s in steps]
            external = {*self.external_buffers}
            written = dict.fromkeys(b for _, writes in accesses for b in writes if b in external)
            accessed = dict.fromkeys(b for reads, writes in accesses for b in (*reads, *writes) if b in external)
            new = tuple(b for b in written if b not in allocated)
            allocated.update(new)
            yield self._kernel_segment(k, steps, new, tuple(accessed))

    @abstractmethod
    def _kernel_segment(
        self, number: int, steps: Sequence[Step], new_tensors: tuple[str, ...], accessed: tuple[str, ...]
    ) -> Segment:
        """Return a segment of consecutive steps without opaque calls."""

    def eager_call(self, step: OpaqueCall, prefix: str = "e") -> EagerCallEmitter:
        """Return the emitter of an opaque step's code.

        Results may share memory with an argument that nobody else keeps: no input, constant or output, and read by no other step
        in PyTorch.
        """
        p, types = self.program, self.program.buffers
        others = (a for s in p.steps if isinstance(s, OpaqueCall) and s is not step for a in s.arguments)
        kept = {*p.inputs, *p.constants, *p.outputs, *others}
        shared = [k for k, a in enumerate(step.arguments) if a in kept]
        return EagerCallEmitter(
            step, [types[a] for a in step.arguments], [types[r] for r in step.results], shared, prefix
        )

    # checks of the inputs

    def input_checks(self) -> dict[str, Any]:
        """Return the functions that `run` calls for inputs that do not fit, by the names of its globals."""
        return {"convert_input": self._convert_input, "wrong_count": self._wrong_count, "refusal": self._refusal}

    def _convert_input(self, k: int, x: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Copy input `k` into the strides of its type; ArgumentError if dtype, shape or device differ.

        A number on the CPU becomes an argument of the kernel that fills the copy, so that nothing waits for a transfer.
        """
        name = self.program.inputs[k]
        expected = self.program.buffers[name]
        check_argument(k, name, x, expected, device)
        new = torch.empty_strided(x.shape, strides(expected), dtype=x.dtype, device=device)
        return new.fill_(x.detach()) if is_host_scalar(x, device) else new.copy_(x.detach())

    def _wrong_count(self, inputs: Sequence[torch.Tensor]) -> ArgumentError:
        expected = ", ".join(f"%{n}: {self.program.buffers[n]}" for n in self.program.inputs)
        return ArgumentError(f"the program takes {len(self.program.inputs)} inputs ({expected}), not {len(inputs)}")

    def _refusal(self, inputs: Sequence[Any], error: Exception) -> Exception:
        """Return `error`, which PyTorch raised; ArgumentError if the reason is an input that does not fit."""
        device = argument_device(inputs, self.target.device_type)
        for k, (name, x) in enumerate(zip(self.program.inputs, inputs, strict=True)):
            check_argument(k, name, x, self.program.buffers[name], device)
        return error


def split_segments(program: Program) -> Iterator[list[Step] | OpaqueCall]:
    """Yield maximal runs of steps without opaque calls, and the opaque calls between them, in order."""
    run: list[Step] = []
    for step in program.steps:
        if isinstance(step, OpaqueCall):
            if run:
                yield run
            yield step
            run = []
        else:
            run.append(step)
    if run:
        yield run


def external_buffers(program: Program) -> tuple[str, ...]:
    """Return the buffers outside the workspace: inputs, outputs, constants, and those that opaque calls access."""
    eager = [b for s in program.steps if isinstance(s, OpaqueCall) for b in (*s.arguments, *s.results)]
    return tuple(dict.fromkeys((*program.inputs, *program.outputs, *program.constants, *eager)))


def workspace_buffers(program: Program) -> list[str]:
    """Return the buffers that lie in the workspace."""
    others = {*external_buffers(program), *program.views}
    return [b for b in program.buffers if b not in others]


def _require_owned_outputs(program: Program) -> None:
    written = {name for step in program.steps for name in accessed_buffers(program, step)[1]}
    for name in program.outputs:
        if (name in program.inputs and name not in written) or name in program.constants:
            raise VerifyError(
                f"output %{name} is an input or a constant; insert a copy step so that the output owns its buffer"
            )
