"""Loop-invariant code motion in Triton source: blocks that every iteration loads again are loaded before the loop.

    for r_block in tl.range(0, 64, num_stages=3):          q = i*128 + tl.arange(0, 128)
        q = i*128 + tl.arange(0, 128)                 ->   q_block = tl.load(x + q)
        q_block = tl.load(x + q)                           for r_block in tl.range(0, 64, num_stages=3):
        ...                                                    ...

Triton's own pass leaves loads of tensor descriptors where they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

Line = tuple[str, int]
"""A line of source, and the statement of Tile IR that it comes from."""

ASSIGNMENT = re.compile(r"( *)(\w+) = (.*)")
DESCRIPTOR_LOAD = re.compile(r"\w+_boxes(_\d+)?\.load")
LOAD = re.compile(rf"tl\.load\(|{DESCRIPTOR_LOAD.pattern}\(")
CALL = re.compile(r"([\w.]+)\(")
MOVABLE_CALLS = {"tl.arange", "tl.cast", "tl.load", "tl.maximum", "tl.minimum", "tl.permute", ".reshape"}
NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")


def is_movable(text: str) -> bool:
    """Return True if an expression computes indices or loads, so that it can stand before a loop that it does not vary in."""
    return all(name in MOVABLE_CALLS or DESCRIPTOR_LOAD.fullmatch(name) for name in CALL.findall(text))


def hoist_loads(lines: Sequence[Line], header: int, written: set[str]) -> list[Line]:
    """Return the lines of a function with the loads that do not vary in the loop whose head is line `header` before it.

    The loop ends with the last line.  Parameters that are `written` are not moved.
    """
    body, indent = lines[header + 1 :], len(lines[header][0]) - len(lines[header][0].lstrip()) + 4
    found = [ASSIGNMENT.fullmatch(text) for text, _ in body]
    counts = Counter(m[2] for m in found if m)
    varying = set(counts) | {m[1] for text, _ in body if (m := re.match(r" *for (\w+) in ", text))}
    varying |= set(re.findall(r"for (\w+) in ", lines[header][0]))
    movable: dict[str, int] = {}
    for k, m in enumerate(found):
        if m is None or len(m[1]) != indent or counts[m[2]] > 1 or not is_movable(m[3]):
            continue
        if not (set(NAME.findall(m[3])) & (varying | written)):
            movable[m[2]] = k
            varying.discard(m[2])
    moved, needed = set[int](), [k for k in movable.values() if (m := found[k]) and LOAD.match(m[3])]
    while needed:
        k = needed.pop()
        moved.add(k)
        m = found[k]
        needed += [movable[n] for n in NAME.findall(m[3] if m else "") if n in movable and movable[n] not in moved]
    hoisted = [(body[k][0][4:], body[k][1]) for k in sorted(moved)]
    return [*lines[:header], *hoisted, lines[header], *(line for k, line in enumerate(body) if k not in moved)]
