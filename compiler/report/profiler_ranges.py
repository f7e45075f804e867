"""Ranges of `torch.profiler`: one for each call of a graph, and one for each kernel and call into PyTorch inside it.

While a profiler runs, calls use entry functions that mark the time between steps (see compiler.runtime.timeline); here the mark
ends one range and begins the next.  Other calls are not changed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.profiler import record_function

from compiler.analysis.kernel_origin import KernelOrigin, kernel_origins
from compiler.codegen.llvm.program_entry import MARK
from compiler.driver.compiled_graph import CompiledGraph, write_back_aliases
from compiler.driver.partitioned_graph import AnyCompiled
from compiler.driver.variant import CompiledVariant
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Step, execution_counts
from compiler.report.render import abbreviate, format_location
from compiler.runtime.call_stub import RunFunction
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.timeline import segment_runs


class ProfiledGraph:
    """Calls of a graph with ranges for `torch.profiler`; called as the graph is."""

    def __init__(self, compiled_graph: AnyCompiled) -> None:
        self.compiled_graph = compiled_graph
        self._ranged = cache(RangedProgram)

    def call_with_sizes(
        self, inputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Callable[[], Mapping[str, int]]]:
        """Return what the graph's `call_with_sizes` returns; only CPU programs without data-dependent sizes have ranges of steps."""
        compiled = self.compiled_graph
        with record_function(f"tilewright::{compiled.graph.name}"):
            if not isinstance(compiled, CompiledGraph):
                return compiled.call_with_sizes(inputs)
            sizes = compiled.input_sizes(inputs)
            variant, exe = compiled.executable_for(sizes)
            if not isinstance(exe, CPUExecutable):
                return compiled.call_with_sizes(inputs)
            run = self._ranged(variant, exe).run
            return write_back_aliases(compiled.graph, inputs, run(inputs)), lambda: sizes


class RangedProgram:
    """A program whose steps run in ranges, one call at a time."""

    def __init__(self, variant: CompiledVariant, exe: CPUExecutable) -> None:
        origins = kernel_origins(variant.stages.fused)
        names = [_range_name(step, origins) for step, _ in execution_counts(exe.program.steps)]
        self._names = [name for runs in segment_runs(exe.program) for name in (*(names[k] for k in runs), "")]
        self._remaining: Iterator[str] = iter(())
        self._open: Any = None
        self._lock = threading.Lock()
        self._callback = ctypes.CFUNCTYPE(None)(self._mark)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self._run: RunFunction = exe.with_marks(self._mark, {MARK: address}).run

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program."""
        with self._lock:
            self._remaining = iter(self._names)
            return self._run(inputs)

    def _mark(self) -> None:
        """End the range of the last step and begin that of the next one, if it belongs to the same segment."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        name = next(self._remaining, "")
        self._open = record_function(name) if name else None
        if self._open is not None:
            self._open.__enter__()


def _range_name(step: Step, origins: Mapping[str, KernelOrigin]) -> str:
    """Return the name of a step's range: kernel, ops and the place in the user's program."""
    if isinstance(step, Copy):
        return "tilewright::copy"
    assert isinstance(step, (Launch, OpaqueCall))
    origin = origins.get(step.node, KernelOrigin())
    name = step.kernel if isinstance(step, Launch) else step.operator
    return " ".join(filter(None, (f"tilewright::{name}", abbreviate(origin.ops), format_location(origin.place))))
