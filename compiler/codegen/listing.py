"""Listings: text of generated code whose lines know the statement of Tile IR that they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Listing:
    """Text of the code of one kernel.

    `lines` has, for each of its lines, the line of the kernel's printed Tile IR where its statement begins; 0 if it comes from
    none.  It is () if the backend does not know.
    """

    text: str
    lines: tuple[int, ...] = ()
