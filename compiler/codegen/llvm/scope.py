"""What names mean while a kernel is being written, and where tile elements lie in memory.

Inside a loop over %v taking T indices at a time, `v = lo + T * counter + coordinate`.  The counter is an SSA value; the
coordinate (0..T-1) says which element of the tile is meant.  On a lane axis, coordinate = L * register + lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK
from compiler.ir.scalar import Expr
from compiler.ir.symbolic.affine import coefficient, stride
from compiler.ir.symbolic.index_expr import Dim, ceildiv, product, substitute, var, variables
from compiler.ir.tile.kernel import Range
from compiler.ir.types import DType, TensorType

Coord = Mapping[str, int]
"""Which element of each axis: the position in the tile, or the register on a lane axis."""

LANE_VAR = "@lane"


@dataclass(frozen=True)
class Axis:
    """A tiled loop in scope: its variable, the tile's extent, and its lanes (0 on an unrolled axis).

    `left` is the SSA value that says how many indices are left from this tile on, where the last register may be partial.
    """

    var: str
    tile: int
    lanes: int
    remaining: str = ""

    @property
    def unroll_count(self) -> int:
        """How many scalars or registers the axis is unrolled into."""
        return -(-self.tile // self.lanes) if self.lanes else self.tile

    def active_lanes(self, step: int) -> int:
        """How many lanes of register `step` are inside the tile."""
        return min(self.lanes, self.tile - step * self.lanes)


@dataclass
class StorageBuffer:
    """A buffer in memory: its base pointer, type, and the axes it is privatised over (leading, a lane axis last); what is at some index
    lies `shift` before it, if that is given.
    """

    pointer: str
    type: TensorType
    private_axes: tuple[Axis, ...] = ()
    is_writable: bool = False
    is_aligned: bool = True
    index_shift: tuple[Dim, ...] = ()

    def element_offset(self, index: tuple[Dim, ...]) -> Dim:
        """Elements from the base to logical `index`, in terms of loop variables and private coordinates."""
        lead = [a for a in self.private_axes if not a.lanes]
        last = [a for a in self.private_axes if a.lanes]
        total: Dim = 0
        for a in lead:
            total = total * a.tile + var(f"{a.var}@")
        place = tuple(i - s for i, s in zip(index, self.index_shift, strict=True)) if self.index_shift else index
        total = total * product(self.type.physical_shape) + self.type.offset(place)
        for a in last:
            total = total * a.tile + var(f"{a.var}@")
        return total


@dataclass
class BoundValue:
    """A value bound by Let or Reduce: its dtype, its axes, and its elements as far as they are computed."""

    dtype: DType
    axes: tuple[str, ...]
    elements: dict[tuple[int, ...], str] = field(default_factory=dict)
    pending: Expr | None = None
    scope: CodegenScope | None = None


@dataclass
class CodegenScope:
    """Names visible at one place of the kernel; inner scopes copy outer ones."""

    axes: dict[str, Axis] = field(default_factory=dict)
    affine_forms: dict[str, Dim] = field(default_factory=dict)  # loop variable -> lo + T * counter + coordinate
    bounds: dict[str, tuple[Dim, Dim]] = field(default_factory=dict)  # of counters, coordinates and the lane
    ssa_names: dict[str, str] = field(default_factory=dict)  # counter -> SSA name
    buffers: dict[str, StorageBuffer] = field(default_factory=dict)
    values: dict[str, BoundValue] = field(default_factory=dict)
    _offsets: dict[tuple[str, tuple[Dim, ...]], ElementOffset] = field(default_factory=dict)

    def inner(self) -> CodegenScope:
        """A copy to which a nested block can add."""
        return CodegenScope(
            dict(self.axes),
            dict(self.affine_forms),
            dict(self.bounds),
            dict(self.ssa_names),
            dict(self.buffers),
            dict(self.values),
        )

    def enter_loop(self, r: Range, counter: Dim, remaining: str = "") -> None:
        """Bind the variable of `r`; `counter` is the block number in terms of variables bound to SSA values."""
        lo = substitute(r.lo, self.affine_forms, self.bounds)
        if r.tile > 1 or r.lanes:
            axis = Axis(r.var, r.tile, r.lanes, remaining)
            self.axes[r.var] = axis
            self.bounds[f"{r.var}@"] = (0, r.tile - 1)
            self.affine_forms[r.var] = lo + counter * r.tile + var(f"{r.var}@")
        else:
            self.affine_forms[r.var] = lo + counter

    def varying_axes(self, d: Dim) -> tuple[str, ...]:
        """The axes that index `d` varies over, in scope order."""
        found: set[str] = set()
        for name in variables(d):
            if name in self.values:
                found.update(self.values[name].axes)
            elif name in self.axes:
                found.add(name)
            elif name in self.affine_forms:
                found |= {v[:-1] for v in variables(self.affine_forms[name]) if v.endswith("@")}
        return self.in_scope_order(found)

    def in_scope_order(self, axes: set[str]) -> tuple[str, ...]:
        return tuple([a for a in self.axes if a in axes] if len(axes) > 1 else axes)

    def lane_axis(self, axes: Iterable[str]) -> Axis | None:
        """The axis among `axes` that lies across vector lanes."""
        return next((self.axes[a] for a in axes if self.axes[a].lanes), None)

    @property
    def lane(self) -> Axis | None:
        """The axis that lies across vector lanes here."""
        return self.lane_axis(self.axes)

    def resolve(self, d: Dim) -> Dim:
        """Index `d` in terms of counters, coordinates (`v@`) and bound integers."""
        return substitute(d, self.affine_forms, self.bounds)

    def element_offset(self, name: str, index: tuple[Dim, ...]) -> ElementOffset:
        """Where element `index` of a buffer lies, worked out once per scope."""
        key = (name, index)
        if key not in self._offsets:
            buffer = self.buffers[name]
            self._offsets[key] = ElementOffset.from_offset(
                self, substitute(buffer.element_offset(index), self.affine_forms, self.bounds)
            )
        return self._offsets[key]


@dataclass(frozen=True)
class ElementOffset:
    """An element offset: `base` plus `steps[v] * coordinate of v`; `steps` is None where some coordinate is not linear."""

    offset: Dim
    base: Dim
    strides: Mapping[str, Dim] | None

    @staticmethod
    def from_offset(scope: CodegenScope, offset: Dim) -> ElementOffset:
        coords = [v for v in variables(offset) if v.endswith("@")]
        steps: dict[str, Dim] = {}
        for v in coords:
            by = stride(offset, v)
            if by is None:
                return ElementOffset(offset, offset, None)
            steps[v[:-1]] = by
        return ElementOffset(offset, substitute(offset, dict.fromkeys(coords, 0), scope.bounds), steps)

    def at_coord(self, scope: CodegenScope, coord: Coord) -> tuple[Dim, int | None]:
        """Offset of the first lane at `coord`, and elements between lanes (None: irregular, see `lane_offset`)."""
        lane = scope.lane
        if self.strides is not None:
            shift: Dim = sum((s * coord[v] * (scope.axes[v].lanes or 1) for v, s in self.strides.items()), 0)
            by = self.strides.get(lane.var, 0) if lane else 0
            return self.base + shift, by if isinstance(by, int) else None
        form = self.lane_offset(scope, coord)
        return substitute(form, {LANE_VAR: 0}), coefficient(form, LANE_VAR)

    def transposable_axes(self, scope: CodegenScope) -> tuple[Axis, ...]:
        """The axes along which elements lie side by side where along the lanes they do not: blocks of both can be turned.

        The last one goes from element to element, each other goes on where the one behind it ends.
        """
        lane = scope.lane
        if lane is None or lane.remaining or not self.strides or self.strides.get(lane.var, 0) in (0, 1):
            return ()
        whole = [v for v in self.strides if not scope.axes[v].lanes and not scope.axes[v].remaining]
        found, length = list[Axis](), 1
        while length < lane.lanes and (v := next((v for v in whole if self.strides[v] == length), None)):
            found.insert(0, scope.axes[v])
            length *= found[0].tile
        return tuple(found) if length >= MIN_TRANSPOSE_BLOCK else ()

    def lane_offset(self, scope: CodegenScope, coord: Coord) -> Dim:
        """The offset at `coord` as an index in the lane number."""
        values: dict[str, Dim] = {}
        bounds = dict(scope.bounds)
        for v, axis in scope.axes.items():
            if f"{v}@" in variables(self.offset):
                values[f"{v}@"] = coord[v] if not axis.lanes else var(LANE_VAR) + coord[v] * axis.lanes
                if axis.lanes:
                    bounds[LANE_VAR] = (0, axis.active_lanes(coord[v]) - 1)
        return substitute(self.offset, values, bounds)


def trip_count(r: Range) -> Dim:
    """Number of steps of a loop."""
    trips = ceildiv(r.extent, r.tile)
    return max(0, trips) if isinstance(trips, int) else trips
