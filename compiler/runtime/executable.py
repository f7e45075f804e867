"""A compiled program, ready to call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from compiler.codegen.llvm.program_entry import (
    FAILED_LAUNCH,
    FIRST_SLOT,
    WORKSPACE,
    Action,
    BufferAddress,
    CopyBytes,
    DynamicOffset,
    FrameSlot,
    KernelCall,
    Loop,
    SubBuffer,
    WorkspaceOffset,
)
from compiler.codegen.target import Target
from compiler.errors import ArgumentError, TilewrightError, VerifyError
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes, program_dynamic_sizes, specialize_buffers
from compiler.ir.tile.kernel import BoundsCheck
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, Step
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.ir.torch_types import TORCH_DTYPES, as_tensor
from compiler.options import Options
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache
from compiler.runtime.call_stub import POOL_THRESHOLD, CallStub, EagerSegment, NativeSegment, RunFunction, strides
from compiler.runtime.constants import Array, pack_once
from compiler.runtime.eager_calls import EagerFunction, make_eager_function
from compiler.runtime.loader import link_objects
from compiler.runtime.memory import accessed_buffers, in_place_pairs, plan_memory
from compiler.runtime.pool import GLOBAL_POOL

EntryFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Frame = tuple[Any, int, Any]
"""The words of a call frame, their address, and the block of memory that is its workspace if it has its own."""


class Executable:
    """`exe(inputs)` runs `program` on CPU tensors and returns its outputs as new tensors.

    Calls from several threads run side by side, each on a frame and workspace of its own.  ArgumentError where an input does
    not fit; IndexError where the program indexes out of range.  Non-contiguous inputs are copied.

        run      the function behind the call            source   its text
        memory   where the intermediates lie             build    what was compiled, and in how many seconds

    `build` may have begun with kernels and constants of the program before all of it was there.
    The code of a program with open sizes serves all of them: `at(sizes)` gives the executable that can be called with such inputs.
    """

    def __init__(
        self,
        program: Program,
        target: Target | None = None,
        options: Options | None = None,
        build: Build | None = None,
    ) -> None:
        self.program, self.target = program, target or Target.host()
        self.size_names = tuple(s.name for s in program_dynamic_sizes(program))
        _require_owned_outputs(program)
        _require_runnable_target(self.target)
        outside = _external_buffers(program)
        self.frame_words = {name: FIRST_SLOT + k for k, name in enumerate(outside)}
        self.workspace_buffers = [b for b in program.buffers if b not in self.frame_words and b not in program.views]
        dynamic_words = [*self.size_names, *self.workspace_buffers] if self.size_names else []
        self.told = {what: FIRST_SLOT + len(outside) + k for k, what in enumerate(dynamic_words)}
        self.in_place_pairs = in_place_pairs(program)
        if not self.size_names:
            self.memory_plan = plan_memory(program, self.workspace_buffers, self.in_place_pairs)
        self.build = build or Build(self.target, object_cache_for(options or Options()))
        packed = self.build.submit("packing", _pack_constants, program)
        self.build.add_kernels(program.kernels.values())
        self.constants = packed.result()
        for k, steps in enumerate(_split_segments(program)):
            if not isinstance(steps, OpaqueCall):
                self.build.add_program_entry(f"main{k}", list(self._actions(steps)), self.told)
        self.library = link_objects(list(self.build.objects.values()), list(self.build.objects))
        self.size_values: Mapping[str, int] = {}
        if not self.size_names:
            self._prepare_calls()

    def for_sizes(self, values: Mapping[str, int]) -> Executable:
        """The same code for inputs of the sizes `values`: memory is planned anew, nothing is compiled."""
        new = copy(self)
        new.program, new.size_values = specialize_buffers(self.program, values), values
        new.memory_plan = plan_memory(new.program, new.workspace_buffers, new.in_place_pairs)
        new._prepare_calls()
        return new

    def _prepare_calls(self) -> None:
        """Make what a call needs, now that all sizes are known."""
        self._frames: list[Frame] = []
        allocated = set(self.program.inputs)
        self._call_segments = [
            self._eager_segment(s, allocated)
            if isinstance(s, OpaqueCall)
            else self._native_segment(f"main{k}", s, allocated)
            for k, s in enumerate(_split_segments(self.program))
        ]

    @cached_property
    def _compiled_stub(self) -> tuple[RunFunction, str]:
        return self._call_stub().compile()

    @property
    def run(self) -> RunFunction:
        """The function behind the call."""
        return self._compiled_stub[0]

    @property
    def source(self) -> str:
        """Its text."""
        return self._compiled_stub[1]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.run(inputs)

    def accepts_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether inputs have the shapes that the call takes."""
        return all(self.program.buffers[name].static_shape() == shape for name, shape in shapes.items())

    def without_shape_checks(self, names: Iterable[str]) -> RunFunction:
        """`run` without a look at the shapes of the inputs `names`, by which the caller has found it."""
        return self._call_stub(frozenset(names)).compile()[0]

    def buffer_address(self, name: str) -> BufferAddress:
        """Where buffer `name` lies."""
        if name in self.program.views:
            s = self.program.views[name]
            return SubBuffer(self.buffer_address(s.buffer), s.index, self.program.buffers[name].nbytes)
        if name in self.frame_words:
            return FrameSlot(self.frame_words[name])
        return DynamicOffset(self.told[name]) if self.size_names else WorkspaceOffset(self.memory_plan.offsets[name])

    def kernel_size_names(self, kernel: str) -> tuple[str, ...]:
        """The sizes that a kernel is told."""
        return tuple(s.name for s in kernel_dynamic_sizes(self.program.kernels[kernel]))

    # compiling

    def _actions(self, steps: Iterable[Step]) -> Iterator[Action]:
        """Steps of the program as machine code performs them."""
        for step in steps:
            if isinstance(step, Copy):
                yield CopyBytes(
                    self.buffer_address(step.source),
                    self.buffer_address(step.target),
                    self.program.buffers[step.source].nbytes,
                )
            elif isinstance(step, Repeat):
                yield Loop(step.var, step.count, tuple(self._actions(step.steps)))
            elif isinstance(step, Launch):
                checks = any(isinstance(s, BoundsCheck) for s in tile.walk(self.program.kernels[step.kernel].body))
                number = self.program.launches.index(step) + 1 if checks else 0
                sizes = tuple(self.told[s] for s in self.kernel_size_names(step.kernel))
                yield KernelCall(
                    self.build.symbols[step.kernel], tuple(map(self.buffer_address, step.arguments)), number, sizes
                )

    def _native_segment(self, name: str, steps: Sequence[Step], allocated: set[str]) -> NativeSegment:
        """The call of one stretch of steps; the tensors it writes first of all are added to those that are `made`."""
        written = dict.fromkeys(b for s in steps for b in accessed_buffers(self.program, s)[1] if b in self.frame_words)
        new = tuple(b for b in written if b not in allocated)
        allocated.update(new)
        return NativeSegment(EntryFunction(self.library[name]), new)

    def _eager_segment(self, step: OpaqueCall, allocated: set[str]) -> EagerSegment:
        allocated.update(step.results)
        return EagerSegment(self.eager_function(step), step.arguments, step.results)

    def eager_function(self, step: OpaqueCall) -> EagerFunction:
        """The call into PyTorch that `step` stands for, on tensors."""
        return make_eager_function(step, [self.program.buffers[r] for r in step.results])

    def _call_stub(self, unchecked_inputs: frozenset[str] = frozenset()) -> CallStub:
        p = self.program
        names = {"frames": self._frames, "new_frame": self.new_frame, "fault": self._index_error}
        names |= {"admit": self._convert_input, "wrong_count": self._wrong_count, "not_tensors": self._not_tensors}
        for part in self._call_segments:
            for a in part.arguments if isinstance(part, EagerSegment) else ():
                if a in self.constants:
                    names[f"t{self.frame_words[a]}"] = as_tensor(self.constants[a], p.buffers[a].dtype)
        parallel = any(
            evaluate(k.parallel_condition, self.size_values) >= 0 and is_parallelizable(k) for k in p.kernels.values()
        )
        return CallStub(
            p.buffers,
            self.frame_words,
            p.inputs,
            p.outputs,
            self._call_segments,
            self.memory_plan.size,
            parallel,
            unchecked_inputs,
            names,
        )

    # calling

    def new_frame(self) -> Frame:
        """A frame with the addresses and sizes that never change."""
        words = (ctypes.c_uint64 * (FIRST_SLOT + len(self.frame_words) + len(self.told)))()
        for what, word in self.told.items():
            words[word] = self._dynamic_value(what)
        for name, array in self.constants.items():
            words[self.frame_words[name]] = array.ctypes.data
        block = GLOBAL_POOL.allocate(self.memory_plan.size) if 0 < self.memory_plan.size < POOL_THRESHOLD else None
        if block is not None:
            words[WORKSPACE] = block.address
        return words, ctypes.addressof(words), block

    def _dynamic_value(self, what: str) -> int:
        """A size, or how far into the workspace a buffer lies."""
        return self.size_values[what] if what in self.size_values else self.memory_plan.offsets.get(what, 0)

    def _convert_input(self, k: int, given: torch.Tensor) -> torch.Tensor:
        """Input `k` made fit for the kernels; ArgumentError where it cannot be."""
        name = self.program.inputs[k]
        expected = self.program.buffers[name]
        shape = expected.static_shape()
        if given.dtype != TORCH_DTYPES[expected.dtype] or given.shape != shape or given.device.type != "cpu":
            got = f"{str(given.dtype).removeprefix('torch.')}{list(given.shape)} on {given.device}"
            raise ArgumentError(f"input {k} (%{name}) must be {expected} on cpu, but is {got}")
        return torch.empty_strided(shape, strides(expected), dtype=given.dtype).copy_(given.detach())

    def _wrong_count(self, inputs: Sequence[torch.Tensor]) -> ArgumentError:
        wanted = ", ".join(f"%{n}: {self.program.buffers[n]}" for n in self.program.inputs)
        return ArgumentError(f"the program takes {len(self.program.inputs)} inputs ({wanted}), not {len(inputs)}")

    def _not_tensors(self, inputs: Sequence[Any]) -> ArgumentError:
        k, given = next((k, g) for k, g in enumerate(inputs) if not isinstance(g, torch.Tensor))
        name = self.program.inputs[k]
        expected = self.program.buffers[name]
        return ArgumentError(f"input {k} (%{name}) must be a tensor of type {expected}, not {type(given).__name__}")

    def _index_error(self, words: Any) -> IndexError:
        step = self.program.launches[words[FAILED_LAUNCH] - 1]
        return IndexError(f"an index is out of range in {step.node or step.kernel}")


