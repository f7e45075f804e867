"""Programs of native kernels: one call into machine code for all steps between two calls into PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import torch

from compiler.codegen.llvm import call_frame
from compiler.codegen.llvm import program_entry as entry
from compiler.codegen.llvm.program_entry import with_marks
from compiler.codegen.llvm.targets import CPUTarget, host_target
from compiler.errors import ArgumentError
from compiler.ir.float_format import Array
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import BoundsCheck
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, Step, view_type, walk_steps
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.ir.torch_types import as_tensor
from compiler.options import Options
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache, object_cache_for
from compiler.runtime.call_stub import EagerSegment
from compiler.runtime.constants import pack_once
from compiler.runtime.executable import Executable, split_segments
from compiler.runtime.loader import Library, link_objects
from compiler.runtime.native_call_stub import POOL_THRESHOLD, NativeCallStub, NativeSegment
from compiler.runtime.pool import map_block
from compiler.runtime.threads import kernel_functions

EntryFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Frame = tuple[Any, int, Any]
"""The words of a call frame, their address, and the frame's own workspace or None."""


class CPUExecutable(Executable):
    """A program of native kernels, which runs on CPU tensors; IndexError if it indexes out of range.

    Each concurrent call uses its own frame and workspace.  `build` has the object files and compile times; it may hold kernels
    that were compiled before the program was complete.
    """

    target: CPUTarget

    def __init__(
        self,
        program: Program,
        target: CPUTarget | None = None,
        options: Options | None = None,
        build: Build | None = None,
    ) -> None:
        super().__init__(program, target or host_target())
        self.frame_words = {name: call_frame.FIRST_SLOT + k for k, name in enumerate(self.external_buffers)}
        dynamic_names = [*self.size_names, *self.workspace_buffers] if self.size_names else []
        first = call_frame.FIRST_SLOT + len(self.external_buffers)
        self.dynamic_words = {name: first + k for k, name in enumerate(dynamic_names)}
        self.build = build or Build(self.target, object_cache_for(options or Options()))
        packed = self.build.submit("packing", _pack_constants, program)
        self.build.add_kernels(program.kernels.values())
        self.constants = packed.result()
        self._mark: Callable[[], object] | None = None
        self.library = self._link_entries(kernel_functions())
        if not self.size_names:
            self._prepare_calls()

    def with_marks(self, mark: Callable[[], object], functions: Mapping[str, int]) -> Self:
        """Return an executable with the same kernels that marks the begin of each segment and the end of each step.

        Generated code calls `functions`, by name, in place of those of the thread team; calls into PyTorch stand between two calls of `mark`.
        """
        new, symbols = copy(self), self.build.symbols
        new.build = Build(self.target, ObjectCache(None), {s: self.build.objects[s] for s in symbols.values()}, symbols)
        new._mark = mark
        new.library = new._link_entries({**kernel_functions(), **functions})
        new._prepare_calls()
        return new

    def _prepare_calls(self) -> None:
        """Prepare frames and segments."""
        vars(self).pop("_compiled_stub", None)  # of the executable that this one is a copy of
        self._frames: list[Frame] = []
        self._call_segments = list(self.segments())

    def buffer_address(self, name: str) -> entry.BufferAddress:
        """Return how the entry function addresses buffer `name`."""
        if name in self.program.views:
            view = self.program.views[name]
            entry_bytes = view_type(self.program.buffers[view.buffer]).nbytes
            return entry.SubBuffer(self.buffer_address(view.buffer), view.index, entry_bytes)
        if name in self.frame_words:
            return entry.FrameSlot(self.frame_words[name])
        if self.size_names:
            return entry.DynamicOffset(self.dynamic_words[name])
        return entry.WorkspaceOffset(self.memory_plan.offsets[name])

    # compiling

    def _link_entries(self, functions: Mapping[str, int]) -> Library:
        """Compile the entry function of each native segment and link it with the kernels and `functions`."""
        for k, steps in enumerate(split_segments(self.program)):
            if not isinstance(steps, OpaqueCall):
                launched = (s.kernel for s in walk_steps(steps) if isinstance(s, Launch))
                parallel = any(is_parallelizable(self.program.kernels[name]) for name in launched)
                actions = self._actions(steps) if self._mark is None else with_marks(self._actions(steps))
                self.build.add_program_entry(f"main{k}", actions, self.dynamic_words, parallel)
        return link_objects(list(self.build.objects.values()), list(self.build.objects), functions)

    def _actions(self, steps: Iterable[Step]) -> Iterator[entry.Action]:
        """Yield the actions of the entry function for native steps; views need none."""
        for step in steps:
            if isinstance(step, Copy):
                source, target = self.buffer_address(step.source), self.buffer_address(step.target)
                yield entry.CopyBytes(source, target, self.program.buffers[step.source].nbytes)
            elif isinstance(step, Repeat):
                yield entry.Loop(step.var, step.count, tuple(self._actions(step.steps)))
            elif isinstance(step, Launch):
                has_checks = any(isinstance(s, BoundsCheck) for s in tile.walk(self.program.kernels[step.kernel].body))
                number = self.program.launches.index(step) + 1 if has_checks else 0
                addresses = tuple(map(self.buffer_address, step.arguments))
                sizes = tuple(self.dynamic_words[s] for s in self.kernel_size_names(step.kernel))
                yield entry.KernelCall(self.build.symbols[step.kernel], addresses, number, sizes)

    def _kernel_segment(
        self, number: int, steps: Sequence[Step], new_tensors: tuple[str, ...], accessed: tuple[str, ...]
    ) -> NativeSegment:
        """Return the call of an entry function."""
        return NativeSegment(EntryFunction(self.library[f"main{number}"]), new_tensors, accessed)

    def _call_stub(self, unchecked_inputs: frozenset[str] = frozenset()) -> NativeCallStub:
        p = self.program
        bindings = {**self.input_checks(), "frames": self._frames, "new_frame": self.new_frame}
        bindings["convert_input"] = partial(self._convert_input, device=torch.device("cpu"))
        bindings |= {"index_error": self._index_error, "null_address": self._null_address}
        if self._mark is not None:
            bindings["mark"] = self._mark
        for segment in self._call_segments:
            for a in segment.arguments if isinstance(segment, EagerSegment) else ():
                if a in self.constants:
                    bindings[f"t{self.frame_words[a]}"] = as_tensor(self.constants[a], p.buffers[a].dtype)
        parallel = any(
            is_parallelizable(k) and (k.max_chunks is None or evaluate(k.max_chunks, self.size_values) > 1)
            for k in p.kernels.values()
        )
        return NativeCallStub(
            p.buffers,
            self.frame_words,
            p.inputs,
            p.outputs,
            self._call_segments,
            unchecked_inputs,
            bindings,
            workspace=self.memory_plan.size,
            parallel=parallel,
        )

    # calling

    def new_frame(self) -> Frame:
        """Return a frame that holds the constants' addresses, the sizes and the offsets, and a small workspace."""
        words = (ctypes.c_uint64 * (call_frame.FIRST_SLOT + len(self.frame_words) + len(self.dynamic_words)))()
        for name, word in self.dynamic_words.items():
            words[word] = self._dynamic_value(name)
        for name, array in self.constants.items():
            words[self.frame_words[name]] = array.ctypes.data
        size = self.memory_plan.size
        workspace = map_block(size) if 0 < size < POOL_THRESHOLD else None
        if workspace is not None:
            words[call_frame.WORKSPACE] = workspace.address
        return words, ctypes.addressof(words), workspace

    def _dynamic_value(self, name: str) -> int:
        """Return the value of a size, or the offset of a buffer in the workspace."""
        return self.size_values[name] if name in self.size_values else self.memory_plan.offsets.get(name, 0)

    def _null_address(self, k: int, x: torch.Tensor) -> int:
        """Return 0 for an empty tensor; ArgumentError for one that has elements but no memory, as fake tensors do."""
        if x.numel():
            raise ArgumentError(
                f"input {k} (%{self.program.inputs[k]}) is a {type(x).__name__} without memory of its own"
            )
        return 0

    def _index_error(self, words: Any) -> IndexError:
        step = self.program.launches[words[call_frame.FAILED_LAUNCH] - 1]
        return IndexError(f"an index is out of range in {step.node or step.kernel}")


def _pack_constants(program: Program) -> dict[str, Array]:
    """Return the constants in the layouts that kernels read."""
    return {name: pack_once(c, program.buffers[name]) for name, c in program.constants.items()}
