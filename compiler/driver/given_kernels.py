"""Kernels that the user schedules in place of the passes: `Options(schedules={"mul_1": FILE})`.

A file has schedules (see compiler.passes.schedule.schedule), or a scheduled kernel of Tile IR.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compiler.codegen.backend import backend_of
from compiler.codegen.llvm.targets import CPUTarget
from compiler.errors import PassError, TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.text.ir_text import AnyIR
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel, Param
from compiler.ir.tile.program import Program, map_kernels
from compiler.ir.types import Layout
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.base import Context
from compiler.passes.manager import KernelSink, PassInstrument, run_pipeline
from compiler.passes.pipeline_text import Pipeline, parse_pipeline, print_pipeline, split_at_kernels
from compiler.passes.remark import Remark
from compiler.passes.schedule.schedule import is_schedule, parse_schedules
from compiler.passes.semantic_check import describe_difference, run_with_valid_range, tolerance
from compiler.pipeline import Scheduler
from compiler.runtime.native_kernel import NativeKernel
from compiler.target import Target


@dataclass(frozen=True)
class GivenKernels:
    """Scheduler that replaces kernels after the passes of another one; `given` maps their names to files, or to text of several lines."""

    inner: Scheduler
    given: Mapping[str, str]
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
            if finished and kernel.name not in self.given:
                finished(kernel, program)

        program_passes, tile_passes = split_at_kernels(parse_pipeline(passes))
        lowered = run_pipeline(ir, program_passes, context, instruments)
        scheduled = self.inner(lowered, print_pipeline(tile_passes), context, instruments, finish_others)
        require_kernels(self.given, scheduled.kernels)

        def replaced(kernel: Kernel) -> Kernel:
            if kernel.name not in self.given:
                return kernel
            source = lowered.kernels[kernel.name]
            own = given_kernel(self.given[kernel.name], source, self.target, context, instruments)
            require_same(own, [kernel, legalized(source, self.target)], self.target)
            return own

        program = map_kernels(scheduled, replaced)
        for name, source in self.given.items():
            where = "a given text" if "\n" in source else source
            context.remarks.add(Remark("schedules", "applied", f"scheduled as in {where}", kernel=name))
            if finished:
                finished(program.kernels[name], program)
        return program


def require_same(kernel: Kernel, originals: Sequence[Kernel], target: CPUTarget) -> None:
    """Raise PassError unless a kernel computes what the first of `originals` does that takes the same buffers."""
    original = next((k for k in originals if not signature_difference(k, kernel)), originals[0])
    if kernel != original and (problem := difference(original, kernel, target)):
        raise PassError(f"what is given is no schedule of @{original.name}: {problem}")


def run_with_schedules(
    ir: AnyIR,
    passes: Pipeline,
    given: Mapping[str, str],
    target: Target,
    context: Context,
    instruments: Sequence[PassInstrument],
) -> AnyIR:
    """Run passes over IR of any kind; `given` takes the place of those over kernels, and is not compared with them."""
    if isinstance(ir, Graph):
        require_kernels(given, ())
        return run_pipeline(ir, passes, context, instruments)
    program_passes, tile_passes = split_at_kernels(passes)
    ir = run_pipeline(ir, program_passes, context, instruments)

    def schedule(kernel: Kernel) -> Kernel:
        if kernel.name in given:
            return given_kernel(given[kernel.name], kernel, target, context, instruments)
        return run_pipeline(kernel, tile_passes, context, instruments)

    if isinstance(ir, Kernel):
        require_kernels(given, [ir.name])
        return schedule(ir)
    require_kernels(given, ir.kernels)
    context.program = ir
    return map_kernels(ir, schedule)


def require_kernels(names: Iterable[str], known: Collection[str]) -> None:
    """Raise TilewrightError for the first of `names` that no kernel has."""
    if unknown := sorted(set(names) - set(known)):
        raise TilewrightError(f"there is no kernel @{unknown[0]}; kernels are {', '.join(known) or 'none'}")


def given_kernel(
    source: str, lowered: Kernel, target: Target, context: Context, instruments: Sequence[PassInstrument] = ()
) -> Kernel:
    """Return the kernel that a file, or text of several lines, makes of a lowered one; PassError where it is for another one."""
    text, legalization = read_source(source), backend_of(target).pipelines.legalization
    if is_schedule(text):
        schedules = parse_schedules(text)
        if lowered.name not in schedules:
            raise PassError(f"this is a schedule of {_list_names(schedules)}, not of @{lowered.name}")
        return schedules[lowered.name].legalized(legalization).apply(lowered, context, instruments)
    kernel = read_kernel(text, target)
    if kernel.name != lowered.name:
        raise PassError(f"what is given is no schedule of @{lowered.name}: the kernel is called @{kernel.name}")
    return kernel


def given_names(source: str) -> list[str]:
    """Return the names of the kernels that a file, or text of several lines, schedules."""
    text = read_source(source)
    return list(parse_schedules(text)) if is_schedule(text) else [parse_kernel(text).name]


def read_source(source: str) -> str:
    """Return the text in a file; what has several lines is text already."""
    return source if "\n" in source else Path(source).read_text(encoding="utf-8")


def read_kernel(text: str, target: Target) -> Kernel:
    """Return the kernel in a text as code generation for a target takes it."""
    return legalized(parse_kernel(text), target)


def legalized(kernel: Kernel, target: Target) -> Kernel:
    """Return the kernel as code generation for a target takes it."""
    return run_pipeline(kernel, backend_of(target).pipelines.legalization)


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(f"@{name}" for name in names)


def difference(original: Kernel, other: Kernel, target: CPUTarget) -> str:
    """Describe how `other` differs from `original` in what it computes, on random inputs; "" if it does not."""
    if problem := signature_difference(original, other):
        return problem
    verify_kernel(other)
    return native_difference(*(NativeKernel(without_margins(k), target) for k in (original, other)))


def without_margins(kernel: Kernel) -> Kernel:
    """Return the kernel on buffers by themselves, not inside those of a program."""

    def alone(p: Param) -> Param:
        dims = p.type.layout.physical_dims if p.type.layout else ()
        layout = Layout(tuple(replace(d, margin_before=0, margin_after=0) for d in dims)) if dims else p.type.layout
        return replace(p, type=replace(p.type, layout=layout))

    return replace(kernel, params=tuple(map(alone, kernel.params)))


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
