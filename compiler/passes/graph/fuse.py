"""Fusion: which ops become one kernel."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import takewhile

import networkx

from compiler.ir import tile
from compiler.ir.graph import Graph, Node, input_node, scalar_value
from compiler.ir.index import variables
from compiler.ir.op import OPS
from compiler.ir.structure import (
    Composite,
    Elementwise,
    Fused,
    IndexMap,
    Item,
    Leaf,
    Mix,
    Opaque,
    Recurrence,
    Reduction,
    is_view,
)
from compiler.ir.tile import Kernel, Local, known
from compiler.passes.access import Accesses, contraction, nested_fors, work
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.demand import elementwise_cost, from_positions
from compiler.passes.fingerprint import fingerprint
from compiler.passes.lower_kernel import lower_kernel, remember
from compiler.passes.nest import LowerError
from compiler.passes.placement import laid_side_by_side
from compiler.passes.tile.delinearize import chosen
from compiler.passes.tile.merge import Merge
from compiler.passes.tile.online import Online


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel: `root` yields its loops, `extra` are further results."""

    root: Node
    members: set[Node]
    extra: list[Node] = field(default_factory=list)
    price: int = 0


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
    reread_limit: int = 1 << 18

    def run(self, ir: Graph, context: Context) -> Graph:
        return Fusion(self, ir, context).run()


