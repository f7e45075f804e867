"""Time of a scheduled kernel, estimated from its Tile IR: instructions against the units of a core, lines against the caches.

Code between two loop ends takes as long as its busiest unit (`compiler.cost.issue`), or as the chain of additions into one
accumulator.  `compiler.cost.cache_traffic` counts what accesses move between caches.  Counts follow code generation: one
instruction for each register of a tile, equal loads of one iteration once, reduced values in accumulators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import frexp, log2, prod

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.cache_traffic import NO_REUSE, CacheTraffic, ReuseDistances
from compiler.cost.code_size import code_lines
from compiler.cost.issue import Cost, Issue, accessed, called, masked, operation_cost, shuffled
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.mean_extents import with_mean_extents
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK, is_deinterleaved, is_interleaved, is_spread
from compiler.cost.tile_strides import TileStrides, trip_count_hint
from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, Load, PrimitiveCall
from compiler.ir.subexpressions import likely_subexprs
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.tile.contraction import adds_products
from compiler.ir.tile.kernel import (
    Block,
    For,
    Kernel,
    Let,
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
from compiler.math.emulation import EMULATIONS

MAX_COUNTED_OFFSETS = 4096
"""Most addresses that are compared to find equal loads; bounds compile time."""

CONSTANT_BOUND_OPS = 2
"""Operations of a maximum or minimum with a constant: comparison and selection."""

Scope = Mapping[str, Range]
"""The loops around a statement by variable."""


def predicted_seconds(kernel: Kernel, machine: Machine) -> float:
    """Return the estimated seconds of one call of a scheduled kernel on one thread, in a series of calls on the same data.

    Dynamic sizes have the values of their hints.
    """
    return KernelEstimate(kernel, machine).seconds()


class KernelEstimate:
    """Estimated time of a scheduled kernel on one thread, for any state of the caches before the call.

    `shared_memory` names the parameters that lie in the memory of another one.
    """

    def __init__(self, kernel: Kernel, machine: Machine, shared_memory: Mapping[str, str] | None = None) -> None:
        accesses = Accesses(with_unique_names(with_mean_extents(kernel)))
        cost = KernelCycles(accesses, machine).block(accesses.kernel.body, {})
        self.machine, self.computation = machine, cost.straight.cycles_alone(machine) + cost.loop_cycles
        self.traffic = CacheTraffic(accesses, machine, shared_memory)
        self.code_bytes = code_lines(accesses.kernel.body, machine) * CACHE_LINE_BYTES

    def touched_bytes(self, param: str) -> float:
        """Return the bytes of the cache lines of a parameter that a call touches."""
        footprint = self.traffic.footprints.get(param)
        return footprint.touched * CACHE_LINE_BYTES if footprint else 0.0

    def seconds(self, reuse: Mapping[str, ReuseDistances] = NO_REUSE, code_reuse: ReuseDistances = ()) -> float:
        """Return the estimated seconds of a call; `reuse` as in `CacheTraffic.cycles`, `code_reuse` of the kernel's code."""
        n = self.machine.transfer_overlap
        cycles = (self.computation**n + self.traffic.cycles(reuse) ** n) ** (1 / n)
        return self.machine.seconds(cycles + self.code_cycles(code_reuse))

    def code_cycles(self, reuse: ReuseDistances) -> float:
        """Return the cycles in which code arrives: nothing runs until a line is there, and nobody asks for the next before."""
        m = self.machine
        latencies = ((m.l2, m.l3_latency), (m.l3, m.memory_latency - m.l3_latency))
        waits = (part * self.traffic.lost_part(d / size) * c for part, d in reuse for size, c in latencies)
        return self.code_bytes / CACHE_LINE_BYTES * sum(waits)


