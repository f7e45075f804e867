"""Make what is moved for one kernel alone part by part, inside the loops of that kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from compiler.ir import scalar, tile
from compiler.ir.index import Dim, var, variables
from compiler.ir.scalar import Expr, Load
from compiler.ir.tile import (
    Block,
    For,
    Kernel,
    Launch,
    Local,
    Param,
    Program,
    Reduce,
    Step,
    Stmt,
    Store,
    known,
    named_otherwise,
    walk_steps,
)
from compiler.ir.types import TensorType
from compiler.passes.access import in_nest, nested_fors
from compiler.passes.base import Context, ProgramPass, register
from compiler.passes.rename import Fresh, bound, substitute_names, unused
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Contract(ProgramPass):
    """@pad  { parallel %c { ... store %x[%c, ...], %p[%c, ...] } }
    @conv { parallel %d { ... %p[%d, ...] ... } }
    ->  @conv { parallel %d { local %p ... store %x[%d, ...], %p[...]  ... %p[...] ... } }

    Loop fusion and the contraction of an array (Gao, Olsen, Sarkar and Thekkath, "Collective Loop Fusion for Array Contraction",
    1992): what a kernel moves for the next one alone never leaves the cache.  Only along dimensions that both walk in parallel,
    one index after the other, but for the one that what is moved lies along in memory; where no other loop of the reader lies
    around them; where the rest, in lanes if its rows are shorter, fits the second-level cache; and where `steps` of them are left for each thread.
    """

    name = "contract"
    exact = True
    steps: int = 2

    def run(self, ir: Program, context: Context) -> Program:
        machine, steps, kernels = context.machine or Machine(), list[Step](), dict(ir.kernels)
        passed, joined = passed_on(ir), dict[tuple[str, str, str], Kernel]()
        for step in ir.steps:
            last = steps[-1] if steps else None
            pair = None
            if isinstance(step, Launch) and isinstance(last, Launch):
                pair = Pair.of(kernels, last, step, passed)
            if pair is None or not pair.pays(machine, self.steps):
                steps.append(step)
                continue
            key = (pair.maker.name, pair.user.name, pair.read.name)
            if key not in joined:
                alone = sum(s.kernel == pair.user.name for s in ir.launches) == 1
                made = joined[key] = pair.joined(pair.user.name if alone else unused(pair.user.name, kernels))
                kernels[made.name] = made
            steps[-1] = pair.launch(joined[key].name)
            context.applied(self, f"%{pair.buffer} is made part by part where it is read", pair.buffer)
        return ir if len(steps) == len(ir.steps) else tidy(replace(ir, steps=tuple(steps), kernels=kernels), named(ir))


def tidy(program: Program, named_before: Set[str]) -> Program:
    """The program without kernels that nothing launches and without buffers that nothing touches any more."""
    launched, gone = {s.kernel for s in program.launches}, named_before - named(program)
    return replace(
        program,
        kernels={n: k for n, k in program.kernels.items() if n in launched},
        buffers={n: t for n, t in program.buffers.items() if n not in gone},
    )


def named(program: Program) -> set[str]:
    """The buffers that launches touch."""
    return {b for s in program.launches for b in s.arguments}


@dataclass(frozen=True)
class Pair:
    """Launches of two kernels that follow one another: of `maker`, and of `user`, which alone reads what it moves to `buffer`.

    `shared` are the dimensions of that buffer that both walk in parallel, one index after the other.
    """

    maker: Kernel
    user: Kernel
    first: Launch
    second: Launch
    buffer: str
    made: Param
    read: Param
    shared: tuple[int, ...]

    @classmethod
    def of(cls, kernels: Mapping[str, Kernel], first: Launch, second: Launch, passed: Set[str]) -> Pair | None:
        """The pair, if the first launch writes one buffer, which is `passed` on to the second alone, and they share a dimension."""
        maker, user = kernels[first.kernel], kernels[second.kernel]
        results = [(p, a) for p, a in zip(maker.params, first.arguments, strict=True) if p.is_written]
        if len(results) != 1 or results[0][0].role != "out":
            return None
        made, buffer = results[0]
        read = [p for p, a in zip(user.params, second.arguments, strict=True) if a == buffer]
        if buffer not in passed or len(read) != 1 or read[0].type != made.type or made.type.layout:
            return None
        if any(isinstance(s, (Reduce, Local)) for s in tile.walk(maker.body)):
            return None
        found = cls(maker, user, first, second, buffer, made, read[0], ())
        shared = tuple(d for d in range(made.type.rank) if found.follows(d))
        return replace(found, shared=shared) if shared and found.begins_with(shared) else None

    def begins_with(self, shared: Sequence[int]) -> bool:
        """Whether no loop of the user's nest that walks something else has to move inside."""
        walked = [whole(self.user.body, self.read.name, d) for d in shared]
        nest = [f for f in nested_fors(self.user.body) if f.range.extent != 1]
        return all(f in walked for f in nest[: len(shared)])

    def follows(self, d: int) -> bool:
        """Whether both kernels walk dimension `d` of the buffer from end to end in parallel, and the first not along what it reads."""
        size, nests = self.made.type.shape[d], [(s,) for s in self.maker.body]
        if not isinstance(size, int) or size == 1 or len(self.user.body) != 1:
            return False
        loops = [*(whole(n, self.made.name, d) for n in nests), whole(self.user.body, self.read.name, d)]
        if None in loops:
            return False
        last = {v for e in tile.loads(self.maker.body) if e.index for v in variables(e.index[-1])}
        return not any(f.range.var in last for f in loops[:-1] if f) and all(f.range.extent == size for f in loops if f)

    def pays(self, machine: Machine, steps: int) -> bool:
        """Whether what is made at a time stays in the second-level cache, and threads have enough of it: a part whose rows fill the
        lanes, or as many parts as there are lanes.
        """
        lanes, number = machine.lanes(32), prod(known(self.made.type.shape[d]) for d in self.shared)
        parts = 1 if self.part.rank and known(self.part.shape[-1]) >= lanes else lanes
        return number // lanes >= steps * machine.threads and known(self.part.nbytes) * parts <= machine.l2

    @property
    def part(self) -> TensorType:
        """What one step of the shared loops makes."""
        whole = self.made.type
        return TensorType(whole.dtype, tuple(n for d, n in enumerate(whole.shape) if d not in self.shared))

    def joined(self, name: str) -> Kernel:
        """The one kernel that does what both do."""
        walked = {d: f for d in self.shared if (f := whole(self.user.body, self.read.name, d))}
        around = [f for f in nested_fors(self.user.body) if f in walked.values()]
        fresh = Fresh(self.user)
        params = {p.name: fresh(p.name) for p in self.maker.params if p is not self.made}
        inner = list[Stmt]()
        for s in self.maker.body:
            own = {f.range.var: walked[d].range.var for d in self.shared if (f := whole((s,), self.made.name, d))}
            rest = without((s,), set(own))
            names = {n: fresh(n) for n in sorted(bound(rest))}
            inner += (substitute_names(x, {**names, **params, **own, self.made.name: self.read.name}) for x in rest)
        inner += without(self.user.body, {f.range.var for f in around})
        kept = tuple(replace(p, name=params[p.name]) for p in self.maker.params if p is not self.made)
        if not self.part.is_static:
            both = (replace(p, role="work") if p is self.read else p for p in self.user.params)
            return Kernel(name, (*kept, *both), in_nest(around, tuple(inner)))
        body = (Local(self.read.name, self.part), *(self.narrowed(x) for x in inner))
        return Kernel(name, (*kept, *(p for p in self.user.params if p is not self.read)), in_nest(around, body))

    def narrowed(self, stmt: Stmt) -> Stmt:
        """The statement with the shared dimensions left out where it touches the buffer."""

        def kept(index: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(i for d, i in enumerate(index) if d not in self.shared)

        def rule(e: Expr) -> Expr:
            return replace(e, index=kept(e.index)) if isinstance(e, Load) and e.buffer == self.read.name else e

        def stores(s: Stmt) -> Block:
            if isinstance(s, Store) and s.buffer == self.read.name:
                return (replace(s, index=kept(s.index)),)
            return (s,)

        (new,) = tile.expand_stmts(tile.map_exprs((stmt,), lambda e: scalar.transform(e, rule)), stores)
        return new

    def launch(self, kernel: str) -> Launch:
        """The one launch."""
        gone = {self.buffer} if self.part.is_static else set[str]()
        first = (a for a in self.first.arguments if a != self.buffer)
        return replace(
            self.second, kernel=kernel, arguments=(*first, *(a for a in self.second.arguments if a not in gone))
        )


def whole(body: Block, name: str, d: int) -> For | None:
    """The one parallel loop of a nest from 0 on that all it stores to or loads from a buffer follows along dimension `d`."""
    places = {index[d] for index in tile.places(body, name)}
    loops = (f for f in nested_fors(body) if f.parallel and f.range.lo == 0)
    return next((f for f in loops if places == {var(f.range.var)}), None)


def passed_on(program: Program) -> set[str]:
    """The buffers that two launches name, once each, and no other step does."""
    steps = list(walk_steps(program.steps))
    often = Counter(b for s in steps if isinstance(s, Launch) for b in s.arguments)
    others = {*program.inputs, *program.outputs, *program.constants, *(b for s in steps for b in named_otherwise(s))}
    return {b for b, n in often.items() if n == 2} - others


def without(body: Block, names: Set[str]) -> Block:
    """A perfect nest without the loops over these variables."""
    (*loops, last) = nested_fors(body)
    kept = [f for f in (*loops, last) if f.range.var not in names]
    return in_nest(kept, last.body)
