"""Listings: text of generated code whose lines know the statement of Tile IR that they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Listing:
    """Text of the code of one kernel; `locate` finds its `lines`, which may take a second compilation."""

    text: str
    locate: Callable[[], tuple[int, ...]] = tuple

    @cached_property
    def lines(self) -> tuple[int, ...]:
        """For each line of the text, the line of the kernel's printed Tile IR where its statement begins; 0 if it comes from none.

        () if the backend does not know.
        """
        return self.locate()

    @staticmethod
    def located(text: str, lines: tuple[int, ...]) -> Listing:
        """Return a listing whose lines are known."""
        return Listing(text, lambda: lines)