class Fusion:
    """One run of the pass."""

    def __init__(self, options: Fuse, graph: Graph, context: Context) -> None:
        self.options, self.graph, self.context = options, graph, context
        self.order = {n: k for k, n in enumerate(graph.nodes)}
        self.groups: dict[Node, list[Group]] = {}
        self.all: list[Group] = []
        self.prices: dict[Hashable, int | str] = {}  # of groups by their nodes
        self.priced: dict[Hashable, int | str] = {}  # of kernels by what they compute
        self.lowered: dict[Hashable, Kernel] = {}

    def run(self) -> Graph:
        outputs = set(self.graph.outputs)
        for n in reversed(self.graph.nodes):
            if isinstance(n.structure, (Leaf, Opaque, Item, Fused, Composite, Recurrence)) or n in self.groups:
                continue
            self.place(n, n in outputs)
        return self.rebuild()

    def place(self, n: Node, is_output: bool) -> None:
        """Put `n` into its users' kernels, or start one of its own."""
        users = self.graph.users[n]
        hosts = list(dict.fromkeys(g for u in users for g in self.groups.get(u, ())))
        outside = is_output or any(u not in self.groups for u in users)
        if self.options.enabled and hosts:
            if not outside and len(hosts) == 1 and self.join(n, hosts[0]):
                return
            if (
                not outside
                and len(hosts) > 1
                and self.cheap_to_repeat(n)
                and all(self.join(n, g, repeated=True, try_only=True) for g in hosts)
            ):
                for g in hosts:
                    self.join(n, g, repeated=True)
                return
            if (outside or len(hosts) > 1) and not is_view(n.structure, n):
                for g in sorted(hosts, key=lambda g: self.order[g.root]):
                    if self.acyclic(n, g) and self.join(n, g, as_output=True):
                        return
        more = self.belonging(n)
        price = self.price(Group(n, {n, *more}))
        group = Group(n, {n, *more} if isinstance(price, int) else {n})
        group.price = price if isinstance(price, int) else self.alone([n])
        self.all.append(group)
        for m in group.members:
            self.groups[m] = [group]

    def join(self, n: Node, g: Group, as_output: bool = False, repeated: bool = False, try_only: bool = False) -> bool:
        """Add `n` to `g` if that pays, with what belongs to it or alone; alone where it is `repeated` in other groups."""
        if len(g.members) == 1 and laid_side_by_side(g.root) is not None and self.is_computed(n):
            self.context.missed(self.options, f"computed in place inside {g.root.op.name}", n)
            return False
        if laid_side_by_side(n) is not None and self.is_computed(n):
            self.context.missed(self.options, f"not fused into {g.root.op.name}: what it holds is computed in place", n)
            return False
        why, unit = "", [] if as_output or repeated else self.belonging(n)
        units = [unit, []] if unit else [[]]
        if not as_output and not repeated and isinstance(self.price(Group(g.root, g.members | {n})), str):
            units.append(self.above(n, g))
        for more in units:
            joint = Group(g.root, g.members | {n, *more}, [*g.extra, n] if as_output else g.extra)
            if len(joint.members) > self.options.max_nodes:
                continue
            together = self.price(joint)
            if isinstance(together, str):
                why = together
            elif not as_output and self.ends_sum_for_less(n, g, together):
                why = "it is computed once where it ends a sum of products"
            elif together <= (apart := g.price + self.alone([n, *more])) or (not more and from_positions(n)):
                if not try_only:
                    self.add([n, *more], g, joint, together)
                return True
            else:
                why = f"a price of {together} instead of {apart}"
        if why:
            self.context.missed(self.options, f"not fused into {g.root.op.name}: {why}", n)
        return False

    def ends_sum_for_less(self, n: Node, g: Group, together: int) -> bool:
        """Whether `n` costs less at the end of the sum of products below it than in `g`, which repeats it and cannot take the sum."""
        chain = self.down_to_sum(n)
        if not chain:
            return False
        ended, below = self.price(Group(n, set(chain))), self.price(Group(chain[1], set(chain[1:])))
        inside = self.price(Group(g.root, g.members | set(chain)))
        if isinstance(ended, str) or isinstance(below, str) or (isinstance(inside, int) and inside <= g.price + ended):
            return False
        return together > g.price + ended - below

    def down_to_sum(self, n: Node) -> list[Node]:
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

    def add(self, nodes: list[Node], g: Group, joint: Group, price: int) -> None:
        """Make `g` what `joint` is."""
        g.members, g.extra, g.price = joint.members, joint.extra, price
        for n in nodes:
            self.groups.setdefault(n, []).append(g)
            self.context.applied(self.options, f"fused into the kernel of {g.root.op.name}", n)

    def alone(self, nodes: list[Node]) -> int:
        """The price of a kernel for a node and what belongs to it; 0 where there is none."""
        price = self.price(Group(nodes[0], set(nodes)))
        return price if isinstance(price, int) else 0

    def belonging(self, n: Node) -> list[Node]:
        """The mixes below `n` and the views around them, which make sense in one kernel only: none of them has another user."""
        found = [n]
        while isinstance(found[-1].structure, Mix) or is_view(found[-1].structure, found[-1]):
            (below,) = found[-1].operands
            inner = len(self.graph.users[below]) == 1 and below not in self.graph.outputs
            if not inner or not (isinstance(below.structure, Mix) or is_view(below.structure, below)):
                break
            found.append(below)
        return found[1:] if any(isinstance(m.structure, Mix) for m in found) else []

    def above(self, n: Node, g: Group) -> list[Node]:
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

    def cheap_to_repeat(self, n: Node) -> bool:
        """Whether computing `n` again in each user reads no more than its result would be."""
        if is_view(n.structure, n):
            return True
        if not isinstance(n.structure, (Elementwise, IndexMap)):
            return not n.operands and not isinstance(n.structure, Reduction)
        read = sum(size(o) for o in n.operands if scalar_value(o) is None)
        return read <= size(n) and (not isinstance(n.structure, Elementwise) or elementwise_cost(n) <= 2)

    def acyclic(self, n: Node, g: Group) -> bool:
        """Whether nothing outside `g` that reads `n` leads back into `g`: then `g` can yield `n` before the others run."""
        seen: set[Group | Node] = set()
        stack = [u for u in self.readers(n) if u is not g]
        while stack:
            unit = stack.pop()
            if unit is g:
                return False
            if unit not in seen:
                seen.add(unit)
                results = (unit.root, *unit.extra) if isinstance(unit, Group) else (unit,)
                stack += [u for r in results for u in self.readers(r) if u is not unit]
        return True

    def readers(self, n: Node) -> list[Group | Node]:
        """The kernels that `n` goes into, and its users that are in none."""
        return [unit for u in self.graph.users[n] for unit in self.groups.get(u, (u,))]

    # prices

    def price(self, g: Group) -> int | str:
        """Work of the group's kernel, or why there is none."""
        if len(g.members) == 1 and laid_side_by_side(g.root) is not None:
            return self.price_of_putting(g.root)
        nodes = (g.root, frozenset(g.members), *g.extra)
        if nodes not in self.prices:
            self.prices[nodes] = self.price_of_body(g)
        return self.prices[nodes]

    def price_of_body(self, g: Group) -> int | str:
        """The same; groups that compute alike are lowered once."""
        if self.mixes_sums(g):
            return "a mix takes rows that are known, and a sum has loops over them"
        body, _ = self.body(g)
        key = fingerprint(body)
        if key not in self.priced:
            try:
                kernel = self.lowered[key] = lower_kernel(body, "candidate")
                self.priced[key] = self.objection(kernel, g) or price_of(kernel)
            except LowerError as error:
                self.priced[key] = str(error)
        return self.priced[key]

    def mixes_sums(self, g: Group) -> bool:
        """Whether a mix of the group needs one of its reductions, or a reduction a mix: no loop nest holds both."""
        needs: dict[Node, set[type]] = {}
        for n in sorted(g.members, key=self.order.__getitem__):
            own, below = {type(n.structure)} & {Mix, Reduction}, {k for o in n.operands for k in needs.get(o, ())}
            if own and below - own:
                return True
            needs[n] = own | below
        return False

    def price_of_putting(self, n: Node) -> int:
        """Bytes that are moved to put values side by side, where those that kernels compute are written in place."""
        copied = sum(2 * size(o) for o in n.operands if not self.is_computed(o))
        gaps = size(n) - sum(size(o) for o in n.operands)
        return copied + gaps + (LAUNCH if copied or gaps else 0)

    def is_computed(self, n: Node, alone: bool = False) -> bool:
        """Whether `n` ends the kernel of a reduction, with nothing but ops between that nobody else needs, or holds such values."""
        if laid_side_by_side(n) is not None:
            return any(self.is_computed(o) for o in n.operands)
        if alone and len(self.graph.users[n]) > 1:
            return False
        if isinstance(n.structure, (Reduction, Mix)):
            return True
        return isinstance(n.structure, (Elementwise, IndexMap)) and any(self.is_computed(o, True) for o in n.operands)

    def objection(self, kernel: Kernel, g: Group) -> str:
        """Why a kernel that can be lowered would still be slow; empty for none."""
        sums = [n for n in g.members if isinstance(n.structure, Reduction) and len(n.operands) > 1]
        for n in sorted(sums, key=self.order.__getitem__)[:-1]:
            if size(n) <= sum(size(o) for o in n.operands):
                return f"{n.op.name} yields less than it reads, so it is worth storing"
        if sums and any(isinstance(s, Local) for s in tile.walk(kernel.body)):
            again = reread(kernel)
            if again > self.options.reread_limit and not taken_in_parts(kernel):
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
        outputs = tuple(new[n] for n in (g.root, *g.extra))
        return Graph(tuple(new[o] for o in operands), outputs, g.root.op.name), tuple(operands)

    def rebuild(self) -> Graph:
        """The graph with every group as one `fused` node, in an order that respects what they read."""
        owner: dict[Node, Group] = {}
        for g in self.all:
            for n in (g.root, *g.extra):
                owner[n] = g
        bodies = {id(g): self.body(g) for g in self.all}
        view: networkx.DiGraph = networkx.DiGraph()
        kept: list[Node | Group] = [n for n in self.graph.nodes if n not in self.groups]
        view.add_nodes_from([*kept, *self.all])
        for unit in [*kept, *self.all]:
            reads = unit.operands if isinstance(unit, Node) else bodies[id(unit)][1]
            view.add_edges_from((owner.get(o, o), unit) for o in reads)
        place = {id(n): k for n, k in self.order.items()}
        new: dict[Node, Node] = {}
        fused = OPS["fused"]

        def rank(u: Node | Group) -> int:
            return place[id(u if isinstance(u, Node) else u.root)]

        for unit in networkx.lexicographical_topological_sort(view, key=rank):
            if isinstance(unit, Node):
                new[unit] = unit.with_operands(tuple(new[o] for o in unit.operands))
                continue
            body, operands = bodies[id(unit)]
            remember(body, self.lowered.get(fingerprint(body)))
            made = fused(*(new[o] for o in operands), body=body, loc=unit.root.loc)
            results = (unit.root, *unit.extra)
            if len(results) == 1:
                new[unit.root] = made.named(unit.root.name)
            else:
                for k, r in enumerate(results):
                    new[r] = OPS["item"](made, index=k, loc=r.loc).named(r.name)
        self.context.count(self.options, "kernels", len(self.all))
        return replace(
            self.graph,
            outputs=tuple(new[o] for o in self.graph.outputs),
            inputs=tuple(new[i] for i in self.graph.inputs),
        )


