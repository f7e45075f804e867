"""Layout assignment: choose the memory layout of intermediate tensors over a whole program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from compiler.analysis.accesses import Accesses
from compiler.analysis.dot_match import DotMatch, match_dots, with_dots
from compiler.analysis.placement import store_loops
from compiler.analysis.size_hints import with_capped_hints
from compiler.cost.machine import Machine
from compiler.cost.vectorization import best_disjoint_loops, lane_count, scalar_ops, score_loops
from compiler.ir.scalar import Load
from compiler.ir.symbolic.index_atoms import SMALL_SIZE_HINT
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Kernel, Let, Param, Reduce, dim_hint, extent_hint, walk
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.ir.tile.program import (
    Launch,
    Program,
    Step,
    execution_counts,
    expand_launches,
    non_launch_buffers,
    walk_steps,
)
from compiler.ir.tile.substitution import unused_name, with_unique_names
from compiler.ir.types import TensorType, with_innermost
from compiler.passes.base import Context, ProgramPass, TilePass, register
from compiler.passes.tile.cache_operand import CacheOperand
from compiler.passes.tile.collapse import Collapse, is_pointwise
from compiler.passes.tile.fuse_loops import FuseLoops

InnermostDims: TypeAlias = dict[str, int]
"""Innermost dimension of each buffer that is not row-major."""


@register
@dataclass(frozen=True)
class LayoutAssignment(ProgramPass):
    """Store intermediate tensors with the dimension innermost that kernels vectorize best.

    @conv(in %x: f32[1, 64, 58, 58], ...)  ->  @conv(in %x: f32[1, 64, 58, 58]{0, 2, 3, 1}, ...)

    Candidates are the result dimensions along which a kernel would put its lanes if memory were contiguous there.
    Coordinate descent, from all candidates and from none, changes one buffer at a time while that saves memory
    operations, for at most `max_sweeps` sweeps.  Kernels count as they will be after `dot-products` and `cache-operand`.
    Only types change: kernels index logical elements.  Inputs, and operands of PyTorch calls, stay row-major; an output
    may be computed in another layout and transposed by a kernel.
    A dynamic dimension is never innermost: vectors along it would be unaligned, and loops around it not collapsible.
    """

    name = "layout"
    exact = True
    max_sweeps: int = 4

    def run(self, ir: Program, context: Context) -> Program:
        search = LayoutSearch(self, ir, context)
        choice = search.best_choice()
        small = with_capped_hints(ir, SMALL_SIZE_HINT)
        if small is not ir and LayoutSearch(self, small, context).best_choice() != choice:
            context.wants_small_variant = True
            context.note(self, "small shapes choose another layout")
        messages = {b: f"%{b} is stored with dimension {dim} innermost" for b, dim in sorted(choice.items())}
        allowed = {b for b, message in messages.items() if context.may_apply(self, message, b)}
        choice = {b: dim for b, dim in choice.items() if b in allowed}
        return search.rebuild(choice) if choice else ir


class LayoutSearch:
    """One run of the pass."""

    def __init__(self, options: LayoutAssignment, program: Program, context: Context) -> None:
        self.options, self.program, self.context = options, program, context
        self.machine: Machine = context.machine
        self.launches = [(s, times) for s, times in execution_counts(program.steps) if isinstance(s, Launch)]
        self.preferred_dims_cache: dict[tuple[str, frozenset[str]], list[tuple[str, int]]] = {}
        self.saved_ops_cache: dict[tuple[str, tuple[TensorType, ...]], int] = {}
        self.kernel_accesses = {name: Accesses(program.kernels[name]) for name in {s.kernel for s, _ in self.launches}}

    def best_choice(self) -> InnermostDims:
        """Return the choice that saves most operations."""
        candidates = self.candidates()
        if not candidates:
            return InnermostDims()
        starts = ({b: d[0] for b, d in candidates.items()}, InnermostDims())
        local_optima = [self.coordinate_descent(start, candidates) for start in starts]
        return max(local_optima, key=lambda c: (self.saved_ops(c, self.launches), -len(c)))

    def candidates(self) -> dict[str, list[int]]:
        """Map each buffer that may change to the dimensions that kernels prefer innermost for its rank."""
        fixed = {*self.program.inputs, *self.program.constants, *self.program.outputs} - self.transposable_outputs()
        fixed |= self.externally_used()
        preferred_by_buffer: dict[str, list[int]] = {}
        for launch, _ in self.launches:
            params = self.program.kernels[launch.kernel].params
            buffers = {p.name: b for p, b in zip(params, launch.arguments, strict=True) if p.role != "const"}
            movable = {name: b for name, b in buffers.items() if b not in fixed}
            for free in (frozenset(buffers), frozenset(movable)):
                for name, dim in self.preferred_dims(launch.kernel, free):
                    if name in movable and dim not in (dims := preferred_by_buffer.setdefault(movable[name], [])):
                        dims.append(dim)
        preferred_by_rank: dict[int, set[int]] = {}
        for buffer, dims in preferred_by_buffer.items():
            preferred_by_rank.setdefault(self.program.buffers[buffer].rank, set()).update(dims)
        others = {
            b: [d for d in sorted(preferred_by_rank[t.rank] - {t.rank - 1}) if isinstance(t.shape[d], int)]
            for b in preferred_by_buffer
            if (t := self.program.buffers[b])
        }
        return {b: dims for b, dims in others.items() if dims}

    def transposable_outputs(self) -> set[str]:
        """Return the outputs that one launch writes entirely and no other step uses."""
        pairs = [
            (buffer, p)
            for s, _ in self.launches
            for p, buffer in zip(self.program.kernels[s.kernel].params, s.arguments, strict=True)
        ]
        transposable = set()
        for name in set(self.program.outputs) - self.externally_used():
            uses = [p for buffer, p in pairs if buffer == name]
            if len(uses) == 1 and uses[0].role == "out" and uses[0].type == self.program.buffers[name]:
                transposable.add(name)
        return transposable

    def externally_used(self) -> set[str]:
        """Return the buffers used by steps that are not launches: PyTorch calls, copies and views."""
        return {b for s in walk_steps(self.program.steps) for b in non_launch_buffers(s)}

    def preferred_dims(self, kernel: str, free: frozenset[str]) -> list[tuple[str, int]]:
        """Return results of a kernel with the dimension that lanes would prefer contiguous, if parameters `free` may have any layout."""
        if (kernel, free) not in self.preferred_dims_cache:
            table = self.kernel_accesses[kernel]
            scores = score_loops(table, lane_count(table.kernel, self.machine), self.machine, sorted(free))
            chosen = best_disjoint_loops(table.kernel.body, scores)[1]
            stores = (a for a in table.all if a.is_store and a.buffer in free)
            results = (a for a in stores if table.roles[a.buffer] in ("out", "scratch"))
            dims = ((a.buffer, [d for d, i in enumerate(a.index) if str(i) in chosen]) for a in results)
            self.preferred_dims_cache[kernel, free] = [(name, ds[0]) for name, ds in dims if len(ds) == 1]
        return self.preferred_dims_cache[kernel, free]

    def coordinate_descent(self, choice: InnermostDims, candidates: Mapping[str, list[int]]) -> InnermostDims:
        """Improve `choice` by changing one buffer at a time while that saves more operations."""
        choice = dict(choice)
        for _ in range(self.options.max_sweeps):
            changed = False
            for buffer, dims in candidates.items():
                users = [(s, times) for s, times in self.launches if buffer in s.arguments]
                choices = [_with_innermost(choice, buffer, d) for d in (choice.get(buffer), None, *dims)]
                best = max(choices, key=lambda c: self.saved_ops(c, users))
                changed |= best != choice
                choice = best
            if not changed:
                break
        return choice

    def saved_ops(self, choice: InnermostDims, launches: list[tuple[Launch, int]]) -> int:
        """Return the operations that vectorization saves when these launches run so often, minus the cost of transposing outputs."""
        transposed_outputs = {a for s, _ in launches for a in s.arguments if a in choice and a in self.program.outputs}
        transpose_ops = sum(COPY_OPS * dim_hint(self.program.buffers[b].numel) for b in transposed_outputs)
        return (
            sum(n * self.kernel_saved_ops(s.kernel, self.param_types(s, choice)) for s, n in launches) - transpose_ops
        )

    def kernel_saved_ops(self, name: str, types: tuple[TensorType, ...]) -> int:
        key = (name, types)
        if key not in self.saved_ops_cache:
            table = self.with_joined_loops(self.kernel_accesses[name].with_param_types(types), types)
            lanes, scheduled = lane_count(table.kernel, self.machine), self.with_packed_elements(table, types)
            scheduled = self.with_cached_operands(
                scheduled, tuple(scheduled.types[p.name] for p in scheduled.kernel.params)
            )
            scores = score_loops(scheduled, lanes, self.machine)
            by_lanes = best_disjoint_loops(scheduled.kernel.body, scores)[0]
            hoisted = hoisted_ops(table) // lanes
            self.saved_ops_cache[key] = by_lanes + hoisted + scalar_ops(table) - scalar_ops(scheduled)
        return self.saved_ops_cache[key]

    def with_joined_loops(self, table: Accesses, types: tuple[TensorType, ...]) -> Accesses:
        """Return the accesses of a kernel with scans or sums after loops are fused and collapsed, so that lanes follow memory."""
        if is_pointwise(perfect_nest(table.kernel.body)):
            return table
        return self.after_pass(Collapse(), self.after_pass(FuseLoops(), table, types), types)

    def with_packed_elements(self, table: Accesses, types: tuple[TensorType, ...]) -> Accesses:
        """Return the accesses of a kernel after its contractions have become dot products, where they can."""
        dots = [m for m in match_dots(table, self.context.matrix_shapes) if isinstance(m, DotMatch)]
        return Accesses(with_dots(_retyped(table.kernel, types), dots)) if dots else table

    def with_cached_operands(self, table: Accesses, types: tuple[TensorType, ...]) -> Accesses:
        """Return the accesses of a kernel after operands that lanes would gather have been copied to local buffers.

        Sums over several loops stay as they are: the layout decides the order of these loops, which scores do not count.
        """
        sums = [s for s in walk(table.kernel.body) if isinstance(s, Reduce)]
        if any(len(s.ranges) > 1 for s in sums) or not any(map(is_contraction, sums)):
            return table
        return self.after_pass(CacheOperand(), table, types)

    def after_pass(self, pass_: TilePass, table: Accesses, types: tuple[TensorType, ...]) -> Accesses:
        """Return the accesses of a kernel after a pass that its schedule will have; `table` itself if that changes nothing."""
        kernel = with_unique_names(_retyped(table.kernel, types))
        new = pass_.for_machine(self.machine).run(kernel, self.context.trial())
        return table if new == kernel else Accesses(new)

    def param_types(self, launch: Launch, choice: InnermostDims) -> tuple[TensorType, ...]:
        """Return the types of a launch's parameters under a choice."""
        params = self.program.kernels[launch.kernel].params
        pairs = zip(params, launch.arguments, strict=True)
        return tuple(with_innermost(p.type, choice[a]) if a in choice else p.type for p, a in pairs)

    def rebuild(self, choice: InnermostDims) -> Program:
        """Build the program with the chosen layouts; a kernel is copied for each combination of its parameter types."""
        kernels: dict[str, Kernel] = {}
        names: dict[tuple[str, tuple[TensorType, ...]], str] = {}
        transposed_names = {n: f"{n}.turned" for n in choice if n in self.program.outputs}

        def rule(step: Launch) -> Iterator[Step]:
            key = (step.kernel, self.param_types(step, choice))
            if key not in names:
                names[key] = unused_name(step.kernel, kernels)
                kernels[names[key]] = replace(_retyped(self.program.kernels[step.kernel], key[1]), name=names[key])
            yield replace(step, kernel=names[key], arguments=tuple(transposed_names.get(a, a) for a in step.arguments))
            for a in filter(transposed_names.get, step.arguments):
                kernel = transpose_kernel(self.program.buffers[a], choice[a], unused_name("turn", kernels))
                kernels[kernel.name] = kernel
                yield Launch(kernel.name, (transposed_names[a], a), a)

        steps, old = expand_launches(self.program.steps, rule), self.program.buffers
        new = {transposed_names.get(n, n): with_innermost(old[n], dim) for n, dim in choice.items()}
        return replace(self.program, buffers={**old, **new}, kernels=kernels, steps=steps)


