"""Loop collapsing: make one loop of perfectly nested parallel loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses
from compiler.analysis.scanned_rows import rows_of_scan
from compiler.cost.vectorization import lane_count
from compiler.errors import TransformError
from compiler.ir.scalar import IndexValue
from compiler.ir.symbolic.affine import stride
from compiler.ir.symbolic.index_expr import Dim, interval, substitute
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import substitute_indices
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.collapse import collapse


@register
@dataclass(frozen=True)
class Collapse(TilePass):
    """Collapse nested parallel loops into one.

    parallel %i in 0..32 { parallel %j in 0..7 { f(%x[%i, %j]) } }  ->  parallel %i in 0..224 { f(%x[%i // 7, %i % 7]) }

    Applies if every address stays affine in the joint index; around scans and sums, only to the loop that memory follows, or that
    goes through the rows of a scan or the columns of constant weights.
    Lanes then run across the end of a row, and tiles of a contraction's rows across the end of an image.  Ranges of a reduction
    are collapsed as well.  Inner loops of at least `max_inner_extent` steps are left alone, because they fill the lanes by
    themselves; for a dynamic extent the lower bound decides.  So are those of whole vectors and a part whose index is a value,
    as in a triangular mask: each lane would divide.
    """

    name = "collapse"
    exact = True
    max_inner_extent: int = from_machine("max_collapsed_extent")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if all(f.parallel for f in perfect_nest(ir.body)):
            ir = self.collapse_loops(ir, context)
        return self.collapse_ranges(self.collapse_inner_loops(ir, context), context)

    def collapse_loops(self, ir: Kernel, context: Context) -> Kernel:
        """Collapse the loops of a kernel that is one nest."""
        size = lane_count(ir, context.machine)
        for k in range(len(perfect_nest(ir.body)) - 1, 0, -1):
            nest, table = perfect_nest(ir.body), context.accesses(ir)
            v = nest[k].range.var
            has_lanes = is_pointwise(nest) or is_innermost(table, v) or is_around_scan(table, nest, size)
            is_left = self.is_long(nest[k].range) or not (has_lanes or has_packed_columns(table, v))
            collapsed = None if is_left else self.collapse_pair(table, nest, k, context.machine.lanes(32))
            message = f"%{nest[k - 1].range.var} and %{v} collapsed"
            if collapsed is not None and context.may_apply(self, message):
                ir = collapsed
        return ir

    def collapse_inner_loops(self, ir: Kernel, context: Context) -> Kernel:
        """Collapse sequential loops around pointwise statements, as over a row of several dimensions."""
        while (pair := next(self.collapsible_pairs(ir, context), None)) is not None:
            outer, inner, collapsed = pair
            if not context.may_apply(self, f"%{outer.range.var} and %{inner.range.var} collapsed"):
                return ir
            ir = collapsed
        return ir

    def collapsible_pairs(self, ir: Kernel, context: Context) -> Iterator[tuple[For, For, Kernel]]:
        """Yield sequential loops with one loop inside, around pointwise statements, and the kernel with one for both."""
        table, lanes = context.accesses(ir), context.machine.lanes(32)
        for outer in (s for s in tile.walk(ir.body) if isinstance(s, For) and not s.parallel and len(s.body) == 1):
            inner = outer.body[0]
            if not isinstance(inner, For) or self.is_long(inner.range) or not is_pointwise([inner]):
                continue
            accesses = (a for a in table.all if inner.range.var in a.loop_vars)
            if (joint := joint_loop(table, outer, inner, accesses)) is None:
                continue
            loop, delinearized = joint
            body = collapsed_body(inner.body, inner.range, delinearized, loop.range.var, lanes)
            if body is None:
                continue
            collapsed = ir.with_statement(outer, replace(loop, body=body))
            if not context.kernel_problem(collapsed):
                yield outer, inner, collapsed

    def collapse_ranges(self, ir: Kernel, context: Context) -> Kernel:
        """Collapse the ranges of reductions, but of contractions that reread an operand, which is packed by dimension."""
        sums = [s for s in tile.walk(ir.body) if isinstance(s, Reduce) and not s.body]
        for s in [s for s in sums if not (is_contraction(s) and rereads_operand(context.accesses(ir), s))]:
            for k in range(len(s.ranges) - 1, 0, -1):
                new = None if self.is_long(s.ranges[k]) else self.collapsed_sum(context.accesses(ir), s, k)
                if new is None or context.kernel_problem(collapsed := ir.with_statement(s, new)):
                    continue  # a GPU reads local buffers by one loop for each dimension
                if not context.may_apply(self, f"%{s.ranges[k - 1].var} and %{s.ranges[k].var} collapsed"):
                    continue
                ir, s = collapsed, new
        return ir

    def collapsed_sum(self, table: Accesses, s: Reduce, k: int) -> Reduce | None:
        """Collapse range `k` of a reduction with the one before; None if some address would not be affine."""
        outer, inner = (For(r, (), True) for r in s.ranges[k - 1 : k + 1])
        if (joint := joint_loop(table, outer, inner, table.loads_of(s))) is None:
            return None
        loop, delinearized = joint
        moved = substitute_indices(s, delinearized)
        return replace(moved, ranges=(*s.ranges[: k - 1], loop.range, *s.ranges[k + 1 :]))

    def is_long(self, r: Range) -> bool:
        bounds = interval(r.extent, {})
        return bounds is None or bounds[0] >= self.max_inner_extent

    def collapse_pair(self, table: Accesses, nest: list[For], k: int, lanes: int) -> Kernel | None:
        """Collapse loop `k` of the nest with the one around it; None if some address would not be affine, or a value cost divisions."""
        joint = joint_loop(table, nest[k - 1], nest[k], (a for a, _ in table.access_groups))
        if joint is None:
            return None  # rejects most pairs before a kernel is built
        loop, delinearized = joint
        v = loop.range.var
        body = collapsed_body(nest[-1].body, nest[k].range, delinearized, v, lanes)
        if body is None:
            return None
        collapsed = table.kernel.with_body(wrap_in_nest([*nest[: k - 1], loop, *nest[k + 1 :]], body))
        table = Accesses(collapsed)
        return collapsed if stays_affine(table, table.all, {}, v) else None


def joint_loop(
    table: Accesses, outer: For, inner: For, accesses: Iterable[Access]
) -> tuple[For, dict[str, Dim]] | None:
    """Return one loop for two and the indices that replace their variables; None if there is none, or some address would not be affine."""
    try:
        loop, delinearized = collapse(outer, inner)
    except TransformError:
        return None
    return (loop, delinearized) if stays_affine(table, accesses, delinearized, loop.range.var) else None


def collapsed_body(body: Block, inner: Range, delinearized: Mapping[str, Dim], v: str, lanes: int) -> Block | None:
    """Return the body in the joint loop `v`; None if `inner` ends inside a vector and each lane would divide for a value."""
    new = tuple(substitute_indices(s, delinearized) for s in body)
    return None if ends_inside_vector(inner, lanes) and not values_stay_affine(new, v) else new


def rereads_operand(table: Accesses, s: Reduce) -> bool:
    """Return True if a loop around `s` does not change all that it reads, unlike those around a sum of squares."""
    around = table.loops[s.ranges[0].var][2]
    return any(not table.depends_on(a, r.var) for a in table.loads_of(s) for r in around)


def is_pointwise(nest: Sequence[For]) -> bool:
    """Return True if a nest has neither local buffers nor loops inside, nor reductions but contractions."""
    body = [s for f in nest[-1:] for s in f.body]
    return all(is_contraction(s) if isinstance(s, Reduce) else not isinstance(s, (tile.Local, For)) for s in body)


def is_around_scan(table: Accesses, nest: Sequence[For], size: int) -> bool:
    """Return True if a nest goes through the rows of a scan, which are transposed in blocks of `size`."""
    return any(rows_of_scan(table, s, size) for f in nest[-1:] for s in f.body)


def ends_inside_vector(r: Range, lanes: int) -> bool:
    """Return True if a loop has more than one vector of steps, and ends inside one."""
    return isinstance(r.extent, int) and r.extent > lanes and r.extent % lanes != 0


def values_stay_affine(body: Block, v: str) -> bool:
    """Return True if all values that are indices are affine in loop `v`."""
    values = (e for s in tile.walk(body) for x in tile.stmt_exprs(s) for e in x.subexprs)
    return all(stride(e.index, v) is not None for e in values if isinstance(e, IndexValue))


def is_innermost(table: Accesses, v: str) -> bool:
    """Return True if accesses to memory are contiguous along loop `v`, but for those of one element."""
    strides = [table.stride(a, v) for a in table.all if table.roles[a.buffer] != "local"]
    return 1 in strides and all(s in (0, 1) for s in strides)


def has_packed_columns(table: Accesses, v: str) -> bool:
    """Return True if loop `v` goes through the columns of a product with a constant, which is packed for lanes along them."""
    constants = [a for a in table.all if table.roles[a.buffer] == "const" and is_contraction(a.consumer)]
    return any(table.depends_on(a, v) for a in constants)


def stays_affine(table: Accesses, accesses: Iterable[Access], delinearized: Mapping[str, Dim], v: str) -> bool:
    """Return True if addresses are affine in loop `v` after the indices `delinearized` are substituted."""
    for a in accesses:
        index = tuple(substitute(d, delinearized) for d in a.index)
        if stride(table.types[a.buffer].offset(index), v) is None:
            return False
    return True
