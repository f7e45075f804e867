"""Let parts of a constant that a kernel reads side by side be constants of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from compiler.cost.machine import Machine
from compiler.ir import scalar
from compiler.ir.graph.constant import part_of
from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.index_expr import Dim, interval, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dependence import MemoryAccess, memory_accesses
from compiler.ir.tile.kernel import For, Kernel, Param
from compiler.ir.tile.program import Launch, Program, Step, expand_launches, non_launch_buffers, walk_steps
from compiler.ir.tile.substitution import NameSupply, unused_name
from compiler.ir.types import TensorType
from compiler.passes.base import Context, ProgramPass, register


class Parts(NamedTuple):
    """Parts of a constant along dimension `dim`: the first and the last element that loads with each index read."""

    dim: int
    limits: dict[Dim, tuple[int, int]]

    @property
    def distinct(self) -> list[tuple[int, int]]:
        """The parts in the order of their elements."""
        return sorted(set(self.limits.values()))

    def __str__(self) -> str:
        starts = ", ".join(str(first) for first, _ in self.distinct)
        return f"{len(self.distinct)} constants, from {starts} on"


@register
@dataclass(frozen=True)
class SplitConstants(ProgramPass):
    """Make constants of the parts of a constant that a kernel reads side by side.

    @gate(const %w: f32[206, 64], ...) { ... %w[%i, %r] ... %w[%i + 103, %r] ... }                     launch @gate(%w, ...)
      ->
    @gate(const %w.0: f32[103, 64], const %w.103: f32[103, 64], ...) { ... %w.0[%i, %r] ... %w.103[%i, %r] ... }    launch @gate(%w.0, %w.103, ...)

    Each of them can be packed for vectors and tiles, as halves that gate each other are, wherever the next part begins.  Applies to
    parts of at least one vector, where nothing but one launch reads the constant.
    """

    name = "split-constants"
    exact = True

    def run(self, ir: Program, context: Context) -> Program:
        readers = Counter(a for launch in ir.launches for a in launch.arguments)
        launches = Counter(launch.kernel for launch in ir.launches)
        whole = {b for s in walk_steps(ir.steps) for b in non_launch_buffers(s)}
        kernels, buffers, constants = dict(ir.kernels), dict(ir.buffers), dict(ir.constants)

        def split(step: Launch) -> Iterator[Step]:
            arguments: list[str] = []
            for p, argument in zip(ir.kernels[step.kernel].params, step.arguments, strict=True):
                is_alone = argument in constants.keys() - whole and readers[argument] == launches[step.kernel] == 1
                parts = match_parts(kernels[step.kernel], p, context.machine) if is_alone else None
                if parts is None or not context.may_apply(self, f"%{argument} becomes {parts}", argument):
                    arguments.append(argument)
                    continue
                kernels[step.kernel] = with_parts(kernels[step.kernel], p, parts)
                for first, last in parts.distinct:
                    name = unused_name(f"{argument}.{first}", buffers)
                    buffers[name] = part_type(p.type, parts.dim, last - first + 1)
                    constants[name] = part_of(constants[argument], parts.dim, first, last + 1)
                    arguments.append(name)
                del buffers[argument], constants[argument]
            yield replace(step, arguments=tuple(arguments))

        steps = expand_launches(ir.steps, split)
        return replace(ir, kernels=kernels, buffers=buffers, constants=constants, steps=steps)


def match_parts(kernel: Kernel, p: Param, machine: Machine) -> Parts | None:
    """Return the parts of constant `p` that the loads of a kernel read, each of at least one vector; None otherwise."""
    if p.role != "const" or p.type.layout is not None or p.type.dtype.element:
        return None
    lanes = machine.lanes(p.type.dtype.bits)
    accesses = list(memory_accesses(kernel.body, {p.name}))
    loops = {s.range.var for s in tile.walk(kernel.body) if isinstance(s, For)}
    for dim, extent in enumerate(p.type.static_shape()):
        parts = Parts(dim, index_limits(accesses, dim, loops))
        distinct = parts.distinct
        if len(distinct) < 2 or distinct[0][0] < 0 or distinct[-1][1] >= extent:
            continue
        are_disjoint = all(a[1] < b[0] for a, b in pairwise(distinct))
        are_long = all(last - first + 1 >= lanes for first, last in distinct)
        if are_disjoint and are_long:
            return parts
    return None


def index_limits(accesses: Iterable[MemoryAccess], dim: int, loops: Set[str]) -> dict[Dim, tuple[int, int]]:
    """Map the indices of loads along dimension `dim` to their limits; empty if one is not known, or varies with other than `loops`.

    Those are the loops over results: a sum may be split anywhere.
    """
    limits = dict[Dim, tuple[int, int]]()
    for a in accesses:
        index = a.index[dim]
        found = interval(index, a.bounds) if variables(index) <= loops else None
        if found is None or limits.setdefault(index, found) != found:
            return {}
    return limits


def with_parts(kernel: Kernel, p: Param, parts: Parts) -> Kernel:
    """Return the kernel that takes `parts` instead of constant `p`."""
    fresh = NameSupply(kernel)
    names = {k: fresh(f"{p.name}.{k[0]}") for k in parts.distinct}
    dim = parts.dim

    def rule(e: Expr) -> Expr:
        if not isinstance(e, Load) or e.buffer != p.name:
            return e
        part = parts.limits[e.index[dim]]
        index = (*e.index[:dim], e.index[dim] - part[0], *e.index[dim + 1 :])
        return replace(e, buffer=names[part], index=index)

    new = tuple(
        replace(p, name=name, type=part_type(p.type, dim, last - first + 1)) for (first, last), name in names.items()
    )
    at = kernel.params.index(p)
    params = (*kernel.params[:at], *new, *kernel.params[at + 1 :])
    return replace(kernel, params=params, body=tile.map_exprs(kernel.body, lambda e: scalar.transform(e, rule)))


def part_type(type: TensorType, dim: int, extent: int) -> TensorType:
    """Return the type of `extent` elements along dimension `dim` of a row-major tensor."""
    return TensorType(type.dtype, (*type.shape[:dim], extent, *type.shape[dim + 1 :]))
