"""Subject of a bisection: IR, its passes, inputs and expected results, and the ways to run what passes make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import torch

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.targets import CPUTarget
from compiler.driver.specialization import with_dynamic_sizes
from compiler.errors import TilewrightError
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import random_inputs, small_symbol_values
from compiler.ir.interpret.size_sampling import dynamic_sizes_of, interpreted_statements, sample_sizes
from compiler.ir.interpret.tile import KernelRunner, run_kernel
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.text.ir_text import AnyIR
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.ir.torch_types import as_array, as_tensor
from compiler.ir.types import TensorType
from compiler.lowering.program import lower
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.instrument import PassRecorder, PassRun, Verify
from compiler.passes.manager import describe_error, run_pipeline
from compiler.passes.pipeline_text import Pipeline
from compiler.passes.remark import Remark
from compiler.passes.semantic_check import (
    MAX_INTERPRETED_STATEMENTS,
    describe_difference,
    input_types,
    run_on,
    run_with_valid_range,
    tolerance,
)
from compiler.pipeline import pipelines_of
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.native_interpreter import NativeInterpreter
from compiler.runtime.native_kernel import NativeKernel
from compiler.target import Target

ACCURACY_FACTOR = 4.0
"""Errors up to this many times those of PyTorch count as rounding, as in `check`."""

TILE_FILLING_SIZE = 37
"""Value of a graph's dynamic sizes: it fills tiles, and leaves partial ones."""


class Stage(Enum):
    """Stage at which passes end, and the way to run the result.

    GRAPH are the graph passes, interpreted in float64.  LOWERED is the lowered program, and TILE what tile passes make of it, both
    interpreted.  NATIVE is the whole pipeline and native code.
    """

    GRAPH = "graph passes"
    LOWERED = "lowering"
    TILE = "tile passes"
    NATIVE = "native code"


@dataclass(frozen=True)
class Limit:
    """Most rewrites to make (None: all), of the pass `of` alone if that is given."""

    count: int | None = None
    of: str = ""


@dataclass(frozen=True)
class Attempt:
    """A compilation: the problem with it or "", the rewrites that were made, and the runs of passes."""

    problem: str
    rewrites: Sequence[Remark] = ()
    runs: Sequence[PassRun] = ()

    @property
    def failed_run(self) -> PassRun | None:
        """Run of the pass that raised an error, or whose result is invalid; None if every pass came to its end."""
        return next((r for r in self.runs[-1:] if r.after is None), None)


