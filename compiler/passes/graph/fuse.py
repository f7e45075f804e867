"""Fusion: group ops into kernels."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from compiler.analysis.demand import is_cheap_index_expr
from compiler.analysis.exclusive_producers import exclusive_producers, index_producers
from compiler.analysis.linear_maps import mixes_linear_with_reductions
from compiler.analysis.operand_reuse import reads_interleaved_batches, reread_bytes
from compiler.analysis.placement import concat_offsets, copy_and_fill_kernel
from compiler.analysis.plain_reductions import is_plain_reduction
from compiler.analysis.recomputation import Recomputation, hinted_bytes
from compiler.analysis.reduction_domains import reads_once
from compiler.analysis.structural_key import group_key
from compiler.analysis.windows import adds_overlapping_products, divides_results
from compiler.cost.estimates import TIE, prefers_epilogue, unscheduled_seconds
from compiler.ir.graph.graph import Graph, postorder, preorder, reachable
from compiler.ir.graph.node import OPS, Node, input_node, scalar_value
from compiler.ir.graph.structure import (
    Composite,
    ConstantLinear,
    Elementwise,
    Fused,
    Generate,
    IndexMap,
    Leaf,
    Opaque,
    Recurrence,
    Reduction,
    TupleGet,
    is_view,
)
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import adds_contractions
from compiler.ir.tile.kernel import Kernel, Local, dim_hint
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.candidate_kernel import candidate_kernel
from compiler.passes.graph.fold import constant_sources, is_widened
from compiler.passes.remark import format_seconds
from compiler.passes.tile.delinearize import Delinearize
from compiler.passes.tile.online_softmax import uses_online_softmax

UNFUSED = (Leaf, Opaque, TupleGet, Fused, Composite, Recurrence)
"""Structures of nodes that become no kernel."""


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel, of `cost` seconds: its loops are those of `root`; `extra_outputs` are further results."""

    root: Node
    members: set[Node]
    extra_outputs: list[Node] = field(default_factory=list)
    cost: float = 0.0


@dataclass(frozen=True)
class Fusion:
    """A way to add `nodes` to a group, which becomes `fused`."""

    group: Group
    nodes: list[Node]
    fused: Group


@register
@dataclass(frozen=True)
class Fuse(GraphPass):
    """Fuse ops into kernels.

    %s = sigmoid %x  %y = mul %s, %x  ->  %y = fused (%x) { %s = sigmoid %x  %y = mul %s, %x  return %y }

    Visits users before producers.  An op joins the kernel of its users if the fused kernel can be lowered and costs no
    more than separate kernels; chains of elementwise ops join together.  Views, and ops that read no more than they write,
    are recomputed in every user instead.  Constants that are wider than what they are computed from are unpacked where they are used.
    A value with other users becomes a further result of the kernel.
    """

    name = "fuse"
    enabled: bool = True
    max_nodes: int = 64  # that compute something; bounds compile time
    max_reread_bytes: int = from_machine("max_reread_bytes")

    def run(self, ir: Graph, context: Context) -> Graph:
        return GroupSearch(self, ir, context).run()


