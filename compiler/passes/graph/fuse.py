"""Fusion: which ops become one kernel."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import takewhile

import networkx

from compiler.analysis.accesses import Accesses, estimated_ops, is_contraction, perfect_nest
from compiler.analysis.demand import elementwise_cost, is_cheap_index_expr
from compiler.analysis.placement import concat_offsets
from compiler.analysis.structural_key import structural_key
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, input_node, scalar_value
from compiler.ir.graph.structure import (
    Composite,
    ConstantLinear,
    Elementwise,
    Fused,
    IndexMap,
    Leaf,
    Opaque,
    Recurrence,
    Reduction,
    TupleGet,
    is_view,
)
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Local, dim_hint
from compiler.lowering.kernel import cache_lowered_kernel, lower_kernel
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.tile.delinearize import without_guard
from compiler.passes.tile.fuse_loops import FuseLoops
from compiler.passes.tile.online_softmax import OnlineSoftmax


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel: `root` yields its loops, `extra` are further results."""

    root: Node
    members: set[Node]
    extra_outputs: list[Node] = field(default_factory=list)
    cost: int = 0


@register
@dataclass(frozen=True)
class Fuse(GraphPass):
    """%s = sigmoid %x  %y = mul %s, %x  ->  %y = fused (%x) { %s = sigmoid %x  %y = mul %s, %x  return %y }

    Users first, each op joins the kernel of its users if the joint kernel can be lowered and does no more work than the two
    would apart.  Views and conversions that read no more than they write are repeated in every user instead.  A value that
    others need as well becomes a further result of the kernel.
    """

    name = "fuse"
    enabled: bool = True
    max_nodes: int = 64
    max_reread_bytes: int = 1 << 18

    def run(self, ir: Graph, context: Context) -> Graph:
        return Fusion(self, ir, context).run()