@dataclass(frozen=True)
class Subject:
    """IR and the passes over it; `inputs` are arrays of its inputs or parameters, `expected` the right results.

    A result may differ by `allowed`, relative to its largest element.  `sizes` are the values of dynamic sizes.
    """

    ir: AnyIR
    passes: Pipeline
    target: Target
    inputs: Sequence[Array]
    expected: Sequence[Array]
    allowed: float
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages whose results can be run, in the order in which they are tried."""
        return tuple(Stage) if isinstance(self.ir, Graph) else (Stage.TILE, Stage.NATIVE)

    def attempt(self, limit: Limit, stage: Stage, runs_result: bool = True) -> Attempt:
        """Compile with at most `limit` rewrites, and run the result unless told not to; any error of the compiler is a problem.

        Only native code makes rewrites that later stages require in any case.
        """
        context, recorder = Context.for_target(self.target, limit.count), PassRecorder()
        context.limited_pass, context.refuses_required = limit.of, stage is not Stage.NATIVE
        try:
            made = self.compile(context, recorder, stage)
            problem = self.difference(self.run(made, stage)) if runs_result else ""
        except Exception as error:  # whatever is wrong is what is looked for
            problem = describe_error(error)
        return Attempt(problem, tuple(context.rewrites), tuple(recorder.runs))

    def compile(self, context: Context, recorder: PassRecorder, stage: Stage) -> AnyIR:
        """Return what passes make of the IR."""
        instruments = [Verify(), recorder]
        if not isinstance(self.ir, Graph):
            return run_pipeline(self.ir, self.passes, context, instruments)
        graph_passes = [p for p in self.passes if p.ir_type is Graph]
        if stage in (Stage.LOWERED, Stage.TILE):  # neither limited nor recorded
            of_graph = replace(context, rewrite_limit=None, rewrites=[])
            graph = run_pipeline(self.ir, graph_passes, of_graph)
        else:
            graph = run_pipeline(self.ir, graph_passes, context, instruments)
        if stage is Stage.GRAPH:
            return graph
        program = lower(graph, context.lowered_kernels, context.machine)
        tile_passes = [p for p in self.passes if p.ir_type is not Graph]
        return program if stage is Stage.LOWERED else run_pipeline(program, tile_passes, context, instruments)

    def run(self, ir: AnyIR, stage: Stage) -> list[Array]:
        """Run compiled IR on copies of the inputs."""
        if isinstance(ir, Graph):
            fixed = ir.specialize(self.sizes) if self.sizes else ir
            return [as_array(r) for r in interpret(fixed, self.inputs, dtype=torch.float64)]
        if stage is not Stage.NATIVE:
            return run_on(ir, self.inputs, self.sizes, interpreter_for(ir, self.sizes))
        if isinstance(ir, Kernel):
            return self.native_kernel(ir)(self.inputs)
        tensors = self.tensors(ir)
        returned, given = iter(self.executable(ir)(tensors)), dict(zip(ir.inputs, tensors, strict=True))
        outputs = [given[a] if (a := ir.output_aliases.get(n)) else next(returned) for n in ir.outputs]
        return [as_array(t) for t in outputs]

    @property
    def cpu(self) -> CPUTarget:
        """The target, whose code this machine runs; TilewrightError if it does not."""
        if not isinstance(self.target, CPUTarget) or self.target.missing_features():
            raise TilewrightError(f"this machine cannot run code for {self.target.name}")
        return self.target

    def native_kernel(self, kernel: Kernel) -> NativeKernel:
        """Return the native code of a kernel."""
        return NativeKernel(kernel, self.cpu, self.sizes)

    def executable(self, program: Program) -> CPUExecutable:
        """Return the native code of a program, for the sizes of the subject."""
        executable = CPUExecutable(program, self.cpu, Options(cache=""))
        return executable.for_sizes({n: self.sizes[n] for n in executable.size_names})

    def tensors(self, program: Program) -> list[torch.Tensor]:
        """Return copies of the inputs."""
        types = [program.buffers[n] for n in program.inputs]
        return [as_tensor(x, t.dtype).clone() for x, t in zip(self.inputs, types, strict=True)]

    def difference(self, got: Sequence[Array]) -> str:
        """Describe the first wrong result; "" if there is none."""
        for number, (want, result) in enumerate(zip(self.expected, got, strict=True)):
            is_float = want.dtype.kind == "f"
            problem = describe_difference(want, result.astype(want.dtype) if is_float else result, self.allowed)
            if problem:
                return f"output {number}: {problem}"
        return ""


def interpreter_for(ir: Kernel | Program, sizes: Mapping[str, int]) -> KernelRunner:
    """Return a function that runs the scalar programs of kernels: the interpreter, or native code where that is faster."""
    return run_kernel if interpreted_statements(ir, sizes) <= MAX_INTERPRETED_STATEMENTS else NativeInterpreter()


def subject_of(ir: AnyIR, options: Options, inputs: Sequence[Array] | None = None) -> Subject:
    """Return a bisection of IR with the passes that the options ask for, and random inputs if none are given.

    Expected are the results of a graph in float64, and those of the scalar program of Tile IR.
    """
    target = target_by_name(options.target, options.machine)
    graph_passes, tile_passes = pipelines_of(options, target)
    kinds = {Graph: (Graph, Program, Kernel), Program: (Program, Kernel), Kernel: (Kernel,)}[type(ir)]
    passes = tuple(p for p in (*graph_passes, *tile_passes) if p.ir_type in kinds)
    return subject_with(ir, passes, target, inputs)


def subject_with(ir: AnyIR, passes: Pipeline, target: Target, inputs: Sequence[Array] | None = None) -> Subject:
    """Return a bisection of IR with these passes, and random inputs if none are given."""
    if isinstance(ir, Graph):
        return graph_subject(ir, passes, target, inputs)
    return tile_subject(ir, passes, target, inputs)


def tile_subject(ir: Kernel | Program, passes: Pipeline, target: Target, inputs: Sequence[Array] | None) -> Subject:
    """Return a bisection of Tile IR, whose expected results are those of its scalar program."""
    sizes = next(iter(sample_sizes(ir)), {})
    given = list[Array]()

    def run(low: int, high: int) -> list[Array]:
        given[:] = inputs if inputs is not None else random_inputs(input_types(ir, sizes), 1, low, high)
        return run_on(ir, given, sizes, interpreter_for(ir, sizes))

    return Subject(ir, passes, target, given, run_with_valid_range(run), tolerance(ir), sizes)


def graph_subject(graph: Graph, passes: Pipeline, target: Target, inputs: Sequence[Array] | None) -> Subject:
    """Return a bisection of a graph: expected results in float64, within a multiple of the error of PyTorch's arithmetic."""
    graph = with_dynamic_sizes(graph)
    sizes = sizes_of(graph, inputs)
    fixed = graph.specialize(sizes) if sizes else graph
    types: list[TensorType] = [n.type for n in fixed.inputs]
    given = list[Array]()

    def run(low: int, high: int) -> list[Any]:
        given[:] = inputs if inputs is not None else random_inputs(types, 1, low, high)
        return interpret(fixed, given, dtype=torch.float64)

    expected = [as_array(r) for r in run_with_valid_range(run)]
    rounded = [as_array(r) for r in interpret(fixed, given)]
    errors = [relative_error(w, g) for w, g in zip(expected, rounded, strict=True) if w.dtype.kind == "f"]
    allowed = max(tolerance(graph), ACCURACY_FACTOR * max(errors, default=0.0))
    return Subject(graph, passes, target, given, expected, allowed, sizes)


def sizes_of(graph: Graph, inputs: Sequence[Array] | None) -> dict[str, int]:
    """Return the dynamic sizes of a graph for its inputs, or without them sizes in range that leave partial tiles."""
    if inputs is not None:
        return bind_symbols(
            p for n, x in zip(graph.inputs, inputs, strict=True) for p in zip(n.shape, x.shape, strict=True)
        )
    ranges, values = dynamic_sizes_of(graph), small_symbol_values(graph, TILE_FILLING_SIZE)
    return values | {s.name: s.clamp(values[s.name]) for s in ranges}


def relative_error(want: Array, got: Array) -> float:
    """Return the largest difference of finite elements, relative to the largest of them."""
    finite = np.isfinite(want) & np.isfinite(got)
    largest = float(np.max(np.abs(want[finite]), initial=0.0))
    return float(np.max(np.abs(want[finite] - got[finite]), initial=0.0)) / largest if largest else 0.0
