"""Values of expressions, one tile element (or one vector register) at a time.

Elements are computed when first asked for, each with its whole expression (depth first), so that a long epilogue over a
large tile needs few registers at once.  What is stored is computed for two registers side by side, so that a step of one need not wait for
the step before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod

from compiler.codegen.llvm.addresses import AddressEmitter
from compiler.codegen.llvm.builder import first_lanes_mask, literal, llvm_type, memory_type
from compiler.codegen.llvm.primitives import emit_primitive, intrinsic_suffix
from compiler.codegen.llvm.scope import Axis, BoundValue, CodegenScope, Coord, ElementOffset, StorageBuffer
from compiler.codegen.llvm.transpose import min_block_columns, register_columns, to_columns, to_rows
from compiler.cost.machine import CACHE_LINE_BYTES
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK, is_deinterleaved
from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import terms
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, minimum, mod, var, variables
from compiler.ir.tile.kernel import Prefetch
from compiler.ir.types import DType, boolean, i64

INTERLEAVE_COUNT = 2
"""Registers that are computed together: four would gain no more."""


@dataclass(frozen=True)
class TransposeBlock:
    """Coordinates of the columns of a block whose rows lie side by side in memory, on the axes along which they do."""

    coords: tuple[Coord, ...]

    @property
    def count(self) -> int:
        """How many columns there are."""
        return len(self.coords)

    def is_first_column(self, coord: Coord) -> bool:
        """Whether `coord` is in the first column."""
        return all(coord[v] == c for v, c in self.coords[0].items())

    def register_columns(self, lanes: int, dtype: DType) -> int:
        """Columns that the block takes in registers."""
        return register_columns(self.count, lanes, dtype.bytes)

    def column_mask(self, width: int) -> str:
        """Which of `width` columns are there; empty where all are."""
        return first_lanes_mask(self.count, width) if self.count < width else ""


@dataclass
class ExprEmitter(AddressEmitter):
    """Computes the elements of expressions in one scope."""

    _axes: dict[int, tuple[Expr, tuple[str, ...]]] = field(default_factory=dict)

    def axes(self, e: Expr) -> tuple[str, ...]:
        """The axes whose coordinates the value of `e` depends on, in scope order."""
        known = self._axes.get(id(e))
        if known is None:
            known = (e, self._find_axes(e))
            self._axes[id(e)] = known
        return known[1]

    def _find_axes(self, e: Expr) -> tuple[str, ...]:
        found: set[str] = set()
        for a in e.args:
            found.update(self.axes(a))
        if isinstance(e, Ref):
            found.update(self.scope.varying_axes(var(e.name)))
        elif isinstance(e, IndexValue):
            found.update(self.scope.varying_axes(e.index))
        elif isinstance(e, Load):
            found.update(a.var for a in self.scope.buffers[e.buffer].private_axes)
            for d in e.index:
                found.update(self.scope.varying_axes(d))
        return self.scope.in_scope_order(found)

    def lanes(self, e: Expr) -> int:
        """Lanes of the vectors that hold `e`; 0 where it is scalar."""
        axis = self.scope.lane_axis(self.axes(e))
        return axis.lanes if axis else 0

    def emit_element(self, e: Expr, coord: Coord, lanes: int = 0) -> str:
        """Element `coord` of `e`, spread over `lanes` if it has none of its own."""
        if isinstance(e, Const):
            text = literal(e.value, e.dtype)
            return f"splat ({llvm_type(e.dtype)} {text})" if lanes else text
        key = (id(e), tuple([coord[a] for a in self.axes(e)]))
        value = self.memo.get(key)
        if value is None:
            value = self.memo[key] = self._compute(e, coord, self.lanes(e))
        if not lanes or self.lanes(e):
            return value
        spread = (*key, "splat")
        if spread not in self.memo:
            self.memo[spread] = self.b.splat(llvm_type(e.dtype), value, lanes)
        return self.memo[spread]

    def _compute(self, e: Expr, coord: Coord, lanes: int) -> str:
        if isinstance(e, PrimitiveCall):
            return emit_primitive(self.b, e, [self.emit_element(a, coord, lanes) for a in e.operands], lanes)
        if isinstance(e, Ref):
            return (
                self.bound_element(e.name, coord)
                if e.name in self.scope.values
                else self.emit_index(var(e.name), coord)
            )
        if isinstance(e, IndexValue):
            return self.emit_index(e.index, coord)
        assert isinstance(e, Load), f"cannot emit {e}"
        return self.emit_load(e, coord, lanes)

    def bound_element(self, name: str, coord: Coord) -> str:
        """Element of a bound value; a pending one is computed now."""
        value = self.scope.values[name]
        key = tuple(coord[a] for a in value.axes)
        if key not in value.elements:
            assert value.pending is not None
            value.elements[key] = self.emit_element(value.pending, coord)
        return value.elements[key]

    def bind_lazily(self, name: str, e: Expr) -> None:
        """Give `e` a name; it is computed when first needed or when `force` asks."""
        self.scope.values[name] = BoundValue(e.dtype, self.axes(e), pending=e)

    def materialize(self, name: str) -> None:
        """Compute every element of a bound value here."""
        value = self.scope.values[name]
        if value.pending is not None:
            for coord in self.interleaved_coords(value.pending, tile_coords(self.scope, value.axes)):
                self.bound_element(name, coord)
            value.pending = None

    def interleaved_coords(self, e: Expr, coords: Sequence[Coord]) -> Iterator[Coord]:
        """The places, after `e` has been computed for some of them together, operation by operation."""
        for k in range(0, len(coords), INTERLEAVE_COUNT):
            some = coords[k : k + INTERLEAVE_COUNT]
            if len(some) > 1:
                self._emit_interleaved(e, some, set())
            yield from some

    def _emit_interleaved(self, e: Expr, coords: Sequence[Coord], done: set[str]) -> None:
        """Compute each operation of `e`, and of what it names but for those `done`, for all the places before the next one."""
        for part in e.subexprs:
            if isinstance(part, Ref) and part.name not in done:
                done.add(part.name)
                bound = self.scope.values.get(part.name)
                if bound is not None and bound.pending is not None:
                    self._emit_interleaved(bound.pending, coords, done)
            for coord in coords:
                self.emit_element(part, coord)

    # memory

    def lane_mask(self, e: Expr | None, coord: Coord, lanes: int) -> str | None:
        """Which lanes take part: those inside the tile and where `e` holds; None for all of them."""
        axis = self.scope.lane if lanes else None
        active = axis.active_lanes(coord[axis.var]) if axis else 0
        inside = None
        if axis and self._is_partial_register(coord):
            inside = self._partial_mask(axis, coord[axis.var] * axis.lanes)
        elif axis and active < axis.lanes:
            inside = first_lanes_mask(active, axis.lanes)
        if e is None:
            return inside
        chosen = self.emit_element(e, coord, lanes)
        return chosen if inside is None else self.b.emit(f"and {llvm_type(boolean, lanes)} {chosen}, {inside}")

    def _is_partial_register(self, coord: Coord) -> bool:
        """Whether a tile may end inside this register."""
        axis = self.scope.lane
        return axis is not None and bool(axis.remaining) and coord[axis.var] == axis.unroll_count - 1

    def _partial_mask(self, axis: Axis, start: int) -> str:
        """Which lanes of the register that begins `start` indices into a partial tile are inside it."""
        ty = llvm_type(i64, axis.lanes)
        numbers = ", ".join(f"i64 {start + k}" for k in range(axis.lanes))
        return self.b.emit(f"icmp slt {ty} <{numbers}>, {self.b.splat('i64', axis.remaining, axis.lanes)}")

    def emit_load(self, e: Load, coord: Coord, lanes: int) -> str:
        """A scalar, a contiguous vector, or a gather."""
        buffer = self.scope.buffers[e.buffer]
        dtype = buffer.type.dtype
        place = self.scope.element_offset(e.buffer, e.index)
        vector_index = self._has_vector_index(e.index)
        memory = memory_type(dtype, lanes)
        other = self.emit_element(e.other, coord, lanes) if e.other is not None else None
        if not lanes:
            offset, _ = place.at_coord(self.scope, coord)
            if e.mask is None:
                return self._from_memory(
                    self.b.emit(f"load {memory}, ptr {self.emit_pointer(buffer, offset, coord)}, align {dtype.bytes}"),
                    dtype,
                    0,
                )
            return self._load_masked_scalar(e, buffer, offset, coord, other)
        mask = self.lane_mask(e.mask, coord, lanes)
        offset, step = place.at_coord(self.scope, coord)
        passthru = self._to_memory(other, dtype, lanes) if other is not None else "zeroinitializer"
        plain = not vector_index and e.mask is None
        block = self._transpose_block(place, coord) if plain else None
        if plain and not self._is_partial_register(coord) and step is not None and is_deinterleaved(step, lanes):
            value = self._load_deinterleaved(buffer, offset, step, coord, lanes)
        elif block is not None:
            return self._load_transposed(e, place, block, coord)
        elif vector_index or step not in (0, 1):
            value = self._load_gather(buffer, place.lane_offset(self.scope, coord), coord, lanes, mask, passthru)
        elif step == 0:
            value = self._load_broadcast(e, buffer, self.emit_pointer(buffer, offset, coord), mask, lanes, passthru)
        else:
            value = self._load_vector(dtype, lanes, self.emit_pointer(buffer, offset, coord), mask, passthru)
        return self._from_memory(value, dtype, lanes)

    def _load_vector(
        self, dtype: DType, lanes: int, address: str, mask: str | None = None, passthru: str = "zeroinitializer"
    ) -> str:
        """Elements side by side; `passed` where the mask, if there is one, is false."""
        memory = memory_type(dtype, lanes)
        if not mask:
            return self.b.emit(f"load {memory}, ptr {address}, align {dtype.bytes}")
        return self.b.intrinsic(memory, f"llvm.masked.load.{_memory_suffix(dtype, lanes)}.p0",
                                (f"ptr align {dtype.bytes}", address), (llvm_type(boolean, lanes), mask), (memory, passthru))  # fmt: skip

    def _store_vector(
        self, dtype: DType, lanes: int, bits: str, address: str, mask: str | None, nontemporal: Dim | None = None
    ) -> None:
        """Elements side by side, those where the mask, if there is one, is true.

        Without one, they start at a multiple of their number if `stream` says that they may go past the cache.
        """
        memory = memory_type(dtype, lanes)
        if not mask:
            self._store_unmasked(f"store {memory} {bits}, ptr {address}", dtype.bytes, lanes * dtype.bytes, nontemporal)
            return
        self.b.intrinsic("void", f"llvm.masked.store.{_memory_suffix(dtype, lanes)}.p0",
                         (memory, bits), (f"ptr align {dtype.bytes}", address), (llvm_type(boolean, lanes), mask))  # fmt: skip

    def _store_unmasked(self, store: str, alignment: int, width: int, nontemporal: Dim | None) -> None:
        """A store of `width` bytes, elements of `each` of them: near or past the cache."""
        temporal_store, nontemporal_store = f"{store}, align {alignment}", f"{store}, align {width}, !nontemporal !0"
        if nontemporal is None or width not in (16, 32, 64):
            self.b.emit_void(temporal_store)
        elif isinstance(nontemporal, int):
            self.b.emit_void(nontemporal_store if nontemporal >= 0 else temporal_store)
        else:
            flag = self.b.emit(f"icmp slt i64 {self.emit_resolved_index(nontemporal, {}, None)}, 0")
            self.b.if_else(flag, lambda: self.b.emit_void(temporal_store), lambda: self.b.emit_void(nontemporal_store))

    def _load_masked_scalar(self, e: Load, buffer: StorageBuffer, offset: Dim, coord: Coord, other: str | None) -> str:
        """A scalar load under a mask, which drops what it reads where the mask is false."""
        assert e.mask is not None
        dtype = buffer.type.dtype
        chosen = self.emit_element(e.mask, coord)
        value = self._from_memory(self._load_if(chosen, self.emit_pointer(buffer, offset, coord), dtype), dtype, 0)
        return self.b.emit(
            f"select i1 {chosen}, {llvm_type(dtype)} {value}, {llvm_type(dtype)} {other or literal(0, dtype)}"
        )

    def _load_if(self, chosen: str, address: str, dtype: DType) -> str:
        """One element of memory; anything, but without reading at `address`, where `chosen` is false."""
        spare = self.b.alloca(f"{memory_type(dtype)}, align {dtype.bytes}")
        safe = self.b.emit(f"select i1 {chosen}, ptr {address}, ptr {spare}")
        return self.b.emit(f"load {memory_type(dtype)}, ptr {safe}, align {dtype.bytes}")

    def _load_broadcast(
        self, e: Load, buffer: StorageBuffer, address: str, mask: str | None, lanes: int, passthru: str
    ) -> str:
        """One element in every lane, or in those of the load's own mask."""
        dtype = buffer.type.dtype
        memory, element, flags = memory_type(dtype, lanes), memory_type(dtype), llvm_type(boolean, lanes)
        if e.mask is None:
            return self.b.splat(element, self.b.emit(f"load {element}, ptr {address}, align {dtype.bytes}"), lanes)
        assert mask is not None
        some = self.b.intrinsic("i1", f"llvm.vector.reduce.or.v{lanes}i1", (flags, mask))
        value = self.b.splat(element, self._load_if(some, address, dtype), lanes)
        return self.b.emit(f"select {flags} {mask}, {memory} {value}, {memory} {passthru}")

    def _load_deinterleaved(self, buffer: StorageBuffer, offset: Dim, step: int, coord: Coord, lanes: int) -> str:
        """Every `step`-th element: vectors side by side, from the first element to the last and no further, picked from."""
        dtype, axis = buffer.type.dtype, self.scope.lane
        memory, active = memory_type(dtype, lanes), axis.active_lanes(coord[axis.var]) if axis else lanes
        span = (active - 1) * step + 1
        starts = [max(min(k, span - lanes), 0) for k in range(0, span, lanes)]
        pointers = [self.emit_pointer(buffer, offset + s, coord) for s in starts]
        inside = first_lanes_mask(span, lanes) if span < lanes else None
        vectors = [self._load_vector(dtype, lanes, p, inside) for p in pointers]
        value = vectors[0]
        # where each lane's element lies in `value`; -1 while it is not there
        at = [k * step if k * step < lanes and k < active else -1 for k in range(lanes)]
        for k, vector in enumerate([*vectors[1:], vectors[0]][: max(1, len(vectors) - 1)], 1):
            new = [i * step // lanes == k and i < active for i in range(lanes)]
            picks = [lanes + i * step - starts[k] if n else at[i] for i, n in enumerate(new)]
            chosen = ", ".join(f"i32 {p}" if p >= 0 else "i32 poison" for p in picks)
            value = self.b.emit(f"shufflevector {memory} {value}, {memory} {vector}, <{lanes} x i32> <{chosen}>")
            at = [i if p >= 0 else -1 for i, p in enumerate(picks)]
        return value

    def _transpose_block(self, place: ElementOffset, coord: Coord) -> TransposeBlock | None:
        """The columns around `coord` that can be turned together."""
        axes, lane = place.transposable_axes(self.scope), self.scope.lane
        if not axes or lane is None:
            return None
        here = reduce(lambda n, a: n * a.tile + coord[a.var], axes, 0)
        start = here // lane.lanes * lane.lanes
        count = min(lane.lanes, prod(a.tile for a in axes) - start)
        return (
            TransposeBlock(tuple(_column_coord(axes, start + k) for k in range(count)))
            if count >= MIN_TRANSPOSE_BLOCK
            else None
        )

    def _row_offsets(self, place: ElementOffset, block: TransposeBlock, coord: Coord) -> list[Dim]:
        """Where in its buffer the rows of a block begin, a row for each active lane."""
        lane = self.scope.lane
        assert lane is not None
        assert place.strides is not None
        offset, _ = place.at_coord(self.scope, {**coord, **block.coords[0]})
        between = place.strides[lane.var]
        return [offset + between * r for r in range(lane.active_lanes(coord[lane.var]))]

    def _load_transposed(self, e: Load, place: ElementOffset, block: TransposeBlock, coord: Coord) -> str:
        """Columns of rows that are read whole; those beside the one asked for are remembered."""
        buffer, lanes, axes = self.scope.buffers[e.buffer], self.lanes(e), self.axes(e)
        dtype = buffer.type.dtype
        width, inside = block.register_columns(lanes, dtype), min_block_columns(lanes, dtype.bytes)
        rows = ["zeroinitializer"] * lanes
        for r, address in enumerate(
            [self.emit_pointer(buffer, d, coord) for d in self._row_offsets(place, block, coord)]
        ):
            rows[r] = self._load_vector(dtype, width, address, block.column_mask(width))
        columns = to_columns(self.b, rows, memory_type(dtype), width, inside)
        for at, column in zip(block.coords, columns, strict=False):
            there = {**coord, **at}
            self.memo[(id(e), tuple(there[a] for a in axes))] = self._from_memory(column, dtype, lanes)
        return self.memo[(id(e), tuple(coord[a] for a in axes))]

    def _load_gather(
        self, buffer: StorageBuffer, offset: Dim, coord: Coord, lanes: int, mask: str | None, passthru: str
    ) -> str:
        lane = self.scope.lane
        dtype = buffer.type.dtype
        offsets = self.emit_resolved_index(offset, coord, lane)
        pointers = self.b.emit(f"getelementptr {memory_type(dtype)}, ptr {buffer.pointer}, <{lanes} x i64> {offsets}")
        flags, memory = llvm_type(boolean, lanes), memory_type(dtype, lanes)
        return self.b.intrinsic(memory, f"llvm.masked.gather.{_memory_suffix(dtype, lanes)}.v{lanes}p0",
                                (f"<{lanes} x ptr> align {dtype.bytes}", pointers), (flags, mask or "splat (i1 true)"), (memory, passthru))  # fmt: skip

    def emit_store(
        self, name: str, index: tuple[Dim, ...], value: Expr, axes: tuple[str, ...], nontemporal: Dim | None
    ) -> None:
        """Write a tile: element by element, or register by register, or in blocks that are turned first."""
        place = self.scope.element_offset(name, index)
        lane = self.scope.lane_axis(axes)
        plain = lane is not None and not self._has_vector_index(index)
        for coord in self.interleaved_coords(value, tile_coords(self.scope, axes)):
            block = self._transpose_block(place, coord) if plain else None
            if block is None:
                self._store_element(name, index, value, coord, axes, nontemporal)
            elif block.is_first_column(coord):
                self._store_transposed(name, place, value, block, coord, nontemporal)

    def _has_vector_index(self, index: tuple[Dim, ...]) -> bool:
        """Whether an index holds values that differ between lanes."""
        names = {v for d in index for v in variables(d)} & set(self.scope.values)
        return any(self.scope.lane_axis(self.scope.values[v].axes) for v in names)

    def _store_transposed(
        self, name: str, place: ElementOffset, value: Expr, block: TransposeBlock, coord: Coord, nontemporal: Dim | None
    ) -> None:
        """Write a block row by row; past the cache only whole lines, whose other parts would come much later."""
        buffer, lane = self.scope.buffers[name], self.scope.lane
        assert lane is not None
        dtype, lanes = buffer.type.dtype, lane.lanes
        width, inside = block.register_columns(lanes, dtype), min_block_columns(lanes, dtype.bytes)
        columns = ["poison"] * width
        for k, at in enumerate(block.coords):
            columns[k] = self._to_memory(self.emit_element(value, {**coord, **at}, lanes), dtype, lanes)
        rows = to_rows(self.b, columns, memory_type(dtype), lanes, inside)
        offsets = self._row_offsets(place, block, coord)
        whole = buffer.is_aligned and width * dtype.bytes == CACHE_LINE_BYTES
        condition = _nontemporal_condition(nontemporal, offsets, width) if whole else None
        for address, bits in zip([self.emit_pointer(buffer, d, coord) for d in offsets], rows, strict=False):
            self._store_vector(dtype, width, bits, address, block.column_mask(width), condition)

    def _store_element(
        self,
        name: str,
        index: tuple[Dim, ...],
        value: Expr,
        coord: Coord,
        axes: tuple[str, ...],
        nontemporal: Dim | None,
    ) -> None:
        """Write one element or register; vectors that are not contiguous are scattered."""
        buffer = self.scope.buffers[name]
        dtype = buffer.type.dtype
        lane = self.scope.lane_axis(axes)
        lanes = lane.lanes if lane else 0
        bits = self._to_memory(self.emit_element(value, coord, lanes), dtype, lanes)
        place = self.scope.element_offset(name, index)
        memory = memory_type(dtype, lanes)
        offset, step = place.at_coord(self.scope, coord)
        if not lanes:
            self.b.emit_void(
                f"store {memory} {bits}, ptr {self.emit_pointer(buffer, offset, coord)}, align {dtype.bytes}"
            )
            return
        mask = self.lane_mask(None, coord, lanes)
        flags = llvm_type(boolean, lanes)
        if self._has_vector_index(index) or step != 1:
            offsets = self.emit_resolved_index(place.lane_offset(self.scope, coord), coord, lane)
            pointers = self.b.emit(
                f"getelementptr {memory_type(dtype)}, ptr {buffer.pointer}, <{lanes} x i64> {offsets}"
            )
            self.b.intrinsic("void", f"llvm.masked.scatter.{_memory_suffix(dtype, lanes)}.v{lanes}p0",
                             (memory, bits), (f"<{lanes} x ptr> align {dtype.bytes}", pointers), (flags, mask or "splat (i1 true)"))  # fmt: skip
        elif mask is None:
            condition = _nontemporal_condition(nontemporal, (offset,), lanes) if buffer.is_aligned else None
            self._store_vector(dtype, lanes, bits, self.emit_pointer(buffer, offset, coord), None, condition)
        elif lane is not None and lane.active_lanes(coord[lane.var]) == 1:
            # no masked store: of one lane, narrowed just before, LLVM 22 writes too many bytes (LLVM issue 179489)
            first = self.b.emit(f"extractelement {memory} {bits}, i64 0")
            self.b.emit_void(
                f"store {memory_type(dtype)} {first}, ptr {self.emit_pointer(buffer, offset, coord)}, align {dtype.bytes}"
            )
        else:
            self._store_vector(dtype, lanes, bits, self.emit_pointer(buffer, offset, coord), mask)

    def emit_prefetch(self, stmt: Prefetch, coords: Iterable[Coord]) -> None:
        """Ask for the cache lines of elements that are to be read soon, once for each."""
        buffer, wanted = self.scope.buffers[stmt.buffer], self.scope.element_offset(stmt.buffer, stmt.index)
        prefetched, locality = (
            list[Dim](),
            f"{4 - stmt.level}",
        )  # LLVM counts from what is not kept, 0, to the nearest cache, 3
        for coord in coords:
            place, _ = wanted.at_coord(self.scope, coord)
            gaps = (place - p for p in prefetched)
            if any(isinstance(gap, int) and 0 <= gap * buffer.type.dtype.bytes < CACHE_LINE_BYTES for gap in gaps):
                continue
            prefetched.append(place)
            address = self.emit_pointer(buffer, place, coord, gep_flags="")
            self.b.intrinsic(
                "void", "llvm.prefetch.p0", ("ptr", address), ("i32", "0"), ("i32", locality), ("i32", "1")
            )

    def _from_memory(self, value: str, dtype: DType, lanes: int) -> str:
        if dtype.kind != "bool":
            return value
        zero = "zeroinitializer" if lanes else "0"
        return self.b.emit(f"icmp ne {memory_type(dtype, lanes)} {value}, {zero}")

    def _to_memory(self, value: str, dtype: DType, lanes: int) -> str:
        if dtype.kind != "bool":
            return value
        return self.b.emit(f"zext {llvm_type(dtype, lanes)} {value} to {memory_type(dtype, lanes)}")


def _memory_suffix(dtype: DType, lanes: int) -> str:
    if dtype.kind == "bool":
        return f"v{lanes}i8"
    return f"v{lanes}i16" if dtype.name == "bf16" else intrinsic_suffix(dtype, lanes)


def _column_coord(axes: Sequence[Axis], number: int) -> Coord:
    """Where the column of that number is on each of the axes, the last of which goes fastest."""
    at: dict[str, int] = {}
    for a in reversed(axes):
        number, at[a.var] = divmod(number, a.tile)
    return at


def _nontemporal_condition(condition: Dim | None, offsets: Iterable[Dim], lanes: int) -> Dim | None:
    """What is not negative where vectors at `offsets` may go past the cache: if `stream` is not, nor sizes put one of them between multiples
    of `lanes`; None where one always lies there.
    """
    if condition is None:
        return None
    for mono, coef in dict.fromkeys(t for d in offsets for t in terms(d) if t[1] % lanes):
        known_atoms = tuple(a for a in mono if not variables(IndexExpr((((a,), 1),))))
        if not known_atoms:
            return None
        condition = minimum(condition, -mod(IndexExpr(((known_atoms, coef),)), lanes))
    return condition


def tile_coords(scope: CodegenScope, axes: tuple[str, ...]) -> list[dict[str, int]]:
    """Every element position of a tile over `axes`, the lane axis fastest."""
    ordered = sorted(axes, key=lambda a: bool(scope.axes[a].lanes))
    places: list[dict[str, int]] = [{}]
    for a in ordered:
        places = [{**p, a: k} for p in places for k in range(scope.axes[a].unroll_count)]
    return places
