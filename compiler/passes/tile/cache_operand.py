"""Copy an operand of a contraction to a local buffer, transposed so that lanes read it contiguously."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2, prod

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.contraction import ContractionProblem, RegisterTile, best_tiles
from compiler.cost.machine import Machine
from compiler.ir.scalar import Load
from compiler.ir.symbolic.index_expr import interval, product, variables
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, dim_hint, expand_stmts, extent_hint, walk
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, with_unique_names
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.cache_operand import cache_operand_at
from compiler.transforms.split import strip_mine


@register
@dataclass(frozen=True)
class CacheOperand(TilePass):
    """Copy a reused operand to a local buffer with the reduced index outermost.

    for %i { for %j { reduce %r { x[%i, %r] * k[%j, %r] } } }
    ->  local %t  for %r { for %j { store k[%j, %r], %t[%r, %j] } }
        for %i { for %j { reduce %r { x[%i, %r] * %t[%r, %j] } } }

    Applies if the operand is contiguous along the reduction, so that lanes would gather, and is reread in loops (%i) of
    at least `min_reuse` steps in all that it does not depend on.  So it does if the operand is contiguous along no loop that can have
    lanes, as heads innermost in memory, and more than two register tiles reread it.  An operand that alone lies across the sum is
    copied along it, if lanes along results would gather.  The copy has at most `max_elements`.  Constants are excluded, because `pack`
    reorders them at compile time.
    """

    name = "cache-operand"
    exact = True
    min_reuse: int = from_machine("min_operand_reuse")
    max_elements: int = from_machine("max_local_elements")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        for s in contractions(ir):
            if copy := self.cheapest_copy(context.accesses(ir), s, context.machine):
                ir = self.with_panels(ir, copy, context)
        for s in contractions(ir):
            table = context.accesses(ir)
            copy = self.cheapest_copy(table, s, context.machine) or self.copy_along_sum(table, s, context.machine)
            if copy and context.may_apply(self, f"%{copy.read.buffer} cached transposed per %{copy.loop.var}"):
                ir = ir.with_body(self.insert_copy(ir.body, table, copy, NameSupply(ir)("transposed")))
                context.propose(self, None)
        return ir

    def cheapest_copy(self, table: Accesses, s: Reduce, machine: Machine) -> OperandCopy | None:
        """Return the copy of an operand of `s` that moves the fewest elements; results across lanes are moved as well.

        An operand that is contiguous along no loop comes first: without a copy, each of its elements takes a line.  Then come those
        for lanes along a loop that fills a vector.
        """
        reads = [a for a in table.all if isinstance(a.consumer, Reduce) and a.consumer.name == s.name]
        copies = [copy for a in reads if (copy := self.operand_copy(table, a, s, machine))]

        def order(c: OperandCopy) -> tuple[bool, bool, int]:
            has_idle_lanes = dim_hint(c.lane.extent, 0) < lanes_of(table, c.read, machine)
            return c.is_along_sum(table), has_idle_lanes, c.moved_elements(table)

        return min(copies, key=order, default=None)

    def with_panels(self, ir: Kernel, copy: OperandCopy, context: Context) -> Kernel:
        """Split the lane loop into panels of register tiles, with the loop that rereads the operand inside.

        for %j in 0..100 { for %i { ... } }  ->  for %j.panel in 0..6 { for %i { for %j in %j.panel*16..%j.panel*16 + 16 { ... } } }

        Lanes along a loop around the copy would fill one vector, as many as a block that is transposed in registers has.
        """
        table, machine = context.accesses(ir), context.machine
        width = self.panel_width(table, copy, machine)
        if not width or not context.may_apply(self, f"%{copy.lane.var} in panels of {width}"):
            return ir
        names = NameSupply(ir)

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or stmt.range.var != copy.lane.var:
                return (stmt,)
            _, *inner = perfect_nest((stmt,))
            strips = strip_mine(copy.lane, width, names(f"{copy.lane.var}.panel"))
            columns = [replace(stmt, range=r) for r in (strips.inner, strips.remainder) if r]
            nests = [wrap_in_nest([*inner, c], inner[-1].body) for c in columns]
            panels = (replace(stmt, range=strips.outer, body=nests[0]),)
            return (*panels, *(s for n in nests[1:] for s in n))

        return with_unique_names(ir.with_body(expand_stmts(ir.body, rule)))

    def panel_width(self, table: Accesses, copy: OperandCopy, machine: Machine) -> int:
        """Return the columns of a panel, 0 if the lane loop is inside the loop that rereads it, or one vector wide.

        A panel has as many register tiles as half of the first-level cache holds, at least one.
        """
        lane, loop, a = copy.lane, copy.loop, copy.read
        lanes = lanes_of(table, a, machine)
        nest = perfect_nest((table.loops[lane.var][1],))
        inside = [f.range for f in nest[1:]]
        if loop not in inside or not all(f.parallel for f in nest):
            return 0
        if not isinstance(lane.extent, int) or any(variables(f.range.lo) | variables(f.range.hi) for f in nest):
            return 0
        depth = dim_hint(product(r.extent for r in copy.reduction.ranges))
        tile = copy.register_tile(lanes, machine).registers
        tiles = max(1, machine.l1 // 2 // (tile * lanes * depth * table.types[a.buffer].dtype.bytes))
        around = prod(extent_hint(r) for r in table.loops[lane.var][2])
        shared = lane.extent * around // machine.threads
        vectors = min(tile * tiles, self.max_elements // (depth * lanes), shared // lanes)
        return min(vectors * lanes, lane.extent) if vectors > 1 else 0

    def operand_copy(self, table: Accesses, a: Access, s: Reduce, machine: Machine) -> OperandCopy | None:
        """Return the copy before the outermost long loop that does not change the operand, where it fits; None if it does nowhere."""
        is_along_sum = any(table.stride(a, r.var) == 1 for r in s.ranges)
        if not can_be_copied(table, a) or not (is_along_sum or all(len(variables(d)) < 2 for d in a.index)):
            return None
        enclosing_loops = [r for r in a.loops if r not in s.ranges]
        loops = [r for r in enclosing_loops if isinstance(table.loops[r.var][1], For)]
        rereading = [r for r in enclosing_loops if not table.depends_on(a, r.var)]
        steps = {r.var: prod(dim_hint(x.extent, 0) for x in rereading[k:]) for k, r in enumerate(rereading)}
        reuse_loops = [r for r in loops if steps.get(r.var, 0) >= self.min_reuse]
        dependent_loops = [r for r in enclosing_loops if table.depends_on(a, r.var)]
        strided_loops = [r for r in dependent_loops if table.stride(a, r.var) not in (0, 1)]
        if not reuse_loops or not strided_loops:
            return None
        others = [b for b in table.loads_of(s) if b is not a]
        lane = strided_loops[-1]
        lanes = lanes_of(table, a, machine)
        last = s.ranges[-1]
        are_along = all(table.stride(b, last.var) in (0, 1) or table.roles[b.buffer] == "const" for b in others)
        if are_along and lanes_follow_sum(dim_hint(lane.extent, 0), dim_hint(last.extent, 0), lanes):
            return None  # lanes run along the reduction, where the operands are contiguous
        if any(table.depends_on(b, lane.var) or table.roles[b.buffer] == "const" for b in others):
            return None  # the other operand varies across lanes too
        if loops == enclosing_loops and any(self.are_others_contiguous(table, a, others, r) for r in loops):
            return None  # lanes along this loop read the others contiguously and broadcast this operand
        inner_loops = {r.var: enclosing_loops[k + 1 :] for k, r in enumerate(enclosing_loops)}
        loop = next((r for r in reuse_loops if self.fits_limit(table, a, inner_loops[r.var], s, machine)), None)
        if loop is None:
            return None
        copy = OperandCopy(s, a, loop, lane)
        if not is_along_sum and self.has_contiguous_lanes(table, a, others, loop, lanes):
            return None
        rows = copy.register_tile(lanes, machine).rows
        return copy if is_along_sum or dim_hint(loop.extent, 0) > 2 * rows else None

    def copy_along_sum(self, table: Accesses, s: Reduce, machine: Machine) -> OperandCopy | None:
        """Return the copy of an operand that alone is strided along the sum, where lanes across results would gather as well, or be few."""
        reads, last = table.loads_of(s), s.ranges[-1]
        strided = [a for a in reads if table.stride(a, last.var) != 1]
        if len(reads) != 2 or len(strided) != 1:
            return None
        (a,) = strided
        lanes = lanes_of(table, a, machine)
        if not can_be_copied(table, a) or table.stride(a, last.var) == 0:
            return None
        results, depth = [r for r in a.loops if r not in s.ranges], dim_hint(last.extent, 0)
        contiguous = [dim_hint(r.extent, 0) for r in results if all(table.stride(b, r.var) in (0, 1) for b in reads)]
        if depth < lanes or not all(lanes_follow_sum(n, depth, lanes) for n in contiguous):
            return None  # lanes along such a loop read both contiguously
        for k, r in enumerate(results):
            rereads = not table.depends_on(a, r.var) and dim_hint(r.extent, 0) >= self.min_reuse
            if rereads and isinstance(table.loops[r.var][1], For):
                return OperandCopy(s, a, r, last) if self.fits_limit(table, a, results[k + 1 :], s, machine) else None
        return None

    def has_contiguous_lanes(self, table: Accesses, a: Access, others: list[Access], loop: Range, lanes: int) -> bool:
        """Return True if the operand is contiguous along a loop inside `loop`, or along one around it that can have the lanes."""
        contiguous = (r for r in a.loops if table.stride(a, r.var) == 1)
        return any(
            loop in table.loops[r.var][2]
            or (
                dim_hint(r.extent, 0) >= lanes
                and not table.local_bytes(r.var)
                and all(table.stride(b, r.var) in (0, 1) for b in others)
            )
            for r in contiguous
        )

    def are_others_contiguous(self, table: Accesses, a: Access, others: list[Access], r: Range) -> bool:
        """Return True if the others are contiguous in memory along `r`, which is long and does not change this operand.

        Local buffers of an iteration are not: lanes along `r` would compute their values as well.
        """
        if table.depends_on(a, r.var) or dim_hint(r.extent, 0) < self.min_reuse:
            return False
        if any(r.var in table.local_scopes.get(b.buffer, ()) for b in others):
            return False
        return all(table.stride(b, r.var) == 1 for b in others)

    def fits_limit(self, table: Accesses, a: Access, inside: list[Range], s: Reduce, machine: Machine) -> bool:
        """Return True if loops `inside` and the reduction read a box of at most `max_elements`."""
        copied_loops = [r for r in (*inside, *s.ranges) if table.depends_on(a, r.var)]
        if any(x.var in variables(r.lo) for x in copied_loops for r in copied_loops):
            return False
        elements = product(r.extent for r in copied_loops)
        bounds = interval(elements, table.loop_bounds)
        if bounds is None or bounds[1] > machine.max_stack_elements:
            return False
        return dim_hint(elements, 0) <= self.max_elements

    def insert_copy(self, body: Block, table: Accesses, copy: OperandCopy, name: str) -> Block:
        """Copy what the operand reads in the loop before it, with the reduced indices outermost."""
        a, ranges = copy.read, copy.reduction.ranges
        inner = [r for r in a.loops[a.loops.index(copy.loop) + 1 :] if table.depends_on(a, r.var)]
        ordered = sorted(inner, key=lambda r: (r in ranges) == (copy.lane in ranges))
        load = Load(table.types[a.buffer].dtype, a.buffer, a.index)
        return cache_operand_at(body, copy.loop, load, ordered, name, table.loop_bounds)


@dataclass(frozen=True)
class OperandCopy:
    """A copy of what a contraction reads, made before `loop`, for lanes along the loop `lane`."""

    reduction: Reduce
    read: Access
    loop: Range
    lane: Range

    def register_tile(self, lanes: int, machine: Machine) -> RegisterTile:
        """Return the best tile of rows along `loop` and columns along `lane`."""
        depth = dim_hint(product(r.extent for r in self.reduction.ranges))
        problem = ContractionProblem(extent_hint(self.lane), lanes, depth, self.read.execution_count)
        return best_tiles(extent_hint(self.loop), [problem], machine)[0]

    def is_along_sum(self, table: Accesses) -> bool:
        """Return True if the operand is contiguous along the reduction."""
        return any(table.stride(self.read, r.var) == 1 for r in self.reduction.ranges)

    def moved_elements(self, table: Accesses) -> int:
        """Return the elements that are copied, and those of results that are not contiguous across lanes."""
        around = table.loops[self.loop.var][2]
        copied = prod(extent_hint(r) for r in self.read.loops if r in around or table.depends_on(self.read, r.var))
        stores = [a for a in table.all if a.is_store and self.lane in a.loops and table.roles[a.buffer] != "local"]
        return copied + sum(a.execution_count for a in stores if table.stride(a, self.lane.var) != 1)


def lanes_of(table: Accesses, a: Access, machine: Machine) -> int:
    """Return the elements of a buffer that a vector holds."""
    return machine.lanes(8 * table.types[a.buffer].dtype.bytes)


def can_be_copied(table: Accesses, a: Access) -> bool:
    """Return True for an input read at indices of loops alone, such that a copy made before them reads in bounds."""
    index_vars = {n for d in a.index for n in variables(d)}
    return table.roles[a.buffer] == "in" and not a.is_masked and index_vars <= {r.var for r in a.loops}


def lanes_follow_sum(columns: int, depth: int, lanes: int) -> bool:
    """Return True if lanes along a sum of `depth` products take less than lanes across a few columns: vectors of each result.

    Lanes along the sum are added at its end, by a shuffle and an addition for each halving.
    """
    if not columns < lanes <= depth:
        return False
    return -(-depth // lanes) + 2 * log2(lanes) < depth / max(1, columns)


def contractions(ir: Kernel) -> list[Reduce]:
    """Return the contractions of a kernel."""
    return [s for s in walk(ir.body) if isinstance(s, Reduce) and is_contraction(s)]
