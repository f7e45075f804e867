"""Split a reduction among programs where a kernel has too few of them: partial results, then their reduction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, prod

from compiler.analysis.accesses import Accesses
from compiler.cost.estimates import count_bytes
from compiler.cost.gpu_contraction import ProductLoops, block_extent, next_power_of_2, product_loops
from compiler.cost.gpu_product import MatrixProduct, best_block
from compiler.cost.machine import GPU
from compiler.ir.scalar import Load, Ref
from compiler.ir.symbolic.index_expr import interval, var, variables
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import For, Kernel, Let, Param, Range, Reduce, Store, loaded_buffers
from compiler.ir.tile.loop_nest import perfect_parallel_nest, wrap_in_nest
from compiler.ir.tile.program import Launch, Program, Step, expand_launches
from compiler.ir.tile.substitution import NameSupply, unused_name
from compiler.ir.tile.uses import used_names
from compiler.ir.types import TensorType
from compiler.passes.base import Context, ProgramPass, register
from compiler.passes.gpu.gpu_blocks import STRIDED_STEPS, block_elements, is_contiguous, narrowest_bytes
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.passes.gpu.split_kernels import used_params
from compiler.passes.remark import format_seconds

MAX_PARTS = 1024
"""Most parts of a reduction: bounds the choice."""


FILLING_BLOCKS = 4
"""Blocks of each multiprocessor from which on a kernel is not split: bounds compile time."""


@register
@dataclass(frozen=True)
class GpuSplit(ProgramPass):
    """Split a reduction into parts with programs of their own (split-K for matrix products).

    kernel { parallel %i { %s = reduce add %k in 0..4096 { f(%k) }  store g(%s), %y[%i] } }  ->
    kernel { parallel %part in 0..8 { parallel %i { %s = reduce add %k in 512*%part..512*%part + 512 { f(%k) }  store %s, %p[%part, %i] } } }
    kernel { parallel %i { %s = reduce add %part in 0..8 { yield %p[%part, %i] }  store g(%s), %y[%i] } }

    Applies to a kernel with one reduction inside its parallel loops, where both kernels together take less time by the
    cost model: too few programs leave multiprocessors idle.  Dynamic sizes count as their hints.  `parts` divide the reduced loop; 0 leaves the choice to the cost model.
    """

    name = "gpu-split"
    parts: int = 0

    def run(self, ir: Program, context: Context) -> Program:
        gpu, kernels, buffers = gpu_of(context), dict(ir.kernels), dict(ir.buffers)
        pairs: dict[str, tuple[Kernel, Kernel]] = {}
        for name, kernel in ir.kernels.items():
            match = SplitReduction.match(kernel)
            if match is None or match.programs(gpu) >= FILLING_BLOCKS * gpu.multiprocessors:
                continue
            seconds = {n: match.seconds(n, gpu) for n in match.part_counts(gpu)}
            best = self.parts if self.parts in seconds else min(seconds, key=seconds.__getitem__)
            times = f"{format_seconds(seconds[best])} instead of {format_seconds(seconds[1])}"
            if best > 1 and context.may_apply(self, f"%{match.loop.var} in {best} parts: {times}", name):
                pairs[name] = match.split(best)
        if not pairs:
            return ir

        def rule(step: Launch) -> Iterator[Step]:
            if step.kernel not in pairs:
                yield step
                return
            given = dict(zip((p.name for p in ir.kernels[step.kernel].params), step.arguments, strict=True))
            partial = unused_name(f"{step.arguments[-1]}.parts", buffers)
            for kernel in pairs[step.kernel]:
                kernels[kernel.name] = kernel
                buffers[partial] = next(p.type for p in kernel.params if p.name not in given)
                yield replace(
                    step, kernel=kernel.name, arguments=tuple(given.get(p.name, partial) for p in kernel.params)
                )

        steps = expand_launches(ir.steps, rule)
        return replace(ir, kernels=kernels, buffers=buffers, steps=steps)


@dataclass(frozen=True)
class SplitReduction:
    """A kernel with one reduction directly inside its parallel loops, and the reduced loop that is split."""

    kernel: Kernel
    nest: list[For]
    reduction: Reduce
    loop: Range

    @staticmethod
    def match(kernel: Kernel) -> SplitReduction | None:
        """Match a kernel whose innermost parallel loop has bindings, a reduction without stores, and stores of its result."""
        nest = perfect_parallel_nest(kernel.body)
        body = nest[-1].body if nest else kernel.body
        reductions = [s for s in body if isinstance(s, Reduce)]
        plain = all(isinstance(s, (Let, Store, Reduce)) for s in body)
        if len(reductions) != 1 or not plain or any(not isinstance(s, Let) for s in reductions[0].body):
            return None
        loops = [r for r in reductions[0].ranges if isinstance(r.extent, int) and r.lo == 0]
        is_box = all(f.range.lo == 0 and not variables(f.range.extent) for f in nest)
        if not loops or not is_box or {p.name for p in kernel.params if p.is_written} & loaded_buffers(kernel.body):
            return None
        return SplitReduction(kernel, nest, reductions[0], max(loops, key=block_extent))

    def part_counts(self, gpu: GPU) -> list[int]:
        """Return the numbers of parts to choose from: those that divide the loop, about a factor of two apart.

        With dynamic sizes, the partial results must fit the last cache whatever the sizes are.
        """
        extent, counts = block_extent(self.loop), [1]
        for n in range(2, min(extent, MAX_PARTS, self.most_parts(gpu)) + 1):
            if extent % n == 0 and n >= 1.5 * counts[-1]:
                counts.append(n)
        return counts

    def most_parts(self, gpu: GPU) -> int:
        """Return how many partial results of the largest dynamic sizes fit the last cache; no bound without dynamic sizes."""
        extents = [f.range.extent for f in self.nest]
        if all(isinstance(d, int) for d in extents):
            return MAX_PARTS
        largest = prod(bounds[1] if (bounds := interval(d, {})) else gpu.l2 for d in extents)
        return gpu.l2 // (largest * self.reduction.value.dtype.bytes)

    @property
    def results(self) -> int:
        """Elements that are reduced to."""
        return prod(block_extent(f.range) for f in self.nest)

    def programs(self, gpu: GPU) -> int:
        """Return the programs of the kernel as it is."""
        product = self.matrix_product
        best = best_block(product, gpu) if product else None
        return best[1].blocks if best else self.streaming_programs(gpu)

    def streaming_programs(self, gpu: GPU) -> int:
        """Return the programs that `gpu-blocks` makes of a reduction that is no matrix product."""
        elements, innermost = block_elements(self.table, gpu), self.reduction.ranges[-1]
        is_row = is_contiguous(self.table, self.reduction.ranges)
        steps = min(2 * elements if is_row else STRIDED_STEPS, next_power_of_2(block_extent(innermost)))
        return ceil(self.results / max(1, elements // steps))

    @cached_property
    def table(self) -> Accesses:
        """The accesses of the kernel."""
        return Accesses(self.kernel)

    @cached_property
    def matrix_product(self) -> MatrixProduct | None:
        """The reduction as a matrix product, if it is one."""
        contraction = contraction_of(self.reduction)
        found = product_loops(self.table, contraction) if contraction else ""
        return found.product if isinstance(found, ProductLoops) else None

    def seconds(self, parts: int, gpu: GPU) -> float:
        """Return the time of the reduction in so many parts, and of the second kernel."""
        partial_bytes = self.results * self.reduction.value.dtype.bytes * parts if parts > 1 else 0
        combine = gpu.round_trip_seconds(partial_bytes) if parts > 1 else 0.0
        return self.first_seconds(parts, gpu) + combine

    def first_seconds(self, parts: int, gpu: GPU) -> float:
        """Return the time of the first kernel: of a matrix product by its blocks, else of its bytes and what is under way at once."""
        product = self.matrix_product
        if product is not None:
            partial_bytes = self.reduction.value.dtype.bytes
            best = best_block(product.in_parts(parts, block_extent(self.loop) == product.depth, partial_bytes), gpu)
            return best[1].seconds if best else inf
        block_bytes = block_elements(self.table, gpu) * narrowest_bytes(self.table, gpu)
        under_way = parts * self.streaming_programs(gpu) * block_bytes
        needed = gpu.memory_bytes_per_second * gpu.seconds(gpu.load_latency)  # Little's law
        return gpu.traffic_seconds(count_bytes(self.kernel)) * max(1.0, needed / under_way)

    def split(self, parts: int) -> tuple[Kernel, Kernel]:
        """Return the kernel of the partial results, and the one that reduces them."""
        k, s = self.kernel, self.reduction
        fresh = NameSupply(k)
        part, buffer, again = fresh(f"{self.loop.var}.part"), fresh(f"{s.name}.parts"), fresh(f"{self.loop.var}.parts")
        length = block_extent(self.loop) // parts
        start = var(part) * length
        indices = tuple(var(f.range.var) for f in self.nest)
        shape = (parts, *(f.range.extent for f in self.nest))
        type_ = TensorType(s.value.dtype, shape)
        body = self.nest[-1].body if self.nest else k.body
        at = body.index(s)
        ranges = tuple(replace(r, lo=start, hi=start + length) if r == self.loop else r for r in s.ranges)
        first_body = (
            *body[:at],
            replace(s, ranges=ranges),
            Store(buffer, (var(part), *indices), Ref(type_.dtype, s.name)),
        )
        first = wrap_in_nest([For(Range(part, 0, parts), (), True), *self.nest], first_body)
        total = Reduce(s.name, s.op, (Range(again, 0, parts),), (), Load(type_.dtype, buffer, (var(again), *indices)))
        used = set[str]().union(*map(used_names, body[at + 1 :]))
        needed = tuple(b for b in body[:at] if not isinstance(b, Let) or b.name in used)
        second = wrap_in_nest(self.nest, (*needed, total, *body[at + 1 :]))
        return (
            Kernel(f"{k.name}_parts", (*used_params(k.params, first), Param(buffer, type_, "out")), first),
            Kernel(k.name, (*used_params(k.params, second), Param(buffer, type_)), second),
        )