LAUNCH = 2000
"""Operations that fit into the time of starting one kernel."""


def price_of(kernel: Kernel) -> int:
    """Operations, plus one for each byte that comes from memory or goes there."""
    traffic = sum(known(p.type.nbytes) for p in kernel.params)
    return work(kernel) + traffic + LAUNCH


def size(n: Node) -> int:
    """Bytes that a value is likely to have; 1 where that is not known."""
    return known(n.type.nbytes)


def taken_in_parts(kernel: Kernel) -> bool:
    """Whether the kernel's rows will be walked part by part, many of them for each part of what they read."""
    return Online().row(Merge().run(kernel, Context())) is not None


def reread(kernel: Kernel) -> int:
    """Bytes a contraction reads again for every block of rows: the part of its operands that the row loops do not pick."""
    table = Accesses(kernel)
    most = 0
    for a in table.all:
        if a.is_store or not contraction(chosen(a.stmt)) or table.roles[a.buffer] == "local":
            continue
        rows = {f.range.var for f in takewhile(lambda f: f.parallel, nested_fors(kernel.body))}
        last = [v for v in rows if not table.follows(a, v)]
        if not last:
            continue
        elements = 1
        for r in a.loops:
            if r.var not in rows and any(r.var in variables(d) for d in a.index):
                elements *= known(r.extent)
        most = max(most, elements * table.types[a.buffer].dtype.bytes)
    return most