class KernelCycles:
    """Cycles of the statements of a kernel whose data are in the first-level cache."""

    def __init__(self, accesses: Accesses, machine: Machine) -> None:
        self.accesses, self.machine, self.strides = accesses, machine, TileStrides(accesses)
        self.by_place = {(id(a.stmt), a.buffer, a.index, a.is_store): a for a in accesses.all}
        self.value_axes: dict[str, frozenset[str]] = {}
        self.known_names = set[str]()
        """Bound values that generated code has as constants."""
        self.available = set[Expr]()
        """Values that statements before have computed or loaded, and nothing has overwritten."""
        self.free_registers = float(machine.registers)
        """Registers that the reduction under way leaves for loaded values."""

    # statements

    def block(self, body: Block, scope: Scope) -> Cost:
        """Return the cost of statements inside the loops of `scope`."""
        total, outside = Cost(), self.available
        self.available = set(outside)
        for stmt in body:
            if isinstance(stmt, For):
                total += self.loop(stmt, scope)
            elif isinstance(stmt, Reduce):
                total += self.reduction(stmt, scope)
            else:
                total += Cost(self.straight(stmt, scope, {}))
                self.available.update(e for value in stmt_exprs(stmt) for e in likely_subexprs(value))
            written = {s.buffer for s in walk((stmt,)) if isinstance(s, Store)}
            self.available -= {e for e in self.available if any(x.buffer in written for x in e.loads)}
        self.available = outside
        return total

    def loop(self, stmt: For, scope: Scope) -> Cost:
        """Return the cost of a loop; of one that is unrolled entirely, as straight code."""
        r, trips = stmt.range, trip_count_hint(stmt.range)
        inner = self.block(stmt.body, {**scope, r.var: r})
        if r.unroll >= trips:
            return Cost(inner.straight * trips, inner.loop_cycles * trips)
        once = inner.straight * r.unroll + Issue(instructions=self.machine.loop_end_instructions)
        cycles = once.cycles_alone(self.machine) + self.machine.loop_overhead + inner.loop_cycles * r.unroll
        return Cost(loop_cycles=self.machine.loop_entry + cycles * trips / r.unroll)

    def reduction(self, stmt: Reduce, scope: Scope) -> Cost:
        """Return the cost of a reduction: its iterations, and combining partial results."""
        ranges = self.accumulator_ranges(stmt, scope)
        scope = {**scope, **{r.var: r for r in ranges}}
        body = self.block(stmt.body, scope)
        value_axes, own = self.expr_axes(stmt.value, scope), {r.var for r in ranges}
        self.value_axes[stmt.name] = value_axes - own
        axes = value_axes | {r.var for r in ranges if is_axis(r)}
        unrolled, points, trips = unrolled_part(ranges)

        accumulators, cost = self.count(axes, scope), operation_cost(stmt.op, self.machine)
        live = accumulators + self.shared_vectors(stmt, value_axes, scope) + 1
        spilled = max(0.0, live - self.machine.registers)
        self.free_registers = max(0.0, self.machine.registers - live)
        once = self.straight(stmt, scope, unrolled) + body.straight * points
        combined = called("fma" if adds_products(stmt) else stmt.op, accumulators * cost)
        once += (combined + accessed(spilled, True) + accessed(spilled, False)) * points
        if adds_products(stmt):
            once += Issue(instructions=(self.machine.fma_instructions - 1) * accumulators * points)
        self.free_registers = self.machine.registers
        hoisted = self.invariant_loads(stmt, scope) if not writes(stmt.body) else Issue()
        once += hoisted * -1
        final = hoisted + self.combination(stmt, axes, scope)
        if points == trips:
            return Cost(once + final, body.loop_cycles * trips)
        busy = (once + Issue(instructions=self.machine.loop_end_instructions)).cycles_alone(self.machine)
        chain = self.machine.fma_latency * cost * points
        cycles = max(busy, chain) + self.machine.loop_overhead + body.loop_cycles * points
        return Cost(final, self.machine.loop_entry + cycles * trips / points)

    def accumulator_ranges(self, stmt: Reduce, scope: Scope) -> tuple[Range, ...]:
        """Return the loops of a reduction, the last one tiled for its number of accumulators, as generated code has it."""
        *outer, last = stmt.ranges
        if last.accumulators == 1:
            return stmt.ranges
        scope = {**scope, **{r.var: r for r in stmt.ranges}}
        results = self.count(self.expr_axes(stmt.value, scope) - {r.var for r in stmt.ranges}, scope)
        limit, extent = max(1, last.accumulators // results), extent_hint(last)
        return (*outer, last.with_(tile=next(n for n in range(limit, 0, -1) if extent % n == 0)))

    def combination(self, stmt: Reduce, axes: frozenset[str], scope: Scope) -> Issue:
        """Return the operations that set up the accumulators over `axes`, and combine them along those that are reduced."""
        reduced = axes & {r.var for r in stmt.ranges}
        accumulators, cost = self.count(axes, scope), operation_cost(stmt.op, self.machine)
        results = self.count(axes - reduced, scope)
        work = called(stmt.op, (accumulators - results) * cost) + Issue(instructions=accumulators)
        if lanes := self.lane_count(reduced, scope):
            work += (called(stmt.op, cost) + shuffled(1)) * (results * log2(lanes))
            latency = log2(lanes) * (self.machine.fma_latency * cost + self.machine.shuffle_latency)
            work += Issue(stalled=self.machine.combine_stall_share * latency)
        return work

    def invariant_loads(self, stmt: Reduce, scope: Scope) -> Issue:
        """Return the loads of the reduced value that do not depend on its loops."""
        own, lanes = {r.var for r in stmt.ranges}, self.lane_count(self.expr_axes(stmt.value, scope), scope)
        loads = (e for e in dict.fromkeys(stmt.value.loads) if not own & self.varying_loops(e))
        return sum((self.load(e, stmt, scope, {}, lanes) for e in loads), Issue())

    def shared_vectors(self, stmt: Reduce, axes: frozenset[str], scope: Scope) -> int:
        """Return the vectors that several rows of accumulators over `axes` use."""
        rows = {v for v in axes if not scope[v].lanes}
        loaded = (self.expr_axes(e, scope) for e in dict.fromkeys(stmt.value.loads))
        return sum(self.count(own, scope) for own in loaded if self.lane_count(own, scope) and rows - own)

    def straight(self, stmt: Stmt, scope: Scope, unrolled: Mapping[str, int]) -> Issue:
        """Return the operations of one statement itself, for every index of the `unrolled` loops."""
        if isinstance(stmt, Prefetch):
            return Issue(loads=1, instructions=1)
        total, factor = Issue(), prod(unrolled.values())
        for value in stmt_exprs(stmt):
            lanes = self.lane_count(self.expr_axes(value, scope), scope)
            computed = likely_subexprs(value)
            negated = {x for e in computed if is_sum(e) for x in e.args if is_negation(x)}
            for e in dict.fromkeys(computed):
                if e in negated or e in self.available:  # the sum with a negated value becomes a difference
                    continue
                if isinstance(e, Load):
                    total += self.load(e, stmt, scope, unrolled, lanes)
                elif isinstance(e, PrimitiveCall) and not (e is value and adds_products(stmt)):  # else part of an fma
                    total += self.call(e, scope) * factor
        if isinstance(stmt, Let):
            self.value_axes[stmt.name] = self.expr_axes(stmt.value, scope)
            if self.is_known(stmt.value, scope):
                self.known_names.add(stmt.name)
        return total + self.store(stmt, scope) if isinstance(stmt, Store) else total

    def call(self, e: PrimitiveCall, scope: Scope) -> Issue:
        """Return the operations of a call: none if its value or the choice that it makes is known in advance."""
        if self.is_known(e, scope) or (e.primitive == "where" and self.is_known(e.operands[0], scope)):
            return Issue()
        axes = self.expr_axes(e, scope)
        lanes, operations = self.lane_count(axes, scope), self.count(axes, scope) * call_cost(e, self.machine)
        if self.machine.fma_instructions > 1 and e.dtype.is_float and (emulation := EMULATIONS.get(e.primitive)):
            if (steps := emulation(e.dtype.compute)) is None:
                return Issue(stalled=self.machine.library_call_cycles * operations * max(1, lanes))
            return sum((self.step_in_place(x, axes, scope) for x in steps.calls), Issue())
        if not lanes and not e.dtype.is_float:  # scalars outside the vector unit
            return Issue(instructions=operations)
        return called(e.primitive, operations * max(1.0, lanes * e.dtype.bits / self.machine.vector_bits))

    def step_in_place(self, e: PrimitiveCall, axes: frozenset[str], scope: Scope) -> Issue:
        """Return the operations of one of the calls that stand in place of a missing instruction."""
        bits = max(x.dtype.bits for x in (e, *e.operands))  # conversions read or write twice as many registers
        registers = self.count(axes, scope) * max(1.0, self.lane_count(axes, scope) * bits / self.machine.vector_bits)
        return called(e.primitive, registers * operation_cost(e.primitive, self.machine))

    def is_known(self, e: Expr, scope: Scope) -> bool:
        """Return True if a value is constant in generated code: it depends on loops alone of which that has each iteration apart."""
        return not e.loads and all(n in self.known_names or (n in scope and is_apart(scope[n])) for n in e.used_names)

    # memory

    def load(self, e: Load, stmt: Stmt, scope: Scope, unrolled: Mapping[str, int], lanes: int) -> Issue:
        """Return the operations of a load whose value is used in vectors of `lanes`; 0 for scalars."""
        a, axes = self.by_place[id(stmt), e.buffer, e.index, False], self.expr_axes(e, scope)
        n, factor = self.distinct_loads(a, axes, scope, unrolled), prod(unrolled.values())
        if self.lane_count(axes, scope):
            work = self.vector_access(a, n, factor, axes, scope)
        elif not lanes:
            work = Issue(loads=n, instructions=n * (1 if e.mask is None else 3))
        else:
            work = Issue(loads=n * self.machine.loads_per_broadcast)
            work += Issue() if self.machine.has_embedded_broadcast else shuffled(n)
        divisions = sum(self.strides.in_tile(a, v) is None for v in axes)
        return work + Issue(instructions=n * self.machine.division_ops * divisions)

    def store(self, stmt: Store, scope: Scope) -> Issue:
        """Return the operations of a store, without those of its value."""
        a = self.by_place[id(stmt), stmt.buffer, stmt.index, True]
        axes = self.expr_axes(stmt.value, scope) | self.index_axes(stmt.index, stmt.buffer, scope)
        n = self.count(axes, scope)
        return self.vector_access(a, n, 1, axes, scope) if self.lane_count(axes, scope) else accessed(n, True)

    def vector_access(self, a: Access, distinct: float, factor: int, axes: frozenset[str], scope: Scope) -> Issue:
        """Return the operations of an access with lanes, `distinct` vectors of which differ in `factor` unrolled iterations."""
        lane = next(scope[v] for v in axes if scope[v].lanes)
        stride, size = self.strides.in_tile(a, lane.var), self.accesses.types[a.buffer].dtype.bits
        n, parts = self.count(axes, scope) * factor, max(1.0, lane.lanes * size / self.machine.vector_bits)
        if stride == 1 or (stride == 0 and not a.is_store):
            masked_share = 1.0 if a.is_masked else 1 / axis_count(lane) if lane.tile % lane.lanes else 0.0
            full = accessed(parts * distinct * (1 - masked_share), a.is_store)
            full += self.second_lines(a, lane, full) if stride else Issue()
            return full + masked(parts * n * masked_share, a.is_store, self.machine)
        if stride is not None and not a.is_store and not a.is_masked and is_deinterleaved(stride, lane.lanes):
            full = accessed(parts * distinct * abs(stride), False)
            return full + self.second_lines(a, lane, full) + shuffled(parts * distinct * abs(stride))
        lanes = min(lane.lanes, lane.tile)
        columns = min(lane.lanes, self.contiguous_tile(a, axes, scope)) if stride is not None and not a.is_masked else 1
        if stride is not None and is_interleaved(columns, stride, lane.lanes):
            is_dense = columns == stride
            stored = accessed(1, a.is_store) if is_dense else masked(stride / columns, a.is_store, self.machine)
            return (stored + shuffled(log2(columns))) * n
        m = self.machine
        if columns < MIN_TRANSPOSE_BLOCK and m.has_mask_registers and a.is_store and is_spread(stride or 0, lane.lanes):
            return (accessed(stride or 0, True) + shuffled(stride or 0)) * n
        if columns < MIN_TRANSPOSE_BLOCK:
            each = Issue(shuffles=m.gather_shuffles, instructions=m.gather_instructions)
            return (accessed(1, a.is_store) + each) * (n * lanes)
        rows, is_power = n * lanes / columns, columns & (columns - 1) == 0
        moved = accessed(rows, a.is_store) if is_power else masked(rows, a.is_store, self.machine)
        return moved + shuffled(n * log2(lane.lanes) * lane.lanes / columns)

    def second_lines(self, a: Access, lane: Range, full: Issue) -> Issue:
        """Return what `full` loads or stores of contiguous vectors cost more where they lie in two cache lines."""
        size = self.accesses.types[a.buffer].dtype.bits * lane.lanes
        share = self.strides.crossing_share(a, lane.var, min(size, self.machine.vector_bits) // 8)
        return Issue(loads=share * full.loads, stores=share * full.stores)

    def contiguous_tile(self, a: Access, axes: frozenset[str], scope: Scope) -> int:
        """Return the contiguous elements of the tile of `a` along loops without lanes."""
        length, rows = 1, [v for v in axes if not scope[v].lanes and scope[v].tile > 1]
        while v := next((v for v in rows if self.strides.in_tile(a, v) == length), None):
            length *= scope[v].tile
        return length

    def distinct_loads(self, a: Access, axes: frozenset[str], scope: Scope, unrolled: Mapping[str, int]) -> float:
        """Return the elements or vectors that a tile over `axes` loads in `unrolled` iterations.

        Equal ones are loaded once, as far as the registers hold those of one iteration until the next.
        """
        offsets, others = {0}, 1
        for v in (*axes, *unrolled):
            r = scope[v]
            n = axis_count(r) * unrolled.get(v, 1) if v in axes else unrolled[v]
            step = self.strides.in_tile(a, v) if v in axes else self.strides.step(a, v)
            if step is None or len(offsets) * n > MAX_COUNTED_OFFSETS:
                others *= n
            else:
                offsets = {o + step * (r.lanes or 1) * k for o in offsets for k in range(n)}
        distinct, live = len(offsets) * others, self.count(axes, scope)
        repeated = live * prod(unrolled.values()) - distinct
        return distinct + repeated * min(1.0, max(0.0, 1 - self.free_registers / live))

    # axes

    def expr_axes(self, e: Expr, scope: Scope) -> frozenset[str]:
        """Return the tiled loops that a value varies over."""
        axes = [self.name_axes(name, scope) for name in e.used_names]
        return frozenset().union(*axes, *(self.index_axes(x.index, x.buffer, scope) for x in e.loads))

    def index_axes(self, index: Iterable[Dim], buffer: str, scope: Scope) -> frozenset[str]:
        """Return the tiled loops that the accessed element varies over."""
        names = {name for d in index for name in variables(d)} | self.accesses.local_scopes.get(buffer, frozenset())
        return frozenset().union(*(self.name_axes(name, scope) for name in names))

    def name_axes(self, name: str, scope: Scope) -> frozenset[str]:
        """Return the tiled loops that a loop variable or bound value varies over."""
        if name in scope:
            return frozenset({name} if is_axis(scope[name]) else ())
        return self.value_axes.get(name, frozenset()) & scope.keys()

    def varying_loops(self, e: Load) -> set[str]:
        """Return the loops that the address of `e` depends on."""
        names = {n for d in e.index for n in variables(d)} | self.accesses.local_scopes.get(e.buffer, frozenset())
        return names.union(*(self.accesses.loops_by_name.get(n, frozenset()) for n in names))

    def count(self, axes: Iterable[str], scope: Scope) -> int:
        """Return the registers of a tile over `axes`."""
        return prod(axis_count(scope[v]) for v in axes)

    def lane_count(self, axes: Iterable[str], scope: Scope) -> int:
        """Return the lanes of the vectors of a tile over `axes`; 0 if it has none."""
        return next((scope[v].lanes for v in axes if scope[v].lanes), 0)


def is_apart(r: Range) -> bool:
    """Return True if generated code has every iteration of a loop without lanes apart."""
    return not r.lanes and max(r.unroll, 1) >= trip_count_hint(r)


def call_cost(e: PrimitiveCall, machine: Machine) -> int:
    """Return the cost of a call in multiply-adds: beside a constant, one comparison finds the maximum and NaN.

    LLVM multiplies by the reciprocal of a power of two.
    """
    if not e.dtype.is_float:  # no NaN
        return scalar.PRIMITIVES[e.primitive].cost
    if e.primitive == "div" and isinstance(y := e.operands[1], Const) and abs(frexp(y.value)[0]) == 0.5:
        return operation_cost("mul", machine)
    with_constant = e.primitive in ("min", "max") and any(isinstance(x, Const) for x in e.operands)
    return CONSTANT_BOUND_OPS if with_constant else operation_cost(e.primitive, machine)


def is_sum(e: Expr) -> bool:
    """Return True for a sum or difference."""
    return isinstance(e, PrimitiveCall) and e.primitive in ("add", "sub")


def is_negation(e: Expr) -> bool:
    """Return True for the product with -1, as transforms of convolutions have it."""
    if not isinstance(e, PrimitiveCall) or e.primitive != "mul":
        return False
    return any(isinstance(x, Const) and x.value == -1 for x in e.operands)


def is_axis(r: Range) -> bool:
    """Return True if a loop takes several iterations at once."""
    return r.tile > 1 or r.lanes > 0


def axis_count(r: Range) -> int:
    """Return the registers along a tiled loop."""
    return -(-r.tile // r.lanes) if r.lanes else r.tile


def unrolled_part(ranges: Iterable[Range]) -> tuple[dict[str, int], int, int]:
    """Return the iterations of each nested loop in straight code, their product, and the iterations of all loops."""
    unrolled: dict[str, int] = {}
    points, trips = 1, 1
    for r in reversed(tuple(ranges)):
        factor = min(r.unroll, trip_count_hint(r)) if points == trips else 1
        trips *= trip_count_hint(r)
        points *= factor
        if factor > 1:
            unrolled[r.var] = factor
    return unrolled, points, trips


def writes(body: Block) -> bool:
    """Return True if a loop with this body writes memory or prefetches, which keeps loads inside it."""
    return any(isinstance(s, (Store, Prefetch)) for s in walk(body))
