"""A fused group of Graph IR -> one kernel of Tile IR, as scalar loops; the tile passes make it fast.

The root's dimensions become loops and the root's element is asked for; every operand answers with an expression (elementwise and index
maps), a reduce statement placed where its index is known (reductions), or an element of a local buffer (nodes worth keeping).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from compiler.analysis.demand import solve_demand
from compiler.analysis.reduction_domains import split_points, tighten_ranges
from compiler.analysis.store_domains import (
    StoreDomain,
    is_bijective_view,
    is_invertible_view,
    map_through_views,
    split_store_domain,
    with_unrolled_dims,
)
from compiler.errors import LoweringError
from compiler.ir import scalar
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import (
    IDENTITIES,
    ConstantLinear,
    Elementwise,
    Gather,
    Generate,
    Guard,
    IndexMap,
    Leaf,
    Lookup,
    Position,
    Reduction,
    Scan,
    Scatter,
    elementwise_expr,
)
from compiler.ir.scalar import Const, Expr, IndexValue, Load, Ref, const, index_value, where
from compiler.ir.symbolic.index_expr import Dim, interval, simplify, var, variables
from compiler.ir.tile.kernel import BoundsCheck, Kernel, Local, Param, Range, Reduce, Store, dim_hint
from compiler.ir.tile.uses import names_read
from compiler.ir.types import TensorType, broadcast_index, f32, i64, summand_dtype
from compiler.lowering.loop_nest_builder import LoopNestBuilder
from compiler.lowering.scan import find_sequential_loop, lower_scan_step, orient_for_scans
from compiler.lowering.scatter import lower_scatter

MAX_LOCAL_ELEMENTS = 1 << 16
"""Most elements of one row that local buffers may hold."""

MAX_DYNAMIC_LOCAL_ELEMENTS = 1 << 18
"""Most elements that a local buffer of open size may ever hold: it lies on the stack."""


def lower_kernel(graph: Graph, name: str) -> Kernel:
    """The kernel that computes `graph`; its parameters are the inputs, then the outputs, in order.

    Raises LowerError where the group does not fit one loop nest.
    """
    known = _LOWERED_KERNELS.get(graph)
    return replace(known, name=name) if known else KernelLowering(graph, name).run()


_LOWERED_KERNELS: WeakKeyDictionary[Graph, Kernel] = WeakKeyDictionary()
"""The kernels of graphs that fusion has lowered when it tried them."""


def cache_lowered_kernel(graph: Graph, kernel: Kernel | None) -> None:
    """From now on `kernel` is what `graph` is lowered to, if there is one."""
    if kernel:
        _LOWERED_KERNELS[graph] = kernel


class KernelLowering:
    """One lowering in progress."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name
        open_types = (n.type for n in graph.nodes if isinstance(n.result_type, TensorType) and not n.type.is_static)
        self.nest = LoopNestBuilder(frozenset().union(*(t.symbols for t in open_types)))
        self.inputs = {n: n.attrs["name"] for n in graph.inputs}
        self.materialized_elements = 0

    def run(self) -> Kernel:
        target = self.graph.outputs[0]
        self.root = self.skip_trailing_views(target)
        self.store_chain = self.chain_to_constant_linear(self.root) or [self.root]
        self.in_constant_linear = False
        self.materializing: Node | None = None  # the node whose buffer is being filled
        self.sequential_loop: str | None = None  # the loop that scans walk in order
        if isinstance(self.root.structure, Scatter):
            lower_scatter(self, target)
        else:
            self.lower_root(target)
        params = [Param(n.attrs["name"], n.type) for n in self.graph.inputs]
        params += [Param(f"out{k}", TensorType(n.dtype, n.shape), "out") for k, n in enumerate(self.graph.outputs)]
        return Kernel(self.name, tuple(params), self.nest.build())

    def lower_root(self, target: Node) -> None:
        """Loops over the root's elements, and in them everything that its elements need."""
        core, points = self.store_chain[-1], unrolled_points(self.store_chain[-1])
        loop_extents = [1 if d in points[0] else n for d, n in enumerate(core.shape)]
        places = split_points(self.graph, self.root) if self.store_chain == [self.root] else {}
        split = split_store_domain(self.store_chain, loop_extents, points, places)
        if len(self.graph.outputs) > 1 and (len(points) > 1 or (len(split) > 1 and not places)):
            raise LoweringError(f"{core} yields several elements in each step")
        for part in split:
            self.lower_domain(target, part, loop_extents)

    def lower_domain(self, target: Node, domain: StoreDomain, extents: Sequence[Dim]) -> None:
        """Those loops in one part of the root, all of whose points are stored."""
        ranges, index = self.nest.new_loops(
            "i", extents if len(self.graph.outputs) > 1 else domain.extents, domain.extents
        )
        index = tuple(i + low for i, low in zip(index, domain.start, strict=True))
        self.extents = {str(d): size for d, size in zip(index, extents, strict=True) if not isinstance(d, int)}
        if self.store_chain == [self.root]:
            index = orient_for_scans(self.graph, self.root, index)
        places = [
            map_through_views(self.store_chain, with_unrolled_dims(p, index), self.nest.bounds)[0]
            for p in domain.points
        ]
        index = places[0]
        self.demand = solve_demand(self.graph, self.root, index)
        self.sequential_loop = find_sequential_loop(self.demand)
        rows = set(self.demand.shared_loops) - {self.sequential_loop}
        ordered = [r for r in ranges if r.var in rows] + [r for r in ranges if r.var not in rows]
        ordered.sort(key=lambda r: r.var == self.sequential_loop)
        self.extra_indices = {n: self.extra_output_index(n) for n in self.graph.outputs[1:]}
        for n, place in self.extra_indices.items():
            follows = [r.var in {v for d in place for v in variables(d)} for r in ordered]
            if follows != sorted(follows, reverse=True):
                raise LoweringError(f"several steps of the loops of {self.root} yield one element of {n}")

        def fill() -> None:
            for place in places:
                self.store_output(0, self.root, place, self.output_position(target, place))
            for k, n in enumerate(self.graph.outputs[1:], 1):
                self.store_output(k, n, self.extra_indices[n], self.extra_indices[n])

        inner = ordered[len(rows) :]
        self.nest.emit_loops(ordered[: len(rows)], True, lambda: self.nest.emit_loops(inner, False, fill))

    # outputs

    def skip_trailing_views(self, node: Node) -> Node:
        """The node whose loops the kernel runs: one-to-one views at the end are stored through."""
        while is_invertible_view(node) and is_bijective_view(node) and self.is_single_use(node.operands[0]):
            node = node.operands[0]
        return node

    def is_single_use(self, node: Node) -> bool:
        """Whether the kernel computes `node` for one user alone."""
        only = len(self.graph.users[node]) == 1 and node not in self.graph.outputs
        return only and not isinstance(node.structure, Leaf)

    def chain_to_constant_linear(self, node: Node) -> list[Node] | None:
        """The way from `node` to a mix through one-to-one views and elementwise ops, whose loops the kernel runs then."""
        s = node.structure
        if isinstance(s, ConstantLinear):
            return [node]
        through = isinstance(s, Elementwise) or is_invertible_view(node)
        for o in node.operands if through else ():
            if self.is_single_use(o) and (isinstance(s, IndexMap) or o.shape == node.shape):
                rest = self.chain_to_constant_linear(o)
                if rest is not None:
                    return [node, *rest]
        return None

    def output_position(self, target: Node, index: Position) -> Position:
        """Where element `index` of the root lies in the output behind its views."""
        chain = [target]
        while chain[-1] is not self.root:
            chain.append(chain[-1].operands[0])
        return map_through_views(chain, index, self.nest.bounds)[0]

    def extra_output_index(self, node: Node) -> Position:
        """The element of a further output that one step of the loops yields."""
        asked = self.demand.requests.get(node, [])
        whole = [r.index for r in asked if all(map(self.covers_extent, r.index, node.shape))]
        if not whole:
            raise LoweringError(f"output {node} does not follow the loops of {self.root}")
        if len({str(d) for d in whole[0] if not isinstance(d, int)}) < sum(s != 1 for s in node.shape):
            raise LoweringError(f"output {node} is read at a diagonal")
        return whole[0]

    def covers_extent(self, d: Dim, extent: Dim) -> bool:
        """Whether `d` takes every value below `extent` and no other: it is a loop of the root, or the only one there is."""
        if isinstance(d, int):
            return extent == 1
        return str(d) in self.extents and self.extents[str(d)] == extent

    def store_output(self, k: int, node: Node, index: Position, position: Position) -> None:
        value = self.element(node, index, None)
        with self.nest.at_depth(self.nest.defining_depth({v for d in index for v in variables(d)})):
            self.nest.add(Store(f"out{k}", position, value))

    # elements

    def simplify_index(self, d: Dim) -> Dim:
        return simplify(d, self.nest.bounds)

    def element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Element `index` of `node`, read or computed only where `mask` holds."""
        index = tuple(self.simplify_index(d) for d in index)
        key = (node, index, mask)
        known: Expr | None = self.nest.lookup(key)
        if known is None:
            known = self.hoisted_element(node, index, mask)
            uses = len(self.graph.users.get(node, ())) + self.graph.outputs.count(node)
            if uses > 1 and not isinstance(known, Load):
                known = self.nest.bind_unless_trivial(known)
            self.nest.memoize(key, known)
        return known

    def hoisted_element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """The element, computed in the innermost loop that its index depends on."""
        names = {v for d in index for v in variables(d)} | (names_read(mask) if mask is not None else set())
        depth = self.nest.defining_depth(names)
        if depth + 1 == len(self.nest.levels) or node in self.inputs or isinstance(node.structure, (Leaf, IndexMap)):
            return self.compute_element(node, index, mask)
        with self.nest.at_depth(depth):
            return self.nest.bind_unless_trivial(self.compute_element(node, index, mask))

    def compute_element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        if node in self.inputs:
            return Load(node.dtype, self.inputs[node], index, mask, const(0, node.dtype) if mask is not None else None)
        s = node.structure
        if isinstance(s, Leaf):
            value = scalar_value(node)
            if value is None:
                raise LoweringError(f"constant {node} must be an operand of the group")
            return const(value, node.dtype)
        if node in self.demand.materialized and node is not self.materializing:
            return self.load_materialized(node, index, mask)
        if isinstance(s, Elementwise):
            return self.elementwise(node, index, mask)
        if isinstance(s, IndexMap):
            return self.index_map(node, s, index, mask)
        if isinstance(s, Gather):
            return self.gather(node, s, index, mask)
        if isinstance(s, Generate):
            return s.fn(node, index)
        if isinstance(s, Scan):
            if mask is not None:
                raise LoweringError(f"{node} is asked for under a guard")
            return lower_scan_step(self, node, s, index)
        if isinstance(s, Scatter):
            raise LoweringError(f"{node} can be read only when all of it is written")
        if isinstance(s, ConstantLinear):
            return self.constant_linear(node, s, index, mask)
        if isinstance(s, Reduction):
            if mask is not None or self.in_constant_linear:
                raise LoweringError(f"{node} is asked for {'under a guard' if mask is not None else 'by a mix'}")
            return self.reduction(node, s, index)
        raise LoweringError(f"{node} has no structure to lower")

    def upcast_element(self, node: Node, index: Position) -> Expr:
        """The element as arithmetic takes it: half types as f32."""
        return upcast_half(self.element(node, index, None))

    def elementwise(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """The op's rule on the operands' elements; half types are computed in f32 and rounded once."""
        assert isinstance(node.structure, Elementwise)
        operands = [self.element(o, broadcast_index(o.shape, index), mask) for o in node.operands]
        operands = [upcast_half(x) for x in operands] if node.structure.promotes_half else operands
        rule = elementwise_expr(node, [o.dtype for o in operands])
        uses = [0] * len(operands)
        for e in rule.subexprs:
            for a in e.args:
                if isinstance(a, Ref):
                    uses[int(a.name[1:])] += 1
        bound = [self.nest.bind_unless_trivial(o) if n > 1 else o for o, n in zip(operands, uses, strict=True)]
        result = scalar.transform(rule, lambda e: bound[int(e.name[1:])] if isinstance(e, Ref) else e)
        return self.bind_shared(result).to(node.dtype)

    def bind_shared(self, e: Expr) -> Expr:
        """Bind what a rule uses more than once."""
        return scalar.bind_common_subexprs(e, self.nest.bind_unless_trivial)

    def constant_linear(self, node: Node, s: ConstantLinear, index: Position, mask: Expr | None) -> Expr:
        """One row of the matrix times the line, element by element; what several rows read is bound once."""
        dim, matrix = s.axis_and_matrix(node)
        row, total, outer = index[dim], None, self.in_constant_linear
        if not isinstance(row, int):
            raise LoweringError(f"{node} is asked for at a row that is not known")
        self.in_constant_linear = True
        for k, c in enumerate(matrix[row]):
            if c == 0:
                continue
            x = self.bound_element(node.operands[0], (*index[:dim], k, *index[dim + 1 :]), mask)
            if total is None:
                total = x if c == 1 else x * const(c, x.dtype)
            else:
                total = total + x if c == 1 else total - x if c == -1 else total + x * const(c, x.dtype)
        self.in_constant_linear = outer
        return const(0, node.dtype) if total is None else total.to(node.dtype)

    def bound_element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """The element under a name, the same one whenever it is asked for here."""
        key = (node, index, mask, "bound")
        known: Expr | None = self.nest.lookup(key)
        if known is None:
            known = self.nest.bind_unless_trivial(upcast_half(self.element(node, index, mask)))
            self.nest.memoize(key, known)
        return known

    def index_map(self, node: Node, s: IndexMap, index: Position, mask: Expr | None) -> Expr:
        """A view, or a choice between guarded pieces."""
        result: Expr | None = None if s.fill is None else const(s.fill(node), node.dtype)
        for piece in reversed(s.reads(node, index)):
            test = self.guard_condition(piece.guards)
            if test is False:
                continue
            inner = mask if test is True else test if mask is None else mask & test
            value = self.element(node.operands[piece.operand], piece.position, inner)
            result = value if test is True or result is None else where(test, value, result)
        if result is None:
            raise LoweringError(f"{node} has no piece at {index}")
        return result

    def guard_condition(self, guards: Sequence[Guard]) -> Expr | bool:
        """The test that every guard holds; what the loops' bounds decide is decided here."""
        test: Expr | None = None
        for g in guards:
            low, high = self.simplify_index(g.index - g.low), self.simplify_index(g.index - g.high)
            known, above = interval(low, self.nest.bounds), interval(high, self.nest.bounds)
            if (known and known[1] < 0) or (above and above[0] >= 0):
                return False
            tests = []
            if not (known and known[0] >= 0):
                tests.append(index_value(low) >= 0)
            if not (above and above[1] < 0):
                tests.append(index_value(high) < 0)
            for t in tests:
                test = t if test is None else test & t
        return True if test is None else self.nest.bind_unless_trivial(test, "inside")

    def gather(self, node: Node, s: Gather, index: Position, mask: Expr | None) -> Expr:
        """An element of operand 0, at a place that other operands name."""
        position = s.position(node, index)
        place = tuple(self.checked_index(node, d, mask) if isinstance(d, Lookup) else d for d in position)
        return self.element(node.operands[0], place, mask)

    def checked_index(self, node: Node, d: Lookup, mask: Expr | None) -> Dim:
        """Read an index, check it, and keep the address inside the buffer whatever it is."""
        value = self.element(node.operands[d.operand], d.position, mask).to(i64)
        place = value.index if isinstance(value, IndexValue) else int(value.value) if isinstance(value, Const) else None
        if place is not None and isinstance(d.extent, int):
            known = interval(place, self.nest.bounds)
            if known and known[0] >= 0 and known[1] < d.extent:
                return place
        extent = index_value(d.extent)
        if d.wrap_negative:
            value = self.nest.bind_unless_trivial(value)
            value = where(value < 0, value + extent, value)
        found = value if isinstance(value, Ref) else self.nest.bind(value)
        if mask is None:
            with self.nest.at_depth(self.nest.defining_depth({found.name})):
                self.nest.add(BoundsCheck(found.name, 0, d.extent))
        return var(self.nest.bind(where((found >= 0) & (found < extent), found, 0), "row").name)

    # reductions and buffers

    def reduction(self, node: Node, s: Reduction, index: Position) -> Expr:
        """A reduce statement in the innermost loop that the index depends on."""
        depth = self.nest.defining_depth({v for d in index for v in variables(d)})
        with self.nest.at_depth(depth):
            key = (node, index, "reduced")
            known: Expr | None = self.nest.lookup(key)
            if known is not None:
                return known
            space = s.domain(node)
            ranges, point = self.nest.new_loops("r", space.extents)
            tests = space.guards(index, point)
            ranges = tighten_ranges(ranges or [Range(self.nest.fresh_name("r"), 0, 1)], tests, self.nest.bounds)
            if tests and any(r.lo == r.hi for r in ranges):
                return const(IDENTITIES[s.combine](node.dtype), node.dtype)
            with self.nest.open_level(*ranges) as level:
                value = self.masked_summand(node, s, tests, space.positions(index, point))
            name = self.nest.fresh_name("acc")
            self.nest.add(Reduce(name, s.combine, tuple(ranges), tuple(level.stmts), value))
            self.nest.defining_level[name] = self.nest.current_level
            result = Ref(value.dtype, name).to(node.dtype)
            self.nest.memoize(key, result)
            return result

    def masked_summand(self, node: Node, s: Reduction, guards: Sequence[Guard], positions: Sequence[Position]) -> Expr:
        """What one point of a reduction adds: nothing where a guard does not hold."""
        test = self.guard_condition(guards)
        if test is False:
            dtype = f32 if node.dtype.is_half else node.dtype
            return const(IDENTITIES[s.combine](dtype), dtype)
        mask = None if test is True else test
        elements = zip(node.operands, positions, strict=True)
        value = s.fn(*(self.element(o, p, mask).to(summand_dtype(o.dtype, node.dtype)) for o, p in elements))
        return value if mask is None else where(mask, value, const(IDENTITIES[s.combine](value.dtype), value.dtype))

    def load_materialized(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Element of the local buffer that holds `node`, filled in the row loop when first asked for."""
        rows = set(self.demand.shared_loops)
        fixed = tuple(d if variables(d) <= rows else None for d in index)
        depth = self.nest.defining_depth(rows)
        with self.nest.at_depth(depth):
            buffer = self.nest.lookup((node, fixed, "kept"))
            if buffer is None:
                buffer = self.materialize(node, fixed)
                self.nest.memoize((node, fixed, "kept"), buffer)
        inner = tuple(d for d, f in zip(index, fixed, strict=True) if f is None)
        return Load(node.dtype, buffer, inner, mask, const(0, node.dtype) if mask is not None else None)

    def materialize(self, node: Node, fixed: tuple[Dim | None, ...]) -> str:
        """Compute every element of `node` in the current row into a local buffer."""
        buffer = self.nest.fresh_name("kept")
        ranges, index = [], []
        for size, place in zip(node.shape, fixed, strict=True):
            if place is None:
                ranges.append(Range(self.nest.fresh_name("k"), 0, size))
            index.append(var(ranges[-1].var) if place is None else place)
        shape = tuple(r.hi for r in ranges)
        count = TensorType(node.dtype, shape).numel
        most = interval(count, {})
        self.materialized_elements += dim_hint(count)
        if self.materialized_elements > MAX_LOCAL_ELEMENTS or most is None or most[1] > MAX_DYNAMIC_LOCAL_ELEMENTS:
            raise LoweringError(f"a row of {node} is too long to keep")
        self.nest.add(Local(buffer, TensorType(node.dtype, shape)))
        self.nest.defining_level[buffer] = self.nest.current_level

        def fill() -> None:
            position = tuple(index)
            s = node.structure
            value = (
                self.reduction(node, s, position)
                if isinstance(s, Reduction)
                else self.compute_for_buffer(node, position)
            )
            self.nest.add(Store(buffer, tuple(var(r.var) for r in ranges), value))

        self.nest.emit_loops(ranges, False, fill)
        return buffer

    def compute_for_buffer(self, node: Node, index: Position) -> Expr:
        """The element computed, not read from its buffer."""
        outer, self.materializing = self.materializing, node
        value = self.compute_element(node, tuple(self.simplify_index(d) for d in index), None)
        self.materializing = outer
        return value


def upcast_half(e: Expr) -> Expr:
    """Half types as f32, for arithmetic."""
    return e.to(f32) if e.dtype.is_half else e


def unrolled_points(core: Node) -> list[dict[int, int]]:
    """Every choice of rows in the dimensions that `core` and the mixes right below it mix: these are written out, not looped over."""
    points: list[dict[int, int]] = [{}]
    while isinstance(core.structure, ConstantLinear):
        dim, matrix = core.structure.axis_and_matrix(core)
        if dim in points[0]:
            break
        points = [{**p, dim: k} for p in points for k in range(len(matrix))]
        core = core.operands[0]
    return points
