"""Tile IR -> LLVM IR text: one module per kernel, defining `void @name(ptr param..., i64 size..., ptr frame)`.

A kernel with parallel loops is emitted as one function for each phase (see compiler.ir.tile.thread_sync): threads that take part
claim contiguous chunks of the iterations until none is left.  Tiles, lanes, phases, partial tiles and accumulators are those that
the loops state; code generation decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TypeAlias

from compiler.codegen.llvm.addresses import PrefetchedLines
from compiler.codegen.llvm.builder import IRBuilder, first_lanes_mask, intrinsic_suffix, literal, llvm_type
from compiler.codegen.llvm.debug_info import FIRST_SCOPE, DebugInfo
from compiler.codegen.llvm.expressions import ExprEmitter
from compiler.codegen.llvm.kernel_module import NEXT_CHUNK, PhaseBody, parallel_module, serial_module
from compiler.codegen.llvm.primitives import (
    combine_pairwise,
    emit_binary,
    emit_dot_instruction,
    reduce_lanes,
    require_primitives,
    splat_constant,
)
from compiler.codegen.llvm.scope import BoundValue, CodegenScope, StorageBuffer, tile_coords
from compiler.codegen.llvm.targets import CPUTarget
from compiler.codegen.llvm.thread_partition import delinearize_step, emit_iterations, reuse_thread_scratch
from compiler.errors import PartialTileError, TargetError
from compiler.ir import scalar
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.scalar import PrimitiveCall, Ref
from compiler.ir.symbolic.index_expr import Dim, ceildiv, interval, product, substitute, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import pairs_operands
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Range, Reduce, Stmt, Store, has_partial_tile
from compiler.ir.tile.loop_nest import perfect_parallel_nest, trip_count
from compiler.ir.tile.thread_sync import is_parallelizable, parallel_phases
from compiler.ir.tile.uses import used_names
from compiler.ir.types import boolean, i64

CarriedValues: TypeAlias = list[str]
"""SSA values of the accumulators that a loop carries."""

BodyEmitter: TypeAlias = Callable[[ExprEmitter, CarriedValues], CarriedValues]
"""Emits one iteration: takes the carried values and returns the updated ones."""


def emit_kernel(kernel: Kernel, target: CPUTarget, debug: DebugInfo | None = None) -> str:
    """Return the LLVM IR text of the module for `kernel`; with `debug`, instructions know their lines of Tile IR."""
    require_primitives(kernel, target)
    if not is_parallelizable(kernel):
        return serial_module(kernel, target, KernelEmitter(kernel, target, debug).emit(kernel.body), debug)
    phases = [
        emit_phase(KernelEmitter(kernel, target, debug, k), phase) for k, phase in enumerate(parallel_phases(kernel))
    ]
    return parallel_module(kernel, target, phases, debug)


def emit_phase(emitter: KernelEmitter, phase: Block) -> PhaseBody:
    """Emit one phase of a parallel kernel."""
    loops = [perfect_parallel_nest((s,)) for s in phase if tile.is_parallel_loop(s)]
    steps = tuple(product(trip_count(f.range) for f in nest) for nest in loops)
    return PhaseBody(emitter.emit(phase, shared=True), steps)


class KernelEmitter:
    """Emits statements of one kernel into the builder `b`, the body of its function number `function`."""

    def __init__(self, kernel: Kernel, target: CPUTarget, debug: DebugInfo | None = None, function: int = 0) -> None:
        self.kernel, self.target = kernel, target
        self.lines = debug.lines if debug else None
        scope = FIRST_SCOPE + function if debug else 0
        self.b = IRBuilder(target.byte_permutation, target.emulated, scope=scope)
        # (pointer, elements) of the stack memory of each local buffer; all unrolled copies of a tile.Local share it
        self.local_allocas: dict[tuple[object, ...], tuple[str, int]] = {}
        self.failed_flag = (
            ""  # pointer to this thread's i1 that records a failed bounds check; empty before the first check
        )

    def emit(self, body: Block, shared: bool = False) -> IRBuilder:
        """Emit `body`, then the status store and the fence that non-temporal stores need on x86; return the builder.

        With `shared`, threads share the iterations of its parallel loops, which follow all other statements.
        """
        scope = CodegenScope(has_mask_registers=self.target.has_mask_registers)
        for k, p in enumerate(self.kernel.params):
            scope.buffers[p.name] = StorageBuffer(
                f"%p{k}", p.type, is_writable=p.is_written, is_aligned=p.role in ("out", "scratch")
            )
        ev = ExprEmitter(self.b, scope)
        loops = [s for s in body if tile.is_parallel_loop(s)] if shared else []
        self.emit_block(body[: len(body) - len(loops)], ev)
        if loops:
            self.emit_shared_loops(loops, ev)
        self.b.line = 1  # of the kernel itself
        self.emit_status()
        streams = any(isinstance(s, Store) and s.nontemporal is not None for s in tile.walk(body))
        if streams and self.target.triple.startswith("x86"):
            self.b.intrinsic("void", "llvm.x86.sse.sfence")
        self.b.emit_void("ret void")
        return self.b

    # statements

    def emit_block(self, body: Block, ev: ExprEmitter) -> None:
        """Emit statements in order; a Let is emitted at its first use, or before the next loop that uses it."""
        outer = self.b.line
        for stmt, line in self.numbered(body):
            self.b.line = line
            if isinstance(stmt, (For, Reduce)):
                ev.materialize_used(used_names(stmt))
            self.emit_stmt(stmt, ev)
            ev.memo = ev.pointer_memo()
        self.b.line = outer

    def numbered(self, body: Block) -> Iterable[tuple[Stmt, int]]:
        """Return statements of the loop that is being emitted, with their lines; all 0 without debug information."""
        return self.lines.in_block(body, self.b.line) if self.lines else ((s, 0) for s in body)

    def emit_stmt(self, stmt: Stmt, ev: ExprEmitter) -> None:
        """Emit one statement that is not a worksharing loop."""
        if isinstance(stmt, Let):
            ev.bind_lazily(stmt.name, stmt.value)
            if any(ev.scope.buffers[e.buffer].is_writable for e in stmt.value.loads):
                ev.materialize(stmt.name)
        elif isinstance(stmt, Store):
            self.emit_store(stmt, ev)
        elif isinstance(stmt, tile.Local):
            private = tuple(ev.scope.axes.values())
            buffer = StorageBuffer("", stmt.type, private, is_writable=True, is_local=True)
            bounds = interval(buffer.copy_stride, {})
            assert bounds is not None, f"%{stmt.buffer}: {stmt.type} has no upper bound"
            count = bounds[1] * prod(a.stored_elements for a in private)
            key = id(stmt), tuple((a.var, a.tile, bool(a.remaining)) for a in private if a.lanes)
            if self.local_allocas.get(key, ("", -1))[1] < count:
                self.local_allocas[key] = self.b.alloca_array(count, stmt.type.dtype), count
            ev.scope.buffers[stmt.buffer] = replace(buffer, pointer=self.local_allocas[key][0])
        elif isinstance(stmt, tile.BoundsCheck):
            self.emit_check(stmt, ev)
        elif isinstance(stmt, tile.Prefetch):
            axes = ev.scope.in_scope_order({a for d in stmt.index for a in ev.scope.varying_axes(d)})
            if stmt.applies_to(prod(a.tile for a in ev.scope.axes.values() if a.var not in axes)):
                ev.emit_prefetch(stmt, tile_coords(ev.scope, axes))
        elif isinstance(stmt, Reduce):
            self.emit_reduce(stmt, ev)
        elif isinstance(stmt, For):
            self.emit_loop(stmt.range, ev, [], partial(self.run_body, stmt.body))
        else:
            raise TargetError(f"@{self.kernel.name}: CPUs do not copy asynchronously; run lower-async-copies")

    def run_body(self, body: Block, ev: ExprEmitter, carried: CarriedValues) -> CarriedValues:
        """Emit the statements of a loop that carries no values."""
        self.emit_block(body, ev)
        return carried

    def emit_store(self, stmt: Store, ev: ExprEmitter) -> None:
        """Store the tile of a value: over the axes of its value, its index, and its privatized buffer."""
        axes = {a.var for a in ev.scope.buffers[stmt.buffer].private_axes} | set(ev.axes(stmt.value))
        axes.update(a for d in stmt.index for a in ev.scope.varying_axes(d))
        narrowing = self.target.narrowing_instructions(stmt.value.dtype, ev.lanes(stmt.value))
        ev.emit_store(stmt.buffer, stmt.index, stmt.value, ev.scope.in_scope_order(axes), stmt.nontemporal, narrowing)

    def emit_check(self, stmt: tile.BoundsCheck, ev: ExprEmitter) -> None:
        """Record, without a branch, if the value is out of range; `emit_status` reports it once, at the end."""
        value = Ref(ev.scope.values[stmt.name].dtype, stmt.name).to(i64)
        bad = (value < scalar.index_value(stmt.low)) | (value >= scalar.index_value(stmt.high))
        if not self.failed_flag:
            self.failed_flag = self.b.alloca("i1, align 1")
            self.b.allocas.append(f"  store i1 false, ptr {self.failed_flag}, align 1")
        for coord in tile_coords(ev.scope, ev.axes(bad)):
            lanes = ev.lanes(bad)
            flag = ev.emit_element(bad, coord)
            if lanes:
                mask = ev.lane_mask(None, coord, lanes)
                flags = llvm_type(boolean, lanes)
                flag = self.b.any_lane(self.b.emit(f"and {flags} {flag}, {mask}") if mask else flag, lanes)
            before = self.b.emit(f"load i1, ptr {self.failed_flag}, align 1")
            self.b.emit_void(f"store i1 {self.b.emit(f'or i1 {before}, {flag}')}, ptr {self.failed_flag}, align 1")

    def emit_status(self) -> None:
        """Set the status word, the first of the frame, if a check failed on this thread.

        Never clears it: other threads may have set it.
        """
        if not self.failed_flag:
            return
        failed = self.b.emit(f"load i1, ptr {self.failed_flag}, align 1")
        ignored = self.b.alloca("i32, align 4")
        status = self.b.emit(f"select i1 {failed}, ptr %frame, ptr {ignored}")
        self.b.emit_void(f"store i32 1, ptr {status}, align 4")

    # loops

    def emit_loop(self, r: Range, ev: ExprEmitter, carried: list[tuple[str, str]], body: BodyEmitter) -> CarriedValues:
        """Emit a loop over the tiles of `r`, unrolled `r.unroll` times.

        `carried` holds the LLVM type and initial value of each carried value; their final values are returned.
        """
        if not isinstance(r.extent, int):
            return self.emit_dynamic_loop(r, ev, carried, body)
        trips = trip_count(r)
        if trips == 0:
            return [v for _, v in carried]
        assert isinstance(trips, int)
        if r.extent % r.tile:
            raise PartialTileError(r)
        unroll = max(1, min(r.unroll, trips))
        main, remainder = divmod(trips, unroll)
        values = [v for _, v in carried]

        def steps(counter: Dim, count: int, values: CarriedValues, scope: CodegenScope) -> CarriedValues:
            prefetched: PrefetchedLines = []
            for u in range(count):
                inner = ExprEmitter(self.b, scope.inner(), ev.pointer_memo(), prefetched=prefetched)
                inner.scope.enter_loop(r, counter + u)
                values = body(inner, values)
            return values

        if main > 1:
            name = f"{r.var}#{self.b.fresh_name('n')[1:]}"

            def unrolled(counter: str, current: list[str]) -> list[str]:
                scope = ev.scope.inner()
                scope.ssa_names[name] = counter
                scope.bounds[name] = (0, main - 1)
                return steps(var(name) * unroll, unroll, current, scope)

            types = [t for t, _ in carried]
            values = self.b.loop("0", str(main), 1, list(zip(types, values, strict=True)), unrolled)
        else:
            values = steps(0, unroll * main, values, ev.scope)
        return steps(main * unroll, remainder, values, ev.scope) if remainder else values

    def emit_dynamic_loop(
        self, r: Range, ev: ExprEmitter, carried: list[tuple[str, str]], body: BodyEmitter
    ) -> CarriedValues:
        """Emit a loop whose trip count depends on sizes or outer loops and may be 0; its last tile may be partial."""
        trips = substitute(trip_count(r), ev.scope.affine_forms, ev.scope.bounds)
        name, trip_bounds = f"{r.var}#{self.b.fresh_name('n')[1:]}", interval(trips, ev.scope.bounds)

        def step(counter: str, current: CarriedValues) -> CarriedValues:
            inner = ExprEmitter(self.b, ev.scope.inner(), ev.pointer_memo())
            inner.scope.ssa_names[name] = counter
            if not variables(trips):
                inner.scope.bounds[name] = (0, trips - 1)
            if has_partial_tile(r):
                if carried:
                    raise PartialTileError(r)
                self.emit_partial_tile(r, var(name), inner, lambda tile_ev: body(tile_ev, []))
                return []
            inner.scope.enter_loop(r, var(name), self.remaining_indices(r, var(name), inner))
            return body(inner, current)

        may_be_empty = trip_bounds is None or trip_bounds[0] < 1
        return self.b.loop("0", ev.emit_resolved_index(trips, {}, None), 1, carried, step, may_be_empty=may_be_empty)

    @staticmethod
    def remaining_indices(r: Range, counter: Dim, ev: ExprEmitter) -> str:
        """Emit the number of indices of `r` from tile `counter` on; return "" if no tile can be partial."""
        if r.extent % r.tile == 0:
            return ""
        return ev.emit_resolved_index(ev.scope.resolve(r.extent) - counter * r.tile, {}, None)

    def emit_shared_loops(self, loops: Sequence[For], ev: ExprEmitter) -> None:
        """Emit the parallel loops of a phase for one chunk after another, until this thread can claim no more.

        A thread keeps the number of the first iteration of each loop that it ran, to which its scratch memory belongs.
        """
        lines = [line for _, line in self.numbered(tuple(loops))]
        for loop in loops:
            ev.materialize_used(used_names(loop))
        self.b.line = lines[0]

        def run_chunk(carried: CarriedValues) -> tuple[str, CarriedValues]:
            chunk, *first = carried
            inner = ExprEmitter(self.b, ev.scope.inner(), ev.pointer_memo())
            for k, (loop, self.b.line) in enumerate(zip(loops, lines, strict=True)):
                first[k] = self.emit_worksharing_loop(loop, chunk, first[k], inner)
            self.b.declarations.add(f"declare i64 @{NEXT_CHUNK}(ptr)")
            following = self.b.emit(f"call i64 @{NEXT_CHUNK}(ptr %claimer)")
            return self.b.emit(f"icmp sge i64 {following}, 0"), [following, *first]

        self.b.do_while([("i64", "%first"), *(("i64", "-1") for _ in loops)], run_chunk)

    def emit_worksharing_loop(self, stmt: For, chunk: str, first: str, ev: ExprEmitter) -> str:
        """Emit the iterations of perfectly nested parallel loops that are in `chunk`.

        `first` is the first iteration that this thread ran, -1 if none; return what it is afterwards.
        """
        loops = perfect_parallel_nest((stmt,))
        nest, body = [f.range for f in loops], loops[-1].body
        trips = [trip_count(r) for r in nest]
        counts = [ev.emit_resolved_index(n, {}, None) for n in trips]
        if product(trips) == 0:
            return first
        total = ev.emit_resolved_index(product(trips), {}, None)
        start = self._chunk_start(chunk, total)
        stop = self._chunk_start(self.b.emit(f"add i64 {chunk}, 1"), total)
        scratch = [p for p in self.kernel.params if p.role == "scratch"]
        first_numbers = list[Dim]()
        if scratch:
            is_first, has_work = self.b.emit(f"icmp slt i64 {first}, 0"), self.b.emit(f"icmp slt i64 {start}, {stop}")
            first = self.b.emit(f"select i1 {self.b.emit(f'and i1 {is_first}, {has_work}')}, i64 {start}, i64 {first}")
            first_numbers = delinearize_step(self.b, ev.scope, nest, counts, first)

        def iteration(scope: CodegenScope, numbers: list[Dim]) -> None:
            for p in scratch:
                reuse_thread_scratch(scope, p, body, nest, numbers, first_numbers)
            with self.b.at_line(self.b.line + len(nest) - 1):  # of the innermost loop
                self.emit_nested_loops(list(zip(nest, numbers, strict=True)), ExprEmitter(self.b, scope), body)

        emit_iterations(self.b, ev.scope, nest, counts, start, stop, iteration)
        return first

    def emit_nested_loops(self, loops: list[tuple[Range, Dim]], ev: ExprEmitter, body: Block) -> None:
        """Emit `body` for one tile of each loop: the tile with the paired number."""
        if not loops:
            return self.emit_block(body, ev)
        (r, counter), *more = loops
        if has_partial_tile(r):
            return self.emit_partial_tile(r, counter, ev, lambda inner: self.emit_nested_loops(more, inner, body))
        ev.scope.enter_loop(r, counter, self.remaining_indices(r, counter, ev))
        return self.emit_nested_loops(more, ev, body)

    def emit_partial_tile(self, r: Range, counter: Dim, ev: ExprEmitter, body: Callable[[ExprEmitter], object]) -> None:
        """Emit `body` for tile `counter`, which may be partial: a switch with one case per number of rows or vectors.

        Only the last tile is partial, unless the range is `balanced`.
        """
        unit, bounds = r.lanes or 1, interval(r.extent, ev.scope.bounds)
        max_rows = min(r.tile, bounds[1]) if bounds else r.tile
        extent = ev.scope.resolve(r.extent)
        start, left, remaining = counter * r.tile, ev.emit_resolved_index(extent - counter * r.tile, {}, None), ""
        if r.balanced:
            start, units = self.balance_last_tiles(r, extent, left, counter, ev)
        elif unit == 1:
            units = left  # of a full tile, any larger number
        else:
            units = ev.emit_resolved_index(ceildiv(extent - start, unit), {}, None)
            remaining = left if r.extent % unit != 0 else ""

        def case(count: int) -> None:
            inner = ExprEmitter(self.b, ev.scope.inner(), ev.pointer_memo())
            inner.scope.enter_loop(r.with_(lo=r.lo + start, tile=count * unit), 0, remaining)
            body(inner)

        self.b.switch(units, -(-max_rows // unit), case)

    def balance_last_tiles(self, r: Range, extent: Dim, left: str, counter: Dim, ev: ExprEmitter) -> tuple[Dim, str]:
        """Return the first row and the number of rows of tile `counter`, so that the last two tiles are about equal.

        `left` is the number of rows from `counter * r.tile` on, of `extent`.
        """
        emit, t = self.b.emit, r.tile
        half = emit(f"lshr i64 {emit(f'add i64 {left}, 1')}, 1")
        rows = self.b.intrinsic("i64", "llvm.umin.i64", ("i64", half), ("i64", str(t)))
        second_half = emit(f"lshr i64 {emit(f'add i64 {left}, {t}')}, 1")
        first_row, total = (ev.emit_resolved_index(d, {}, None) for d in (counter * t, extent))
        is_only_tile = emit(f"icmp eq i64 {first_row}, 0")
        last_rows = emit(f"select i1 {is_only_tile}, i64 {left}, i64 {second_half}")
        is_last = emit(f"icmp ule i64 {left}, {t}")
        number = emit(f"select i1 {is_last}, i64 {last_rows}, i64 {rows}")
        start = emit(f"select i1 {is_last}, i64 {emit(f'sub i64 {total}, {last_rows}')}, i64 {first_row}")
        name = f"start#{start[1:]}"
        ev.scope.ssa_names[name] = start
        return var(name), number

    def _chunk_start(self, chunk: str, total: str) -> str:
        """Return the first of `total` iterations that belongs to `chunk`."""
        return self.b.emit(f"udiv i64 {self.b.emit(f'mul i64 {chunk}, {total}')}, %chunks")

    # reductions

    def emit_reduce(self, stmt: Reduce, ev: ExprEmitter) -> None:
        """Keep one accumulator per coordinate (or register) of the tile, then combine along the reduced axes."""
        dtype = stmt.value.dtype
        stmt = self.with_accumulators(stmt, _enter_ranges(ev.scope, stmt))
        probe = _enter_ranges(ev.scope, stmt)
        reduced = {r.var for r in stmt.ranges if r.var in probe.axes}
        axes = probe.in_scope_order(reduced | self._value_axes(stmt, probe))
        coords = tile_coords(probe, axes)
        lane = probe.lane_axis(axes)
        lanes = lane.lanes if lane else 0
        reduced_lane = lane if lane and lane.var in reduced else None
        ty = llvm_type(dtype, lanes)
        identity = literal(IDENTITIES[stmt.op](dtype), dtype)
        start = splat_constant(identity, dtype, lanes)

        def nest(ranges: tuple[Range, ...], inner: ExprEmitter, values: CarriedValues) -> CarriedValues:
            if ranges:
                typed = [(ty, v) for v in values]
                return self.emit_loop(ranges[0], inner, typed, lambda deeper, now: nest(ranges[1:], deeper, now))
            self.emit_block(tuple(s for s in stmt.body if s not in private), inner)
            for s in private:  # computed where it is used: registers do not hold the values of all accumulators
                inner.bind_lazily(s.name, s.value)
            sums = [self._accumulate(stmt, inner, c, v, lanes) for c, v in zip(coords, values, strict=True)]
            if reduced_lane is None or not inner.scope.axes[reduced_lane.var].remaining:
                return sums
            masks = [inner.lane_mask(None, c, lanes) or "" for c in coords]
            return [self._select(m, new, old, ty, lanes) for m, new, old in zip(masks, sums, values, strict=True)]

        result_axes = tuple(a for a in axes if a not in reduced)
        private = private_values(stmt, axes, probe)
        partials = {tuple(coord[a] for a in result_axes): list[str]() for coord in coords}

        def combine(inner: ExprEmitter) -> list[str]:
            for coord, value in zip(coords, nest(stmt.ranges, inner, [start] * len(coords)), strict=True):
                if reduced_lane and (active := reduced_lane.active_lanes(coord[reduced_lane.var])) != lanes:
                    value = self._select(first_lanes_mask(active, lanes), value, start, ty, lanes)
                partials[tuple(coord[a] for a in result_axes)].append(value)
            totals = [combine_pairwise(self.b, stmt.op, dtype, values, lanes) for values in partials.values()]
            return [reduce_lanes(self.b, stmt.op, dtype, t, lanes) if reduced_lane else t for t in totals]

        extent, inner = stmt.ranges[0].extent, ExprEmitter(self.b, ev.scope.inner(), ev.pointer_memo())
        if not reduced_lane or isinstance(extent, int):
            totals = combine(ev)
        else:  # lanes of an empty part are not worth combining
            has_terms = self.b.emit(f"icmp sgt i64 {ev.emit_resolved_index(ev.scope.resolve(extent), {}, None)}, 0")
            empty = [(llvm_type(dtype), identity)] * len(partials)
            totals = self.b.conditional(has_terms, empty, lambda: combine(inner))
        ev.scope.values[stmt.name] = BoundValue(dtype, result_axes, dict(zip(partials, totals, strict=True)))

    def with_accumulators(self, stmt: Reduce, probe: CodegenScope) -> Reduce:
        """Tile the last range so that about `accumulators` independent partial results exist.

        Results of the tile around the reduction count as accumulators.  The tile divides the extent.
        """
        *outer, last = stmt.ranges
        if last.accumulators == 1 or not isinstance(last.extent, int):
            return stmt
        results = len(tile_coords(probe, probe.in_scope_order(self._value_axes(stmt, probe))))
        limit = max(1, last.accumulators // results)
        accumulators = next(n for n in range(limit, 0, -1) if last.extent % n == 0)
        return replace(stmt, ranges=(*outer, last.with_(tile=accumulators)))

    def _select(self, mask: str, value: str, other: str, ty: str, lanes: int) -> str:
        """Select lanes of `value` where the mask is true, of `other` elsewhere."""
        return self.b.emit(f"select {llvm_type(boolean, lanes)} {mask}, {ty} {value}, {ty} {other}")

    def _value_axes(self, stmt: Reduce, scope: CodegenScope) -> set[str]:
        """Return the axes that the value varies over, without the reduced ones; adds the body's names to `scope`."""
        ev = ExprEmitter(IRBuilder(), scope)

        def declare(body: Block) -> None:
            for s in body:
                if isinstance(s, Let):
                    ev.bind_lazily(s.name, s.value)
                elif isinstance(s, tile.Local):
                    scope.buffers[s.buffer] = StorageBuffer("", s.type, tuple(scope.axes.values()))
                elif isinstance(s, Reduce):
                    axes = self._value_axes(s, _enter_ranges(scope, s))
                    scope.values[s.name] = BoundValue(s.value.dtype, scope.in_scope_order(axes))

        declare(stmt.body)
        return set(ev.axes(stmt.value)) - {r.var for r in stmt.ranges}

    def _accumulate(self, stmt: Reduce, ev: ExprEmitter, coord: dict[str, int], total: str, lanes: int) -> str:
        """Combine `total` with one more term; f32 and f64 sums of products become `llvm.fmuladd`, fused if the target can.

        Sums of dot products become the target's instruction.
        """
        value = stmt.value
        ty = llvm_type(value.dtype, lanes)
        if stmt.op == "add" and isinstance(value, PrimitiveCall) and value.primitive == "dot":
            dot = self.target.dot_instruction(value.operands[0].dtype, value.operands[1].dtype, lanes)
            if dot:  # LLVM folds a broadcast from memory into the last operand alone
                operands = sorted(value.operands, key=ev.lanes, reverse=True) if dot.lhs == dot.rhs else value.operands
                args = [ev.emit_element(a, coord, lanes) for a in operands]
                return emit_dot_instruction(self.b, dot, [a.dtype for a in operands], args, total, lanes)
        is_wide = value.dtype.is_float and not value.dtype.is_reduced_float
        if stmt.op == "add" and is_wide and isinstance(value, PrimitiveCall) and value.primitive == "mul":
            x, y = (ev.emit_element(a, coord, lanes) for a in value.operands)
            name = f"llvm.fmuladd.{intrinsic_suffix(value.dtype, lanes)}"
            return self.b.intrinsic(ty, name, (ty, x), (ty, y), (ty, total))
        term = ev.emit_element(value, coord, lanes)  # first: where it is NaN, the maximum does not wait for the total
        return emit_binary(self.b, stmt.op, value.dtype, term, total, lanes)


def private_values(stmt: Reduce, axes: Iterable[str], scope: CodegenScope) -> list[Let]:
    """Return the values bound in a reduction that pairs operands of which each accumulator, over `axes`, has its own."""
    private = {name: {a.var for a in b.private_axes} for name, b in scope.buffers.items()}
    lets = [s for s in stmt.body if isinstance(s, Let)] if pairs_operands(stmt, private) else []
    return [s for s in lets if set(axes) <= set(scope.values[s.name].axes)]


def _enter_ranges(scope: CodegenScope, stmt: Reduce) -> CodegenScope:
    """Return an inner scope in which the ranges of a reduction are bound."""
    inner = scope.inner()
    for r in stmt.ranges:
        inner.enter_loop(r, 0)
    return inner
