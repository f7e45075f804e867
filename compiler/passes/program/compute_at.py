"""Make what is moved for one kernel alone part by part, inside the loops of that kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import perfect_nest, wrap_in_nest
from compiler.cost.machine import Machine
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Param, Reduce, Stmt, Store, dim_hint
from compiler.ir.tile.program import Launch, Program, Step, non_launch_buffers, walk_steps
from compiler.ir.tile.substitution import NameSupply, bound_names, substitute_names, unused_name
from compiler.ir.types import TensorType
from compiler.passes.base import Context, ProgramPass, register


@register
@dataclass(frozen=True)
class ComputeAt(ProgramPass):
    """@pad  { parallel %c { ... store %x[%c, ...], %p[%c, ...] } }
    @conv { parallel %d { ... %p[%d, ...] ... } }
    ->  @conv { parallel %d { local %p ... store %x[%d, ...], %p[...]  ... %p[...] ... } }

    Loop fusion and the contraction of an array (Gao, Olsen, Sarkar and Thekkath, "Collective Loop Fusion for Array Contraction",
    1992): what a kernel moves for the next one alone never leaves the cache.  Only along dimensions that both walk in parallel,
    one index after the other, but for the one that what is moved lies along in memory; where no other loop of the reader lies
    around them; where the rest, in lanes if its rows are shorter, fits the second-level cache; and where `steps` of them are left for each thread.
    """

    name = "compute-at"
    exact = True
    min_steps_per_thread: int = 2

    def run(self, ir: Program, context: Context) -> Program:
        machine, steps, kernels = context.machine or Machine(), list[Step](), dict(ir.kernels)
        private_buffers, fused_kernels = single_consumer_buffers(ir), dict[tuple[str, str, str], Kernel]()
        for step in ir.steps:
            last = steps[-1] if steps else None
            pair = None
            if isinstance(step, Launch) and isinstance(last, Launch):
                pair = ProducerConsumer.match(kernels, last, step, private_buffers)
            if pair is None or not pair.is_profitable(machine, self.min_steps_per_thread):
                steps.append(step)
                continue
            key = (pair.producer.name, pair.consumer.name, pair.consumer_param.name)
            if key not in fused_kernels:
                alone = sum(s.kernel == pair.consumer.name for s in ir.launches) == 1
                made = fused_kernels[key] = pair.fused_kernel(
                    pair.consumer.name if alone else unused_name(pair.consumer.name, kernels)
                )
                kernels[made.name] = made
            steps[-1] = pair.fused_launch(fused_kernels[key].name)
            context.applied(self, f"%{pair.buffer} is made part by part where it is read", pair.buffer)
        return (
            ir
            if len(steps) == len(ir.steps)
            else remove_unused(replace(ir, steps=tuple(steps), kernels=kernels), launched_buffers(ir))
        )


def remove_unused(program: Program, launched_before: Set[str]) -> Program:
    """The program without kernels that nothing launches and without buffers that nothing touches any more."""
    launched, unused_buffers = {s.kernel for s in program.launches}, launched_before - launched_buffers(program)
    return replace(
        program,
        kernels={n: k for n, k in program.kernels.items() if n in launched},
        buffers={n: t for n, t in program.buffers.items() if n not in unused_buffers},
    )


def launched_buffers(program: Program) -> set[str]:
    """The buffers that launches touch."""
    return {b for s in program.launches for b in s.arguments}


@dataclass(frozen=True)
class ProducerConsumer:
    """Launches of two kernels that follow one another: of `maker`, and of `user`, which alone reads what it moves to `buffer`.

    `shared` are the dimensions of that buffer that both walk in parallel, one index after the other.
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
        """The pair, if the first launch writes one buffer, which is `passed` on to the second alone, and they share a dimension."""
        producer, consumer = kernels[producer_launch.kernel], kernels[consumer_launch.kernel]
        results = [(p, a) for p, a in zip(producer.params, producer_launch.arguments, strict=True) if p.is_written]
        if len(results) != 1 or results[0][0].role != "out":
            return None
        producer_param, buffer = results[0]
        read = [p for p, a in zip(consumer.params, consumer_launch.arguments, strict=True) if a == buffer]
        if (
            buffer not in private_buffers
            or len(read) != 1
            or read[0].type != producer_param.type
            or producer_param.type.layout
        ):
            return None
        if any(isinstance(s, (Reduce, Local)) for s in tile.walk(producer.body)):
            return None
        found = cls(producer, consumer, producer_launch, consumer_launch, buffer, producer_param, read[0], ())
        shared_dims = tuple(d for d in range(producer_param.type.rank) if found.is_shared_dim(d))
        return (
            replace(found, shared_dims=shared_dims)
            if shared_dims and found.has_shared_loops_outermost(shared_dims)
            else None
        )

    def has_shared_loops_outermost(self, shared_dims: Sequence[int]) -> bool:
        """Whether no loop of the user's nest that walks something else has to move inside."""
        walked = [full_extent_loop(self.consumer.body, self.consumer_param.name, d) for d in shared_dims]
        nest = [f for f in perfect_nest(self.consumer.body) if f.range.extent != 1]
        return all(f in walked for f in nest[: len(shared_dims)])

    def is_shared_dim(self, d: int) -> bool:
        """Whether both kernels walk dimension `d` of the buffer from end to end in parallel, and the first not along what it reads."""
        size, nests = self.producer_param.type.shape[d], [(s,) for s in self.producer.body]
        if not isinstance(size, int) or size == 1 or len(self.consumer.body) != 1:
            return False
        loops = [
            *(full_extent_loop(n, self.producer_param.name, d) for n in nests),
            full_extent_loop(self.consumer.body, self.consumer_param.name, d),
        ]
        if None in loops:
            return False
        last = {v for e in tile.loads(self.producer.body) if e.index for v in variables(e.index[-1])}
        return not any(f.range.var in last for f in loops[:-1] if f) and all(f.range.extent == size for f in loops if f)

    def is_profitable(self, machine: Machine, min_steps_per_thread: int) -> bool:
        """Whether what is made at a time stays in the second-level cache, and threads have enough of it: a part whose rows fill the
        lanes, or as many parts as there are lanes.
        """
        lanes, number = machine.lanes(32), prod(dim_hint(self.producer_param.type.shape[d]) for d in self.shared_dims)
        parts = 1 if self.slice_type.rank and dim_hint(self.slice_type.shape[-1]) >= lanes else lanes
        return (
            number // lanes >= min_steps_per_thread * machine.threads
            and dim_hint(self.slice_type.nbytes) * parts <= machine.l2
        )

    @property
    def slice_type(self) -> TensorType:
        """What one step of the shared loops makes."""
        full_type = self.producer_param.type
        return TensorType(full_type.dtype, tuple(n for d, n in enumerate(full_type.shape) if d not in self.shared_dims))

    def fused_kernel(self, name: str) -> Kernel:
        """The one kernel that does what both do."""
        walked = {
            d: f for d in self.shared_dims if (f := full_extent_loop(self.consumer.body, self.consumer_param.name, d))
        }
        shared_loops = [f for f in perfect_nest(self.consumer.body) if f in walked.values()]
        fresh = NameSupply(self.consumer)
        params = {p.name: fresh(p.name) for p in self.producer.params if p is not self.producer_param}
        inner = list[Stmt]()
        for s in self.producer.body:
            producer_loop_names = {
                f.range.var: walked[d].range.var
                for d in self.shared_dims
                if (f := full_extent_loop((s,), self.producer_param.name, d))
            }
            rest = remove_loops((s,), set(producer_loop_names))
            names = {n: fresh(n) for n in sorted(bound_names(rest))}
            inner += (
                substitute_names(
                    x, {**names, **params, **producer_loop_names, self.producer_param.name: self.consumer_param.name}
                )
                for x in rest
            )
        inner += remove_loops(self.consumer.body, {f.range.var for f in shared_loops})
        kept = tuple(replace(p, name=params[p.name]) for p in self.producer.params if p is not self.producer_param)
        if not self.slice_type.is_static:
            both = (replace(p, role="scratch") if p is self.consumer_param else p for p in self.consumer.params)
            return Kernel(name, (*kept, *both), wrap_in_nest(shared_loops, tuple(inner)))
        body = (Local(self.consumer_param.name, self.slice_type), *(self.without_shared_dims(x) for x in inner))
        return Kernel(
            name,
            (*kept, *(p for p in self.consumer.params if p is not self.consumer_param)),
            wrap_in_nest(shared_loops, body),
        )

    def without_shared_dims(self, stmt: Stmt) -> Stmt:
        """The statement with the shared dimensions left out where it touches the buffer."""

        def kept(index: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(i for d, i in enumerate(index) if d not in self.shared_dims)

        def rule(e: Expr) -> Expr:
            return (
                replace(e, index=kept(e.index)) if isinstance(e, Load) and e.buffer == self.consumer_param.name else e
            )

        def stores(s: Stmt) -> Block:
            if isinstance(s, Store) and s.buffer == self.consumer_param.name:
                return (replace(s, index=kept(s.index)),)
            return (s,)

        (new,) = tile.expand_stmts(tile.map_exprs((stmt,), lambda e: scalar.transform(e, rule)), stores)
        return new

    def fused_launch(self, kernel: str) -> Launch:
        """The one launch."""
        gone = {self.buffer} if self.slice_type.is_static else set[str]()
        first = (a for a in self.producer_launch.arguments if a != self.buffer)
        return replace(
            self.consumer_launch,
            kernel=kernel,
            arguments=(*first, *(a for a in self.consumer_launch.arguments if a not in gone)),
        )


def full_extent_loop(body: Block, name: str, d: int) -> For | None:
    """The one parallel loop of a nest from 0 on that all it stores to or loads from a buffer follows along dimension `d`."""
    places = {index[d] for index in tile.access_indices(body, name)}
    loops = (f for f in perfect_nest(body) if f.parallel and f.range.lo == 0)
    return next((f for f in loops if places == {var(f.range.var)}), None)


def single_consumer_buffers(program: Program) -> set[str]:
    """The buffers that two launches name, once each, and no other step does."""
    steps = list(walk_steps(program.steps))
    often = Counter(b for s in steps if isinstance(s, Launch) for b in s.arguments)
    others = {*program.inputs, *program.outputs, *program.constants, *(b for s in steps for b in non_launch_buffers(s))}
    return {b for b, n in often.items() if n == 2} - others


def remove_loops(body: Block, names: Set[str]) -> Block:
    """A perfect nest without the loops over these variables."""
    (*loops, last) = perfect_nest(body)
    kept = [f for f in (*loops, last) if f.range.var not in names]
    return wrap_in_nest(kept, last.body)
