"""The way through the compiler, top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.codegen.target import Target
from compiler.cost.host import host_machine
from compiler.cost.machine import MACHINE_BY_TARGET, Machine
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.program import Program
from compiler.lowering.program import lower
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.manager import Instrument, run_pipeline

GRAPH_PASSES = "dce,decompose,canonicalize,fold-scale,fold,cse,two-level-scan,winograd,eliminate-padding,cse,fuse"
"""Ops into simpler ops, known values into constants, equal nodes into one, long scans into blocks, convolutions into less work, what these
do to one image alike into one, groups into kernels."""

UNFUSED_GRAPH_PASSES = "dce,decompose,canonicalize,fold-scale,fold,cse,two-level-scan,fuse{enabled=false}"
"""The same, with a kernel for every op."""

PROGRAM_PASSES = "compute-at,delinearize,layout"
"""What is moved for one kernel alone inside that kernel; loops without divisions in addresses, and for these, how intermediate tensors lie
in memory."""

UNFUSED_PROGRAM_PASSES = "delinearize,layout"
"""The same for kernels that stay apart."""

TILE_PASSES = "tighten-reductions,fuse-loops,online-softmax,collapse,block-reductions,reorder,fuse-siblings,cache-operand,vectorize,unroll-and-jam,tile,pack,unroll,prefetch,nontemporal-stores,split-epilogue,peel,parallelize,expand-math"
"""Scalar loops into tiles: join loops, take long sums in blocks, order loops, turn operands, choose lanes, chains, registers, layouts, tails and threads."""


@dataclass
class Stages:
    """One compilation: the IR after each stage, and what the passes said."""

    imported: Graph
    fused: Graph
    lowered: Program
    scheduled: Program
    context: Context = field(default_factory=Context)


Scheduler: TypeAlias = Callable[[Program, str, Context, Sequence[Instrument]], Program]
"""What runs the passes over programs and kernels: `run_pipeline`, or the tuner."""


def lower_and_schedule(
    graph: Graph, options: Options, instruments: Sequence[Instrument] = (), schedule: Scheduler = run_pipeline
) -> Stages:
    """Graph IR through every pass to a scheduled program; nothing is compiled yet."""
    target = Target.by_name(options.target)
    context = Context(machine=machine_for(target), options=options)
    default = GRAPH_PASSES if options.fuse else UNFUSED_GRAPH_PASSES
    fused = run_pipeline(graph, options.graph_passes or default, context, instruments)
    lowered = lower(fused)
    program_passes = PROGRAM_PASSES if options.fuse else UNFUSED_PROGRAM_PASSES
    passes = options.tile_passes or f"{program_passes},{TILE_PASSES}"
    scheduled = schedule(lowered, passes, context, instruments)
    return Stages(graph, fused, lowered, scheduled, context)


def machine_for(target: Target) -> Machine:
    """The cost model's view of a target."""
    known = MACHINE_BY_TARGET.get(target.name)
    return known or host_machine(target.cpu, target.vector_bits, target.vector_registers)