class GroupSearch:
    """One run of the pass."""

    def __init__(self, options: Fuse, graph: Graph, context: Context) -> None:
        self.options, self.graph, self.context = options, graph, context
        self.order, self.outputs = {n: k for k, n in enumerate(graph.nodes)}, frozenset(graph.outputs)
        self.constants = constant_sources(graph)
        self.recomputation = Recomputation(graph, context.machine)
        self.groups_of_node: dict[Node, list[Group]] = {}
        self.all_groups: list[Group] = []
        self.group_costs: dict[Hashable, float | str] = {}  # by nodes of a group
        self.bodies: dict[Hashable, tuple[Graph, tuple[Node, ...]]] = {}
        self.single_groups: dict[Node, Group] = {}
        self.rebuilt: dict[Node | Graph, tuple[tuple[Node, ...], tuple[Node, ...]]] = {}  # operands, results

    def run(self) -> Graph:
        fusible = [n for n in self.graph.nodes if not isinstance(n.structure, UNFUSED)]
        if not fusible or not self.context.may_apply(self.options, "nodes become kernels", required=True, remark=False):
            return self.graph
        self.single_groups = {n: Group(n, {n}) for n in fusible}
        self.context.reached(self.rebuild)
        for n in reversed(fusible):
            if n not in self.groups_of_node:
                self.assign_group(n, n in self.outputs)
                self.context.reached(self.rebuild)
        self.context.count(self.options, "kernels", len(self.all_groups))
        return self.rebuild()

    def assign_group(self, n: Node, is_output: bool) -> None:
        """Add `n` to the groups of its users, or start a new group."""
        users = self.graph.users[n]
        consumer_groups = list(dict.fromkeys(g for u in users for g in self.groups_of_node.get(u, ())))
        has_external_use = is_output or any(u not in self.groups_of_node for u in users)
        if self.options.enabled and consumer_groups and not self.context.is_spent(self.options):
            is_shared = not has_external_use and len(consumer_groups) > 1
            if not has_external_use and len(consumer_groups) == 1 and self.commit(self.fusion(n, consumer_groups[0])):
                return
            if is_shared and self.recomputation.is_cheap(n) and self.recompute(n, consumer_groups):
                return
            if (has_external_use or len(consumer_groups) > 1) and not is_view(n.structure, n):
                for g in sorted(consumer_groups, key=lambda g: self.order[g.root]):
                    if self.stays_acyclic(n, g) and self.commit(self.fusion(n, g, as_output=True)):
                        return
            again = len(consumer_groups) - 1
            if is_shared and self.recomputation.takes_less_than_memory(n, again) and self.recompute(n, consumer_groups):
                return
        nodes = [n, *self.initial_cluster(n)]
        group = Group(n, set(nodes), cost=self.standalone_cost(nodes))
        self.all_groups.append(group)
        for m in group.members:
            self.groups_of_node[m] = [group]

    def recompute(self, n: Node, groups: Sequence[Group]) -> bool:
        """Add `n` to all of `groups`, if it can be computed in each."""
        fusions = list(itertools.takewhile(bool, (self.fusion(n, g, recomputed=True) for g in groups)))
        return len(fusions) == len(groups) and self.commit(*fusions)

    def fusion(self, n: Node, g: Group, as_output: bool = False, recomputed: bool = False) -> Fusion | None:
        """Return how to add `n` to `g`, alone or with producers that only make sense with it; None if that costs more.

        It is added alone if it becomes an output, and with the indices that it depends on if it is `recomputed` in other groups too.
        """
        if len(g.members) == 1 and concat_offsets(g.root) is not None and self.has_reduction_producer(n):
            self.context.missed(self.options, f"written in place inside {g.root.op.name}", n)
            return None
        machine, why, lost = self.context.machine, "", 0.0
        is_concat = concat_offsets(n) is not None and not machine.reads_padding_through_masks
        if is_concat and self.has_reduction_producer(n):
            self.context.missed(self.options, f"not fused into {g.root.op.name}: its operands are written in place", n)
            return None
        alone = [index_producers(self.graph, self.order, n) if recomputed else []]
        for more in alone if as_output or recomputed else self.producer_sets(n, g):
            fused_group = Group(g.root, g.members | {n, *more}, [*g.extra_outputs, n] if as_output else g.extra_outputs)
            if self.is_too_large(fused_group):
                continue
            fused_cost = self.cost(fused_group)
            if isinstance(fused_cost, str):
                why, lost = fused_cost, machine.round_trip_seconds(hinted_bytes(n))
            elif (not as_output or is_larger(n, g.root)) and self.is_cheaper_as_epilogue(n, g, fused_group, fused_cost):
                why, lost = "cheaper where its operand is computed", 0.0
            elif self.is_cheaper_with_rows(n, g, fused_group, fused_cost):
                why, lost = "cheaper with the rows that it reads", 0.0
            elif (
                fused_cost > TIE * (g.cost + self.least_cost(n))
                and fused_cost > TIE * (separate_cost := g.cost + self.standalone_cost([n, *more]))
                and (more or not is_cheap_index_expr(n))
                and not self.is_unpacked_constant(n)
            ):
                more_time, apart = format_seconds(fused_cost - separate_cost), format_seconds(separate_cost)
                why, lost = f"would cost {more_time} more than the {apart} of separate kernels", 0.0
            else:
                return Fusion(g, [n, *more], replace(fused_group, cost=fused_cost))
        if why:
            self.context.missed(self.options, f"not fused into {g.root.op.name}: {why}", n, lost)
        return None

    def producer_sets(self, n: Node, g: Group) -> Iterator[list[Node]]:
        """Yield producers to add to `g` with `n`, from the most likely on: one lowering then decides about all of them."""
        yield from filter(None, (self.required_cluster(n), self.elementwise_producers(n, g)))
        yield []
        if isinstance(self.cost(Group(g.root, g.members | {n})), str):
            yield self.plain_producers(n, g)

    def is_too_large(self, g: Group) -> bool:
        """Return True if a group has more nodes than `max_nodes`, besides views, which become indices."""
        limit = self.options.max_nodes
        return len(g.members) > limit and sum(not is_view(m.structure, m) for m in g.members) > limit

    def is_cheaper_as_epilogue(self, n: Node, g: Group, fused: Group, fused_cost: float) -> bool:
        """Return True if `n` is cheaper where its operand is computed, as the epilogue of a contraction is, than in `g`."""
        if not (chain := self.shared_operand(n) or self.epilogue_chain(n)):
            return False
        stored = [m for m in chain[1:2] if len(self.graph.users[m]) > 1]
        epilogue, bare = self.cost(Group(n, set(chain), stored)), self.cost(Group(chain[1], set(chain[1:])))
        if isinstance(epilogue, str) or isinstance(bare, str):
            return False
        if not prefers_epilogue(self.context.machine, g.cost + epilogue, fused_cost + bare):
            return False
        return self.costs_more(replace(fused, members=g.members | set(chain)), g.cost + epilogue)

    def is_cheaper_with_rows(self, n: Node, g: Group, fused: Group, fused_cost: float) -> bool:
        """Return True if a product `n` is cheaper with the reduced rows that it multiplies, as attention is, than in `g`.

        The rows cannot join `g` as well, or that costs more.
        """
        if not isinstance(n.structure, Reduction) or len(n.operands) < 2:
            return False
        producers = frozenset(self.plain_producers(n, Group(n, {n})))
        root = next((o for o in n.operands if o in producers and isinstance(o.structure, Elementwise)), None)
        rows = set(preorder([root], producers)) & producers if root else set()
        if root is None or not any(isinstance(m.structure, Reduction) for m in rows):
            return False
        apart, together = self.cost(Group(root, rows)), self.cost(Group(n, {n, *rows}))
        if isinstance(apart, str) or isinstance(together, str) or g.cost + together >= fused_cost + apart:
            return False
        return self.costs_more(replace(fused, members=fused.members | rows), g.cost + together)

    def shared_operand(self, n: Node) -> list[Node]:
        """Return a reduction, its operand that others read too, and elementwise values only that is computed from; else []."""
        e = n.operands[0] if is_plain_reduction(n) else n
        if not isinstance(e.structure, Elementwise) or e in self.outputs or len(self.graph.users[e]) < 2 or e is n:
            return []
        return [n, e, *self.elementwise_producers(e, Group(e, {e}))]

    def epilogue_chain(self, n: Node) -> list[Node]:
        """Return `n`, single-use elementwise nodes of its shape below it, and the contraction they start from; else []."""
        chain = [n]
        while isinstance(chain[-1].structure, Elementwise) and len(chain) <= self.options.max_nodes:
            inner = [o for o in chain[-1].operands if o.shape == n.shape and len(self.graph.users[o]) == 1]
            fusible = (o for o in inner if isinstance(o.structure, (Elementwise, Reduction)))
            if (producer := next((o for o in fusible if o not in self.outputs), None)) is None:
                return []
            chain.append(producer)
        return chain if len(chain[-1].operands) > 1 and chain[-1] is not n else []

    def commit(self, *fusions: Fusion | None) -> bool:
        """Add nodes to groups, all or none; return False if there is nothing to add, or if no more rewrites are made."""
        additions = [(f.group, n) for f in fusions if f for n in f.nodes]
        for k, (g, n) in enumerate(additions):
            message = f"fused into the kernel of {g.root.op.name}"
            if k == 0 and not self.context.may_apply(self.options, message, n):
                return False
            if k > 0:
                self.context.also_applied(self.options, message, n)
            self.groups_of_node.setdefault(n, []).append(g)
        for f in filter(None, fusions):
            f.group.members, f.group.extra_outputs, f.group.cost = f.fused.members, f.fused.extra_outputs, f.fused.cost
        return bool(additions)

    def standalone_cost(self, nodes: list[Node]) -> float:
        """Return the seconds of a kernel for `nodes`, the root first; 0 if there is no such kernel."""
        cost = self.cost(Group(nodes[0], set(nodes)))
        return 0.0 if isinstance(cost, str) else cost

    def least_cost(self, n: Node) -> float:
        """Return a lower bound of the seconds of a kernel of `n`: its launch and the bytes of its result; 0 if it may get none."""
        machine, is_plain = self.context.machine, isinstance(n.structure, Elementwise) or is_view(n.structure, n)
        return machine.launching_seconds(1) + machine.traffic_seconds(hinted_bytes(n)) if is_plain else 0.0

    def required_cluster(self, n: Node) -> list[Node]:
        """Return the single-use constant linear maps and views below `n`, which only make sense in its kernel."""

        def belongs(m: Node) -> bool:
            return isinstance(m.structure, ConstantLinear) or is_view(m.structure, m)

        cluster = [n]
        while belongs(cluster[-1]):
            (producer,) = cluster[-1].operands
            if len(self.graph.users[producer]) != 1 or producer in self.outputs or not belongs(producer):
                break
            cluster.append(producer)
        return cluster[1:] if any(isinstance(m.structure, ConstantLinear) for m in cluster) else []

    def initial_cluster(self, n: Node) -> list[Node]:
        """Return what a new group of `n` holds besides: its required cluster, if that can be lowered."""
        cluster = self.required_cluster(n)
        if not cluster or isinstance(self.cost(Group(n, {n, *cluster})), str):
            return []
        message = f"fused with {', '.join(m.op.name for m in cluster)}"
        return cluster if self.context.may_apply(self.options, message, n, remark=False) else []

    def plain_producers(self, n: Node, g: Group) -> list[Node]:
        """Return the values computed for `n` and `g` only, down to contractions: `n` may fit only with all of them."""

        def is_plain(m: Node) -> bool:
            is_sum = isinstance(m.structure, Reduction) and len(m.operands) < 2
            return m not in self.outputs and (is_sum or isinstance(m.structure, (Elementwise, IndexMap, Generate)))

        return exclusive_producers(self.graph, self.order, {n, *g.members}, self.own_members(n, g), is_plain)

    def own_members(self, n: Node, g: Group) -> set[Node]:
        """Return `n`, and the members of `g` that no other group computes as well."""
        return {n, *(m for m in g.members if len(self.groups_of_node.get(m, ())) < 2)}

    def elementwise_producers(self, n: Node, g: Group) -> list[Node]:
        """Return views, and elementwise values of as many elements as `n`, that only `n` and `g` use, but for epilogues of contractions.

        They join a group as `n` does, one after the other: nothing of them is computed more often there.
        """

        def joins(m: Node) -> bool:
            same = isinstance(m.structure, Elementwise) and m.type.numel == n.type.numel
            plain = (same or is_view(m.structure, m)) and m not in self.groups_of_node
            return plain and m not in self.outputs and not self.epilogue_chain(m)

        return exclusive_producers(self.graph, self.order, [n], self.own_members(n, g), joins) if joins(n) else []

    def is_unpacked_constant(self, n: Node) -> bool:
        """Return True if `n` is computed from constants of fewer bytes: its users unpack them near the core."""
        return n in self.constants and is_widened(n, self.constants[n])

    def stays_acyclic(self, n: Node, g: Group) -> bool:
        """Return True if no path from `n` leaves `g` and comes back: then `g` can output `n` for its other users."""

        def consumers(unit: Group | Node) -> list[Group | Node]:
            results = (unit.root, *unit.extra_outputs) if isinstance(unit, Group) else (unit,)
            return [u for r in results for u in self.consumer_units(r) if u is not unit]

        return g not in reachable((u for u in self.consumer_units(n) if u is not g), consumers)

    def consumer_units(self, n: Node) -> list[Group | Node]:
        """Return the groups of the users of `n`, and the users without a group."""
        return [unit for u in self.graph.users[n] for unit in self.groups_of_node.get(u, (u,))]

    # costs

    def cost(self, g: Group) -> float | str:
        """Return the estimated seconds of the group's kernel, or the reason why there is none."""
        if len(g.members) == 1 and concat_offsets(g.root) is not None:
            return self.concat_cost(g.root)
        nodes = (g.root, frozenset(g.members), *g.extra_outputs)
        if nodes not in self.group_costs:
            self.group_costs[nodes] = self.body_cost(g)
        return self.group_costs[nodes]

    def costs_more(self, g: Group, seconds: float) -> bool:
        """Return True if a group has no kernel, or one that takes longer than `seconds` by more than a tie."""
        cost = self.cost(g)
        return isinstance(cost, str) or cost > TIE * seconds

    def body_cost(self, g: Group) -> float | str:
        """Return `cost`; structurally equal groups are lowered once, in all runs of the pass with these options."""
        roots = (g.root, *g.extra_outputs)
        order = preorder(roots, g.members)
        key = group_key(order, self.operands(g, order), roots)
        costs, entry = self.context.group_costs, (self.options, key)
        if entry not in costs:
            costs[entry] = self.candidate_cost(g, key)
        return costs[entry]

    def candidate_cost(self, g: Group, key: Hashable) -> float | str:
        """Return `cost` of a group that is lowered for the first time; its kernel is kept under `key`."""
        body, _ = self.body(g)
        if mixes_linear_with_reductions(body):
            return "a constant linear map and a reduction cannot share one loop nest"
        kernel = candidate_kernel(body, key, self.context)
        if isinstance(kernel, str):
            return kernel
        if problem := self.profitability_veto(kernel, body):
            return problem
        context = self.context
        # no guards inside its sums, where that is possible
        split = Delinearize().for_machine(context.machine).run(kernel, context.trial())
        return unscheduled_seconds(split, context.machine, context.reduction_seconds(split), context.matrix_shapes)

    def concat_cost(self, n: Node) -> float:
        """Return the seconds of a concat or pad whose computed operands are written in place."""
        copied = [o for o in n.operands if not self.has_reduction_producer(o)]
        kernel = copy_and_fill_kernel(n, copied, "candidate")
        if kernel is None:
            return 0.0
        gaps = hinted_bytes(n) - sum(map(hinted_bytes, n.operands))
        machine, moved = self.context.machine, 2 * sum(map(hinted_bytes, copied)) + gaps
        return machine.traffic_seconds(moved) + machine.launching_seconds(len(kernel.body))

    def has_reduction_producer(self, n: Node, single_use: bool = False) -> bool:
        """Return True if `n` is a reduction behind single-use elementwise ops and views, or a concat of such values."""
        if concat_offsets(n) is not None:
            return any(self.has_reduction_producer(o) for o in n.operands)
        if single_use and len(self.graph.users[n]) > 1:
            return False
        if isinstance(n.structure, (Reduction, ConstantLinear)):
            return True
        return isinstance(n.structure, (Elementwise, IndexMap)) and any(
            self.has_reduction_producer(o, True) for o in n.operands
        )

    def profitability_veto(self, kernel: Kernel, body: Graph) -> str:
        """Return the reason why a kernel that can be lowered would be slow, or whose rows no block holds, or ""."""
        machine = self.context.machine
        if (problem := self.context.row_problem(kernel)) and not uses_online_softmax(kernel, self.context):
            return problem
        if any(map(adds_overlapping_products, body.nodes)):
            return "each tap would load the pixels of its products again: materialized"
        sums = [n for n in body.nodes if isinstance(n.structure, Reduction) and len(n.operands) > 1]
        read = preorder([o for n in sums for o in n.operands], frozenset(body.nodes))
        if sums and not machine.recomputes_operands:
            if reads_interleaved_batches(self.context.accesses(kernel), machine.min_operand_reuse):
                return "products of a batch would share the lines of an operand: materialized"
            if any(map(divides_results, read)):
                return "products would divide the indices of their operand in each step: materialized"
        in_one_tile = all(reads_once(n, machine.min_block_rows) for n in sums)
        are_apart = in_one_tile and frozenset(sums).isdisjoint(read)
        rows = machine.min_block_rows if in_one_tile else 0
        is_nested = any(adds_contractions(s, rows) for s in tile.walk(kernel.body))
        if sums and any(is_larger(o, body.outputs[0]) for o in body.outputs[1:]):
            return "rows of sums would be computed one after another"
        for n in sums if is_nested else sums[:-1]:
            if not are_apart and hinted_bytes(n) <= sum(hinted_bytes(o) for o in n.operands):
                return f"{n.op.name} shrinks its operands: materialized"
        if sums and any(isinstance(s, Local) for s in tile.walk(kernel.body)):
            again = reread_bytes(kernel)
            if again > self.options.max_reread_bytes and not uses_online_softmax(kernel, self.context):
                return f"each row block would reread {again >> 10} KiB"
        return ""

    # the new graph

    def operands(self, g: Group, order: Sequence[Node]) -> list[Node]:
        """Return the operands of the group among its nodes and operands in `order`; constants of one element are none."""
        return [n for n in order if n not in g.members and scalar_value(n) is None]

    def body(self, g: Group) -> tuple[Graph, tuple[Node, ...]]:
        """Return the group as a graph, and its operands in this graph, in the order in which a walk from the root meets them.

        Groups that differ only in the order of their nodes in this graph thus become the same kernel.
        """
        nodes = (g.root, frozenset(g.members), *g.extra_outputs)
        if nodes not in self.bodies:
            self.bodies[nodes] = self.new_body(g)
        return self.bodies[nodes]

    def new_body(self, g: Group) -> tuple[Graph, tuple[Node, ...]]:
        """Return `body` of a group that had none yet."""
        roots = (g.root, *g.extra_outputs)
        operands = self.operands(g, preorder(roots, g.members))
        new = {o: input_node(f"x{k}", o.type, o.loc) for k, o in enumerate(operands)}
        for n in sorted(g.members, key=self.order.__getitem__):
            new[n] = replace(n, operands=tuple(new.get(o, o) for o in n.operands))
        outputs = tuple(new[n] for n in roots)
        return Graph(tuple(new[o] for o in operands), outputs, g.root.op.name), tuple(operands)

    def rebuild(self) -> Graph:
        """Return the graph with every group as one `fused` node; nodes without a group yet are kernels of their own."""
        alone = [g for n, g in self.single_groups.items() if n not in self.groups_of_node]
        owner = {n: g for g in (*self.all_groups, *alone) for n in (g.root, *g.extra_outputs)}
        bodies = {n: self.body(g) for n, g in owner.items()}
        new: dict[Node, Node] = {}
        for n in postorder(
            (*self.graph.inputs, *self.graph.outputs), lambda n: bodies[n][1] if n in bodies else n.operands
        ):
            if n not in new:
                body, operands = bodies.get(n, (None, n.operands))
                results = (owner[n].root, *owner[n].extra_outputs) if n in owner else (n,)
                new |= zip(results, self.rebuilt_results(results, body, tuple(new[o] for o in operands)), strict=True)
        return replace(
            self.graph,
            outputs=tuple(new[o] for o in self.graph.outputs),
            inputs=tuple(new[i] for i in self.graph.inputs),
        )

    def rebuilt_results(
        self, results: tuple[Node, ...], body: Graph | None, operands: tuple[Node, ...]
    ) -> Sequence[Node]:
        """Return `results` of a kernel, or of a node outside (None), on other operands; the same nodes for the same operands."""
        root = results[0]
        read, known = self.rebuilt.get(body or root, ((), ()))
        if not known or read != operands:
            if body is None:
                known = (root.with_operands(operands),)
            else:
                kernel = OPS["fused"](*operands, body=body, loc=root.loc)
                several = results if len(results) > 1 else ()
                parts = [OPS["tuple_get"](kernel, index=k, loc=r.loc) for k, r in enumerate(several)]
                known = tuple(p.with_name(r.name) for p, r in zip(parts or [kernel], results, strict=True))
            self.rebuilt[body or root] = operands, known
        return known


def is_larger(n: Node, root: Node) -> bool:
    """Return True if a result has more elements than `root`, whose kernel computes a row of it in each iteration."""
    return dim_hint(n.type.numel) > dim_hint(root.type.numel)
