"""Lowering of a fused group of Graph IR to one kernel of Tile IR, as scalar loops; the tile passes optimize it.

The dimensions of the root become loops, and its element is lowered recursively: elementwise ops and index maps to an
expression, reductions to a reduce statement in the outermost loop where their index is defined, and materialized nodes
to a load from a local buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from compiler.analysis.demand import solve_demand
from compiler.analysis.index_sets import tighten_ranges
from compiler.analysis.reduction_domains import split_points
from compiler.analysis.store_domains import (
    StoreDomain,
    map_through_views,
    split_store_domain,
    with_unrolled_dims,
)
from compiler.analysis.value_bounds import ValueBounds
from compiler.cost.machine import AVX512, Machine
from compiler.errors import LoweringError
from compiler.ir import scalar
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import (
    IDENTITIES,
    ConstantLinear,
    CountingSort,
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
    Structure,
    elementwise_expr,
    position_variables,
)
from compiler.ir.scalar import Const, Expr, IndexValue, Load, Ref, const, index_value, where
from compiler.ir.subexpressions import bind_common_subexprs
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Bounds, Dim, interval, maximum, simplify, substitute, var, variables
from compiler.ir.tile.kernel import BoundsCheck, Kernel, Local, Param, Range, Reduce, Store, dim_hint
from compiler.ir.tile.uses import names_read
from compiler.ir.types import TensorType, broadcast_index, i64, summand_dtype
from compiler.lowering.counting_sort import lower_counting_sort
from compiler.lowering.further_results import further_result, row_results
from compiler.lowering.loop_nest_builder import LoopNestBuilder
from compiler.lowering.scan import find_sequential_loop, lower_scan_step, nontrivial_scans, orient_for_scans
from compiler.lowering.scatter import lower_scatter
from compiler.lowering.store_chain import skip_trailing_views, store_chain


def lower_kernel(graph: Graph, name: str, machine: Machine = AVX512) -> Kernel:
    """Return the kernel that computes `graph`; its parameters are the inputs, then the outputs, in order.

    Raises LoweringError if the group does not fit one loop nest.
    """
    return KernelLowering(graph, name, machine).run()


class KernelLowering:
    """The state of one lowering: the loop nest built so far, and the demand of the current root loops.

    `value_nodes` are the nodes whose values accumulators and local buffers hold, by name.
    """

    def __init__(self, graph: Graph, name: str, machine: Machine) -> None:
        self.graph, self.name, self.machine = graph, name, machine
        self.nest = LoopNestBuilder(frozenset(s.name for s in graph.dynamic_sizes))
        self.inputs = {n: n.attrs["name"] for n in graph.inputs}
        self.materialized_elements = 0
        self.has_row_like_result = False
        self.value_nodes: dict[str, Node] = {}

    def run(self) -> Kernel:
        """Lower the group and return its kernel."""
        target = self.graph.outputs[0]
        self.root = skip_trailing_views(self.graph, target)
        self.store_chain = store_chain(self.graph, self.root)
        self.in_constant_linear = False
        self.materializing: Node | None = None  # the node whose buffer is being filled
        self.sequential_loop: str | None = None  # the loop that scans walk in order
        ROOT_LOWERINGS.get(type(self.root.structure), KernelLowering.lower_root)(self, target)
        params = [Param(n.attrs["name"], n.type) for n in self.graph.inputs]
        params += [Param(f"out{k}", TensorType(n.dtype, n.shape), "out") for k, n in enumerate(self.graph.outputs)]
        return Kernel(self.name, tuple(params), self.nest.build())

    def lower_root(self, target: Node) -> None:
        """Emit the loops over the root, split into domains that store the same elements per iteration."""
        core, points = self.store_chain[-1], unrolled_points(self.store_chain[-1])
        loop_extents = [1 if d in points[0] else n for d, n in enumerate(core.shape)]
        is_plain, most = self.store_chain == [self.root], self.machine.max_loop_parts
        splits = split_points(self.graph, self.root, most) if is_plain else {}
        domains = split_store_domain(self.store_chain, loop_extents, points, splits)
        if len(self.graph.outputs) > 1 and (len(points) > 1 or (len(domains) > 1 and not splits)):
            raise LoweringError(f"{core} produces several elements per iteration")
        for domain in domains:
            self.lower_domain(target, domain, loop_extents)

    def lower_domain(self, target: Node, domain: StoreDomain, extents: Sequence[Dim]) -> None:
        """Emit the loops over one domain of the root, whose full loops have `extents`."""
        full_extents = extents if len(self.graph.outputs) > 1 else domain.extents
        ranges, index = self.nest.new_loops("i", full_extents, domain.extents)
        index = tuple(i + low for i, low in zip(index, domain.start, strict=True))
        self.extents = {str(d): size for d, size in zip(index, extents, strict=True) if not isinstance(d, int)}
        bounds = {r.var: (r.lo, r.hi - 1) for r in ranges}
        if self.store_chain == [self.root]:
            if nontrivial_scans(self.graph):
                index = orient_for_scans(self.graph, self.root, index)
            elif not isinstance(self.root.structure, Reduction):  # its operands would be read backwards in each step
                index = self.stored_forward(target, index, bounds)
        chain = self.store_chain
        positions = [map_through_views(chain, with_unrolled_dims(p, index), bounds)[0] for p in domain.points]
        index = positions[0]
        self.demand = solve_demand(self.graph, self.root, index, self.machine, bounds=bounds)
        if rows := row_results(self):
            self.demand = solve_demand(self.graph, self.root, index, self.machine, rows, bounds)
        self.sequential_loop = find_sequential_loop(self.demand)
        shared = set(self.demand.shared_loops) - {self.sequential_loop}
        ordered = [r for r in ranges if r.var in shared] + [r for r in ranges if r.var not in shared]
        ordered.sort(key=lambda r: r.var == self.sequential_loop)
        further = {n: further_result(self, n) for n in self.graph.outputs[1:]}
        for n, (_, at) in further.items():
            is_used = [r.var in position_variables(at) for r in ordered]
            if is_used != sorted(is_used, reverse=True):
                raise LoweringError(f"output {n} is invariant in an outer loop of {self.root}")

        def fill() -> None:
            for position in positions:
                self.store_output(0, self.root, position, self.output_position(target, position))
            for k, (n, (loops, at)) in enumerate(further.items(), 1):
                with self.nest.at_depth(self.nest.defining_depth(position_variables(at))):
                    self.nest.emit_loops(loops, False, partial(self.store_output, k, n, at, at))

        outer, inner = ordered[: len(shared)], ordered[len(shared) :]
        self.nest.emit_loops(outer, True, lambda: self.nest.emit_loops(inner, False, fill))

    # outputs

    def output_position(self, target: Node, index: Position, bounds: Bounds | None = None) -> Position:
        """Return the position of element `index` of the root in the output `target`, through the views between them."""
        chain = [target]
        while chain[-1] is not self.root:
            chain.append(chain[-1].operands[0])
        return map_through_views(chain, index, self.nest.bounds if bounds is None else bounds)[0]

    def stored_forward(self, target: Node, index: Position, bounds: Mapping[str, tuple[Dim, Dim]]) -> Position:
        """Return `index` with the loops reversed that the views behind the root store backwards: vectors are stored forwards."""
        stored = self.output_position(target, index, bounds)
        backward = {v for v in bounds if any((coefficient(d, v) or 0) < 0 for d in stored)}
        reversed_loops = {v: low + high - var(v) for v, (low, high) in bounds.items() if v in backward}
        return tuple(d if isinstance(d, int) else substitute(d, reversed_loops) for d in index)

    def store_output(self, k: int, node: Node, index: Position, position: Position) -> None:
        """Store element `index` of `node` at `position` of output `k`, in the innermost loop that the index uses."""
        value = self.element(node, index, None)
        with self.nest.at_depth(self.nest.defining_depth(position_variables(index))):
            self.nest.add(Store(f"out{k}", position, value))

    # elements

    def simplify_index(self, d: Dim) -> Dim:
        """Simplify an index within the bounds of the open loops."""
        return simplify(d, self.nest.bounds)

    def element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Return element `index` of `node`; it is loaded or computed only if `mask` holds."""
        index = tuple(self.simplify_index(d) for d in index)
        key = (node, index, mask)
        value: Expr | None = self.nest.lookup(key)
        if value is None:
            value = self.hoisted_element(node, index, mask)
            uses = len(self.graph.users.get(node, ())) + self.graph.outputs.count(node)
            if uses > 1 and not isinstance(value, Load):
                value = self.nest.bind_unless_trivial(value)
            self.nest.memoize(key, value)
        return value

    def hoisted_element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Compute the element in the innermost loop that its index or mask depends on, and bind it there if hoisted."""
        names = position_variables(index) | (names_read(mask) if mask is not None else set())
        depth = self.nest.defining_depth(names)
        if depth + 1 == len(self.nest.levels) or node in self.inputs or isinstance(node.structure, (Leaf, IndexMap)):
            return self.compute_element(node, index, mask)
        with self.nest.at_depth(depth):
            return self.nest.bind_unless_trivial(self.compute_element(node, index, mask))

    def compute_element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Return the expression of an element by the structure of its node; LoweringError if there is none."""
        if node in self.inputs:
            return Load(node.dtype, self.inputs[node], index, mask, const(0, node.dtype) if mask is not None else None)
        if isinstance(node.structure, Leaf):
            value = scalar_value(node)
            if value is None:
                raise LoweringError(f"constant {node} must be an operand of the group")
            return const(value, node.dtype)
        if node in self.demand.materialized and node is not self.materializing:
            return self.load_materialized(node, index, mask)
        kind = type(node.structure)
        if kind not in LOWERINGS:
            fused = "writes its result in another order and cannot be fused with its consumer"
            raise LoweringError(f"{node} {fused if kind in ROOT_LOWERINGS else 'has no structure to lower'}")
        return LOWERINGS[kind](self, node, node.structure, index, mask)

    def upcast_element(self, node: Node, index: Position) -> Expr:
        """Return the element for use in arithmetic: reduced floats are converted to f32."""
        return upcast(self.element(node, index, None))

    def elementwise(self, node: Node, s: Elementwise, index: Position, mask: Expr | None) -> Expr:
        """Apply the scalar expression of the op to the operands; reduced floats are computed in f32 and rounded once."""
        operands = [self.element(o, broadcast_index(o.shape, index), mask) for o in node.operands]
        operands = [upcast(x) for x in operands] if s.uses_compute_dtype else operands
        expr = elementwise_expr(node, [o.dtype for o in operands])
        uses = [0] * len(operands)
        for e in expr.subexprs:
            for a in e.args:
                if isinstance(a, Ref):
                    uses[int(a.name[1:])] += 1
        bound = [self.nest.bind_unless_trivial(o) if n > 1 else o for o, n in zip(operands, uses, strict=True)]
        result = scalar.transform(expr, lambda e: bound[int(e.name[1:])] if isinstance(e, Ref) else e)
        if (position := scalar.as_index(result)) is not None:
            return index_value(position)
        return self.bind_shared(result).to(node.dtype)

    def bind_shared(self, e: Expr) -> Expr:
        """Bind the subexpressions of `e` that occur more than once."""
        return bind_common_subexprs(e, self.nest.bind_unless_trivial)

    def constant_linear(self, node: Node, s: ConstantLinear, index: Position, mask: Expr | None) -> Expr:
        """Return one row of the constant matrix times the operand; elements that several rows read are bound once."""
        dim, matrix = s.axis_and_matrix(node)
        row, total, outer = index[dim], None, self.in_constant_linear
        if not isinstance(row, int):
            raise LoweringError(f"{node} is read at a dynamic row of its constant matrix")
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
        """Return a name bound to the element, in its compute dtype; the same name for each use."""
        key = (node, index, mask, "bound")
        value: Expr | None = self.nest.lookup(key)
        if value is None:
            value = self.nest.bind_unless_trivial(upcast(self.element(node, index, mask)))
            self.nest.memoize(key, value)
        return value

    def index_map(self, node: Node, s: IndexMap, index: Position, mask: Expr | None) -> Expr:
        """Return the element of a view, or a selection between the guarded reads of several operands."""
        result: Expr | None = None if s.fill is None else const(s.fill(node), node.dtype)
        for read in reversed(s.reads(node, index)):
            test = self.guard_condition(read.guards)
            if test is False:
                continue
            position = tuple(fixed_by_guards(d, read.guards) for d in read.position)
            operand = node.operands[read.operand]
            inner = mask
            if test is not True and not is_always_inside(position, operand.shape, read.guards):
                inner = test if mask is None else mask & test
            value = self.element(operand, position, inner)
            result = value if test is True or result is None else where(test, value, result)
        if result is None:
            raise LoweringError(f"no operand of {node} covers index {index}")
        return result

    def guard_condition(self, guards: Sequence[Guard]) -> Expr | bool:
        """Return the condition that all guards hold, or its value if the bounds of the loops determine it."""
        test: Expr | None = None
        for g in guards:
            low, high = self.simplify_index(g.index - g.low), self.simplify_index(g.index - g.high)
            above_low, below_high = interval(low, self.nest.bounds), interval(high, self.nest.bounds)
            if (above_low and above_low[1] < 0) or (below_high and below_high[0] >= 0):
                return False
            tests = []
            if not (above_low and above_low[0] >= 0):
                tests.append(index_value(low) >= 0)
            if not (below_high and below_high[1] < 0):
                tests.append(index_value(high) < 0)
            for t in tests:
                test = t if test is None else test & t
        return True if test is None else self.nest.bind_unless_trivial(test, "inside")

    def gather(self, node: Node, s: Gather, index: Position, mask: Expr | None) -> Expr:
        """Return the element of operand 0 at a position that is looked up in other operands."""
        lookups = s.position(node, index)
        position = tuple(self.checked_index(node, d, mask) if isinstance(d, Lookup) else d for d in lookups)
        return self.element(node.operands[0], position, mask)

    def checked_index(self, node: Node, d: Lookup, mask: Expr | None) -> Dim:
        """Load an index, check its bounds, and replace it by 0 if it is out of bounds, so that the address is valid.

        Nothing of this is needed where the value is known to be inside.
        """
        value = self.element(node.operands[d.operand], d.position, mask).to(i64)
        static = (
            value.index if isinstance(value, IndexValue) else int(value.value) if isinstance(value, Const) else None
        )
        if static is not None and isinstance(d.extent, int):
            bounds = interval(static, self.nest.bounds)
            if bounds and bounds[0] >= 0 and bounds[1] < d.extent:
                return static
        extent, (low, high) = index_value(d.extent), ValueBounds(self.nest.definitions).of(value)
        if d.in_bounds or (isinstance(d.extent, int) and low >= 0 and high < d.extent):
            return var(self.nest.bind(value, "row").name)
        if d.wrap_negative and low < 0:
            value = self.nest.bind_unless_trivial(value)
            value = where(value < 0, value + extent, value)
        ref = value if isinstance(value, Ref) else self.nest.bind(value)
        checked, least = (ref, 0) if mask is None else (self.nest.bind(where(mask, ref, 0)), 1)
        with self.nest.at_depth(self.nest.defining_depth({checked.name})):
            self.nest.add(BoundsCheck(checked.name, 0, maximum(least, d.extent)))
        return var(self.nest.bind(where((ref >= 0) & (ref < extent), ref, 0), "row").name)

    # reductions and buffers

    def unguarded_reduction(self, node: Node, s: Reduction, index: Position, mask: Expr | None) -> Expr:
        """Return the element of a reduction; LoweringError if it is needed under a guard or by a constant linear map."""
        if mask is not None or self.in_constant_linear:
            context = "under a guard" if mask is not None else "by a constant linear map"
            raise LoweringError(f"reduction {node} is read {context}")
        return self.reduction(node, s, index)

    def reduction(self, node: Node, s: Reduction, index: Position) -> Expr:
        """Emit a reduce statement in the innermost loop that the index depends on, and return its result."""
        with self.nest.at_depth(self.nest.defining_depth(position_variables(index))):
            key = (node, index, "reduced")
            memoized: Expr | None = self.nest.lookup(key)
            if memoized is not None:
                return memoized
            domain = s.domain(node)
            ranges, point = self.nest.new_loops("r", domain.extents)
            tests = domain.guards(index, point)
            ranges = tighten_ranges(ranges or [Range(self.nest.fresh_name("r"), 0, 1)], tests, self.nest.bounds)
            if tests and any(r.lo == r.hi for r in ranges):
                return const(IDENTITIES[s.combine](node.dtype), node.dtype)
            with self.nest.open_level(*ranges) as level:
                value = self.masked_summand(node, s, tests, domain.positions(index, point))
            name = self.nest.fresh_name("acc")
            self.value_nodes[name] = node
            self.nest.add(Reduce(name, s.combine, tuple(ranges), tuple(level.stmts), value))
            self.nest.defining_level[name] = self.nest.current_level
            result = Ref(value.dtype, name).to(node.dtype)
            self.nest.memoize(key, result)
            return result

    def masked_summand(self, node: Node, s: Reduction, guards: Sequence[Guard], positions: Sequence[Position]) -> Expr:
        """Return the value that one reduction index contributes: the identity if a guard fails."""
        test = self.guard_condition(guards)
        if test is False:
            dtype = node.dtype.compute
            return const(IDENTITIES[s.combine](dtype), dtype)
        mask = None if test is True else test
        elements = zip(node.operands, positions, strict=True)
        value = s.fn(*(self.element(o, p, mask).to(summand_dtype(o.dtype, node.dtype)) for o, p in elements))
        return value if mask is None else where(mask, value, const(IDENTITIES[s.combine](value.dtype), value.dtype))

    def load_materialized(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Load an element of a materialized node from its local buffer, filled in the shared loops at first use."""
        shared = set(self.demand.shared_loops)
        fixed = tuple(d if variables(d) <= shared else None for d in index)
        with self.nest.at_depth(self.nest.defining_depth(shared)):
            buffer = self.nest.lookup((node, fixed, "materialized"))
            if buffer is None:
                buffer = self.materialize(node, fixed)
                self.nest.memoize((node, fixed, "materialized"), buffer)
        inner = tuple(d for d, f in zip(index, fixed, strict=True) if f is None)
        return Load(node.dtype, buffer, inner, mask, const(0, node.dtype) if mask is not None else None)

    def materialize(self, node: Node, fixed: tuple[Dim | None, ...]) -> str:
        """Compute `node` into a local buffer, for the current shared iteration, which fixes the `fixed` indices."""
        buffer = self.nest.fresh_name("local")
        self.value_nodes[buffer] = node
        ranges, index = [], []
        for size, d in zip(node.shape, fixed, strict=True):
            if d is None:
                ranges.append(Range(self.nest.fresh_name("k"), 0, size))
            index.append(var(ranges[-1].var) if d is None else d)
        buffer_type = TensorType(node.dtype, tuple(r.hi for r in ranges))
        bounds = interval(buffer_type.numel, {})
        fits_stack = bounds is not None and bounds[1] <= self.machine.max_stack_elements
        elements = dim_hint(buffer_type.numel)
        is_like_result = any(node.result_type == n.result_type for n in (self.root, *self.graph.outputs[1:]))
        if is_like_result and not self.has_row_like_result and elements <= self.machine.max_row_elements:
            self.has_row_like_result = True  # its memory can be that of the result
        else:
            self.materialized_elements += elements
        if self.materialized_elements > self.machine.max_local_elements or not fits_stack:
            raise LoweringError(f"{node} is too large to materialize in a local buffer")
        self.nest.add(Local(buffer, buffer_type))
        self.nest.defining_level[buffer] = self.nest.current_level

        def fill() -> None:
            s, i = node.structure, tuple(index)
            value = self.reduction(node, s, i) if isinstance(s, Reduction) else self.compute_for_buffer(node, i)
            self.nest.add(Store(buffer, tuple(var(r.var) for r in ranges), value))

        self.nest.emit_loops(ranges, False, fill)
        return buffer

    def compute_for_buffer(self, node: Node, index: Position) -> Expr:
        """Compute the element instead of loading it from the buffer of its node."""
        outer, self.materializing = self.materializing, node
        value = self.compute_element(node, tuple(self.simplify_index(d) for d in index), None)
        self.materializing = outer
        return value


LOWERINGS: Mapping[type[Structure], Callable[[KernelLowering, Node, Any, Position, Expr | None], Expr]] = {
    Elementwise: KernelLowering.elementwise,
    IndexMap: KernelLowering.index_map,
    Gather: KernelLowering.gather,
    Generate: lambda lowering, node, s, index, mask: s.fn(node, index),
    Scan: lower_scan_step,
    ConstantLinear: KernelLowering.constant_linear,
    Reduction: KernelLowering.unguarded_reduction,
}
"""Function that computes an element, by structure: (node, its structure, index, mask under which it is needed) -> expression."""

ROOT_LOWERINGS: Mapping[type[Structure], Callable[[KernelLowering, Node], None]] = {
    Scatter: lower_scatter,
    CountingSort: lower_counting_sort,
}
"""Function that emits the loops of a kernel whose root stores where data decides, by structure: root seen through views -> loops."""


def fixed_by_guards(d: Dim, guards: Sequence[Guard]) -> Dim:
    """Return the only value that an index has where `guards` hold, or `d`: the element of a row that has no other."""
    values = (g.low + shift for g in guards if g.high - g.low == 1 and isinstance(shift := d - g.index, int))
    return next(values, d)


def is_always_inside(position: Position, shape: Sequence[Dim], guards: Sequence[Guard]) -> bool:
    """Return True if `position` is inside an operand whether `guards`, which fixed some of its indices, hold or not."""
    used = position_variables(position)
    are_fixed = all(g.high - g.low == 1 and variables(g.index) and not variables(g.index) & used for g in guards)
    constants = ((d, e) for d, e in zip(position, shape, strict=True) if isinstance(d, int))
    return are_fixed and all(isinstance(e, int) and d in range(e) for d, e in constants)


def upcast(e: Expr) -> Expr:
    """Convert to the compute dtype, for arithmetic."""
    return e.to(e.dtype.compute)


def unrolled_points(core: Node) -> list[dict[int, int]]:
    """Return all indices, to be unrolled, in the dimensions that `core` and constant linear maps below it combine."""
    points: list[dict[int, int]] = [{}]
    while isinstance(core.structure, ConstantLinear):
        dim, matrix = core.structure.axis_and_matrix(core)
        if dim in points[0]:
            break
        points = [{**p, dim: k} for p in points for k in range(len(matrix))]
        core = core.operands[0]
    return points