def hoisted_ops(table: Accesses) -> int:
    """Return the operations of bindings that are done once for all steps of the innermost loop that the layout of results asks for.

    0 for kernels with reductions, whose loops are ordered and tiled by other rules.
    """
    body = [*walk(table.kernel.body)]
    if any(isinstance(s, Reduce) for s in body):
        return 0
    results = [a for a in table.all if a.is_store and table.roles[a.buffer] != "local"]
    inner = {next((r for r in a.loops if table.stride(a, r.var) == 1), None) for a in results}
    loop = inner.pop() if len(inner) == 1 else None
    if loop is None:
        return 0
    bindings = [s for s in body if isinstance(s, Let) and loop.var not in table.loops_by_name[s.name]]
    count = max(a.execution_count for a in results)
    return sum(len(s.value.calls) for s in bindings) * (count - count // max(1, extent_hint(loop)))


COPY_OPS = 2
"""Operations for each element of an output that a kernel transposes: a load and a store."""


def transpose_kernel(type: TensorType, dim: int, name: str) -> Kernel:
    """Build the kernel that copies a tensor with `dim` innermost to row-major order."""
    body = store_loops("i", tuple((0, n) for n in type.shape), lambda index: Load(type.dtype, "x0", index))
    return Kernel(name, (Param("x0", with_innermost(type, dim)), Param("out0", type, "out")), body)


def _retyped(kernel: Kernel, types: tuple[TensorType, ...]) -> Kernel:
    return replace(kernel, params=tuple(replace(p, type=t) for p, t in zip(kernel.params, types, strict=True)))


def _with_innermost(choice: InnermostDims, buffer: str, dim: int | None) -> InnermostDims:
    others = {b: d for b, d in choice.items() if b != buffer}
    return others if dim is None else {**others, buffer: dim}
