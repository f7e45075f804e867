"""Compute a copy inside the loops of its only consumer, one slice at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import prod

from compiler.analysis.accesses import Accesses
from compiler.analysis.dot_match import DotMatch, match_dots
from compiler.cost.contraction import ContractionProblem, best_tiles
from compiler.cost.issue import accessed, computed, recomputed
from compiler.cost.machine import Machine
from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import For, Kernel, Local, Param, Reduce, Store, dim_hint, iteration_count_hint
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.ir.tile.program import Launch, Program, Step, non_launch_buffers, walk_steps
from compiler.ir.tile.substitution import unused_name
from compiler.ir.types import TensorType
from compiler.passes.base import Context, ProgramPass, from_machine, register
from compiler.target import MatrixShape
from compiler.transforms.compute_at import compute_at, full_extent_loop, without_dims


@register
@dataclass(frozen=True)
class ComputeAt(ProgramPass):
    """Compute a copied buffer inside the loops of its only consumer.

    @pad  { parallel %c { ... store %x[%c, ...], %p[%c, ...] } }
    @conv { parallel %d { ... %p[%d, ...] ... } }
    ->  @conv { parallel %d { local %p ... store %x[%d, ...], %p[...]  ... %p[...] ... } }

    Loop fusion with array contraction (Gao, Olsen, Sarkar and Thekkath, "Collective Loop Fusion for Array Contraction",
    1992), so that a slice stays in cache.  Applies along dimensions that both kernels traverse in parallel loops over
    the full extent, but for those along which the producer reads contiguous elements.  They must be the consumer's outermost loops.
    Loops of a pointwise consumer along which it stores contiguous elements count as its innermost ones, and slices are contiguous
    along them, too.
    The slice (one per lane if its rows are shorter than a vector) must fit the L2 cache, and each thread must get at
    least `min_steps_per_thread` slices.  Operands of dot products stay parameters, which can be read packed, and rows stay
    apart whose tiles would all convert the same weights.
    """

    name = "compute-at"
    exact = True
    min_steps_per_thread: int = from_machine("slices_per_thread")

    def run(self, ir: Program, context: Context) -> Program:
        machine, steps, kernels = context.machine, list[Step](), dict(ir.kernels)
        private_buffers, fused_kernels = single_consumer_buffers(ir), dict[tuple[str, str, str], Kernel]()
        for step in ir.steps:
            last = steps[-1] if steps else None
            pair = None
            if isinstance(step, Launch) and isinstance(last, Launch):
                pair = ProducerConsumer.match(kernels, last, step, private_buffers)
            if (
                pair is None
                or not pair.is_profitable(machine, self.min_steps_per_thread)
                or pair.is_packed(context.matrix_shapes)
                or pair.repeats_conversions(machine)
                or not context.may_apply(self, f"%{pair.buffer} computed at its consumer's loop", pair.buffer)
            ):
                steps.append(step)
                continue
            key = (pair.producer.name, pair.consumer.name, pair.consumer_param.name)
            if key not in fused_kernels:
                name = pair.consumer.name
                is_only_launch = sum(s.kernel == name for s in ir.launches) == 1
                fused = fused_kernels[key] = pair.fused_kernel(name if is_only_launch else unused_name(name, kernels))
                kernels[fused.name] = fused
            steps[-1] = pair.fused_launch(fused_kernels[key].name)
        if len(steps) == len(ir.steps):
            return ir
        return remove_unused(replace(ir, steps=tuple(steps), kernels=kernels), launched_buffers(ir))


def remove_unused(program: Program, launched_before: Set[str]) -> Program:
    """Remove kernels without a launch, and buffers of `launched_before` that no launch uses any more."""
    launched, unused_buffers = {s.kernel for s in program.launches}, launched_before - launched_buffers(program)
    return replace(
        program,
        kernels={n: k for n, k in program.kernels.items() if n in launched},
        buffers={n: t for n, t in program.buffers.items() if n not in unused_buffers},
    )


def launched_buffers(program: Program) -> set[str]:
    """Return the buffers that are arguments of launches."""
    return {b for s in program.launches for b in s.arguments}


@dataclass(frozen=True)
class ProducerConsumer:
    """Two successive launches, of which `consumer` is the only reader of the `buffer` that `producer` writes.

    `shared_dims` are the dimensions of `buffer` that both traverse in a parallel loop over the full extent.
    """

    producer: Kernel
    consumer: Kernel
    producer_launch: Launch
    consumer_launch: Launch
    buffer: str
    producer_param: Param
    consumer_param: Param
    shared_dims: tuple[int, ...]

    @classmethod
    def match(
        cls, kernels: Mapping[str, Kernel], producer_launch: Launch, consumer_launch: Launch, private_buffers: Set[str]
    ) -> ProducerConsumer | None:
        """Match launches where the first only copies to one of `private_buffers`, which the second reads; else None."""
        producer, consumer = kernels[producer_launch.kernel], kernels[consumer_launch.kernel]
        results = [(p, a) for p, a in zip(producer.params, producer_launch.arguments, strict=True) if p.is_written]
        if len(results) != 1 or results[0][0].role != "out":
            return None
        producer_param, buffer = results[0]
        read = [p for p, a in zip(consumer.params, consumer_launch.arguments, strict=True) if a == buffer]
        if buffer not in private_buffers or len(read) != 1 or producer_param.type.layout:
            return None
        if read[0].type != producer_param.type or any(isinstance(s, (Reduce, Local)) for s in tile.walk(producer.body)):
            return None
        pair = cls(producer, consumer, producer_launch, consumer_launch, buffer, producer_param, read[0], ())
        shared_dims = pair.outermost([d for d in range(producer_param.type.rank) if pair.is_shared_dim(d)])
        return replace(pair, shared_dims=shared_dims) if shared_dims else None

    def outermost(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Return those of `dims` whose loops are the consumer's outermost ones."""
        loops, nest = self.consumer_loops(dims), perfect_nest(self.consumer.body)
        outer = [f for f in nest if f.range.extent != 1 and f.range.var not in self.contiguous_in_consumer]
        shared = list(takewhile(lambda f: f in loops, outer))
        return tuple(d for d, f in zip(dims, loops, strict=True) if f in shared)

    @cached_property
    def contiguous_in_consumer(self) -> set[str]:
        """The variables along which a pointwise consumer stores contiguous elements; empty for others, whose loops stay in order."""
        nest = perfect_nest(self.consumer.body)
        if not all(f.parallel for f in nest) or any(isinstance(s, (Reduce, Local, For)) for s in nest[-1].body):
            return set()
        return contiguous_variables(self.consumer, [s for s in tile.walk(self.consumer.body) if isinstance(s, Store)])

    @cached_property
    def contiguous_in_producer(self) -> set[str]:
        """The variables along which the producer loads contiguous elements."""
        return contiguous_variables(self.producer, tile.loads(self.producer.body))

    @property
    def innermost_dim(self) -> int | None:
        """The dimension along which a pointwise consumer has lanes, None if there is none or it is contiguous anyway."""
        dims = range(self.producer_param.type.rank - 1)
        loops = zip(dims, self.consumer_loops(dims), strict=True)
        return next((d for d, f in loops if f and f.range.var in self.contiguous_in_consumer), None)

    def consumer_loops(self, dims: Sequence[int]) -> list[For | None]:
        """Return the consumer's loop over each of `dims`, None for one without a loop over the full extent."""
        return [full_extent_loop(self.consumer.body, self.consumer_param.name, d) for d in dims]

    def is_shared_dim(self, d: int) -> bool:
        """Return True if both kernels traverse dimension `d` in parallel, and it is not contiguous in what is copied."""
        size, nests = self.producer_param.type.shape[d], [(s,) for s in self.producer.body]
        if not isinstance(size, int) or size == 1 or len(self.consumer.body) != 1:
            return False
        loops = [full_extent_loop(n, self.producer_param.name, d) for n in nests]
        loops += self.consumer_loops([d])
        if None in loops:
            return False
        return not any(f.range.var in self.contiguous_in_producer for f in loops[:-1] if f) and all(
            f.range.extent == size for f in loops if f
        )

    def is_profitable(self, machine: Machine, min_steps_per_thread: int) -> bool:
        """Return True if the slices held at a time fit the L2 cache, and every thread has enough steps.

        One slice is held if its rows fill a vector, else one per lane.
        """
        lanes, count = machine.lanes(32), prod(dim_hint(self.producer_param.type.shape[d]) for d in self.shared_dims)
        held = 1 if self.slice_type.rank and dim_hint(self.slice_type.physical_shape[-1]) >= lanes else lanes
        if count // lanes < min_steps_per_thread * machine.threads:
            return False
        return dim_hint(self.slice_type.nbytes) * held <= machine.l2

    def is_packed(self, shapes: Collection[MatrixShape]) -> bool:
        """Return True if dot products read the buffer a few elements at a time."""
        dots = match_dots(self.consumer_accesses, shapes) if shapes else []
        return any(isinstance(m, DotMatch) and self.consumer_param.name in m.types for m in dots)

    def repeats_conversions(self, machine: Machine) -> bool:
        """Return True if every tile of rows would convert another operand again, which takes longer than the buffer's round trip."""
        shared = {f.range.var for f in self.consumer_loops(self.shared_dims) if f}
        table, seconds = self.consumer_accesses, 0.0
        for c in filter(None, map(contraction_of, tile.walk(self.consumer.body))):
            around = table.loops[c.reduction.ranges[0].var][2]
            for operand in (c.lhs, c.rhs):
                varying = table.varying_loops(operand)
                if operand.calls and varying.isdisjoint(shared):
                    rows = iteration_count_hint(r for r in around if r.var not in varying)
                    columns = iteration_count_hint(r for r in around if r.var in varying)
                    depth = iteration_count_hint(c.reduction.ranges)
                    seconds += repeated_seconds(operand, rows, columns, depth, machine)
        return seconds > machine.round_trip_seconds(dim_hint(self.producer_param.type.nbytes))

    @cached_property
    def consumer_accesses(self) -> Accesses:
        """The accesses of the consumer."""
        return Accesses(self.consumer)

    @property
    def slice_type(self) -> TensorType:
        """Type of the slice that one step of the shared loops computes."""
        return without_dims(self.producer_param.type, self.shared_dims, self.innermost_dim)

    def fused_kernel(self, name: str) -> Kernel:
        """Build the kernel that computes both."""
        params = self.producer_param, self.consumer_param
        return compute_at(self.producer, self.consumer, *params, self.shared_dims, name, self.innermost_dim)

    def fused_launch(self, kernel: str) -> Launch:
        """Build the launch of the fused kernel."""
        inputs = (a for a in self.producer_launch.arguments if a != self.buffer)
        others = (a for a in self.consumer_launch.arguments if a != self.buffer or not self.slice_type.is_static)
        return replace(self.consumer_launch, kernel=kernel, arguments=(*inputs, *others))


