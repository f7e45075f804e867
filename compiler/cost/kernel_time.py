"""Time of a scheduled kernel: instructions of its loops against the ports of a core, and its cache lines against the caches.

Code between two loop ends takes as long as its busiest unit: arithmetic, loads, stores, shuffles, all instructions, or the
chain of additions into one accumulator.  What each access moves is counted in `compiler.cost.cache_traffic`.  The unit is
one operation on a vector register.  Constants were chosen empirically, with `python -m benchmarks rank`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import log2, prod

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.cache_traffic import CacheTraffic
from compiler.cost.machine import Machine
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK, is_deinterleaved
from compiler.cost.tile_strides import TileStrides
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, PrimitiveCall
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.tile.kernel import (
    Block,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    extent_hint,
    stmt_exprs,
    walk,
)
from compiler.ir.tile.substitution import with_unique_names

CYCLES_PER_SECOND = 3e9
"""Clock rate that turns cycles into seconds; the order of variants does not depend on it."""

STORES_PER_CYCLE, SHUFFLES_PER_CYCLE = 1.0, 1.0
"""Vector stores and shuffles that begin in a cycle."""

GATHER_SHUFFLES, GATHER_INSTRUCTIONS = 1.5, 3.0
"""Shuffles and instructions for each lane of a gather or scatter, besides its memory access."""

MASKED_CYCLES = 4.0
"""Cycles during which nothing else begins for a masked access of vector units without mask registers."""

VECTOR_UNITS = 1.5
"""Units for any vector instruction, in units for multiply-adds: ports 0, 1 and 5 of Intel's cores, pipes 0 to 2 of AMD's."""

LOOP_INSTRUCTIONS = 3
"""Instructions of a loop's end: counter, comparison, branch."""

LOOP_CYCLES, ENTRY_CYCLES = 0.5, 6.0
"""Cycles of each iteration that overlap with nothing, and of entering and leaving a loop."""

MINMAX_LATENCY_FACTOR = 1.5
"""Latency of the larger or smaller of two values that propagates NaN, in multiply-adds."""


UNIT_NORM = 4
"""Exponent of the norm that joins the cycles of units: a maximum that grows where several units are busy."""


