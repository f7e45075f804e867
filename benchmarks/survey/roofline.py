"""Operations and bytes of a program, counted on its graph, and the least time that a machine needs for them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.survey.program import Program
from compiler.cost.machine import Machine
from compiler.report.measure import Workload, eager_workload


@dataclass(frozen=True)
class ProgramWorkload:
    """Workload of PyTorch eager, and `compulsory_bytes`: arguments, parameters and results, each once."""

    eager: Workload
    compulsory_bytes: int


def workload(program: Program) -> ProgramWorkload:
    """Count the work of one call of `program`, without running it: all tensors are on the meta device."""
    loaded = program.load("meta")
    results: list[object] = []
    eager = eager_workload(lambda: results.append(loaded.model(*loaded.args)))
    tensors = [t for t in tree_leaves((loaded.args, results)) if isinstance(t, Tensor)]
    state = [*loaded.model.parameters(), *loaded.model.buffers()]
    size = sum(t.numel() * t.element_size() for t in (*tensors, *state))
    return ProgramWorkload(eager, min(size, eager.bytes))  # a table that is gathered from is not read entirely


def roofline_seconds(work: ProgramWorkload, machine: Machine, threads: int) -> float:
    """Return the seconds of `threads` cores for the arithmetic in f32, or for the compulsory bytes if these take longer."""
    return _bound(work.eager.flops, work.compulsory_bytes, machine) / threads


def eager_seconds(work: ProgramWorkload, machine: Machine) -> float:
    """Return the seconds of one core for the arithmetic and memory traffic of PyTorch eager, at least."""
    return _bound(work.eager.flops, work.eager.bytes, machine)


def _bound(flops: int, size: int, machine: Machine) -> float:
    arithmetic = flops / (2 * machine.fma_per_cycle * machine.lanes(32))
    return machine.seconds(max(arithmetic, size / machine.bytes_per_cycle(size)))