def object_cache_for(options: Options) -> ObjectCache:
    """The store that the user chose."""
    return ObjectCache(Path(options.cache) if options.cache else None)


def _pack_constants(program: Program) -> dict[str, Array]:
    """The constants as kernels read them."""
    return {name: pack_once(c, program.buffers[name]) for name, c in program.constants.items()}


def _external_buffers(program: Program) -> tuple[str, ...]:
    """Buffers that lie outside the workspace: inputs, outputs, constants and whatever PyTorch reads or writes in between."""
    foreign = [b for s in program.steps if isinstance(s, OpaqueCall) for b in (*s.arguments, *s.results)]
    return tuple(dict.fromkeys((*program.inputs, *program.outputs, *program.constants, *foreign)))


def _split_segments(program: Program) -> Iterable[list[Step] | OpaqueCall]:
    """The steps as runs of consecutive native ones, and the calls between them."""
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


def _require_runnable_target(target: Target) -> None:
    if lacking := target.missing_host_features():
        raise TilewrightError(f"code for {target.name} cannot run here: this machine has no {lacking}")


def _require_owned_outputs(program: Program) -> None:
    given = {*program.inputs, *program.constants}
    for name in program.outputs:
        if name in given:
            raise VerifyError(f"output %{name} is an input or a constant; a copy step must make a buffer of its own")
