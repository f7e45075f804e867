"""Kernels given by the user in place of those that passes scheduled: `Options(schedules={"mul_1": "mul_1.ir"})`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compiler.codegen.llvm.targets import CPUTarget
from compiler.errors import PassError, TilewrightError
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel, Param
from compiler.ir.tile.program import Program, map_kernels
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.base import Context
from compiler.passes.manager import KernelSink, PassInstrument, run_pipeline
from compiler.passes.remark import Remark
from compiler.passes.semantic_check import describe_difference, run_with_valid_range, tolerance
from compiler.pipeline import Scheduler
from compiler.runtime.native_kernel import NativeKernel

LEGALIZATION = "expand-math,peel"
"""Passes that a kernel needs before code generation, whatever its schedule."""


@dataclass(frozen=True)
class GivenKernels:
    """Scheduler that replaces kernels after the passes of another one; `files` maps their names to files with Tile IR."""

    inner: Scheduler
    files: Mapping[str, str]
    target: CPUTarget

    def run(
        self,
        ir: Program,
        passes: str,
        context: Context,
        instruments: Sequence[PassInstrument],
        finished: KernelSink | None,
    ) -> Program:
        """Return the scheduled program with the given kernels; PassError for one that computes something else."""

        def finish_others(kernel: Kernel, program: Program) -> None:
            if finished and kernel.name not in self.files:
                finished(kernel, program)

        scheduled = self.inner(ir, passes, context, instruments, finish_others)
        if unknown := sorted(set(self.files) - set(scheduled.kernels)):
            raise TilewrightError(f"there is no kernel @{unknown[0]}; kernels are {', '.join(scheduled.kernels)}")
        given = {name: self.read(scheduled.kernels[name], Path(file)) for name, file in self.files.items()}
        program = map_kernels(scheduled, lambda kernel: given.get(kernel.name, kernel))
        for name, file in self.files.items():
            context.remarks.add(Remark("schedules", "applied", f"scheduled as in {file}", kernel=name))
            if finished:
                finished(given[name], program)
        return program

    def read(self, original: Kernel, file: Path) -> Kernel:
        """Return the kernel in a file; PassError where it is not one for `original`."""
        kernel = read_kernel(file)
        problem = f"the kernel is called @{kernel.name}" if kernel.name != original.name else ""
        if problem := problem or difference(original, kernel, self.target):
            raise PassError(f"{file} is no schedule of @{original.name}: {problem}")
        return kernel


def read_kernel(file: Path) -> Kernel:
    """Return the kernel in a file as code generation takes it: functions as arithmetic, loops without partial tiles."""
    return run_pipeline(parse_kernel(file.read_text(encoding="utf-8")), LEGALIZATION)


def difference(original: Kernel, other: Kernel, target: CPUTarget) -> str:
    """Describe how `other` differs from `original` in what it computes, on random inputs; "" if it does not."""
    if problem := signature_difference(original, other):
        return problem
    verify_kernel(other)
    return native_difference(NativeKernel(original, target), NativeKernel(other, target))


def native_difference(original: NativeKernel, other: NativeKernel) -> str:
    """Describe how `other`, which takes the same buffers, differs from `original` on random inputs; "" if it does not."""
    params, atol = original.kernel.params, tolerance(original.kernel)
    types = [original.type_of(p) for p in params]
    want, got = run_with_valid_range(
        lambda low, high: [native(random_inputs(types, 0, low, high)) for native in (original, other)]
    )
    outputs = [p.name for p in params if p.role in ("out", "inout")]
    problems = zip(outputs, (describe_difference(w, g, atol) for w, g in zip(want, got, strict=True)), strict=True)
    return next((f"%{name}: {problem}" for name, problem in problems if problem), "")


def signature_difference(original: Kernel, other: Kernel) -> str:
    """Describe how the parameters of `other` differ from those of `original`; "" if both can take the same buffers."""
    ours, theirs = (list(map(_written_parameter, k.params)) for k in (original, other))
    if len(ours) != len(theirs):
        return f"it takes {len(theirs)} parameters, not {len(ours)}"
    return next((f"a parameter is `{b}`, not `{a}`" for a, b in zip(ours, theirs, strict=True) if a != b), "")


def _written_parameter(p: Param) -> str:
    """Return what callers see of a parameter: layouts of constants are free, and names do not count."""
    return f"{p.role} {replace(p.type, layout=None) if p.role in ('const', 'scratch') else p.type}"
