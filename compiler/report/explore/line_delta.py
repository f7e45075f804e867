"""Differences between texts by lines."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

Hunk: TypeAlias = tuple[int, int, list[str]]
"""A change: the first line concerned, counted in the old text, the number of lines removed there, and the lines added."""

MAX_COMPARED = 1 << 24
"""Product of lines up to which two texts are compared line by line; larger ones are one change."""


def line_delta(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    """Return the hunks that turn `old` into `new`, in order and apart from one another."""
    first, shorter = 0, min(len(old), len(new))
    while first < shorter and old[first] == new[first]:
        first += 1
    last = 0
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    if not before or not after or len(before) * len(after) > MAX_COMPARED:
        return [(first, len(before), list(after))] if before or after else []
    matcher = SequenceMatcher(None, before, after)
    return [
        (first + i1, i2 - i1, list(after[j1:j2])) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"
    ]