class Fusion:
    """One run of the pass."""

    def __init__(self, options: Fuse, graph: Graph, context: Context) -> None:
        self.options, self.graph, self.context = options, graph, context
        self.order = {n: k for k, n in enumerate(graph.nodes)}
        self.groups_of_node: dict[Node, list[Group]] = {}
        self.all_groups: list[Group] = []
        self.group_costs: dict[Hashable, int | str] = {}  # of groups by their nodes
        self.kernel_costs: dict[Hashable, int | str] = {}  # of kernels by what they compute
        self.lowered_kernels: dict[Hashable, Kernel] = {}

    def run(self) -> Graph:
        outputs = set(self.graph.outputs)
        for n in reversed(self.graph.nodes):
            if (
                isinstance(n.structure, (Leaf, Opaque, TupleGet, Fused, Composite, Recurrence))
                or n in self.groups_of_node
            ):
                continue
            self.assign_group(n, n in outputs)
        return self.rebuild()

    def assign_group(self, n: Node, is_output: bool) -> None:
        """Put `n` into its users' kernels, or start one of its own."""
        users = self.graph.users[n]
        consumer_groups = list(dict.fromkeys(g for u in users for g in self.groups_of_node.get(u, ())))
        has_external_use = is_output or any(u not in self.groups_of_node for u in users)
        if self.options.enabled and consumer_groups:
            if not has_external_use and len(consumer_groups) == 1 and self.try_fuse(n, consumer_groups[0]):
                return
            if (
                not has_external_use
                and len(consumer_groups) > 1
                and self.is_cheap_to_recompute(n)
                and all(self.try_fuse(n, g, recomputed=True, dry_run=True) for g in consumer_groups)
            ):
                for g in consumer_groups:
                    self.try_fuse(n, g, recomputed=True)
                return
            if (has_external_use or len(consumer_groups) > 1) and not is_view(n.structure, n):
                for g in sorted(consumer_groups, key=lambda g: self.order[g.root]):
                    if self.stays_acyclic(n, g) and self.try_fuse(n, g, as_output=True):
                        return
        cluster = self.required_cluster(n)
        cost = self.cost(Group(n, {n, *cluster}))
        group = Group(n, {n, *cluster} if isinstance(cost, int) else {n})
        group.cost = cost if isinstance(cost, int) else self.standalone_cost([n])
        self.all_groups.append(group)
        for m in group.members:
            self.groups_of_node[m] = [group]

    def try_fuse(
        self, n: Node, g: Group, as_output: bool = False, recomputed: bool = False, dry_run: bool = False
    ) -> bool:
        """Add `n` to `g` if that pays, with what belongs to it or alone; alone where it is `repeated` in other groups."""
        if len(g.members) == 1 and concat_offsets(g.root) is not None and self.has_reduction_producer(n):
            self.context.missed(self.options, f"computed in place inside {g.root.op.name}", n)
            return False
        if concat_offsets(n) is not None and self.has_reduction_producer(n):
            self.context.missed(self.options, f"not fused into {g.root.op.name}: what it holds is computed in place", n)
            return False
        why, unit = "", [] if as_output or recomputed else self.required_cluster(n)
        units = [unit, []] if unit else [[]]
        if not as_output and not recomputed and isinstance(self.cost(Group(g.root, g.members | {n})), str):
            units.append(self.exclusive_producers(n, g))
        for more in units:
            fused_group = Group(g.root, g.members | {n, *more}, [*g.extra_outputs, n] if as_output else g.extra_outputs)
            if len(fused_group.members) > self.options.max_nodes:
                continue
            fused_cost = self.cost(fused_group)
            if isinstance(fused_cost, str):
                why = fused_cost
            elif not as_output and self.is_cheaper_as_epilogue(n, g, fused_cost):
                why = "it is computed once where it ends a sum of products"
            elif fused_cost <= (separate_cost := g.cost + self.standalone_cost([n, *more])) or (
                not more and is_cheap_index_expr(n)
            ):
                if not dry_run:
                    self.commit([n, *more], g, fused_group, fused_cost)
                return True
            else:
                why = f"a price of {fused_cost} instead of {separate_cost}"
        if why:
            self.context.missed(self.options, f"not fused into {g.root.op.name}: {why}", n)
        return False

    def is_cheaper_as_epilogue(self, n: Node, g: Group, fused_cost: int) -> bool:
        """Whether `n` costs less at the end of the sum of products below it than in `g`, which repeats it and cannot take the sum."""
        chain = self.epilogue_chain(n)
        if not chain:
            return False
        ended, below = self.cost(Group(n, set(chain))), self.cost(Group(chain[1], set(chain[1:])))
        inside = self.cost(Group(g.root, g.members | set(chain)))
        if isinstance(ended, str) or isinstance(below, str) or (isinstance(inside, int) and inside <= g.cost + ended):
            return False
        return fused_cost > g.cost + ended - below

    def epilogue_chain(self, n: Node) -> list[Node]:
        """`n` and the elementwise nodes of its shape below it, down to a sum of products; nobody else needs those below."""
        chain = [n]
        while isinstance(chain[-1].structure, Elementwise):
            inner = [o for o in chain[-1].operands if o.shape == n.shape and len(self.graph.users[o]) == 1]
            under = next(
                (o for o in inner if isinstance(o.structure, (Elementwise, Reduction)) and o not in self.graph.outputs),
                None,
            )
            if under is None:
                return []
            chain.append(under)
        return chain if len(chain[-1].operands) > 1 and chain[-1] is not n else []

    def commit(self, nodes: list[Node], g: Group, fused_group: Group, cost: int) -> None:
        """Make `g` what `joint` is."""
        g.members, g.extra_outputs, g.cost = fused_group.members, fused_group.extra_outputs, cost
        for n in nodes:
            self.groups_of_node.setdefault(n, []).append(g)
            self.context.applied(self.options, f"fused into the kernel of {g.root.op.name}", n)

    def standalone_cost(self, nodes: list[Node]) -> int:
        """The price of a kernel for a node and what belongs to it; 0 where there is none."""
        cost = self.cost(Group(nodes[0], set(nodes)))
        return cost if isinstance(cost, int) else 0

    def required_cluster(self, n: Node) -> list[Node]:
        """The mixes below `n` and the views around them, which make sense in one kernel only: none of them has another user."""
        found = [n]
        while isinstance(found[-1].structure, ConstantLinear) or is_view(found[-1].structure, found[-1]):
            (below,) = found[-1].operands
            inner = len(self.graph.users[below]) == 1 and below not in self.graph.outputs
            if not inner or not (isinstance(below.structure, ConstantLinear) or is_view(below.structure, below)):
                break
            found.append(below)
        return found[1:] if any(isinstance(m.structure, ConstantLinear) for m in found) else []

    def exclusive_producers(self, n: Node, g: Group) -> list[Node]:
        """What is computed for `n` and `g` alone, up to sums of products: `n` may fit only together with all of it."""
        found = [n]
        for m in reversed(self.graph.nodes[: self.order[n]]):
            users = self.graph.users[m]
            simple = (
                isinstance(m.structure, (Elementwise, IndexMap, Reduction))
                and len(m.operands) * isinstance(m.structure, Reduction) < 2
            )
            if simple and users and m not in self.graph.outputs and all(u in found or u in g.members for u in users):
                found.append(m)
        return found[1:]

    def is_cheap_to_recompute(self, n: Node) -> bool:
        """Whether computing `n` again in each user reads no more than its result would be."""
        if is_view(n.structure, n):
            return True
        if not isinstance(n.structure, (Elementwise, IndexMap)):
            return not n.operands and not isinstance(n.structure, Reduction)
        read = sum(hinted_bytes(o) for o in n.operands if scalar_value(o) is None)
        return read <= hinted_bytes(n) and (not isinstance(n.structure, Elementwise) or elementwise_cost(n) <= 2)

    def stays_acyclic(self, n: Node, g: Group) -> bool:
        """Whether nothing outside `g` that reads `n` leads back into `g`: then `g` can yield `n` before the others run."""
        seen: set[Group | Node] = set()
        stack = [u for u in self.consumer_units(n) if u is not g]
        while stack:
            unit = stack.pop()
            if unit is g:
                return False
            if unit not in seen:
                seen.add(unit)
                results = (unit.root, *unit.extra_outputs) if isinstance(unit, Group) else (unit,)
                stack += [u for r in results for u in self.consumer_units(r) if u is not unit]
        return True

    def consumer_units(self, n: Node) -> list[Group | Node]:
        """The kernels that `n` goes into, and its users that are in none."""
        return [unit for u in self.graph.users[n] for unit in self.groups_of_node.get(u, (u,))]

    # prices

    def cost(self, g: Group) -> int | str:
        """Work of the group's kernel, or why there is none."""
        if len(g.members) == 1 and concat_offsets(g.root) is not None:
            return self.concat_cost(g.root)
        nodes = (g.root, frozenset(g.members), *g.extra_outputs)
        if nodes not in self.group_costs:
            self.group_costs[nodes] = self.body_cost(g)
        return self.group_costs[nodes]

    def body_cost(self, g: Group) -> int | str:
        """The same; groups that compute alike are lowered once."""
        if self.mixes_linear_with_reductions(g):
            return "a mix takes rows that are known, and a sum has loops over them"
        body, _ = self.body(g)
        key = structural_key(body)
        if key not in self.kernel_costs:
            try:
                kernel = self.lowered_kernels[key] = lower_kernel(body, "candidate")
                self.kernel_costs[key] = self.profitability_veto(kernel, g) or kernel_cost(kernel)
            except LoweringError as error:
                self.kernel_costs[key] = str(error)
        return self.kernel_costs[key]

    def mixes_linear_with_reductions(self, g: Group) -> bool:
        """Whether a mix of the group needs one of its reductions, or a reduction a mix: no loop nest holds both."""
        needs: dict[Node, set[type]] = {}
        for n in sorted(g.members, key=self.order.__getitem__):
            own, below = (
                {type(n.structure)} & {ConstantLinear, Reduction},
                {k for o in n.operands for k in needs.get(o, ())},
            )
            if own and below - own:
                return True
            needs[n] = own | below
        return False

    def concat_cost(self, n: Node) -> int:
        """Bytes that are moved to put values side by side, where those that kernels compute are written in place."""
        copied = sum(2 * hinted_bytes(o) for o in n.operands if not self.has_reduction_producer(o))
        gaps = hinted_bytes(n) - sum(hinted_bytes(o) for o in n.operands)
        return copied + gaps + (LAUNCH_COST if copied or gaps else 0)

    def has_reduction_producer(self, n: Node, single_use: bool = False) -> bool:
        """Whether `n` ends the kernel of a reduction, with nothing but ops between that nobody else needs, or holds such values."""
        if concat_offsets(n) is not None:
            return any(self.has_reduction_producer(o) for o in n.operands)
        if single_use and len(self.graph.users[n]) > 1:
            return False
        if isinstance(n.structure, (Reduction, ConstantLinear)):
            return True
        return isinstance(n.structure, (Elementwise, IndexMap)) and any(
            self.has_reduction_producer(o, True) for o in n.operands
        )

    def profitability_veto(self, kernel: Kernel, g: Group) -> str:
        """Why a kernel that can be lowered would still be slow; empty for none."""
        sums = [n for n in g.members if isinstance(n.structure, Reduction) and len(n.operands) > 1]
        for n in sorted(sums, key=self.order.__getitem__)[:-1]:
            if hinted_bytes(n) <= sum(hinted_bytes(o) for o in n.operands):
                return f"{n.op.name} yields less than it reads, so it is worth storing"
        if sums and any(isinstance(s, Local) for s in tile.walk(kernel.body)):
            again = reread_bytes(kernel)
            if again > self.options.max_reread_bytes and not uses_online_softmax(kernel):
                return f"every block of rows would read {again >> 10} KiB again"
        return ""

    # the new graph

    def body(self, g: Group) -> tuple[Graph, tuple[Node, ...]]:
        """The group as a graph of its own, and what it reads from outside."""
        operands: list[Node] = []
        new: dict[Node, Node] = {}
        for n in sorted(g.members, key=self.order.__getitem__):
            for o in n.operands:
                if o in new:
                    continue
                if o in g.members:
                    raise AssertionError("members come in order")
                if scalar_value(o) is not None:
                    new[o] = o
                else:
                    new[o] = input_node(f"x{len(operands)}", o.type, o.loc)
                    operands.append(o)
            new[n] = replace(n, operands=tuple(new[o] for o in n.operands))
        outputs = tuple(new[n] for n in (g.root, *g.extra_outputs))
        return Graph(tuple(new[o] for o in operands), outputs, g.root.op.name), tuple(operands)

    def rebuild(self) -> Graph:
        """The graph with every group as one `fused` node, in an order that respects what they read."""
        owner: dict[Node, Group] = {}
        for g in self.all_groups:
            for n in (g.root, *g.extra_outputs):
                owner[n] = g
        bodies = {id(g): self.body(g) for g in self.all_groups}
        view: networkx.DiGraph = networkx.DiGraph()
        kept: list[Node | Group] = [n for n in self.graph.nodes if n not in self.groups_of_node]
        view.add_nodes_from([*kept, *self.all_groups])
        for unit in [*kept, *self.all_groups]:
            reads = unit.operands if isinstance(unit, Node) else bodies[id(unit)][1]
            view.add_edges_from((owner.get(o, o), unit) for o in reads)
        node_order = {id(n): k for n, k in self.order.items()}
        new: dict[Node, Node] = {}
        fused = OPS["fused"]

        def rank(u: Node | Group) -> int:
            return node_order[id(u if isinstance(u, Node) else u.root)]

        for unit in networkx.lexicographical_topological_sort(view, key=rank):
            if isinstance(unit, Node):
                new[unit] = unit.with_operands(tuple(new[o] for o in unit.operands))
                continue
            body, operands = bodies[id(unit)]
            cache_lowered_kernel(body, self.lowered_kernels.get(structural_key(body)))
            made = fused(*(new[o] for o in operands), body=body, loc=unit.root.loc)
            results = (unit.root, *unit.extra_outputs)
            if len(results) == 1:
                new[unit.root] = made.with_name(unit.root.name)
            else:
                for k, r in enumerate(results):
                    new[r] = OPS["item"](made, index=k, loc=r.loc).with_name(r.name)
        self.context.count(self.options, "kernels", len(self.all_groups))
        return replace(
            self.graph,
            outputs=tuple(new[o] for o in self.graph.outputs),
            inputs=tuple(new[i] for i in self.graph.inputs),
        )