def contiguous_variables(kernel: Kernel, accesses: Iterable[Load | Store]) -> set[str]:
    """Return the variables by which loads or stores of rows step from one element to the next; an array with one index has no rows."""
    types = {p.name: p.type for p in kernel.params}
    rows = [a for a in accesses if len({v for d in a.index for v in variables(d)}) > 1]
    return {v for a in rows for v in variables(a.index[types[a.buffer].contiguous_dim])}


def repeated_seconds(operand: Expr, rows: int, columns: int, depth: int, machine: Machine) -> float:
    """Return the seconds that register tiles of a product take longer where each computes `operand` again, but for the first of a column."""
    lanes = machine.lanes(operand.dtype.bits)
    shape = best_tiles(rows, [ContractionProblem(columns, lanes, depth, rows * columns * depth)], machine)[0]
    products = computed(shape.rows * shape.registers)
    operands = recomputed(operand.subexprs, shape.registers, machine), accessed(shape.registers, False)
    again, read = ((products + x).cycles(machine) for x in operands)
    steps = (-(-rows // shape.rows) - 1) * -(-columns // (lanes * shape.registers)) * depth
    return machine.seconds(steps * max(0.0, again - read))


def single_consumer_buffers(program: Program) -> set[str]:
    """Return the buffers that are arguments twice, and that no step other than a launch uses."""
    steps = list(walk_steps(program.steps))
    use_counts = Counter(b for s in steps if isinstance(s, Launch) for b in s.arguments)
    others = {*program.inputs, *program.outputs, *program.constants, *(b for s in steps for b in non_launch_buffers(s))}
    return {b for b, n in use_counts.items() if n == 2} - others
