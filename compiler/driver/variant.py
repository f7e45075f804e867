"""One program for a range of sizes: its plan, and the way from the plan to code."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from compiler.analysis.kernel_origin import kernel_origins
from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.object_file import EFFORT_LEVELS
from compiler.codegen.llvm.targets import CPUTarget
from compiler.codegen.triton.program_sources import emit_program
from compiler.codegen.triton.targets import GPUTarget
from compiler.driver import program_cache
from compiler.driver.autotune import Tuner
from compiler.driver.given_kernels import GivenKernels
from compiler.driver.instruments import instruments_for
from compiler.errors import TargetError
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.symbolic.index_atoms import choose_size_hint
from compiler.ir.symbolic.index_expr import Dim, dynamic_size
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.tile.kernel import Kernel, dim_hint
from compiler.ir.tile.program import OpaqueCall, Program
from compiler.options import Options
from compiler.passes.manager import run_pipeline
from compiler.passes.remark import Remark
from compiler.passes.schedule.record import ScheduleRecorder
from compiler.passes.schedule.schedule import Schedule
from compiler.pipeline import Scheduler, Stages, lower_and_schedule
from compiler.runtime.build import Build
from compiler.runtime.cache import object_cache_for
from compiler.runtime.constants import pack_once
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.executable import Executable
from compiler.runtime.gpu_executable import GPUExecutable
from compiler.runtime.gpu_kernel_timer import GPUKernelTimer
from compiler.runtime.graph_replay import CUDAGraphs
from compiler.runtime.kernel_timer import KernelTimer
from compiler.runtime.prefaulted_arena import PrefaultedArena
from compiler.target import Target

SizeRanges: TypeAlias = Mapping[str, tuple[int, int]]
"""Lowest and highest value of each dynamic size, both inclusive."""

LOG = logging.getLogger("tilewright")
"""Log of compilations: `TORCH_LOGS="tilewright"` shows a line for each, "+tilewright" the fused graph and remarks too."""


@dataclass(frozen=True)
class Plan:
    """A program to be compiled: for all sizes in `ranges`, as fast as possible for those near `hints`."""

    graph: Graph
    options: Options
    ranges: SizeRanges
    hints: Mapping[str, int]

    @staticmethod
    def for_sizes(
        graph: Graph, options: Options, ranges: SizeRanges, observed: Mapping[str, int], default_hint: int
    ) -> Plan:
        """Plan for the sizes of a call; their hints are what was observed where that is large, else `default_hint`."""
        hints = {n: choose_size_hint(low, high, observed[n], default_hint) for n, (low, high) in ranges.items()}
        return Plan(graph, options, ranges, hints)

    def specialized_graph(self) -> Graph:
        """Return the graph with a number for each size that has one value, and a dynamic size for the others."""
        values: dict[str, Dim] = {
            name: low if low == high else dynamic_size(name, low, high, self.hints[name])
            for name, (low, high) in self.ranges.items()
        }
        return self.graph.specialize(values) if values else self.graph


@dataclass(frozen=True, eq=False)
class CompiledVariant:
    """A compiled plan: the executable if this machine can run it, and the IR of every stage.

    `seconds` were spent in passes and in code generation.  `wants_small_variant` asks for a second one for small dynamic sizes.
    `compiled_stages` are None if the executable came from the cache.  `notes` are remarks of the driver.
    """

    plan: Plan
    executable: Executable | None
    seconds: Mapping[str, float] = field(default_factory=dict)
    wants_small_variant: bool = False
    compiled_stages: Stages | None = None
    notes: tuple[Remark, ...] = ()

    @cached_property
    def stages(self) -> Stages:
        """The IR of every stage; the passes run for it if the executable came from the cache."""
        stages = self.compiled_stages
        if stages is None:
            assert isinstance(self.executable, CPUExecutable)
            graph, schedule = self.plan.specialized_graph(), scheduler(self.executable.target, self.plan.options)
            stages = lower_and_schedule(graph, self.plan.options, schedule=schedule)
        for note in self.notes:
            stages.context.remarks.add(note)
        return stages

    def record_schedules(self) -> dict[str, Schedule]:
        """Return the schedule of each kernel that passes scheduled, by name; the passes run once more for it."""
        options, recorder = self.plan.options, ScheduleRecorder()
        target = target_by_name(options.target, options.machine)
        stages = lower_and_schedule(self.plan.specialized_graph(), options, [recorder], scheduler(target, options))
        return recorder.schedules_of(stages.scheduled.kernels)

    def executable_for(self, sizes: Mapping[str, int]) -> Executable | None:
        """Return the executable for these sizes."""
        return self.executable.for_sizes(sizes) if self.executable and self.executable.size_names else self.executable


class BackgroundCodegen:
    """Code generation beside the passes.

    Each kernel goes to LLVM, and the constants it reads are packed, in threads of their own while passes run on the next kernel.
    """

    def __init__(self, target: CPUTarget, options: Options) -> None:
        self.target, self.options = target, options
        self.build, self.arena = (
            Build(target, object_cache_for(options), level=EFFORT_LEVELS[options.effort]),
            PrefaultedArena(),
        )
        self.seconds, self.reserved_bytes = 0.0, 0

    def reserve(self, graph: Graph) -> None:
        """Touch the memory that the constants of `graph` will take, as far as that is more than before."""
        needed = sum(dim_hint(c.type.nbytes) for c in graph.constants)
        if needed > self.reserved_bytes:
            self.build.submit("packing", self.arena.reserve, needed - self.reserved_bytes)
            self.reserved_bytes = needed

    def add(self, kernel: Kernel, program: Program) -> None:
        """Begin with the code of a kernel, and with the packing of its constants."""
        start = time.perf_counter()
        self.build.add(kernel)
        for launch in program.launches:
            if launch.kernel == kernel.name:
                for name, param in zip(launch.arguments, kernel.params, strict=True):
                    if isinstance(data := program.constants.get(name), ConstantData):
                        self.build.submit("packing", pack_once, data, param.type, self.arena)
        self.seconds += time.perf_counter() - start

    def finish(self, program: Program) -> CPUExecutable:
        """Wait for all code, and link it."""
        executable = CPUExecutable(program, self.target, self.options, self.build)
        self.arena.trim()
        return executable


def compile_plan(plan: Plan) -> CompiledVariant:
    """Compile a plan, and log what was made of it."""
    variant = _compile(plan)
    if LOG.isEnabledFor(logging.INFO):
        kernels = len(variant.executable.program.kernels) if variant.executable else 0
        seconds = ", ".join(f"{kind} {s:.2f} s" for kind, s in variant.seconds.items())
        LOG.info("compiled %s: %d kernels, %s", plan.graph.name, kernels, seconds)
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("%s", print_graph(variant.stages.fused))
        for remark in variant.stages.context.remarks:
            LOG.debug("%s", remark)
    return variant


def _compile(plan: Plan) -> CompiledVariant:
    """Compile a plan: passes, code, and one executable; IR alone where the target cannot run here."""
    target = target_by_name(plan.options.target, plan.options.machine)
    if isinstance(target, CPUTarget) and not target.missing_features():
        return compile_for_cpu(plan, target)
    if plan.options.schedules:
        problem = f"kernels for {target.name} are not checked against the originals, so none can be given"
        raise TargetError(f"option schedules: {problem}; change their passes instead (tile_passes)")
    start = time.perf_counter()
    graph, passes = plan.specialized_graph(), scheduler(target, plan.options)
    stages = lower_and_schedule(graph, plan.options, instruments_for(plan.options), passes)
    scheduled = time.perf_counter()
    executable = load_on_gpu(stages, target, plan.options) if isinstance(target, GPUTarget) else None
    seconds = {"passes": scheduled - start, "code": time.perf_counter() - scheduled}
    return CompiledVariant(plan, executable, seconds, compiled_stages=stages, notes=untuned(plan.options, target))


def untuned(options: Options, target: Target) -> tuple[Remark, ...]:
    """Return a remark where the user asks for autotuning and nothing measures the kernels of `target`."""
    why = f"kernels for {target.name} are not measured here, passes choose by the cost model"
    return (Remark("tune", "missed", why),) if options.effort == "tune" and kernel_timer(target) is None else ()


def load_on_gpu(stages: Stages, target: GPUTarget, options: Options) -> GPUExecutable | None:
    """Return the executable of a scheduled program, None where the target cannot run here.

    RefusedKernelsError for what Triton cannot express.  Remarks say which options do nothing for this program.
    """
    program, remarks = stages.scheduled, stages.context.remarks
    sources = emit_program(program, kernel_origins(stages.fused))
    calls = dict.fromkeys(step.operator for step in program.steps if isinstance(step, OpaqueCall))
    if options.cuda_graphs and calls:
        reason = f"{', '.join(calls)} may wait for the device or read it"
        remarks.add(Remark("cuda-graphs", "missed", f"kernels are launched one by one: {reason}"))
    if target.missing_features():
        return None
    records = options.cuda_graphs and not calls and target.device_type == "cuda"
    return GPUExecutable(program, target, sources, CUDAGraphs() if records else None)


def compile_for_cpu(plan: Plan, target: CPUTarget) -> CompiledVariant:
    """Compile a plan for this machine, with code generation beside the passes.

    The program comes from the cache if it is there and nothing watches the passes.
    """
    start, graph, options = time.perf_counter(), plan.specialized_graph(), plan.options
    instruments = instruments_for(options)
    is_cached = options.cache and not instruments and not options.schedules
    key = program_cache.program_key(graph, options, target) if is_cached else ""
    if key and (found := program_cache.load(key, graph, options, target)):
        return CompiledVariant(plan, found[0], {"passes": 0.0, "code": time.perf_counter() - start}, found[1])
    codegen = BackgroundCodegen(target, options)
    codegen.reserve(graph)
    stages = lower_and_schedule(graph, options, instruments, scheduler(target, options), codegen)
    scheduled = time.perf_counter()
    executable = codegen.finish(stages.scheduled)
    wants_small = stages.context.wants_small_variant
    if key:
        program_cache.store(key, graph, executable, options, wants_small)
    passes, code = scheduled - start - codegen.seconds, time.perf_counter() - scheduled + codegen.seconds
    return CompiledVariant(plan, executable, {"passes": passes, "code": code}, wants_small, stages)


def scheduler(target: Target, options: Options) -> Scheduler:
    """Return what runs the passes over kernels: the autotuner where the user asks for it, with the kernels that he gives."""
    passes: Scheduler = run_pipeline
    if options.effort == "tune" and (timer := kernel_timer(target)):
        passes = Tuner(target, object_cache_for(options), timer).run
    if options.schedules and isinstance(target, CPUTarget):
        return GivenKernels(passes, options.schedules, target).run
    return passes


def kernel_timer(target: Target) -> KernelTimer | GPUKernelTimer | None:
    """Return what measures kernels for a target on this machine, None where nothing does."""
    if target.missing_features():
        return None
    if isinstance(target, GPUTarget):
        return GPUKernelTimer() if target.device_type == "cuda" else None
    return KernelTimer(target) if isinstance(target, CPUTarget) else None


def require_executable(variant: CompiledVariant, executable: Executable | None) -> Executable:
    """Return the executable; TargetError if there is none, with what this machine lacks to run it."""
    if executable is None:
        target = variant.stages.target
        missing = target.missing_features() or "an executable"
        raise TargetError(f"{target.name} code cannot run here, {missing} is missing; print_ir shows all stages")
    return executable
