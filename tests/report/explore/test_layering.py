"""Layers of drawn graphs: ranks, lanes, crossings, and boxes."""

from __future__ import annotations

from itertools import pairwise

from compiler.report.explore.layering import MAX_LANE, Box, assign_layers, build_hierarchy


def rank_of(layers: list[list[int]]) -> dict[int, int]:
    return {n: r for r, layer in enumerate(layers) for n in layer if n >= 0}


def test_every_edge_goes_down() -> None:
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 4), (3, 4)]
    rank = rank_of(assign_layers(5, edges))
    assert all(rank[a] < rank[b] for a, b in edges)
    assert len(rank) == 5


def test_a_long_edge_has_a_lane_in_each_layer_between() -> None:
    layers = assign_layers(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert [set(layer) for layer in layers] == [{0}, {1, ~0}, {2, ~0}, {3}]


def test_a_lane_has_an_end() -> None:
    """One edge over more layers than that is drawn straight: 5,000 nodes that read one input must not make 5,000 lanes."""
    count = MAX_LANE + 10
    layers = assign_layers(count, [*pairwise(range(count)), (0, count - 1)])
    assert all(entry >= 0 for layer in layers for entry in layer)


def test_a_source_stands_above_its_first_user() -> None:
    rank = rank_of(assign_layers(4, [(0, 1), (1, 3), (2, 3)]))
    assert rank[2] == rank[3] - 1


def test_edges_do_not_cross_without_need() -> None:
    layers = assign_layers(6, [(0, 5), (1, 4), (2, 3)])
    above, below = layers
    partner = {0: 5, 1: 4, 2: 3}
    assert [partner[n] for n in above] == below


def test_cycles_between_boxes_are_drawn() -> None:
    """A box that reads from a later one, as a module that is called twice does."""
    assert rank_of(assign_layers(2, [(0, 1), (1, 0)])) == {0: 0, 1: 1}


def test_boxes_hold_what_their_paths_say() -> None:
    paths = [(), ("a",), ("a", "b"), None, ("c",)]
    root = build_hierarchy(paths, [(0, 1), (1, 2), (2, 4)], {("a", "b"): 3})
    a, c = (child for child in root.children if isinstance(child, Box))
    (b,) = (child for child in a.children if isinstance(child, Box))
    assert (a.label, b.label, c.label) == ("a", "b", "c")
    assert (root.children[0], a.children[0], b.children, c.children) == (0, 1, [2], [4])
    assert (root.node, b.node) == (None, 3)
    assert root.layers == [[0], [1], [2]]  # edges between boxes count where the boxes are
    assert a.layers == [[0], [1]]


def test_five_thousand_nodes_are_linear_work() -> None:
    """Doubling the nodes must not square the entries."""
    edges = [(k, k + d) for k in range(5000) for d in (1, 3) if k + d < 5000]
    layers = assign_layers(5000, [*edges, *((0, k) for k in range(0, 5000, 7))])
    assert sum(map(len, layers)) < 4 * 5000
