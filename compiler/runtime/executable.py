"""A compiled program, ready to call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import torch

from compiler.codegen.llvm import call_frame
from compiler.codegen.llvm import program_entry as entry
from compiler.codegen.llvm.program_entry import with_marks
from compiler.codegen.llvm.targets import CPUTarget, host_target
from compiler.errors import ArgumentError, TilewrightError, VerifyError
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes, program_dynamic_sizes, specialize_buffers
from compiler.ir.tile.kernel import BoundsCheck
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, Step, walk_steps
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.ir.torch_types import as_tensor, strides
from compiler.options import Options
from compiler.runtime.arguments import check_argument
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache, object_cache_for
from compiler.runtime.call_stub import POOL_THRESHOLD, CallStub, EagerSegment, NativeSegment, RunFunction
from compiler.runtime.constants import Array, pack_once
from compiler.runtime.eager_calls import EagerCallEmitter
from compiler.runtime.loader import Library, link_objects
from compiler.runtime.memory import accessed_buffers, in_place_pairs, plan_memory
from compiler.runtime.pool import GLOBAL_POOL
from compiler.runtime.threads import kernel_functions

EntryFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Frame = tuple[Any, int, Any]
"""The words of a call frame, their address, and the frame's own workspace or None."""


class Executable:
    """A compiled program: `exe(inputs)` runs it on CPU tensors and returns its outputs as new tensors.

    Raises ArgumentError if an input does not match its type, and IndexError if the program indexes out of range.
    Non-contiguous inputs are copied.  Thread-safe: each concurrent call uses its own frame and workspace.

        run          the generated function              source   its Python source
        memory_plan  offsets of the intermediates        build    object files and compile times

    `build` may hold kernels that were compiled before the program was complete.  The code of a program with dynamic sizes
    serves all of their values: `for_sizes(values)` returns the executable for inputs of those sizes.
    """

    def __init__(
        self,
        program: Program,
        target: CPUTarget | None = None,
        options: Options | None = None,
        build: Build | None = None,
    ) -> None:
        self.program, self.target = program, target or host_target()
        self.size_names = tuple(s.name for s in program_dynamic_sizes(program))
        _require_owned_outputs(program)
        _require_runnable_target(self.target)
        external = _external_buffers(program)
        self.frame_words = {name: call_frame.FIRST_SLOT + k for k, name in enumerate(external)}
        self.workspace_buffers = [b for b in program.buffers if b not in self.frame_words and b not in program.views]
        dynamic_names = [*self.size_names, *self.workspace_buffers] if self.size_names else []
        self.dynamic_words = {name: call_frame.FIRST_SLOT + len(external) + k for k, name in enumerate(dynamic_names)}
        self.in_place_pairs = in_place_pairs(program)
        if not self.size_names:
            self.memory_plan = plan_memory(program, self.workspace_buffers, self.in_place_pairs)
        self.build = build or Build(self.target, object_cache_for(options or Options()))
        packed = self.build.submit("packing", _pack_constants, program)
        self.build.add_kernels(program.kernels.values())
        self.constants = packed.result()
        self._mark: Callable[[], object] | None = None
        self.library = self._link_entries(kernel_functions())
        self.size_values: Mapping[str, int] = {}
        if not self.size_names:
            self._prepare_calls()

    def for_sizes(self, values: Mapping[str, int]) -> Executable:
        """Return an executable with the same code for inputs of the sizes `values`; plans memory, compiles nothing."""
        new = copy(self)
        new.program, new.size_values = specialize_buffers(self.program, values), values
        new.memory_plan = plan_memory(new.program, new.workspace_buffers, new.in_place_pairs)
        new._prepare_calls()
        return new

    def with_marks(self, mark: Callable[[], object], functions: Mapping[str, int]) -> Executable:
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
        """Prepare frames and segments for calls; all sizes have values."""
        vars(self).pop("_compiled_stub", None)  # of the executable that this one is a copy of
        self._frames: list[Frame] = []
        allocated = set(self.program.inputs)
        self._call_segments = [
            self._eager_segment(s, f"e{k}", allocated)
            if isinstance(s, OpaqueCall)
            else self._native_segment(f"main{k}", s, allocated)
            for k, s in enumerate(split_segments(self.program))
        ]

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

    def buffer_address(self, name: str) -> entry.BufferAddress:
        """Return how the entry function addresses buffer `name`."""
        if name in self.program.views:
            view = self.program.views[name]
            return entry.SubBuffer(self.buffer_address(view.buffer), view.index, self.program.buffers[name].nbytes)
        if name in self.frame_words:
            return entry.FrameSlot(self.frame_words[name])
        if self.size_names:
            return entry.DynamicOffset(self.dynamic_words[name])
        return entry.WorkspaceOffset(self.memory_plan.offsets[name])

    def kernel_size_names(self, kernel: str) -> tuple[str, ...]:
        """Return the dynamic sizes that a kernel takes as arguments."""
        return tuple(s.name for s in kernel_dynamic_sizes(self.program.kernels[kernel])) if self.size_names else ()

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

    def _native_segment(self, name: str, steps: Sequence[Step], allocated: set[str]) -> NativeSegment:
        """Return the call of entry function `name`; its new tensors are added to those `allocated`."""
        accesses = [accessed_buffers(self.program, s) for s in steps]
        written = dict.fromkeys(b for _, writes in accesses for b in writes if b in self.frame_words)
        accessed = dict.fromkeys(b for reads, writes in accesses for b in (*reads, *writes) if b in self.frame_words)
        new = tuple(b for b in written if b not in allocated)
        allocated.update(new)
        return NativeSegment(EntryFunction(self.library[name]), new, tuple(accessed))

    def _eager_segment(self, step: OpaqueCall, prefix: str, allocated: set[str]) -> EagerSegment:
        allocated.update(step.results)
        return EagerSegment(self.eager_call(step, prefix), step.arguments, step.results)

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

    def _call_stub(self, unchecked_inputs: frozenset[str] = frozenset()) -> CallStub:
        p = self.program
        bindings = {"frames": self._frames, "new_frame": self.new_frame, "convert_input": self._convert_input}
        bindings |= {"wrong_count": self._wrong_count, "refusal": self._refusal}
        bindings |= {
            "index_error": self._index_error,
            "null_address": self._null_address,
        }
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
        segments, workspace = self._call_segments, self.memory_plan.size
        return CallStub(
            p.buffers, self.frame_words, p.inputs, p.outputs, segments, workspace, parallel, unchecked_inputs, bindings
        )

    # calling

    def new_frame(self) -> Frame:
        """Return a frame that holds the constants' addresses, the sizes and the offsets, and a small workspace."""
        words = (ctypes.c_uint64 * (call_frame.FIRST_SLOT + len(self.frame_words) + len(self.dynamic_words)))()
        for name, word in self.dynamic_words.items():
            words[word] = self._dynamic_value(name)
        for name, array in self.constants.items():
            words[self.frame_words[name]] = array.ctypes.data
        block = GLOBAL_POOL.allocate(self.memory_plan.size) if 0 < self.memory_plan.size < POOL_THRESHOLD else None
        if block is not None:
            words[call_frame.WORKSPACE] = block.address
        return words, ctypes.addressof(words), block

    def _dynamic_value(self, name: str) -> int:
        """Return the value of a size, or the offset of a buffer in the workspace."""
        return self.size_values[name] if name in self.size_values else self.memory_plan.offsets.get(name, 0)

    def _convert_input(self, k: int, x: torch.Tensor) -> torch.Tensor:
        """Copy input `k` into the strides of its type; ArgumentError if dtype, shape or device differ."""
        name = self.program.inputs[k]
        expected = self.program.buffers[name]
        check_argument(k, name, x, expected)
        return torch.empty_strided(x.shape, strides(expected), dtype=x.dtype).copy_(x.detach())

    def _wrong_count(self, inputs: Sequence[torch.Tensor]) -> ArgumentError:
        expected = ", ".join(f"%{n}: {self.program.buffers[n]}" for n in self.program.inputs)
        return ArgumentError(f"the program takes {len(self.program.inputs)} inputs ({expected}), not {len(inputs)}")

    def _refusal(self, inputs: Sequence[Any], error: Exception) -> Exception:
        """Return `error`, which PyTorch raised; ArgumentError if the reason is an input that does not fit."""
        for k, (name, x) in enumerate(zip(self.program.inputs, inputs, strict=True)):
            check_argument(k, name, x, self.program.buffers[name])
        return error

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


def _external_buffers(program: Program) -> tuple[str, ...]:
    """Return the buffers outside the workspace: inputs, outputs, constants, and those that opaque calls access."""
    eager = [b for s in program.steps if isinstance(s, OpaqueCall) for b in (*s.arguments, *s.results)]
    return tuple(dict.fromkeys((*program.inputs, *program.outputs, *program.constants, *eager)))


def split_segments(program: Program) -> Iterator[list[Step] | OpaqueCall]:
    """Yield maximal runs of native steps and the opaque calls between them, in order."""
    native: list[Step] = []
    for step in program.steps:
        if isinstance(step, OpaqueCall):
            if native:
                yield native
            yield step
            native = []
        else:
            native.append(step)
    if native:
        yield native


def _require_runnable_target(target: CPUTarget) -> None:
    if missing := target.missing_features():
        raise TilewrightError(f"target {target.name} needs {missing}, which this machine lacks")


def _require_owned_outputs(program: Program) -> None:
    written = {name for step in program.steps for name in accessed_buffers(program, step)[1]}
    for name in program.outputs:
        if (name in program.inputs and name not in written) or name in program.constants:
            raise VerifyError(
                f"output %{name} is an input or a constant; insert a copy step so that the output owns its buffer"
            )
