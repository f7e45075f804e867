"""A compiled program, ready to call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from compiler.codegen.llvm.main import (
    CULPRIT,
    FIRST_SLOT,
    WORKSPACE,
    Action,
    CopyBytes,
    KernelCall,
    Loop,
    Offset,
    OpenOffset,
    Part,
    Place,
    Slot,
)
from compiler.codegen.target import Target
from compiler.errors import ArgumentError, TilewrightError, VerifyError
from compiler.ir import tile
from compiler.ir.index import evaluate
from compiler.ir.sizes import kernel_sizes, program_sizes, with_buffers_of
from compiler.ir.team import is_shared
from compiler.ir.tile import Check, Copy, Launch, OpaqueCall, Program, Repeat, Step
from compiler.ir.torch_types import TORCH_DTYPES, as_tensor
from compiler.options import Options
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache
from compiler.runtime.constants import Array, stored_once
from compiler.runtime.entry import LARGE, Entry, Foreign, Native, Run, strides
from compiler.runtime.foreign import ForeignFunction, foreign_function
from compiler.runtime.loader import load
from compiler.runtime.memory import in_place_pairs, plan_memory, touched
from compiler.runtime.pool import SHARED

MainFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
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
        self.sizes = tuple(s.name for s in program_sizes(program))
        _require_copies(program)
        _require_machine(self.target)
        outside = _outside(program)
        self.words = {name: FIRST_SLOT + k for k, name in enumerate(outside)}
        self.inside = [b for b in program.buffers if b not in self.words and b not in program.slices]
        told = [*self.sizes, *self.inside] if self.sizes else []
        self.told = {what: FIRST_SLOT + len(outside) + k for k, what in enumerate(told)}
        self.pairs = in_place_pairs(program)
        if not self.sizes:
            self.memory = plan_memory(program, self.inside, self.pairs)
        self.build = build or Build(self.target, cache_of(options or Options()))
        packed = self.build.beside("packing", _packed, program)
        self.build.add_kernels(program.kernels.values())
        self.constants = packed.result()
        for k, steps in enumerate(_segments(program)):
            if not isinstance(steps, OpaqueCall):
                self.build.add_main(f"main{k}", list(self._actions(steps)), self.told)
        self.library = load(list(self.build.objects.values()), list(self.build.objects))
        self.values: Mapping[str, int] = {}
        if not self.sizes:
            self._finish()

    def at(self, values: Mapping[str, int]) -> Executable:
        """The same code for inputs of the sizes `values`: memory is planned anew, nothing is compiled."""
        new = copy(self)
        new.program, new.values = with_buffers_of(self.program, values), values
        new.memory = plan_memory(new.program, new.inside, new.pairs)
        new._finish()
        return new

    def _finish(self) -> None:
        """Make what a call needs, now that all sizes are known."""
        self._frames: list[Frame] = []
        made = set(self.program.inputs)
        self._parts = [
            self._foreign(s, made) if isinstance(s, OpaqueCall) else self._native(f"main{k}", s, made)
            for k, s in enumerate(_segments(self.program))
        ]

    @cached_property
    def _checked(self) -> tuple[Run, str]:
        return self._entry().compile()

    @property
    def run(self) -> Run:
        """The function behind the call."""
        return self._checked[0]

    @property
    def source(self) -> str:
        """Its text."""
        return self._checked[1]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.run(inputs)

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether inputs have the shapes that the call takes."""
        return all(self.program.buffers[name].static_shape() == shape for name, shape in shapes.items())

    def looked_up(self, names: Iterable[str]) -> Run:
        """`run` without a look at the shapes of the inputs `names`, by which the caller has found it."""
        return self._entry(frozenset(names)).compile()[0]

    def place(self, name: str) -> Place:
        """Where buffer `name` lies."""
        if name in self.program.slices:
            s = self.program.slices[name]
            return Part(self.place(s.buffer), s.index, self.program.buffers[name].nbytes)
        if name in self.words:
            return Slot(self.words[name])
        return OpenOffset(self.told[name]) if self.sizes else Offset(self.memory.offsets[name])

    def sizes_of(self, kernel: str) -> tuple[str, ...]:
        """The sizes that a kernel is told."""
        return tuple(s.name for s in kernel_sizes(self.program.kernels[kernel]))

    # compiling

    def _actions(self, steps: Iterable[Step]) -> Iterator[Action]:
        """Steps of the program as machine code performs them."""
        for step in steps:
            if isinstance(step, Copy):
                yield CopyBytes(
                    self.place(step.source), self.place(step.target), self.program.buffers[step.source].nbytes
                )
            elif isinstance(step, Repeat):
                yield Loop(step.var, step.count, tuple(self._actions(step.steps)))
            elif isinstance(step, Launch):
                checks = any(isinstance(s, Check) for s in tile.walk(self.program.kernels[step.kernel].body))
                number = self.program.launches.index(step) + 1 if checks else 0
                sizes = tuple(self.told[s] for s in self.sizes_of(step.kernel))
                yield KernelCall(self.build.symbols[step.kernel], tuple(map(self.place, step.arguments)), number, sizes)

    def _native(self, name: str, steps: Sequence[Step], made: set[str]) -> Native:
        """The call of one stretch of steps; the tensors it writes first of all are added to those that are `made`."""
        written = dict.fromkeys(b for s in steps for b in touched(self.program, s)[1] if b in self.words)
        new = tuple(b for b in written if b not in made)
        made.update(new)
        return Native(MainFunction(self.library[name]), new)

    def _foreign(self, step: OpaqueCall, made: set[str]) -> Foreign:
        made.update(step.results)
        return Foreign(self.foreign_function(step), step.arguments, step.results)

    def foreign_function(self, step: OpaqueCall) -> ForeignFunction:
        """The call into PyTorch that `step` stands for, on tensors."""
        return foreign_function(step, [self.program.buffers[r] for r in step.results])

    def _entry(self, looked_up: frozenset[str] = frozenset()) -> Entry:
        p = self.program
        names = {"frames": self._frames, "new_frame": self.new_frame, "fault": self._fault}
        names |= {"admit": self._admit, "wrong_count": self._wrong_count, "not_tensors": self._not_tensors}
        for part in self._parts:
            for a in part.arguments if isinstance(part, Foreign) else ():
                if a in self.constants:
                    names[f"t{self.words[a]}"] = as_tensor(self.constants[a], p.buffers[a].dtype)
        parallel = any(evaluate(k.surplus, self.values) >= 0 and is_shared(k) for k in p.kernels.values())
        return Entry(
            p.buffers, self.words, p.inputs, p.outputs, self._parts, self.memory.size, parallel, looked_up, names
        )

    # calling

    def new_frame(self) -> Frame:
        """A frame with the addresses and sizes that never change."""
        words = (ctypes.c_uint64 * (FIRST_SLOT + len(self.words) + len(self.told)))()
        for what, word in self.told.items():
            words[word] = self._told(what)
        for name, array in self.constants.items():
            words[self.words[name]] = array.ctypes.data
        block = SHARED.take(self.memory.size) if 0 < self.memory.size < LARGE else None
        if block is not None:
            words[WORKSPACE] = block.address
        return words, ctypes.addressof(words), block

    def _told(self, what: str) -> int:
        """A size, or how far into the workspace a buffer lies."""
        return self.values[what] if what in self.values else self.memory.offsets.get(what, 0)

    def _admit(self, k: int, given: torch.Tensor) -> torch.Tensor:
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

    def _fault(self, words: Any) -> IndexError:
        step = self.program.launches[words[CULPRIT] - 1]
        return IndexError(f"an index is out of range in {step.node or step.kernel}")


def cache_of(options: Options) -> ObjectCache:
    """The store that the user chose."""
    return ObjectCache(Path(options.cache) if options.cache else None)


def _packed(program: Program) -> dict[str, Array]:
    """The constants as kernels read them."""
    return {name: stored_once(c, program.buffers[name]) for name, c in program.constants.items()}


def _outside(program: Program) -> tuple[str, ...]:
    """Buffers that lie outside the workspace: inputs, outputs, constants and whatever PyTorch reads or writes in between."""
    foreign = [b for s in program.steps if isinstance(s, OpaqueCall) for b in (*s.arguments, *s.results)]
    return tuple(dict.fromkeys((*program.inputs, *program.outputs, *program.constants, *foreign)))


def _segments(program: Program) -> Iterable[list[Step] | OpaqueCall]:
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


def _require_machine(target: Target) -> None:
    if lacking := target.lacking_here():
        raise TilewrightError(f"code for {target.name} cannot run here: this machine has no {lacking}")


def _require_copies(program: Program) -> None:
    given = {*program.inputs, *program.constants}
    for name in program.outputs:
        if name in given:
            raise VerifyError(f"output %{name} is an input or a constant; a copy step must make a buffer of its own")
