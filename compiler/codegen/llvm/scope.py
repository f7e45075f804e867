"""Scopes of code generation: the loops, buffers and values that names refer to, and the memory offsets of tile elements.

Inside a loop over %v with tile T, `v = lo + T * counter + coordinate`.  The counter is an SSA value.  The coordinate
(0..T-1) is the position in the tile, and is known at compile time.  On a lane axis, coordinate = L * register + lane.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod

from compiler.codegen.llvm.builder import first_lanes_mask
from compiler.codegen.llvm.transpose import register_columns
from compiler.cost.local_memory import row_stride
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK, is_interleaved, is_spread
from compiler.ir.scalar import Expr
from compiler.ir.symbolic.affine import coefficient, stride
from compiler.ir.symbolic.index_expr import Dim, product, substitute, var, variables
from compiler.ir.tile.kernel import Range
from compiler.ir.types import DType, TensorType

Coord = Mapping[str, int]
"""Position on each axis: the coordinate in the tile, or the number of the register on a lane axis."""

LANE_VAR = "@lane"
"""Variable of index expressions that stands for the lane number."""


@dataclass(frozen=True)
class Axis:
    """A tiled loop in scope: its variable, the tile's extent, and its lanes (0 on an unrolled axis).

    `remaining` is the SSA value of the number of indices from this tile on; "" if the last register cannot be partial.
    """

    var: str
    tile: int
    lanes: int
    remaining: str = ""

    @property
    def unroll_count(self) -> int:
        """Number of scalars or registers that the axis is unrolled into."""
        return -(-self.tile // self.lanes) if self.lanes else self.tile

    @property
    def stored_elements(self) -> int:
        """Number of elements that memory holds for a tile: whole registers."""
        return self.unroll_count * (self.lanes or 1)

    def active_lanes(self, register: int) -> int:
        """Return the number of lanes of a register that are inside the tile."""
        return min(self.lanes, self.tile - register * self.lanes)


@dataclass
class StorageBuffer:
    """A buffer in memory: its base pointer and type.

    A privatized buffer has one copy per coordinate of `private_axes`: these axes lead its shape, except that a lane axis
    is innermost, in whole registers.  `index_shift`, if given, is subtracted from every index.
    """

    pointer: str
    type: TensorType
    private_axes: tuple[Axis, ...] = ()
    is_writable: bool = False
    is_aligned: bool = True
    is_local: bool = False
    index_shift: tuple[Dim, ...] = ()

    @property
    def is_private_to_lanes(self) -> bool:
        """Return True if each lane has a copy."""
        return any(a.lanes for a in self.private_axes)

    @property
    def copy_stride(self) -> Dim:
        """Elements from one copy to the next: padded in a local buffer, unless lanes have copies."""
        size = product(self.type.physical_shape)
        return row_stride(size, self.type.dtype) if self.is_local and not self.is_private_to_lanes else size

    def ends_in_padding(self, offset: Dim, lane: Axis | None, coord: Coord) -> bool:
        """Return True if the register at `coord`, from `offset` on, has the last elements of a copy, and for the rest padding.

        It needs no mask then: a load would wait until what a masked store writes is in the cache.  The same holds for copies of lanes.
        """
        if self.is_private_to_lanes:
            return True
        size, stride = product(self.type.physical_shape), self.copy_stride
        if lane is None or lane.remaining or not isinstance(offset, int) or not isinstance(stride, int):
            return False
        start = offset % stride
        return start + lane.active_lanes(coord[lane.var]) == size and start + lane.lanes <= stride

    def element_offset(self, index: tuple[Dim, ...]) -> Dim:
        """Return the offset of logical `index` in elements, in terms of loop variables and private coordinates."""
        offset: Dim = 0
        for a in (a for a in self.private_axes if not a.lanes):
            offset = offset * a.tile + var(f"{a.var}@")
        if self.index_shift:
            index = tuple(i - s for i, s in zip(index, self.index_shift, strict=True))
        offset = offset * self.copy_stride + self.type.offset(index)
        for a in (a for a in self.private_axes if a.lanes):
            offset = offset * a.stored_elements + var(f"{a.var}@")
        return offset


@dataclass
class BoundValue:
    """A value bound by Let or Reduce: its dtype, its axes, and the elements computed so far; `pending` computes the others.

    `line` is the line of its statement in printed Tile IR.
    """

    dtype: DType
    axes: tuple[str, ...]
    elements: dict[tuple[int, ...], str] = field(default_factory=dict)
    pending: Expr | None = None
    line: int = 0


@dataclass
class CodegenScope:
    """Names visible at one point of the kernel; an inner scope starts as a copy of the outer one."""

    axes: dict[str, Axis] = field(default_factory=dict)
    lane: Axis | None = None  # the one that is mapped to vector lanes
    has_mask_registers: bool = False  # so that masked stores cost as much as others
    affine_forms: dict[str, Dim] = field(default_factory=dict)  # loop variable -> lo + T * counter + coordinate
    bounds: dict[str, tuple[Dim, Dim]] = field(default_factory=dict)  # inclusive, of counters, coordinates and the lane
    ssa_names: dict[str, str] = field(default_factory=dict)  # counter -> SSA name
    buffers: dict[str, StorageBuffer] = field(default_factory=dict)
    values: dict[str, BoundValue] = field(default_factory=dict)
    _offsets: dict[tuple[str, tuple[Dim, ...]], ElementOffset] = field(default_factory=dict)

    def inner(self) -> CodegenScope:
        """Return a copy for a nested block."""
        return CodegenScope(
            dict(self.axes),
            self.lane,
            self.has_mask_registers,
            dict(self.affine_forms),
            dict(self.bounds),
            dict(self.ssa_names),
            dict(self.buffers),
            dict(self.values),
        )

    def enter_loop(self, r: Range, counter: Dim, remaining: str = "") -> None:
        """Bind the variable of `r`; `counter` is the tile number, in terms of variables bound to SSA values."""
        lo = substitute(r.lo, self.affine_forms, self.bounds)
        if r.tile > 1 or r.lanes:
            axis = self.axes[r.var] = Axis(r.var, r.tile, r.lanes, remaining)
            self.lane = axis if r.lanes else self.lane
            self.bounds[f"{r.var}@"] = (0, r.tile - 1)
            self.affine_forms[r.var] = lo + counter * r.tile + var(f"{r.var}@")
        else:
            self.affine_forms[r.var] = lo + counter

    def varying_axes(self, d: Dim) -> tuple[str, ...]:
        """Return the axes that index `d` varies over, in scope order."""
        axes: set[str] = set()
        for name in variables(d):
            if name in self.values:
                axes.update(self.values[name].axes)
            elif name in self.axes:
                axes.add(name)
            elif name in self.affine_forms:
                axes |= {v[:-1] for v in variables(self.affine_forms[name]) if v.endswith("@")}
        return self.in_scope_order(axes)

    def in_scope_order(self, axes: set[str]) -> tuple[str, ...]:
        """Return `axes` outermost first."""
        return tuple([a for a in self.axes if a in axes] if len(axes) > 1 else axes)

    def lane_axis(self, axes: Collection[str]) -> Axis | None:
        """Return the axis among `axes` that is mapped to vector lanes."""
        return self.lane if self.lane is not None and self.lane.var in axes else None

    def resolve(self, d: Dim) -> Dim:
        """Return index `d` in terms of counters, coordinates (`v@`) and bound integers."""
        return substitute(d, self.affine_forms, self.bounds)

    def element_offset(self, name: str, index: tuple[Dim, ...]) -> ElementOffset:
        """Return the offset of element `index` of a buffer, computed once per scope."""
        key = (name, index)
        if key not in self._offsets:
            offset = self.resolve(self.buffers[name].element_offset(index))
            self._offsets[key] = ElementOffset.from_offset(self, offset)
        return self._offsets[key]


@dataclass(frozen=True)
class TransposeBlock:
    """A block to transpose in registers: its rows are contiguous in memory.

    `coords` holds the coordinate of each column on the contiguous axes (see `ElementOffset.transposable_axes`).  The rows
    of an interleaved block begin `interleaved_stride` elements apart, and a vector is stored for several; 0 for others.
    """

    coords: tuple[Coord, ...]
    interleaved_stride: int = 0

    @property
    def count(self) -> int:
        """Number of columns."""
        return len(self.coords)

    def is_first_column(self, coord: Coord) -> bool:
        """Return True if `coord` is in the first column."""
        return all(coord[v] == c for v, c in self.coords[0].items())

    def register_columns(self, lanes: int, dtype: DType) -> int:
        """Return the number of columns after padding for registers of `lanes` lanes."""
        return register_columns(self.count, lanes, dtype.bytes)

    def column_mask(self, width: int) -> str:
        """Return the mask of the columns that exist among `width`; "" if all do."""
        return first_lanes_mask(self.count, width) if self.count < width else ""


@dataclass(frozen=True)
class ElementOffset:
    """Offset of an element: `base` plus `strides[v]` per coordinate of v; `strides` is None if some coordinate is not affine."""

    offset: Dim
    base: Dim
    strides: Mapping[str, Dim] | None

    @staticmethod
    def from_offset(scope: CodegenScope, offset: Dim) -> ElementOffset:
        """Split `offset`, a resolved index, into base and strides."""
        coords = [v for v in variables(offset) if v.endswith("@")]
        strides: dict[str, Dim] = {}
        for v in coords:
            elements = stride(offset, v)
            if elements is None:
                return ElementOffset(offset, offset, None)
            strides[v[:-1]] = elements
        return ElementOffset(offset, substitute(offset, dict.fromkeys(coords, 0), scope.bounds), strides)

    def at_coord(self, scope: CodegenScope, coord: Coord) -> tuple[Dim, int | None]:
        """Return the offset of the first lane at `coord`, and the lane stride; None if irregular (see `lane_offset`)."""
        lane = scope.lane
        if self.strides is not None:
            shift: Dim = sum((s * coord[v] * (scope.axes[v].lanes or 1) for v, s in self.strides.items()), 0)
            lane_stride = self.strides.get(lane.var, 0) if lane else 0
            return self.base + shift, lane_stride if isinstance(lane_stride, int) else None
        offset = self.lane_offset(scope, coord)
        return substitute(offset, {LANE_VAR: 0}), coefficient(offset, LANE_VAR)

    def transposable_axes(self, scope: CodegenScope) -> tuple[Axis, ...]:
        """Return unrolled axes that are contiguous in memory where the lane axis is strided; () if there are none.

        A block of these axes and the lanes can be transposed in registers.  The last axis has stride 1, and each axis
        before it has the extent of the axes behind it as its stride.
        """
        lane = scope.lane
        if lane is None or lane.remaining or not self.strides or self.strides.get(lane.var, 0) in (0, 1):
            return ()
        candidates = [v for v in self.strides if not scope.axes[v].lanes and not scope.axes[v].remaining]
        axes, length = list[Axis](), 1
        while length < lane.lanes and (v := next((v for v in candidates if self.strides[v] == length), None)):
            axes.insert(0, scope.axes[v])
            length *= axes[0].tile
        interleaved = is_interleaved(length, self.strides.get(lane.var, 0), lane.lanes)
        return tuple(axes) if length >= MIN_TRANSPOSE_BLOCK or interleaved else ()

    def transpose_block(self, scope: CodegenScope, coord: Coord) -> TransposeBlock | None:
        """Return the block around `coord` that is transposed in registers, or None if that does not pay."""
        axes, lane = self.transposable_axes(scope), scope.lane
        if not axes or lane is None or self.strides is None:
            return None
        column = reduce(lambda n, a: n * a.tile + coord[a.var], axes, 0)
        start = column // lane.lanes * lane.lanes
        count = min(lane.lanes, prod(a.tile for a in axes) - start)
        row_stride = self.strides[lane.var]
        interleaved = is_interleaved(count, row_stride, lane.lanes)
        if count < MIN_TRANSPOSE_BLOCK and not interleaved:
            return None
        coords = tuple(_column_coord(axes, start + k) for k in range(count))
        return TransposeBlock(coords, row_stride if interleaved and isinstance(row_stride, int) else 0)

    def row_offsets(self, scope: CodegenScope, block: TransposeBlock, coord: Coord) -> list[Dim]:
        """Return the offset of the first element of each row of a block: one row per active lane."""
        lane = scope.lane
        assert lane is not None
        assert self.strides is not None
        offset, _ = self.at_coord(scope, {**coord, **block.coords[0]})
        return lane_offsets(lane, coord, offset, self.strides[lane.var])

    def spread_rows(self, scope: CodegenScope, coord: Coord) -> list[Dim]:
        """Return the offset of each active lane, if the lanes at `coord` are spread over whole vectors to be stored; else []."""
        (offset, stride), lane = self.at_coord(scope, coord), scope.lane
        if not scope.has_mask_registers or lane is None or lane.remaining:
            return []
        if stride is None or not is_spread(stride, lane.lanes):
            return []
        return lane_offsets(lane, coord, offset, stride)

    def lane_offset(self, scope: CodegenScope, coord: Coord) -> Dim:
        """Return the offset at `coord` as a function of the lane number `LANE_VAR`."""
        values: dict[str, Dim] = {}
        bounds = dict(scope.bounds)
        for v, axis in scope.axes.items():
            if f"{v}@" in variables(self.offset):
                values[f"{v}@"] = coord[v] if not axis.lanes else var(LANE_VAR) + coord[v] * axis.lanes
                if axis.lanes:
                    bounds[LANE_VAR] = (0, axis.active_lanes(coord[v]) - 1)
        return substitute(self.offset, values, bounds)


def lane_offsets(lane: Axis, coord: Coord, first: Dim, step: Dim) -> list[Dim]:
    """Return the offset of each active lane at `coord`; lanes lie `step` elements apart from offset `first` on."""
    return [first + step * r for r in range(lane.active_lanes(coord[lane.var]))]


def _column_coord(axes: Sequence[Axis], number: int) -> Coord:
    """Return the coordinate of column `number` on each axis; the last axis varies fastest."""
    coord: dict[str, int] = {}
    for a in reversed(axes):
        number, coord[a.var] = divmod(number, a.tile)
    return coord


def tile_coords(scope: CodegenScope, axes: tuple[str, ...]) -> list[dict[str, int]]:
    """Return every coordinate of a tile over `axes`; the lane axis varies fastest."""
    coords: list[dict[str, int]] = [{}]
    for a in sorted(axes, key=lambda a: bool(scope.axes[a].lanes)):
        coords = [{**c, a: k} for c in coords for k in range(scope.axes[a].unroll_count)]
    return coords