LAUNCH_COST = 2000
"""Operations that fit into the time of starting one kernel."""


def kernel_cost(kernel: Kernel) -> int:
    """Operations, plus one for each byte that comes from memory or goes there."""
    traffic = sum(dim_hint(p.type.nbytes) for p in kernel.params)
    return estimated_ops(kernel) + traffic + LAUNCH_COST


def hinted_bytes(n: Node) -> int:
    """Bytes that a value is likely to have; 1 where that is not known."""
    return dim_hint(n.type.nbytes)


def uses_online_softmax(kernel: Kernel) -> bool:
    """Whether the kernel's rows will be walked part by part, many of them for each part of what they read."""
    return OnlineSoftmax().match_row(FuseLoops().run(kernel, Context())) is not None


def reread_bytes(kernel: Kernel) -> int:
    """Bytes a contraction reads again for every block of rows: the part of its operands that the row loops do not pick."""
    table = Accesses(kernel)
    most = 0
    for a in table.all:
        if a.is_store or not is_contraction(without_guard(a.stmt)) or table.roles[a.buffer] == "local":
            continue
        rows = {f.range.var for f in takewhile(lambda f: f.parallel, perfect_nest(kernel.body))}
        last = [v for v in rows if not table.depends_on(a, v)]
        if not last:
            continue
        elements = 1
        for r in a.loops:
            if r.var not in rows and any(r.var in variables(d) for d in a.index):
                elements *= dim_hint(r.extent)
        most = max(most, elements * table.types[a.buffer].dtype.bytes)
    return most
