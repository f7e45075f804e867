"""Values of expressions, one tile element (or one vector register) at a time.

An element is computed at its first use, depth first, so that a long epilogue over a large tile needs few registers.
Stored values are computed for `INTERLEAVE_COUNT` registers in an interleaved order, which hides instruction latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from compiler.codegen.llvm.addresses import PrefetchedLines
from compiler.codegen.llvm.builder import (
    constant_mask,
    first_lanes_mask,
    intrinsic_suffix,
    literal,
    llvm_type,
    memory_type,
)
from compiler.codegen.llvm.memory import MemoryEmitter, nontemporal_condition
from compiler.codegen.llvm.narrowing import narrow, packed_registers, saturated_operand
from compiler.codegen.llvm.primitives import (
    emit_primitive,
    emit_rounded_conversion,
    is_rounded_conversion,
    splat_constant,
)
from compiler.codegen.llvm.scope import (
    Axis,
    BoundValue,
    Coord,
    ElementOffset,
    StorageBuffer,
    TransposeBlock,
    tile_coords,
)
from compiler.codegen.llvm.targets import NarrowingInstructions
from compiler.codegen.llvm.transpose import interleave, min_block_columns, to_columns, to_rows
from compiler.cost.machine import CACHE_LINE_BYTES
from compiler.cost.shuffles import is_deinterleaved
from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.subexpressions import likely_subexprs
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile.kernel import Prefetch
from compiler.ir.types import boolean, i64

INTERLEAVE_COUNT = 2
"""Registers that are computed together; four gained no more when measured."""


@dataclass
class ExprEmitter(MemoryEmitter):
    """Emits the elements of expressions in one scope.

    `prefetched` holds the lines that this step of a loop and the ones unrolled before it prefetch.
    """

    prefetched: PrefetchedLines = field(default_factory=list)
    _axes: dict[int, tuple[Expr, tuple[str, ...], int]] = field(default_factory=dict)

    def axes_and_lanes(self, e: Expr) -> tuple[Expr, tuple[str, ...], int]:
        """Return `e` (which keeps it alive), its `axes` and its `lanes`, found once."""
        entry = self._axes.get(id(e))
        if entry is None:
            axes = self._find_axes(e)
            lane = self.scope.lane_axis(axes)
            entry = self._axes[id(e)] = (e, axes, lane.lanes if lane else 0)
        return entry

    def axes(self, e: Expr) -> tuple[str, ...]:
        """Return the axes that the value of `e` varies over, in scope order."""
        return self.axes_and_lanes(e)[1]

    def _find_axes(self, e: Expr) -> tuple[str, ...]:
        axes = {axis for a in e.args for axis in self.axes(a)}
        if isinstance(e, Ref):
            axes.update(self.scope.varying_axes(var(e.name)))
        elif isinstance(e, IndexValue):
            axes.update(self.scope.varying_axes(e.index))
        elif isinstance(e, Load):
            axes.update(a.var for a in self.scope.buffers[e.buffer].private_axes)
            axes.update(axis for d in e.index for axis in self.scope.varying_axes(d))
        return self.scope.in_scope_order(axes)

    def lanes(self, e: Expr) -> int:
        """Return the number of lanes of the vectors that hold `e`; 0 if it is scalar."""
        return self.axes_and_lanes(e)[2]

    def emit_element(self, e: Expr, coord: Coord, lanes: int = 0) -> str:
        """Emit element `coord` of `e`; a scalar is broadcast to `lanes` if that is not 0."""
        if isinstance(e, Const):
            return splat_constant(literal(e.value, e.dtype), e.dtype, lanes)
        _, axes, own_lanes = self.axes_and_lanes(e)
        key = (id(e), tuple([coord[a] for a in axes]))
        value = self.memo.get(key)
        if value is None:
            value = self.memo[key] = self._compute(e, coord, own_lanes)
        if not lanes or own_lanes:
            return value
        splat_key = (*key, "splat")
        if splat_key not in self.memo:
            self.memo[splat_key] = self.b.splat(llvm_type(e.dtype), value, lanes)
        return self.memo[splat_key]

    def _compute(self, e: Expr, coord: Coord, lanes: int) -> str:
        if isinstance(e, PrimitiveCall) and is_rounded_conversion(e):
            (x,) = e.operands[0].args
            return emit_rounded_conversion(self.b, e.dtype, self.emit_element(x, coord, lanes), lanes)
        if isinstance(e, PrimitiveCall) and e.primitive == "where_unlikely":
            return self._compute_unlikely(e, coord, lanes)
        if isinstance(e, PrimitiveCall):
            with self.b.hoisting(not lanes and (e.dtype.is_float or e.dtype == boolean)):
                return emit_primitive(self.b, e, [self.emit_element(a, coord, lanes) for a in e.operands], lanes)
        if isinstance(e, Ref):
            is_bound = e.name in self.scope.values
            return self.bound_element(e.name, coord) if is_bound else self.emit_index(var(e.name), coord)
        if isinstance(e, IndexValue):
            return self.emit_index(e.index, coord)
        assert isinstance(e, Load), f"cannot emit {e}"
        return self.emit_load(e, coord, lanes)

    def _compute_unlikely(self, e: PrimitiveCall, coord: Coord, lanes: int) -> str:
        """Emit a choice that branches around its unlikely value where no lane takes it; what that reads is computed before."""
        condition, unlikely, usual = e.operands
        for leaf in unlikely.subexprs:
            if not leaf.args and not isinstance(leaf, Const):
                self.emit_element(leaf, coord)
        value, flag = (self.emit_element(x, coord, lanes) for x in (usual, condition))
        ty, flags = llvm_type(e.dtype, lanes), llvm_type(boolean, lanes)

        def body() -> list[str]:
            outside, self.memo = self.memo, dict(self.memo)  # what only the branch computes is not known outside
            other = self.emit_element(unlikely, coord, lanes)
            self.memo = outside
            return [self.b.emit(f"select {flags} {flag}, {ty} {other}, {ty} {value}")]

        (result,) = self.b.conditional(self.b.any_lane(flag, lanes), [(ty, value)], body)
        return result

    def bound_element(self, name: str, coord: Coord) -> str:
        """Return an element of a bound value, computing it first if it is pending."""
        value = self.scope.values[name]
        key = tuple(coord[a] for a in value.axes)
        if key not in value.elements:
            assert value.pending is not None
            with self.b.at_line(value.line):
                value.elements[key] = self.emit_element(value.pending, coord)
        return value.elements[key]

    def bind_lazily(self, name: str, e: Expr) -> None:
        """Bind `name` to `e`, which is computed at its first use or by `materialize`."""
        self.scope.values[name] = BoundValue(e.dtype, self.axes(e), pending=e, line=self.b.line)

    def materialize(self, name: str) -> None:
        """Compute every element of a bound value at this point."""
        value = self.scope.values[name]
        if value.pending is not None:
            with self.b.at_line(value.line):
                for coord in self.interleaved_coords(value.pending, tile_coords(self.scope, value.axes)):
                    self.bound_element(name, coord)
            value.pending = None

    def materialize_used(self, names: Set[str]) -> None:
        """Compute the bound values in `names` at this point."""
        for name in [n for n in self.scope.values if n in names]:  # in binding order: a set has none
            self.materialize(name)

    def pointer_memo(self) -> dict[tuple[object, ...], str]:
        """Return the addresses in the memo, which stay valid where element values do not."""
        return {k: v for k, v in self.memo.items() if k[0] == "pointer"}

    def interleaved_coords(self, e: Expr, coords: Sequence[Coord]) -> Iterator[Coord]:
        """Yield `coords`, after computing `e` for groups of `INTERLEAVE_COUNT` of them in an interleaved order."""
        for k in range(0, len(coords), INTERLEAVE_COUNT):
            group = coords[k : k + INTERLEAVE_COUNT]
            if len(group) > 1:
                self._emit_interleaved(e, group, set())
            yield from group

    def _emit_interleaved(self, e: Expr, coords: Sequence[Coord], visited: set[str]) -> None:
        """Compute each operation of `e`, and of pending values it names, at all `coords` before the next operation."""
        for operation in likely_subexprs(e):
            if isinstance(operation, Const):
                continue
            if isinstance(operation, Ref) and operation.name not in visited:
                visited.add(operation.name)
                bound = self.scope.values.get(operation.name)
                if bound is not None and bound.pending is not None:
                    missing = [c for c in coords if tuple(c[a] for a in bound.axes) not in bound.elements]
                    with self.b.at_line(bound.line):
                        self._emit_interleaved(bound.pending, missing, visited)
            for coord in coords:
                self.emit_element(operation, coord)

    # memory

    def lane_mask(self, e: Expr | None, coord: Coord, lanes: int) -> str | None:
        """Emit the mask of the lanes that are inside the tile and for which `e` is true; None if it is all lanes."""
        axis = self.scope.lane if lanes else None
        active = axis.active_lanes(coord[axis.var]) if axis else 0
        in_tile = None
        if axis and self._is_partial_register(coord):
            in_tile = self._partial_mask(axis, coord[axis.var] * axis.lanes)
        elif axis and active < axis.lanes:
            in_tile = first_lanes_mask(active, axis.lanes)
        if e is None:
            return in_tile
        mask = self.emit_element(e, coord, lanes)
        return mask if in_tile is None else self.b.emit(f"and {llvm_type(boolean, lanes)} {mask}, {in_tile}")

    def _is_partial_register(self, coord: Coord) -> bool:
        """Return True if the extent may end inside this register, the last of its tile."""
        axis = self.scope.lane
        return axis is not None and bool(axis.remaining) and coord[axis.var] == axis.unroll_count - 1

    def _partial_mask(self, axis: Axis, start: int) -> str:
        """Emit the mask of the lanes inside a partial tile, for the register that begins at its index `start`."""
        ty = llvm_type(i64, axis.lanes)
        numbers = ", ".join(f"i64 {start + k}" for k in range(axis.lanes))
        return self.b.emit(f"icmp slt {ty} <{numbers}>, {self.b.splat('i64', axis.remaining, axis.lanes)}")

    def emit_load(self, e: Load, coord: Coord, lanes: int) -> str:
        """Emit a load: scalar, contiguous, broadcast, deinterleaved, transposed, or a gather."""
        buffer = self.scope.buffers[e.buffer]
        dtype = buffer.type.dtype
        element = self.scope.element_offset(e.buffer, e.index)
        vector_index = self._has_vector_index(e.index)
        other = self.emit_element(e.other, coord, lanes) if e.other is not None else None
        if not lanes:
            offset, _ = element.at_coord(self.scope, coord)
            if e.mask is not None:
                return self._load_masked_scalar(e, buffer, offset, coord, other)
            pointer = self.emit_pointer(buffer, offset, coord)
            may_hoist = self.b.is_unconditional and not buffer.is_writable
            return self.from_memory(self.load_element(pointer, dtype, may_hoist), dtype, 0)
        mask = self.lane_mask(e.mask, coord, lanes)
        offset, stride = element.at_coord(self.scope, coord)
        passthru = self.to_memory(other, dtype, lanes) if other is not None else "zeroinitializer"
        is_affine = not vector_index and e.mask is None
        block = element.transpose_block(self.scope, coord) if is_affine else None
        if (
            is_affine
            and not self._is_partial_register(coord)
            and stride is not None
            and is_deinterleaved(stride, lanes)
        ):
            value = self._load_deinterleaved(buffer, offset, stride, coord, lanes)
        elif block is not None:
            return self._load_transposed(e, element, block, coord)
        elif vector_index or stride not in (0, 1):
            value = self._load_gather(buffer, element.lane_offset(self.scope, coord), coord, lanes, mask, passthru)
        elif stride == 0:
            value = self._load_broadcast(e, buffer, self.emit_pointer(buffer, offset, coord), mask, lanes, passthru)
        else:
            mask = None if e.mask is None and buffer.ends_in_padding(offset, self.scope.lane, coord) else mask
            pointer = self.emit_pointer(buffer, offset, coord)
            # a masked load outside of all memory takes hundreds of cycles
            if e.mask is not None and not self.lanes(e.mask):
                pointer = self.address_if(self.emit_element(e.mask, coord), pointer, dtype, lanes)
            value = self.load_vector(dtype, lanes, pointer, mask, passthru)
        return self.from_memory(value, dtype, lanes)

    def _load_masked_scalar(self, e: Load, buffer: StorageBuffer, offset: Dim, coord: Coord, other: str | None) -> str:
        """Load a scalar under a mask: `other`, or 0, if the mask is false."""
        assert e.mask is not None
        dtype = buffer.type.dtype
        mask, ty = self.emit_element(e.mask, coord), llvm_type(dtype)
        value = self.from_memory(self.load_if(mask, self.emit_pointer(buffer, offset, coord), dtype), dtype, 0)
        return self.b.emit(f"select i1 {mask}, {ty} {value}, {ty} {other or literal(0, dtype)}")

    def _load_broadcast(
        self, e: Load, buffer: StorageBuffer, address: str, mask: str | None, lanes: int, passthru: str
    ) -> str:
        """Load one element into every lane, or into those of the load's own mask."""
        dtype = buffer.type.dtype
        memory, element, flags = memory_type(dtype, lanes), memory_type(dtype), llvm_type(boolean, lanes)
        if e.mask is None:
            return self.b.splat(element, self.b.emit(f"load {element}, ptr {address}, align {dtype.alignment}"), lanes)
        assert mask is not None
        value = self.b.splat(element, self.load_if(self.b.any_lane(mask, lanes), address, dtype), lanes)
        return self.b.emit(f"select {flags} {mask}, {memory} {value}, {memory} {passthru}")

    def _load_deinterleaved(self, buffer: StorageBuffer, offset: Dim, stride: int, coord: Coord, lanes: int) -> str:
        """Load every `stride`-th element: contiguous vectors from the lowest to the highest element, then shuffles."""
        dtype, axis = buffer.type.dtype, self.scope.lane
        memory, active = memory_type(dtype, lanes), axis.active_lanes(coord[axis.var]) if axis else lanes
        # from the lowest one to the element of each active lane
        apart = [(k if stride > 0 else k + 1 - active) * stride for k in range(active)]
        span = max(apart) + 1
        starts = [max(min(k, span - lanes), 0) for k in range(0, span, lanes)]
        pointers = [self.emit_pointer(buffer, offset - apart[0] + s, coord) for s in starts]
        mask = first_lanes_mask(span, lanes) if span < lanes else None
        vectors = [self.load_vector(dtype, lanes, p, mask) for p in pointers]
        value = vectors[0]
        # position in `value` of each lane's element; -1 until a shuffle has brought it there
        positions = [p if p < lanes else -1 for p in apart] + [-1] * (lanes - active)
        for k, vector in enumerate([*vectors[1:], vectors[0]][: max(1, len(vectors) - 1)], 1):
            moved = {i: lanes + p - starts[k] for i, p in enumerate(apart) if p // lanes == k}
            picks = [moved.get(i, p) for i, p in enumerate(positions)]
            indices = ", ".join(f"i32 {p}" if p >= 0 else "i32 poison" for p in picks)
            value = self.b.emit(f"shufflevector {memory} {value}, {memory} {vector}, <{lanes} x i32> <{indices}>")
            positions = [i if p >= 0 else -1 for i, p in enumerate(picks)]
        return value

    def _load_transposed(self, e: Load, element: ElementOffset, block: TransposeBlock, coord: Coord) -> str:
        """Load the rows of a block, transpose them, and memoize all columns; return the one at `coord`."""
        buffer, lanes, axes = self.scope.buffers[e.buffer], self.lanes(e), self.axes(e)
        dtype = buffer.type.dtype
        width, chunk = block.register_columns(lanes, dtype), min_block_columns(lanes, dtype.bytes)
        rows = ["zeroinitializer"] * lanes
        pointers = [self.emit_pointer(buffer, d, coord) for d in element.row_offsets(self.scope, block, coord)]
        for r, pointer in enumerate(pointers):
            rows[r] = self.load_vector(dtype, width, pointer, block.column_mask(width))
        columns = to_columns(self.b, rows, memory_type(dtype), width, chunk)
        for column_coord, column in zip(block.coords, columns, strict=False):
            key = (id(e), tuple({**coord, **column_coord}[a] for a in axes))
            self.memo[key] = self.from_memory(column, dtype, lanes)
        return self.memo[(id(e), tuple(coord[a] for a in axes))]

    def _load_gather(
        self, buffer: StorageBuffer, offset: Dim, coord: Coord, lanes: int, mask: str | None, passthru: str
    ) -> str:
        dtype = buffer.type.dtype
        offsets = self.emit_resolved_index(offset, coord, self.scope.lane)
        pointers = self.b.emit(f"getelementptr {memory_type(dtype)}, ptr {buffer.pointer}, <{lanes} x i64> {offsets}")
        flags, memory = llvm_type(boolean, lanes), memory_type(dtype, lanes)
        return self.b.intrinsic(memory, f"llvm.masked.gather.{intrinsic_suffix(dtype, lanes)}.v{lanes}p0",
                                (f"<{lanes} x ptr> align {dtype.alignment}", pointers), (flags, mask or "splat (i1 true)"), (memory, passthru))  # fmt: skip

    def emit_store(
        self,
        name: str,
        index: tuple[Dim, ...],
        value: Expr,
        axes: tuple[str, ...],
        nontemporal: Dim | None,
        narrowing: NarrowingInstructions | None = None,
    ) -> None:
        """Store a tile over `axes`: per element, per register, or per block that is transposed in registers."""
        element = self.scope.element_offset(name, index)
        is_affine = self.scope.lane_axis(axes) is not None and not self._has_vector_index(index)
        coords: Sequence[Coord] = tile_coords(self.scope, axes)
        if narrowing and is_affine and nontemporal is None:
            coords = self._store_narrowed(name, element, value, coords, narrowing)
        for coord in self.interleaved_coords(value, coords):
            block = element.transpose_block(self.scope, coord) if is_affine else None
            if block is None:
                self._store_element(name, index, value, coord, axes, nontemporal)
            elif block.is_first_column(coord):
                self._store_transposed(name, element, value, block, coord, nontemporal)

    def _store_narrowed(
        self, name: str, element: ElementOffset, value: Expr, coords: Sequence[Coord], narrowing: NarrowingInstructions
    ) -> Sequence[Coord]:
        """Store neighbouring registers that `narrowing` packs into one vector of bytes; return the coordinates of the others."""
        buffer, lane, operand = self.scope.buffers[name], self.scope.lane, saturated_operand(value)
        if operand is None or lane is None:
            return coords
        left = list[Coord]()
        while coords:
            offset, stride = element.at_coord(self.scope, coords[0])
            count = packed_registers(coords, lane) if stride == 1 else 0
            group, coords = coords[: count or 1], coords[count or 1 :]
            if not count:
                left += group
                continue
            vectors = [self.emit_element(operand, c, lane.lanes) for c in self.interleaved_coords(operand, group)]
            packed, pointer = narrow(self.b, narrowing, vectors), self.emit_pointer(buffer, offset, group[0])
            self.store_vector(buffer.type.dtype, count * lane.lanes, packed, pointer, None)
        return left

    def _has_vector_index(self, index: tuple[Dim, ...]) -> bool:
        """Return True if an index uses named values that differ between lanes."""
        names = {v for d in index for v in variables(d)} & set(self.scope.values)
        return any(self.scope.lane_axis(self.scope.values[v].axes) for v in names)

    def _store_transposed(
        self,
        name: str,
        element: ElementOffset,
        value: Expr,
        block: TransposeBlock,
        coord: Coord,
        nontemporal: Dim | None,
    ) -> None:
        """Store a block row by row, or interleaved; non-temporal only if a row is a full cache line: the rest of one would come much later."""
        buffer, lane = self.scope.buffers[name], self.scope.lane
        assert lane is not None
        dtype, lanes = buffer.type.dtype, lane.lanes
        elements = [self.emit_element(value, {**coord, **column_coord}, lanes) for column_coord in block.coords]
        columns = [self.to_memory(e, dtype, lanes) for e in elements]
        offsets = element.row_offsets(self.scope, block, coord)
        if block.interleaved_stride:
            self._store_interleaved(buffer, columns, block.interleaved_stride, offsets, coord, nontemporal)
            return
        width, chunk = block.register_columns(lanes, dtype), min_block_columns(lanes, dtype.bytes)
        columns += ["poison"] * (width - block.count)
        rows = to_rows(self.b, columns, memory_type(dtype), lanes, chunk)
        fills_line = buffer.is_aligned and width * dtype.bytes == CACHE_LINE_BYTES
        condition = nontemporal_condition(nontemporal, offsets, width) if fills_line else None
        for pointer, row in zip([self.emit_pointer(buffer, d, coord) for d in offsets], rows, strict=False):
            self.store_vector(dtype, width, row, pointer, block.column_mask(width), condition)

    def _store_interleaved(
        self,
        buffer: StorageBuffer,
        columns: list[str],
        row_stride: int,
        rows: Sequence[Dim],
        coord: Coord,
        nontemporal: Dim | None,
    ) -> None:
        """Store short rows at offsets `rows`, `row_stride` elements apart, as whole vectors; what lies between them is masked."""
        dtype, lanes, width = buffer.type.dtype, self.scope.lane.lanes if self.scope.lane else 0, len(columns)
        is_dense = width == row_stride
        condition = nontemporal_condition(nontemporal, rows[:1], lanes) if buffer.is_aligned and is_dense else None
        padded = columns + ["poison"] * (row_stride - width)
        for k, vector in enumerate(interleave(self.b, padded, memory_type(dtype), lanes)):
            places = [divmod(k * lanes + j, row_stride) for j in range(lanes)]
            stored = [row < len(rows) and column < width for row, column in places]
            if not any(stored):
                continue
            pointer = self.emit_pointer(buffer, rows[0] + k * lanes, coord)
            if stored[0] and not any(stored[1:]):
                self.store_first_lane(dtype, lanes, vector, pointer)
            else:
                mask = None if all(stored) else constant_mask(stored)
                self.store_vector(dtype, lanes, vector, pointer, mask, condition)

    def _store_element(
        self,
        name: str,
        index: tuple[Dim, ...],
        value: Expr,
        coord: Coord,
        axes: tuple[str, ...],
        nontemporal: Dim | None,
    ) -> None:
        """Store one element or register; vectors that are not contiguous are spread or scattered."""
        buffer = self.scope.buffers[name]
        dtype = buffer.type.dtype
        lane = self.scope.lane_axis(axes)
        lanes = lane.lanes if lane else 0
        bits = self.to_memory(self.emit_element(value, coord, lanes), dtype, lanes)
        element = self.scope.element_offset(name, index)
        memory, memory_element = memory_type(dtype, lanes), memory_type(dtype)
        offset, stride = element.at_coord(self.scope, coord)
        if not lanes:
            pointer = self.emit_pointer(buffer, offset, coord)
            self.b.emit_void(f"store {memory} {bits}, ptr {pointer}, align {dtype.alignment}")
            return
        mask = self.lane_mask(None, coord, lanes)
        flags = llvm_type(boolean, lanes)
        is_affine = not self._has_vector_index(index)
        if is_affine and (rows := element.spread_rows(self.scope, coord)):
            assert stride is not None
            self._store_interleaved(buffer, [bits], stride, rows, coord, None)
        elif not is_affine or stride != 1:
            offsets = self.emit_resolved_index(element.lane_offset(self.scope, coord), coord, lane)
            pointers = self.b.emit(f"getelementptr {memory_element}, ptr {buffer.pointer}, <{lanes} x i64> {offsets}")
            self.b.intrinsic("void", f"llvm.masked.scatter.{intrinsic_suffix(dtype, lanes)}.v{lanes}p0",
                             (memory, bits), (f"<{lanes} x ptr> align {dtype.alignment}", pointers), (flags, mask or "splat (i1 true)"))  # fmt: skip
        elif mask is None or buffer.ends_in_padding(offset, lane, coord):
            condition = nontemporal_condition(nontemporal, (offset,), lanes) if buffer.is_aligned else None
            self.store_vector(dtype, lanes, bits, self.emit_pointer(buffer, offset, coord), None, condition)
        elif lane is not None and lane.active_lanes(coord[lane.var]) == 1:
            self.store_first_lane(dtype, lanes, bits, self.emit_pointer(buffer, offset, coord))
        else:
            self.store_vector(dtype, lanes, bits, self.emit_pointer(buffer, offset, coord), mask)

    def emit_prefetch(self, stmt: Prefetch, coords: Iterable[Coord]) -> None:
        """Prefetch the cache lines of the elements at `coords`, each line once."""
        buffer, element = self.scope.buffers[stmt.buffer], self.scope.element_offset(stmt.buffer, stmt.index)
        locality = f"{4 - stmt.level}"  # LLVM's: 3 for L1, 1 for L3, 0 for none
        for coord in coords:
            offset, _ = element.at_coord(self.scope, coord)
            distances = (offset - o for p, level, o in self.prefetched if (p, level) == (buffer.pointer, stmt.level))
            if any(isinstance(d, int) and 0 <= d * buffer.type.dtype.bytes < CACHE_LINE_BYTES for d in distances):
                continue
            self.prefetched.append((buffer.pointer, stmt.level, offset))
            pointer = self.emit_pointer(buffer, offset, coord, gep_flags="")
            read, data = ("i32", "0"), ("i32", "1")
            self.b.intrinsic("void", "llvm.prefetch.p0", ("ptr", pointer), read, ("i32", locality), data)