@dataclass(frozen=True)
class Issue:
    """Operations on vector registers, by the unit that executes them; `instructions` counts all."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    shuffles: float = 0.0
    instructions: float = 0.0
    stalled: float = 0.0

    def __add__(self, other: Issue) -> Issue:
        return Issue(
            self.arithmetic + other.arithmetic,
            self.loads + other.loads,
            self.stores + other.stores,
            self.shuffles + other.shuffles,
            self.instructions + other.instructions,
            self.stalled + other.stalled,
        )

    def __mul__(self, times: float) -> Issue:
        return Issue(
            self.arithmetic * times,
            self.loads * times,
            self.stores * times,
            self.shuffles * times,
            self.instructions * times,
            self.stalled * times,
        )

    def cycles(self, machine: Machine) -> float:
        """Return the cycles of the busiest unit."""
        units = (
            self.arithmetic / machine.fma_per_cycle,
            self.loads / machine.loads_per_cycle,
            self.stores / STORES_PER_CYCLE,
            self.shuffles / SHUFFLES_PER_CYCLE,
            self.instructions / machine.instructions_per_cycle,
            (self.arithmetic + self.shuffles) / (VECTOR_UNITS * machine.fma_per_cycle),
        )
        return sum(max(0.0, u) ** UNIT_NORM for u in units) ** (1 / UNIT_NORM) + self.stalled


@dataclass(frozen=True)
class Cost:
    """Cost of statements: what runs straight through, and the cycles of the loops among them."""

    straight: Issue = field(default_factory=Issue)
    loops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.straight + other.straight, self.loops + other.loops)


def predicted_seconds(kernel: Kernel, machine: Machine) -> float:
    """Return the estimated seconds of one call of a scheduled kernel on one thread, with its data in the caches if they fit.

    Dynamic sizes have the values of their hints.
    """
    return predicted_cycles(kernel, machine) / CYCLES_PER_SECOND


def predicted_cycles(kernel: Kernel, machine: Machine) -> float:
    """Return the cycles of `predicted_seconds`."""
    kernel = with_unique_names(kernel)
    accesses = Accesses(kernel)
    cost = KernelTime(accesses, machine).block(kernel.body, {})
    compute = cost.loops + cost.straight.cycles(machine)
    return compute + CacheTraffic(accesses, machine).cycles()


class KernelTime:
    """Cycles of the statements of a kernel, whose data are in the first-level cache."""

    def __init__(self, accesses: Accesses, machine: Machine) -> None:
        self.accesses, self.machine, self.strides = accesses, machine, TileStrides(accesses)
        self.by_place = {(id(a.stmt), a.buffer, a.index, a.is_store): a for a in accesses.all}
        self.value_axes: dict[str, frozenset[str]] = {}

    # statements

    def block(self, body: Block, scope: Mapping[str, Range]) -> Cost:
        """Return the cost of statements inside the loops of `scope`."""
        total = Cost()
        for stmt in body:
            if isinstance(stmt, For):
                total += self.loop(stmt, scope)
            elif isinstance(stmt, Reduce):
                total += self.reduction(stmt, scope)
            else:
                total += Cost(self.straight(stmt, scope, {}))
        return total

    def loop(self, stmt: For, scope: Mapping[str, Range]) -> Cost:
        """Return the cost of a loop; of one that is unrolled entirely as straight code."""
        r = stmt.range
        inner = self.block(stmt.body, {**scope, r.var: r})
        trips = trip_count(r)
        if r.unroll >= trips:
            return Cost(inner.straight * trips, inner.loops * trips)
        overhead = Issue(instructions=LOOP_INSTRUCTIONS)
        once = (inner.straight * r.unroll + overhead).cycles(self.machine) + LOOP_CYCLES + inner.loops * r.unroll
        return Cost(loops=ENTRY_CYCLES + once * trips / r.unroll)

    def reduction(self, stmt: Reduce, scope: Mapping[str, Range]) -> Cost:
        """Return the cost of a reduction: its iterations, and combining partial results."""
        ranges = self.with_accumulators(stmt, scope)
        inner_scope = {**scope, **{r.var: r for r in ranges}}
        body = self.block(stmt.body, inner_scope)
        axes = self.expr_axes(stmt.value, inner_scope)
        self.value_axes[stmt.name] = axes - {r.var for r in ranges}
        reduced_axes = {r.var for r in ranges if is_axis(r)}
        accumulators = self.count(axes | reduced_axes, inner_scope)
        unrolled: dict[str, int] = {}
        trips, points, chained = 1, 1, 1
        for r in reversed(ranges):
            factor = min(r.unroll, trip_count(r)) if points == trips else 1
            trips *= trip_count(r)
            points *= factor
            if factor > 1:
                unrolled[r.var] = factor
        chained = points
        lanes = self.lane_of(axes | reduced_axes, inner_scope)
        fused = stmt.op == "add" and isinstance(stmt.value, PrimitiveCall) and stmt.value.primitive == "mul"
        own = self.straight(stmt, inner_scope, unrolled, is_fused=fused)
        own += Issue(arithmetic=accumulators, instructions=accumulators) * points
        invariant = Issue()
        if not writes(stmt.body):
            invariant = self.invariant_loads(stmt, inner_scope, unrolled)
        spilled = max(0.0, self.live_registers(stmt, inner_scope, accumulators, axes) - self.machine.registers)
        once = own + body.straight * points + Issue(0, spilled, spilled, 0, 2 * spilled) + invariant * -1
        final = self.combination(stmt, accumulators, reduced_axes, lanes, inner_scope)
        if points == trips:
            return Cost(once + final + invariant, body.loops * trips)
        latency = self.machine.fma_latency * (1.0 if stmt.op in ("add", "mul") else MINMAX_LATENCY_FACTOR)
        busy = (once + Issue(instructions=LOOP_INSTRUCTIONS)).cycles(self.machine)
        iteration = max(busy, latency * chained) + LOOP_CYCLES + body.loops * points
        return Cost(final + invariant, ENTRY_CYCLES + iteration * trips / points)

    def with_accumulators(self, stmt: Reduce, scope: Mapping[str, Range]) -> tuple[Range, ...]:
        """Return the loops of a reduction, the last one tiled for its number of accumulators, as generated code has it."""
        *outer, last = stmt.ranges
        if last.accumulators == 1:
            return stmt.ranges
        inner = {**scope, **{r.var: r for r in stmt.ranges}}
        results = self.count(self.expr_axes(stmt.value, inner) - {r.var for r in stmt.ranges}, inner)
        limit, extent = max(1, last.accumulators // int(results)), extent_hint(last)
        tile = next(n for n in range(limit, 0, -1) if extent % n == 0)
        return (*outer, last.with_(tile=max(tile, last.tile)))

    def combination(
        self, stmt: Reduce, accumulators: float, reduced: set[str], lanes: int, scope: Mapping[str, Range]
    ) -> Issue:
        """Return the operations that set up the accumulators, and combine them along the reduced axes."""
        results = accumulators / self.count(reduced, scope)
        merged = accumulators - results
        work = Issue(arithmetic=merged, instructions=merged + accumulators)
        if any(scope[v].lanes for v in reduced):
            steps = log2(max(2, lanes)) * results
            work += Issue(arithmetic=steps, shuffles=steps, instructions=2 * steps)
        return work

    def invariant_loads(self, stmt: Reduce, scope: Mapping[str, Range], unrolled: Mapping[str, int]) -> Issue:
        """Return the loads of the reduced value that do not depend on its loops, which are moved out of them."""
        own = {r.var for r in stmt.ranges}
        total = Issue()
        for e in dict.fromkeys(stmt.value.loads):
            if not own & self.loop_vars(e):
                total += self.load(e, stmt, scope, {}, self.lane_of(self.expr_axes(stmt.value, scope), scope))
        return total

    def live_registers(
        self, stmt: Reduce, scope: Mapping[str, Range], accumulators: float, axes: frozenset[str]
    ) -> float:
        """Return the registers for accumulators and for vectors that several rows of them use."""
        vectors = 0.0
        rows = {v for v in axes if not scope[v].lanes}
        for e in dict.fromkeys(stmt.value.loads):
            own = self.expr_axes(e, scope)
            if any(scope[v].lanes for v in own) and rows - own:
                vectors += self.count(own, scope)
        return accumulators + vectors + 1

    def straight(
        self, stmt: Stmt, scope: Mapping[str, Range], unrolled: Mapping[str, int], is_fused: bool = False
    ) -> Issue:
        """Return the operations of one statement itself, repeated for every index of the `unrolled` loops."""
        if isinstance(stmt, Prefetch):
            return Issue(loads=1, instructions=1)
        if isinstance(stmt, Local):
            return Issue()
        total, times = Issue(), prod(unrolled.values())
        for value in stmt_exprs(stmt):
            total += self.value(value, stmt, scope, unrolled)
            if is_fused:
                calls = self.count(self.expr_axes(value, scope), scope)
                total += Issue(arithmetic=-calls, instructions=-calls) * times
        if isinstance(stmt, Let):
            self.value_axes[stmt.name] = self.expr_axes(stmt.value, scope)
        if isinstance(stmt, Store):
            total += self.store(stmt, scope)
        return total

    # expressions

    def value(self, value: Expr, stmt: Stmt, scope: Mapping[str, Range], unrolled: Mapping[str, int]) -> Issue:
        """Return the operations that compute an expression."""
        total, times = Issue(), prod(unrolled.values())
        for e in dict.fromkeys(value.subexprs):
            axes = self.expr_axes(e, scope)
            if isinstance(e, PrimitiveCall) and e.primitive not in ("bitcast",):
                n = self.count(axes, scope) * self.vectors_per_register(e, axes, scope) * times
                cost = scalar.PRIMITIVES[e.primitive].cost
                total += Issue(arithmetic=n * cost, instructions=n * cost)
            elif isinstance(e, Load):
                lanes = self.lane_of(self.expr_axes(value, scope), scope)
                total += self.load(e, stmt, scope, unrolled, lanes)
        return total

    def load(self, e: Load, stmt: Stmt, scope: Mapping[str, Range], unrolled: Mapping[str, int], lanes: int) -> Issue:
        """Return the operations of a load whose value is used in vectors of `lanes`."""
        a = self.by_place[id(stmt), e.buffer, e.index, False]
        axes = self.expr_axes(e, scope)
        divisions = sum(self.strides.in_tile(a, v) is None for v in axes)
        n = self.distinct(a, axes, scope, unrolled)
        extra = Issue(instructions=n * 8 * divisions)
        if e.mask is not None and not lanes:
            extra += Issue(instructions=2 * n)
        lane = next((scope[v] for v in axes if scope[v].lanes), None)
        if lane is None:
            if not lanes:
                return Issue(loads=n, instructions=n) + extra
            embedded = self.machine.has_embedded_broadcast
            broadcast = Issue() if embedded else Issue(shuffles=n, instructions=n)
            return Issue(loads=n * self.machine.loads_per_broadcast) + broadcast + extra
        return self.vector_access(a, lane, n, prod(unrolled.values()), axes, scope, e.mask is not None) + extra

    def store(self, stmt: Store, scope: Mapping[str, Range]) -> Issue:
        """Return the operations of a store, without those of its value."""
        a = self.by_place[id(stmt), stmt.buffer, stmt.index, True]
        axes = self.expr_axes(stmt.value, scope) | self.index_axes(stmt.index, stmt.buffer, scope)
        n = self.count(axes, scope)
        lane = next((scope[v] for v in axes if scope[v].lanes), None)
        if lane is None:
            return Issue(stores=n, instructions=n)
        return self.vector_access(a, lane, n, 1, axes, scope, False)

    def vector_access(
        self,
        a: Access,
        lane: Range,
        n: float,
        times: int,
        axes: frozenset[str],
        scope: Mapping[str, Range],
        is_masked: bool,
    ) -> Issue:
        """Return the operations of `n` different vectors with lanes along `lane`, in `times` unrolled iterations."""
        stride, size = self.strides.in_tile(a, lane.var), self.accesses.types[a.buffer].dtype.bits
        parts = max(1.0, lane.lanes * size / self.machine.vector_bits)
        all_n = self.count(axes, scope) * times  # without sharing between unrolled iterations
        if stride == 1 or (stride == 0 and not a.is_store):
            partial = 1.0 if is_masked else 1 / axis_count(lane) if lane.tile % lane.lanes else 0.0
            return self.memory(a, parts * n * (1 - partial)) + self.masked(a, parts * all_n * partial)
        if stride is not None and not a.is_store and not is_masked and is_deinterleaved(abs(stride), lane.lanes):
            vectors = parts * n * abs(stride)
            return self.memory(a, vectors) + Issue(shuffles=vectors, instructions=vectors)
        lanes = min(lane.lanes, lane.tile)
        contiguous = self.transposed_extent(a, axes, scope) if stride is not None and not is_masked else 1
        if contiguous >= MIN_TRANSPOSE_BLOCK:
            columns = min(contiguous, lane.lanes)
            shuffles = all_n * log2(lane.lanes) * lane.lanes / columns
            rows, is_power = all_n * lanes / columns, columns & (columns - 1) == 0
            access = self.memory(a, rows) if is_power else self.masked(a, rows)
            return access + Issue(shuffles=shuffles, instructions=shuffles)
        per_lane = all_n * lanes
        return self.memory(a, per_lane) + Issue(
            shuffles=per_lane * GATHER_SHUFFLES, instructions=per_lane * GATHER_INSTRUCTIONS
        )

    def memory(self, a: Access, n: float) -> Issue:
        """Return `n` loads or stores."""
        return Issue(stores=n, instructions=n) if a.is_store else Issue(loads=n, instructions=0.5 * n)

    def masked(self, a: Access, n: float) -> Issue:
        """Return `n` masked loads or stores."""
        return self.memory(a, n) + Issue(stalled=0 if self.machine.has_embedded_broadcast else MASKED_CYCLES * n)

    def transposed_extent(self, a: Access, axes: frozenset[str], scope: Mapping[str, Range]) -> int:
        """Return the contiguous elements of the tile of `a` along loops without lanes."""
        length = 1
        while v := next((v for v in axes if not scope[v].lanes and self.strides.in_tile(a, v) == length), None):
            length *= scope[v].tile
        return length

    # axes

    def expr_axes(self, e: Expr, scope: Mapping[str, Range]) -> frozenset[str]:
        """Return the tiled loops that a value varies over."""
        axes = set[str]()
        for name in e.used_names:
            axes |= self.name_axes(name, scope)
        for load in e.loads:
            axes |= self.index_axes(load.index, load.buffer, scope)
        return frozenset(axes)

    def name_axes(self, name: str, scope: Mapping[str, Range]) -> frozenset[str]:
        if name in scope:
            return frozenset({name}) if is_axis(scope[name]) else frozenset()
        return self.value_axes.get(name, frozenset()) & scope.keys()

    def index_axes(self, index: Iterable[Dim], buffer: str, scope: Mapping[str, Range]) -> frozenset[str]:
        """Return the tiled loops that the accessed element varies over."""
        axes = {v for v in self.accesses.local_scopes.get(buffer, ()) if v in scope and is_axis(scope[v])}
        for d in index:
            for name in variables(d):
                axes |= self.name_axes(name, scope)
        return frozenset(axes)

    def loop_vars(self, e: Load) -> set[str]:
        """Return the loops that the address of `e` depends on."""
        names = {n for d in e.index for n in variables(d)} | set(self.accesses.local_scopes.get(e.buffer, ()))
        return names.union(*(self.accesses.loops_by_name.get(n, frozenset()) for n in names))

    def count(self, axes: Iterable[str], scope: Mapping[str, Range]) -> float:
        """Return the registers of a tile over `axes`."""
        return prod(axis_count(scope[v]) for v in axes)

    def lane_of(self, axes: Iterable[str], scope: Mapping[str, Range]) -> int:
        """Return the lanes of the vectors of a tile over `axes`; 0 without."""
        return next((scope[v].lanes for v in axes if scope[v].lanes), 0)

    def vectors_per_register(self, e: Expr, axes: frozenset[str], scope: Mapping[str, Range]) -> float:
        """Return the machine's vectors for one vector of the tile: several for wide types."""
        return max(1.0, self.lane_of(axes, scope) * e.dtype.bits / self.machine.vector_bits)

    def distinct(
        self, a: Access, axes: frozenset[str], scope: Mapping[str, Range], unrolled: Mapping[str, int]
    ) -> float:
        """Return the different elements or vectors that a tile loads in `unrolled` iterations: equal ones are loaded once."""
        offsets, others = {0}, 1
        for v in (*axes, *unrolled):
            r = scope[v]
            n = axis_count(r) * unrolled.get(v, 1) if v in axes else unrolled[v]
            step = self.strides.in_tile(a, v) if v in axes else self.strides.step(a, v)
            if step is None or len(offsets) * n > 4096:
                others *= n
            else:
                step *= r.lanes or 1
                offsets = {o + step * k for o in offsets for k in range(n)}
        return len(offsets) * others


def is_axis(r: Range) -> bool:
    """Return True if a loop takes several iterations at once."""
    return r.tile > 1 or r.lanes > 0


def axis_count(r: Range) -> int:
    """Return the registers along a tiled loop."""
    return -(-r.tile // r.lanes) if r.lanes else r.tile


def trip_count(r: Range) -> int:
    """Return the iterations of a loop, each over one tile, under the size hints."""
    return max(1, -(-extent_hint(r) // r.tile))


def writes(body: Block) -> bool:
    """Return True if a loop with this body writes memory or prefetches, which keeps loads inside it."""
    return any(isinstance(s, (Store, Prefetch)) for s in walk(body))
