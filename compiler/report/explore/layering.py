"""Layers of a drawn graph: the first phases of the method of Sugiyama, Tagawa and Toda (1981), in each box of a hierarchy.

A box holds nodes and boxes.  Its layers do not depend on which boxes are open, so they are computed once; the page adds coordinates.
Lanes, entries of layers that long edges pass through, are shared by all edges of one source.  Everything is linear in nodes and edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean as mean
from typing import TypeAlias, Union

SWEEPS = 2
"""Times that layers are ordered by their neighbours above, and then by those below."""

MAX_LANE = 48
"""Most layers that the lane of an edge passes; a longer edge is drawn straight."""

Path: TypeAlias = tuple[str, ...]
"""Labels of the boxes around something, from outside."""

Slot: TypeAlias = tuple[int, int]
"""An entry of a layer: the layer, and the entry."""


@dataclass
class Box:
    """A box of the hierarchy: `children` are numbers of nodes and boxes, `layers` numbers of children from top to bottom.

    A negative number ~k in a layer is the lane of child k.  `node` is the node that the box stands for, if it is one.
    """

    label: str
    children: list[Union[int, Box]] = field(default_factory=list)
    layers: list[list[int]] = field(default_factory=list)
    node: int | None = None


def build_hierarchy(paths: Sequence[Path | None], edges: Iterable[tuple[int, int]], nodes: Mapping[Path, int]) -> Box:
    """Return the root of the boxes of nodes 0, 1, ..., in topological order; `paths` are those of the boxes around them (None: not drawn).

    `nodes` gives the node that a box stands for by the path of the box.
    """
    root = Box("")
    boxes: dict[Path, Box] = {(): root}
    position: dict[Path, int] = {}  # of a box in its parent
    place: dict[int, tuple[Path, int]] = {}  # of a node: its box, and where in it

    def box_at(path: Path) -> Box:
        if path not in boxes:
            parent = box_at(path[:-1])
            position[path] = len(parent.children)
            boxes[path] = Box(path[-1], node=nodes.get(path))
            parent.children.append(boxes[path])
        return boxes[path]

    for number, path in enumerate(paths):
        if path is None:
            continue
        box = box_at(path)
        place[number] = path, len(box.children)
        box.children.append(number)
    inner: dict[Path, dict[tuple[int, int], None]] = {path: {} for path in boxes}
    for source, target in edges:
        common, ends = _lift(place[source], place[target], position)
        if ends[0] != ends[1]:
            inner[common][ends] = None
    for path, box in boxes.items():
        box.layers = assign_layers(len(box.children), inner[path])
    return root


def _lift(a: tuple[Path, int], b: tuple[Path, int], position: Mapping[Path, int]) -> tuple[Path, tuple[int, int]]:
    """Return the innermost box around two nodes, and which of its children the nodes are, or lie in."""
    (p, k), (q, m), depth = a, b, 0
    while depth < min(len(p), len(q)) and p[depth] == q[depth]:
        depth += 1
    ends = (
        k if len(p) == depth else position[p[: depth + 1]],
        m if len(q) == depth else position[q[: depth + 1]],
    )
    return p[:depth], ends


def assign_layers(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the layers of nodes 0..count-1, most edges of which go to a higher number; others are drawn upwards."""
    users: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        if source < target:
            users[source].append(target)
    rank = _ranks(users)
    layers: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    links: list[tuple[Slot, Slot]] = []
    for n, r in enumerate(rank):
        farthest = max((rank[u] for u in users[n]), default=r)
        lane = range(r + 1, farthest if farthest - r <= MAX_LANE else r + 1)
        entries = {r: n} | dict.fromkeys(lane, ~n)
        for level, entry in entries.items():
            layers[level].append(entry)
        links += (((above, entries[above]), (above + 1, ~n)) for above in range(r, r + len(lane)))
        links += (((rank[u] - 1, entries[rank[u] - 1]), (rank[u], u)) for u in users[n] if rank[u] - 1 in entries)
    _reduce_crossings(layers, links)
    return layers


def _ranks(users: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of the longest path to each node; a source stands right above its first user."""
    rank, is_source = [0] * len(users), [True] * len(users)
    for n, own in enumerate(users):
        for u in own:
            rank[u], is_source[u] = max(rank[u], rank[n] + 1), False
    for n, own in enumerate(users):
        if is_source[n] and own:
            rank[n] = min(rank[u] for u in own) - 1
    return rank


def _reduce_crossings(layers: Sequence[list[int]], links: Iterable[tuple[Slot, Slot]]) -> None:
    """Order each layer by the mean position of the neighbours above, then below, in turns."""
    above, below = defaultdict[Slot, list[Slot]](list), defaultdict[Slot, list[Slot]](list)
    for upper, lower in links:
        above[lower].append(upper)
        below[upper].append(lower)
    place = {(r, entry): k / len(layer) for r, layer in enumerate(layers) for k, entry in enumerate(layer)}
    for near, order in ((above, range(len(layers))), (below, range(len(layers))[::-1])) * SWEEPS:
        for r in order:
            means = {e: mean(map(place.__getitem__, near.get((r, e), [(r, e)]))) for e in layers[r]}
            layers[r].sort(key=means.__getitem__)
            place |= {(r, entry): k / len(layers[r]) for k, entry in enumerate(layers[r])}
