"""Tile IR -> LLVM IR text: one module per kernel, defining `void @name(ptr param..., ptr status)`.

A kernel with parallel loops hands its body to the OpenMP runtime through `GOMP_parallel`; each thread takes one consecutive share
of the steps (see compiler.ir.team), and inside its share runs every loop by itself.  Codegen decides nothing about tiles,
lanes or threads: it reads them off the loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

from compiler.codegen.llvm.addresses import size_param_name
from compiler.codegen.llvm.builder import IRBuilder, first_lanes_mask, literal, llvm_type
from compiler.codegen.llvm.expressions import ExprEmitter, tile_coords
from compiler.codegen.llvm.primitives import emit_primitive, intrinsic_suffix
from compiler.codegen.llvm.scope import BoundValue, CodegenScope, StorageBuffer, trip_count
from compiler.codegen.llvm.thread_partition import delinearize_step, reuse_thread_scratch
from compiler.codegen.target import Target
from compiler.ir import scalar
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.scalar import PrimitiveCall, Ref
from compiler.ir.symbolic.index_expr import Dim, ceildiv, interval, product, substitute, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import (
    Block,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    has_partial_tile,
)
from compiler.ir.tile.thread_sync import barrier_points, is_parallelizable
from compiler.ir.tile.uses import used_names
from compiler.ir.types import DType, boolean, i64

CarriedValues = list[str]


def emit_kernel(kernel: Kernel, target: Target) -> str:
    """LLVM IR text of the module for `kernel`."""
    work = KernelEmitter(kernel, target)
    work.emit()
    return work.module_text()


class KernelEmitter:
    """Writes the function that does the work, then the entry that starts it on every thread."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target = kernel, target
        self.aliased_params = {name for pair in aliasable_pairs(kernel) for name in pair}
        self.sizes = [size_param_name(s) for s in kernel_dynamic_sizes(kernel)]
        self.b = IRBuilder()
        self.parallel = is_parallelizable(kernel)
        self.barrier_points = barrier_points(kernel) if self.parallel else frozenset()
        # of local buffers; rows that are written out again use them again
        self.local_allocas: dict[tuple[object, ...], tuple[str, int]] = {}
        self.failed_flag = ""  # where a thread remembers that a check failed
        self.has_nontemporal_stores = any(
            isinstance(s, Store) and s.nontemporal is not None for s in tile.walk(kernel.body)
        )

    def emit(self) -> None:
        scope = CodegenScope()
        for k, p in enumerate(self.kernel.params):
            scope.buffers[p.name] = StorageBuffer(
                f"%p{k}", p.type, is_writable=p.is_written, is_aligned=p.role in ("out", "scratch")
            )
        self.emit_block(self.kernel.body, ExprEmitter(self.b, scope))
        self.emit_status()
        if self.has_nontemporal_stores and self.target.triple.startswith("x86"):
            self.b.intrinsic("void", "llvm.x86.sse.sfence")

    # statements

    def emit_block(self, body: Block, ev: ExprEmitter) -> None:
        """Emit statements in order; values bound by Let wait until they are needed."""
        outermost = body is self.kernel.body
        for k, stmt in enumerate(body):
            if outermost and k in self.barrier_points:
                self.emit_barrier()
            if isinstance(stmt, (For, Reduce)):
                read = used_names(stmt)
                for name in [n for n in ev.scope.values if n in read]:  # a set has another order in every process
                    ev.materialize(name)
            if outermost and self.parallel and isinstance(stmt, For) and stmt.parallel:
                self.emit_worksharing_loop(stmt, ev)
            else:
                self.emit_stmt(stmt, ev)
            ev.memo = {k: v for k, v in ev.memo.items() if k[0] == "pointer"}

    def emit_barrier(self) -> None:
        """Wait for the other threads, if there are any."""
        self.b.switch("%threads", 2, lambda count: self.b.intrinsic("void", "GOMP_barrier") if count > 1 else None)

    def emit_stmt(self, stmt: Stmt, ev: ExprEmitter) -> None:
        if isinstance(stmt, Let):
            ev.bind_lazily(stmt.name, stmt.value)
            if any(ev.scope.buffers[e.buffer].is_writable for e in stmt.value.loads):
                ev.materialize(stmt.name)
        elif isinstance(stmt, Store):
            self.emit_store(stmt, ev)
        elif isinstance(stmt, Local):
            most = interval(product(stmt.type.physical_shape), {})
            assert most is not None, f"%{stmt.buffer}: {stmt.type} has no greatest size"
            private = tuple(ev.scope.axes.values())
            count = most[1] * prod(a.tile for a in private)
            key = id(stmt), tuple((a.var, a.tile, bool(a.remaining)) for a in private if a.lanes)
            if self.local_allocas.get(key, ("", -1))[1] < count:
                self.local_allocas[key] = self.b.alloca_array(count, stmt.type.dtype), count
            ev.scope.buffers[stmt.buffer] = StorageBuffer(
                self.local_allocas[key][0], stmt.type, private, is_writable=True
            )
        elif isinstance(stmt, BoundsCheck):
            self.emit_check(stmt, ev)
        elif isinstance(stmt, Prefetch):
            axes = ev.scope.in_scope_order({a for d in stmt.index for a in ev.scope.varying_axes(d)})
            if stmt.applies_to(prod(a.tile for a in ev.scope.axes.values() if a.var not in axes)):
                ev.emit_prefetch(stmt, tile_coords(ev.scope, axes))
        elif isinstance(stmt, Reduce):
            self.emit_reduce(stmt, ev)
        else:
            self.emit_loop(stmt.range, ev, [], partial(self.run_body, stmt.body))

    def run_body(self, body: Block, ev: ExprEmitter, carried: CarriedValues) -> CarriedValues:
        """The statements of a loop that carries no values."""
        self.emit_block(body, ev)
        return carried

    def emit_store(self, stmt: Store, ev: ExprEmitter) -> None:
        private = {a.var for a in ev.scope.buffers[stmt.buffer].private_axes}
        place: set[str] = set(private) | set(ev.axes(stmt.value))
        for d in stmt.index:
            place |= set(ev.scope.varying_axes(d))
        ev.emit_store(stmt.buffer, stmt.index, stmt.value, ev.scope.in_scope_order(place), stmt.nontemporal)

    def emit_check(self, stmt: BoundsCheck, ev: ExprEmitter) -> None:
        """Note whether the value is out of range, without a branch; `report` tells the caller once, at the end."""
        bound = ev.scope.values[stmt.name]
        value = Ref(bound.dtype, stmt.name).to(i64)
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
                flag = self.b.emit(f"and {flags} {flag}, {mask}") if mask else flag
                flag = self.b.intrinsic("i1", f"llvm.vector.reduce.or.v{lanes}i1", (flags, flag))
            before = self.b.emit(f"load i1, ptr {self.failed_flag}, align 1")
            self.b.emit_void(f"store i1 {self.b.emit(f'or i1 {before}, {flag}')}, ptr {self.failed_flag}, align 1")

    def emit_status(self) -> None:
        """Set the status word if a check has failed on this thread; it may be read by others, so nothing else is written."""
        if not self.failed_flag:
            return
        failed = self.b.emit(f"load i1, ptr {self.failed_flag}, align 1")
        ignored = self.b.alloca("i32, align 4")
        where = self.b.emit(f"select i1 {failed}, ptr %status, ptr {ignored}")
        self.b.emit_void(f"store i32 1, ptr {where}, align 4")

    # loops

    def emit_loop(
        self,
        r: Range,
        ev: ExprEmitter,
        carried: list[tuple[str, str]],
        body: Callable[[ExprEmitter, CarriedValues], CarriedValues],
    ) -> CarriedValues:
        """Run `body` for every step of `r`, `unroll` steps per jump, passing carried values along."""
        if not isinstance(r.extent, int):
            return self.emit_dynamic_loop(r, ev, carried, body)
        trips = trip_count(r)
        if trips == 0:
            return [v for _, v in carried]
        assert isinstance(trips, int)
        assert r.extent % r.tile == 0, f"%{r.var}: a partial tile is left; run peel first"
        unroll = max(1, min(r.unroll, trips))
        main, rest = divmod(trips, unroll)
        values = [v for _, v in carried]

        def steps(counter: Dim, count: int, values: CarriedValues, scope: CodegenScope) -> CarriedValues:
            for u in range(count):
                inner = ExprEmitter(self.b, scope.inner(), self._pointer_memo(ev))
                inner.scope.enter_loop(r, counter + u)
                values = body(inner, values)
            return values

        if main > 1:
            name = f"{r.var}#{self.b.fresh_name('n')[1:]}"

            def jump(counter: str, current: list[str]) -> list[str]:
                scope = ev.scope.inner()
                scope.ssa_names[name] = counter
                scope.bounds[name] = (0, main - 1)
                return steps(var(name) * unroll, unroll, current, scope)

            types = [t for t, _ in carried]
            values = self.b.loop("0", str(main), 1, list(zip(types, values, strict=True)), jump)
        else:
            values = steps(0, unroll * main, values, ev.scope)
        return steps(main * unroll, rest, values, ev.scope) if rest else values

    def emit_dynamic_loop(
        self,
        r: Range,
        ev: ExprEmitter,
        carried: list[tuple[str, str]],
        body: Callable[[ExprEmitter, CarriedValues], CarriedValues],
    ) -> CarriedValues:
        """A loop of as many steps as sizes or the loops around it say, perhaps none; the last tile may be partial."""
        trips = substitute(trip_count(r), ev.scope.affine_forms, ev.scope.bounds)
        name, known = f"{r.var}#{self.b.fresh_name('n')[1:]}", interval(trips, ev.scope.bounds)

        def step(counter: str, current: CarriedValues) -> CarriedValues:
            inner = ExprEmitter(self.b, ev.scope.inner(), self._pointer_memo(ev))
            inner.scope.ssa_names[name] = counter
            if not variables(trips):
                inner.scope.bounds[name] = (0, trips - 1)
            if has_partial_tile(r):
                assert not carried, f"%{r.var}: a partial tile is left; run peel first"
                self.emit_partial_tile(r, var(name), inner, lambda part: body(part, []))
                return []
            inner.scope.enter_loop(r, var(name), self.remaining_indices(r, var(name), inner))
            return body(inner, current)

        may_be_empty = known is None or known[0] < 1
        return self.b.loop("0", ev.emit_resolved_index(trips, {}, None), 1, carried, step, may_be_empty=may_be_empty)

    @staticmethod
    def remaining_indices(r: Range, counter: Dim, ev: ExprEmitter) -> str:
        """How many indices of `r` are left from tile `counter` on, where the tile may be partial."""
        if r.extent % r.tile == 0:
            return ""
        return ev.emit_resolved_index(ev.scope.resolve(r.extent) - counter * r.tile, {}, None)

    @staticmethod
    def _pointer_memo(ev: ExprEmitter) -> dict[tuple[object, ...], str]:
        return {k: v for k, v in ev.memo.items() if k[0] == "pointer"}

    def emit_worksharing_loop(self, stmt: For, ev: ExprEmitter) -> None:
        """Parallel loops nested directly: one run of steps, of which this thread takes its share."""
        nest: list[Range] = []
        body: Block = (stmt,)
        while len(body) == 1 and isinstance(body[0], For) and body[0].parallel:
            nest.append(body[0].range)
            body = body[0].body
        trips = [trip_count(r) for r in nest]
        counts = [ev.emit_resolved_index(n, {}, None) for n in trips]
        if product(trips) == 0:
            return
        total = ev.emit_resolved_index(product(trips), {}, None)
        start = self._chunk_start("%thread", total)
        stop = self._chunk_start(self.b.emit("add i64 %thread, 1"), total)
        scratch = [p for p in self.kernel.params if p.role == "scratch"]
        first = delinearize_step(self.b, ev.scope, nest, counts, start) if scratch else []

        def step(counter: str, _: list[str]) -> list[str]:
            inner = ExprEmitter(self.b, ev.scope.inner())
            numbers = delinearize_step(self.b, inner.scope, nest, counts, counter)
            for p in scratch:
                reuse_thread_scratch(inner.scope, p, body, nest, numbers, first)
            self.emit_nested_loops(list(zip(nest, numbers, strict=True)), inner, body)
            return []

        self.b.loop(start, stop, 1, [], step, may_be_empty=True)

    def emit_nested_loops(self, loops: list[tuple[Range, Dim]], ev: ExprEmitter, body: Block) -> None:
        """The statements of nested loops, for the tile of each that has this number."""
        if not loops:
            return self.emit_block(body, ev)
        (r, counter), *more = loops
        if has_partial_tile(r):
            return self.emit_partial_tile(r, counter, ev, lambda part: self.emit_nested_loops(more, part, body))
        ev.scope.enter_loop(r, counter, self.remaining_indices(r, counter, ev))
        return self.emit_nested_loops(more, ev, body)

    def emit_partial_tile(self, r: Range, counter: Dim, ev: ExprEmitter, body: Callable[[ExprEmitter], object]) -> None:
        """`body` for tile `counter` of a loop that may end inside it: code for every number of rows, or of vectors, that a tile may have.

        Fewer vectors are left to the last tile.  Rows are left to the last two: few rows use what they load less often.
        """
        unit, bounds = r.lanes or 1, interval(r.extent, ev.scope.bounds)
        most = min(r.tile, bounds[1]) if bounds else r.tile
        whole = ev.scope.resolve(r.extent)
        start, left, ends = counter * r.tile, ev.emit_resolved_index(whole - counter * r.tile, {}, None), ""
        if unit == 1:
            start, number = self.balance_last_tiles(r, whole, left, counter, ev)
        else:
            number = ev.emit_resolved_index(ceildiv(whole - start, unit), {}, None)
            ends = left if r.extent % unit != 0 else ""

        def some(count: int) -> None:
            part = ExprEmitter(self.b, ev.scope.inner(), self._pointer_memo(ev))
            part.scope.enter_loop(r.with_(lo=r.lo + start, tile=count * unit), 0, ends)
            body(part)

        self.b.switch(number, -(-most // unit), some)

    def balance_last_tiles(
        self, r: Range, total_rows: Dim, left: str, counter: Dim, ev: ExprEmitter
    ) -> tuple[Dim, str]:
        """Where tile `counter` begins, before which `left` of all rows are left, and how many it has: the last two have halves."""
        emit, t = self.b.emit, r.tile
        half = emit(f"lshr i64 {emit(f'add i64 {left}, 1')}, 1")
        usual = self.b.intrinsic("i64", "llvm.umin.i64", ("i64", half), ("i64", str(t)))
        second = emit(f"lshr i64 {emit(f'add i64 {left}, {t}')}, 1")
        at, total = (ev.emit_resolved_index(d, {}, None) for d in (counter * t, total_rows))
        alone = emit(f"icmp eq i64 {at}, 0")
        final = emit(f"select i1 {alone}, i64 {left}, i64 {second}")
        ends = emit(f"icmp ule i64 {left}, {t}")
        number = emit(f"select i1 {ends}, i64 {final}, i64 {usual}")
        start = emit(f"select i1 {ends}, i64 {emit(f'sub i64 {total}, {final}')}, i64 {at}")
        name = f"start#{start[1:]}"
        ev.scope.ssa_names[name] = start
        return var(name), number

    def _chunk_start(self, thread: str, total: str) -> str:
        share = self.b.emit(f"mul i64 {thread}, {total}")
        return self.b.emit(f"udiv i64 {share}, %threads")

    # reductions

    def emit_reduce(self, stmt: Reduce, ev: ExprEmitter) -> None:
        """Accumulate every coordinate of the tile by itself, then combine along the reduced axes."""
        dtype = stmt.value.dtype
        stmt = self.with_accumulators(stmt, _enter_ranges(ev.scope, stmt))
        probe = _enter_ranges(ev.scope, stmt)
        own = {r.var for r in stmt.ranges if r.var in probe.axes}
        axes = probe.in_scope_order(own | self._value_axes(stmt, probe))
        places = tile_coords(probe, axes)
        lane = probe.lane_axis(axes)
        lanes = lane.lanes if lane else 0
        across = lane if lane and lane.var in own else None
        ty = llvm_type(dtype, lanes)
        identity = literal(IDENTITIES[stmt.op](dtype), dtype)
        start = f"splat ({llvm_type(dtype)} {identity})" if lanes else identity

        def nest(ranges: tuple[Range, ...], inner: ExprEmitter, values: CarriedValues) -> CarriedValues:
            if ranges:
                typed = [(ty, v) for v in values]
                return self.emit_loop(ranges[0], inner, typed, lambda deeper, now: nest(ranges[1:], deeper, now))
            self.emit_block(stmt.body, inner)
            sums = [self._accumulate(stmt, inner, c, v, lanes) for c, v in zip(places, values, strict=True)]
            if across is None or not inner.scope.axes[across.var].remaining:
                return sums
            masks = [inner.lane_mask(None, c, lanes) or "" for c in places]
            return [self._select(m, new, old, ty, lanes) for m, new, old in zip(masks, sums, values, strict=True)]

        finals = nest(stmt.ranges, ev, [start] * len(places))
        kept = tuple(a for a in axes if a not in own)
        groups: dict[tuple[int, ...], list[str]] = {}
        for coord, value in zip(places, finals, strict=True):
            inside = across.active_lanes(coord[across.var]) if across else lanes
            whole = value if inside == lanes else self._select(first_lanes_mask(inside, lanes), value, start, ty, lanes)
            groups.setdefault(tuple(coord[a] for a in kept), []).append(whole)
        elements = {}
        for key, parts in groups.items():
            joined = self._combine_tree(stmt.op, dtype, parts, lanes)
            elements[key] = self._reduce_lanes(stmt.op, dtype, joined, lanes) if across else joined
        ev.scope.values[stmt.name] = BoundValue(dtype, kept, elements)

    def with_accumulators(self, stmt: Reduce, probe: CodegenScope) -> Reduce:
        """As many steps of the last range in a tile as its chains allow beside the sums that grow anyway."""
        *outer, last = stmt.ranges
        if last.accumulators == 1 or not isinstance(last.extent, int):
            return stmt
        most = max(1, last.accumulators // len(tile_coords(probe, probe.in_scope_order(self._value_axes(stmt, probe)))))
        accumulators = next(n for n in range(most, 0, -1) if last.extent % n == 0)
        return replace(stmt, ranges=(*outer, last.with_(tile=accumulators)))

    def _select(self, mask: str, value: str, other: str, ty: str, lanes: int) -> str:
        """Lanes of `value` where the mask holds, of `other` elsewhere."""
        return self.b.emit(f"select {llvm_type(boolean, lanes)} {mask}, {ty} {value}, {ty} {other}")

    def _value_axes(self, stmt: Reduce, scope: CodegenScope) -> set[str]:
        """The axes the reduced value varies over; bindings inside the body are looked through."""
        ev = ExprEmitter(IRBuilder(), scope)

        def declare(body: Block) -> None:
            for s in body:
                if isinstance(s, Let):
                    ev.bind_lazily(s.name, s.value)
                elif isinstance(s, Local):
                    scope.buffers[s.buffer] = StorageBuffer("", s.type, tuple(scope.axes.values()))
                elif isinstance(s, Reduce):
                    scope.values[s.name] = BoundValue(
                        s.value.dtype, scope.in_scope_order(self._value_axes(s, _enter_ranges(scope, s)))
                    )

        declare(stmt.body)
        own = {r.var for r in stmt.ranges}
        return {a for a in ev.axes(stmt.value) if a not in own}

    def _accumulate(self, stmt: Reduce, ev: ExprEmitter, coord: dict[str, int], total: str, lanes: int) -> str:
        """One more term; a product added in floating point is rounded once where the target has an instruction for it."""
        value = stmt.value
        ty = llvm_type(value.dtype, lanes)
        wide = value.dtype.is_float and not value.dtype.is_half
        if stmt.op == "add" and wide and isinstance(value, PrimitiveCall) and value.primitive == "mul":
            x, y = (ev.emit_element(a, coord, lanes) for a in value.operands)
            return self.b.intrinsic(
                ty, f"llvm.fmuladd.{intrinsic_suffix(value.dtype, lanes)}", (ty, x), (ty, y), (ty, total)
            )
        return self._combine(stmt.op, value.dtype, total, ev.emit_element(value, coord, lanes), lanes)

    def _combine(self, op: str, dtype: DType, x: str, y: str, lanes: int) -> str:
        operand = Ref(dtype, "")
        return emit_primitive(self.b, PrimitiveCall(dtype, op, (operand, operand)), [x, y], lanes)

    def _combine_tree(self, op: str, dtype: DType, parts: list[str], lanes: int) -> str:
        """Pairwise, so that the chain of dependent steps is short."""
        while len(parts) > 1:
            pairs = [self._combine(op, dtype, a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
        return parts[0]

    def _reduce_lanes(self, op: str, dtype: DType, vector: str, lanes: int) -> str:
        """Combine the lanes of one register by halving it."""
        half = lanes
        while half > 1:
            ty = llvm_type(dtype, half)
            half //= 2
            low, high = (
                self.b.emit(
                    f"shufflevector {ty} {vector}, {ty} poison, <{half} x i32> <{', '.join(f'i32 {k}' for k in part)}>"
                )
                for part in (range(half), range(half, 2 * half))
            )
            vector = self._combine(op, dtype, low, high, half)
        return self.b.emit(f"extractelement {llvm_type(dtype, 1)} {vector}, i64 0")

    # the module

    def module_text(self) -> str:
        """The finished module."""
        n = len(self.kernel.params)
        name = self.kernel.name
        attrs = f'"target-cpu"="{self.target.cpu}" "target-features"="{self.target.features}" "prefer-vector-width"="{self.target.vector_bits}" nounwind'
        noalias = [("noalias " if self._is_noalias(k) else "") for k in range(n)]
        params = [f"ptr {noalias[k]}%p{k}" for k in range(n)] + [f"i64 {s}" for s in self.sizes] + ["ptr %status"]
        lines = [f'target triple = "{self.target.triple}"', ""]
        work_params = ", ".join([*params, "i64 %thread", "i64 %threads"] if self.parallel else params)
        work_name = f"{name}.work" if self.parallel else name
        lines += [f"define {'internal ' if self.parallel else ''}void @{work_name}({work_params}) {'noinline ' if self.parallel else ''}#0 {{",
                  "entry:", *self.b.allocas, *self.b.lines, "  ret void", "}", ""]  # fmt: skip
        if self.parallel:
            lines += self._parallel_entry(name, n)
        lines += sorted(self.b.declarations)
        lines += ["", f"attributes #0 = {{ {attrs} }}", "!0 = !{i32 1}"]
        return "\n".join(lines) + "\n"

    def _is_noalias(self, k: int) -> bool:
        """Whether no other parameter can be the same memory: one that is updated, or an input written over."""
        roles = {p.role for p in self.kernel.params}
        param = self.kernel.params[k]
        return param.name not in self.aliased_params and (param.role in ("const", "out") or "inout" not in roles)

    def _serial_fallback(self, call: str) -> list[str]:
        """Leave the work to the calling thread where there is too little of it."""
        if self.kernel.parallel_condition == 0:
            return []
        b = IRBuilder()
        flag = b.emit(
            f"icmp slt i64 {ExprEmitter(b, CodegenScope()).emit_resolved_index(self.kernel.parallel_condition, {}, None)}, 0"
        )
        b.emit_void(f"br i1 {flag}, label %alone, label %together")
        return [*b.lines, "alone:", call, "  ret void", "together:"]

    def _parallel_entry(self, name: str, n: int) -> list[str]:
        values = [*(f"ptr %p{k}" for k in range(n)), *(f"i64 {s}" for s in self.sizes), "ptr %status"]
        frame = f"[{len(values)} x ptr]"
        pack, unpack = [], []
        for k, value in enumerate(values):
            kind, source = value.split()
            pack += [
                f"  %s{k} = getelementptr {frame}, ptr %frame, i64 0, i64 {k}",
                f"  store {value}, ptr %s{k}, align 8",
            ]
            unpack += [
                f"  %s{k} = getelementptr {frame}, ptr %frame, i64 0, i64 {k}",
                f"  {source} = load {kind}, ptr %s{k}, align 8",
            ]
        arguments = ", ".join(values)
        return [
            f"define internal void @{name}.thread(ptr %frame) #0 {{",
            *unpack,
            "  %id = call i32 @omp_get_thread_num()",
            "  %count = call i32 @omp_get_num_threads()",
            "  %thread = sext i32 %id to i64",
            "  %threads = sext i32 %count to i64",
            f"  call void @{name}.work({arguments}, i64 %thread, i64 %threads)",
            "  ret void",
            "}",
            "",
            f"define void @{name}({arguments}) #0 {{",
            "entry:",
            f"  %frame = alloca {frame}, align 8",
            *self._serial_fallback(f"  call void @{name}.work({arguments}, i64 0, i64 1)"),
            *pack,
            f"  call void @GOMP_parallel(ptr @{name}.thread, ptr %frame, i32 0, i32 0)",
            "  ret void",
            "}",
            "",
            "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
            "declare i32 @omp_get_thread_num()",
            "declare i32 @omp_get_num_threads()",
        ]


def _enter_ranges(scope: CodegenScope, stmt: Reduce) -> CodegenScope:
    inner = scope.inner()
    for r in stmt.ranges:
        inner.enter_loop(r, 0)
    return inner
