"""A fused group of Graph IR -> one kernel of Tile IR, as scalar loops; the tile passes make it fast.

The root's dimensions become loops and the root's element is asked for; every operand answers with an expression (elementwise and index
maps), a reduce statement placed where its index is known (reductions), or an element of a local buffer (nodes worth keeping).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from compiler.ir import scalar
from compiler.ir.graph import Graph, Node, scalar_value
from compiler.ir.index import Dim, interval, simplify, var, variables
from compiler.ir.scalar import Const, Expr, IndexValue, Load, Ref, const, index_value, where
from compiler.ir.structure import (
    IDENTITIES,
    Elementwise,
    Gather,
    Generate,
    Guard,
    IndexMap,
    Leaf,
    Lookup,
    Mix,
    Position,
    Reduction,
    Scan,
    Scatter,
    formula,
)  # fmt: skip
from compiler.ir.tile import Check, Kernel, Local, Param, Range, Reduce, Store, known, summand_dtype
from compiler.ir.types import TensorType, broadcast_index, f32, i64
from compiler.passes.crop import Part, at, can_push, carried, is_whole, parts
from compiler.passes.demand import settle
from compiler.passes.lower_scan import facing, scan_element, walked_loop
from compiler.passes.lower_scatter import lower_scatter
from compiler.passes.nest import LowerError, Nest, names_in
from compiler.passes.taps import cuts, taking_part

LOCAL_LIMIT = 1 << 16
"""Most elements of one row that local buffers may hold."""

OPEN_LIMIT = 1 << 18
"""Most elements that a local buffer of open size may ever hold: it lies on the stack."""


def lower_kernel(graph: Graph, name: str) -> Kernel:
    """The kernel that computes `graph`; its parameters are the inputs, then the outputs, in order.

    Raises LowerError where the group does not fit one loop nest.
    """
    known = _LOWERED.get(graph)
    return replace(known, name=name) if known else KernelLowering(graph, name).run()


_LOWERED: WeakKeyDictionary[Graph, Kernel] = WeakKeyDictionary()
"""The kernels of graphs that fusion has lowered when it tried them."""


def remember(graph: Graph, kernel: Kernel | None) -> None:
    """From now on `kernel` is what `graph` is lowered to, if there is one."""
    if kernel:
        _LOWERED[graph] = kernel


class KernelLowering:
    """One lowering in progress."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name
        open_types = (n.type for n in graph.nodes if isinstance(n.result, TensorType) and not n.type.is_static)
        self.nest = Nest(frozenset().union(*(t.symbols for t in open_types)))
        self.inputs = {n: n.attrs["name"] for n in graph.inputs}
        self.kept_total = 0

    def run(self) -> Kernel:
        target = self.graph.outputs[0]
        self.root = self.behind_views(target)
        self.spine = self.down_to_mix(self.root) or [self.root]
        self.in_mix = False
        self.filling: Node | None = None  # the node whose buffer is being filled
        self.walk: str | None = None  # the loop that scans walk in order
        if isinstance(self.root.structure, Scatter):
            lower_scatter(self, target)
        else:
            self.loops_of_root(target)
        params = [Param(n.attrs["name"], n.type) for n in self.graph.inputs]
        params += [Param(f"out{k}", TensorType(n.dtype, n.shape), "out") for k, n in enumerate(self.graph.outputs)]
        return Kernel(self.name, tuple(params), self.nest.finish())

    def loops_of_root(self, target: Node) -> None:
        """Loops over the root's elements, and in them everything that its elements need."""
        core, points = self.spine[-1], mixed_points(self.spine[-1])
        extents = [1 if d in points[0] else n for d, n in enumerate(core.shape)]
        places = cuts(self.graph, self.root) if self.spine == [self.root] else {}
        split = parts(self.spine, extents, points, places)
        if len(self.graph.outputs) > 1 and (len(points) > 1 or (len(split) > 1 and not places)):
            raise LowerError(f"{core} yields several elements in each step")
        for part in split:
            self.loops_of_part(target, part, extents)

    def loops_of_part(self, target: Node, part: Part, extents: Sequence[Dim]) -> None:
        """Those loops in one part of the root, all of whose points are stored."""
        ranges, index = self.nest.over("i", extents if len(self.graph.outputs) > 1 else part.sizes, part.sizes)
        index = tuple(i + low for i, low in zip(index, part.low, strict=True))
        self.extents = {str(d): size for d, size in zip(index, extents, strict=True) if not isinstance(d, int)}
        if self.spine == [self.root]:
            index = facing(self.graph, self.root, index)
        places = [carried(self.spine, at(p, index), self.nest.bounds)[0] for p in part.points]
        index = places[0]
        self.demand = settle(self.graph, self.root, index)
        self.walk = walked_loop(self.demand)
        rows = set(self.demand.rows) - {self.walk}
        ordered = [r for r in ranges if r.var in rows] + [r for r in ranges if r.var not in rows]
        ordered.sort(key=lambda r: r.var == self.walk)
        self.extra = {n: self.extra_index(n) for n in self.graph.outputs[1:]}
        for n, place in self.extra.items():
            follows = [r.var in {v for d in place for v in variables(d)} for r in ordered]
            if follows != sorted(follows, reverse=True):
                raise LowerError(f"several steps of the loops of {self.root} yield one element of {n}")

        def fill() -> None:
            for place in places:
                self.store_output(0, self.root, place, self.push(target, place))
            for k, n in enumerate(self.graph.outputs[1:], 1):
                self.store_output(k, n, self.extra[n], self.extra[n])

        inner = ordered[len(rows) :]
        self.nest.loops(ordered[: len(rows)], True, lambda: self.nest.loops(inner, False, fill))

    # outputs

    def behind_views(self, node: Node) -> Node:
        """The node whose loops the kernel runs: one-to-one views at the end are stored through."""
        while can_push(node) and is_whole(node) and self.inner(node.operands[0]):
            node = node.operands[0]
        return node

    def inner(self, node: Node) -> bool:
        """Whether the kernel computes `node` for one user alone."""
        only = len(self.graph.users[node]) == 1 and node not in self.graph.outputs
        return only and not isinstance(node.structure, Leaf)

    def down_to_mix(self, node: Node) -> list[Node] | None:
        """The way from `node` to a mix through one-to-one views and elementwise ops, whose loops the kernel runs then."""
        s = node.structure
        if isinstance(s, Mix):
            return [node]
        through = isinstance(s, Elementwise) or can_push(node)
        for o in node.operands if through else ():
            if self.inner(o) and (isinstance(s, IndexMap) or o.shape == node.shape):
                rest = self.down_to_mix(o)
                if rest is not None:
                    return [node, *rest]
        return None

    def push(self, target: Node, index: Position) -> Position:
        """Where element `index` of the root lies in the output behind its views."""
        chain = [target]
        while chain[-1] is not self.root:
            chain.append(chain[-1].operands[0])
        return carried(chain, index, self.nest.bounds)[0]

    def extra_index(self, node: Node) -> Position:
        """The element of a further output that one step of the loops yields."""
        asked = self.demand.requests.get(node, [])
        whole = [r.index for r in asked if all(map(self.walks, r.index, node.shape))]
        if not whole:
            raise LowerError(f"output {node} does not follow the loops of {self.root}")
        if len({str(d) for d in whole[0] if not isinstance(d, int)}) < sum(s != 1 for s in node.shape):
            raise LowerError(f"output {node} is read at a diagonal")
        return whole[0]

    def walks(self, d: Dim, extent: Dim) -> bool:
        """Whether `d` takes every value below `extent` and no other: it is a loop of the root, or the only one there is."""
        if isinstance(d, int):
            return extent == 1
        return str(d) in self.extents and self.extents[str(d)] == extent

    def store_output(self, k: int, node: Node, index: Position, place: Position) -> None:
        value = self.element(node, index, None)
        with self.nest.at(self.nest.depth({v for d in index for v in variables(d)})):
            self.nest.add(Store(f"out{k}", place, value))

    # elements

    def tidy(self, d: Dim) -> Dim:
        return simplify(d, self.nest.bounds)

    def element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Element `index` of `node`, read or computed only where `mask` holds."""
        index = tuple(self.tidy(d) for d in index)
        key = (node, index, mask)
        known: Expr | None = self.nest.recall(key)
        if known is None:
            known = self.hoisted(node, index, mask)
            uses = len(self.graph.users.get(node, ())) + self.graph.outputs.count(node)
            if uses > 1 and not isinstance(known, Load):
                known = self.nest.let(known)
            self.nest.remember(key, known)
        return known

    def hoisted(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """The element, computed in the innermost loop that its index depends on."""
        names = {v for d in index for v in variables(d)} | (names_in(mask) if mask is not None else set())
        depth = self.nest.depth(names)
        if depth + 1 == len(self.nest.levels) or node in self.inputs or isinstance(node.structure, (Leaf, IndexMap)):
            return self.compute(node, index, mask)
        with self.nest.at(depth):
            return self.nest.let(self.compute(node, index, mask))

    def compute(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        if node in self.inputs:
            return Load(node.dtype, self.inputs[node], index, mask, const(0, node.dtype) if mask is not None else None)
        s = node.structure
        if isinstance(s, Leaf):
            value = scalar_value(node)
            if value is None:
                raise LowerError(f"constant {node} must be an operand of the group")
            return const(value, node.dtype)
        if node in self.demand.kept and node is not self.filling:
            return self.read_kept(node, index, mask)
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
                raise LowerError(f"{node} is asked for under a guard")
            return scan_element(self, node, s, index)
        if isinstance(s, Scatter):
            raise LowerError(f"{node} can be read only when all of it is written")
        if isinstance(s, Mix):
            return self.mix(node, s, index, mask)
        if isinstance(s, Reduction):
            if mask is not None or self.in_mix:
                raise LowerError(f"{node} is asked for {'under a guard' if mask is not None else 'by a mix'}")
            return self.reduction(node, s, index)
        raise LowerError(f"{node} has no structure to lower")

    def wide_element(self, node: Node, index: Position) -> Expr:
        """The element as arithmetic takes it: half types as f32."""
        return wide(self.element(node, index, None))

    def elementwise(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """The op's rule on the operands' elements; half types are computed in f32 and rounded once."""
        assert isinstance(node.structure, Elementwise)
        operands = [self.element(o, broadcast_index(o.shape, index), mask) for o in node.operands]
        operands = [wide(x) for x in operands] if node.structure.wide else operands
        rule = formula(node, [o.dtype for o in operands])
        uses = [0] * len(operands)
        for e in rule.parts:
            for a in e.args:
                if isinstance(a, Ref):
                    uses[int(a.name[1:])] += 1
        bound = [self.nest.let(o) if n > 1 else o for o, n in zip(operands, uses, strict=True)]
        result = scalar.transform(rule, lambda e: bound[int(e.name[1:])] if isinstance(e, Ref) else e)
        return self.share(result).to(node.dtype)

    def share(self, e: Expr) -> Expr:
        """Bind what a rule uses more than once."""
        return scalar.bind_shared(e, self.nest.let)

    def mix(self, node: Node, s: Mix, index: Position, mask: Expr | None) -> Expr:
        """One row of the matrix times the line, element by element; what several rows read is bound once."""
        dim, matrix = s.along(node)
        row, total, outer = index[dim], None, self.in_mix
        if not isinstance(row, int):
            raise LowerError(f"{node} is asked for at a row that is not known")
        self.in_mix = True
        for k, c in enumerate(matrix[row]):
            if c == 0:
                continue
            x = self.bound_element(node.operands[0], (*index[:dim], k, *index[dim + 1 :]), mask)
            if total is None:
                total = x if c == 1 else x * const(c, x.dtype)
            else:
                total = total + x if c == 1 else total - x if c == -1 else total + x * const(c, x.dtype)
        self.in_mix = outer
        return const(0, node.dtype) if total is None else total.to(node.dtype)

    def bound_element(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """The element under a name, the same one whenever it is asked for here."""
        key = (node, index, mask, "bound")
        known: Expr | None = self.nest.recall(key)
        if known is None:
            known = self.nest.let(wide(self.element(node, index, mask)))
            self.nest.remember(key, known)
        return known

    def index_map(self, node: Node, s: IndexMap, index: Position, mask: Expr | None) -> Expr:
        """A view, or a choice between guarded pieces."""
        result: Expr | None = None if s.fill is None else const(s.fill(node), node.dtype)
        for piece in reversed(s.pieces(node, index)):
            test = self.guard(piece.guards)
            if test is False:
                continue
            inner = mask if test is True else test if mask is None else mask & test
            value = self.element(node.operands[piece.operand], piece.position, inner)
            result = value if test is True or result is None else where(test, value, result)
        if result is None:
            raise LowerError(f"{node} has no piece at {index}")
        return result

    def guard(self, guards: Sequence[Guard]) -> Expr | bool:
        """The test that every guard holds; what the loops' bounds decide is decided here."""
        test: Expr | None = None
        for g in guards:
            low, high = self.tidy(g.index - g.low), self.tidy(g.index - g.high)
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
        return True if test is None else self.nest.let(test, "inside")

    def gather(self, node: Node, s: Gather, index: Position, mask: Expr | None) -> Expr:
        """An element of operand 0, at a place that other operands name."""
        position = s.position(node, index)
        place = tuple(self.look_up(node, d, mask) if isinstance(d, Lookup) else d for d in position)
        return self.element(node.operands[0], place, mask)

    def look_up(self, node: Node, d: Lookup, mask: Expr | None) -> Dim:
        """Read an index, check it, and keep the address inside the buffer whatever it is."""
        value = self.element(node.operands[d.operand], d.position, mask).to(i64)
        place = value.index if isinstance(value, IndexValue) else int(value.value) if isinstance(value, Const) else None
        if place is not None and isinstance(d.extent, int):
            known = interval(place, self.nest.bounds)
            if known and known[0] >= 0 and known[1] < d.extent:
                return place
        extent = index_value(d.extent)
        if d.wrap:
            value = self.nest.let(value)
            value = where(value < 0, value + extent, value)
        found = value if isinstance(value, Ref) else self.nest.bind(value)
        if mask is None:
            with self.nest.at(self.nest.depth({found.name})):
                self.nest.add(Check(found.name, 0, d.extent))
        return var(self.nest.bind(where((found >= 0) & (found < extent), found, 0), "row").name)

    # reductions and buffers

    def reduction(self, node: Node, s: Reduction, index: Position) -> Expr:
        """A reduce statement in the innermost loop that the index depends on."""
        depth = self.nest.depth({v for d in index for v in variables(d)})
        with self.nest.at(depth):
            key = (node, index, "reduced")
            known: Expr | None = self.nest.recall(key)
            if known is not None:
                return known
            space = s.space(node)
            ranges, point = self.nest.over("r", space.extents)
            tests = space.guards(index, point)
            ranges = taking_part(ranges or [Range(self.nest.fresh("r"), 0, 1)], tests, self.nest.bounds)
            if tests and any(r.lo == r.hi for r in ranges):
                return const(IDENTITIES[s.combine](node.dtype), node.dtype)
            with self.nest.inside(*ranges) as level:
                value = self.taken(node, s, tests, space.positions(index, point))
            name = self.nest.fresh("acc")
            self.nest.add(Reduce(name, s.combine, tuple(ranges), tuple(level.stmts), value))
            self.nest.home[name] = self.nest.top
            result = Ref(value.dtype, name).to(node.dtype)
            self.nest.remember(key, result)
            return result

    def taken(self, node: Node, s: Reduction, guards: Sequence[Guard], places: Sequence[Position]) -> Expr:
        """What one point of a reduction adds: nothing where a guard does not hold."""
        test = self.guard(guards)
        if test is False:
            dtype = f32 if node.dtype.is_half else node.dtype
            return const(IDENTITIES[s.combine](dtype), dtype)
        mask = None if test is True else test
        elements = zip(node.operands, places, strict=True)
        value = s.fn(*(self.element(o, p, mask).to(summand_dtype(o.dtype, node.dtype)) for o, p in elements))
        return value if mask is None else where(mask, value, const(IDENTITIES[s.combine](value.dtype), value.dtype))

    def read_kept(self, node: Node, index: Position, mask: Expr | None) -> Expr:
        """Element of the local buffer that holds `node`, filled in the row loop when first asked for."""
        rows = set(self.demand.rows)
        fixed = tuple(d if variables(d) <= rows else None for d in index)
        depth = self.nest.depth(rows)
        with self.nest.at(depth):
            buffer = self.nest.recall((node, fixed, "kept"))
            if buffer is None:
                buffer = self.keep(node, fixed)
                self.nest.remember((node, fixed, "kept"), buffer)
        inner = tuple(d for d, f in zip(index, fixed, strict=True) if f is None)
        return Load(node.dtype, buffer, inner, mask, const(0, node.dtype) if mask is not None else None)

    def keep(self, node: Node, fixed: tuple[Dim | None, ...]) -> str:
        """Compute every element of `node` in the current row into a local buffer."""
        buffer = self.nest.fresh("kept")
        ranges, index = [], []
        for size, place in zip(node.shape, fixed, strict=True):
            if place is None:
                ranges.append(Range(self.nest.fresh("k"), 0, size))
            index.append(var(ranges[-1].var) if place is None else place)
        shape = tuple(r.hi for r in ranges)
        count = TensorType(node.dtype, shape).numel
        most = interval(count, {})
        self.kept_total += known(count)
        if self.kept_total > LOCAL_LIMIT or most is None or most[1] > OPEN_LIMIT:
            raise LowerError(f"a row of {node} is too long to keep")
        self.nest.add(Local(buffer, TensorType(node.dtype, shape)))
        self.nest.home[buffer] = self.nest.top

        def fill() -> None:
            position = tuple(index)
            s = node.structure
            value = self.reduction(node, s, position) if isinstance(s, Reduction) else self.unkept(node, position)
            self.nest.add(Store(buffer, tuple(var(r.var) for r in ranges), value))

        self.nest.loops(ranges, False, fill)
        return buffer

    def unkept(self, node: Node, index: Position) -> Expr:
        """The element computed, not read from its buffer."""
        outer, self.filling = self.filling, node
        value = self.compute(node, tuple(self.tidy(d) for d in index), None)
        self.filling = outer
        return value


def wide(e: Expr) -> Expr:
    """Half types as f32, for arithmetic."""
    return e.to(f32) if e.dtype.is_half else e


def mixed_points(core: Node) -> list[dict[int, int]]:
    """Every choice of rows in the dimensions that `core` and the mixes right below it mix: these are written out, not looped over."""
    points: list[dict[int, int]] = [{}]
    while isinstance(core.structure, Mix):
        dim, matrix = core.structure.along(core)
        if dim in points[0]:
            break
        points = [{**p, dim: k} for p in points for k in range(len(matrix))]
        core = core.operands[0]
    return points
