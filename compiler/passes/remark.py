"""Remarks: messages of passes about what they changed, what they did not change, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.errors import Loc

REMARK_KINDS = ("applied", "missed", "note")


@dataclass(frozen=True)
class Remark:
    """One message of a pass; `kind` is "applied", "missed" or "note", `node` or `kernel` names its subject.

    `lost` estimates the seconds of a call that the missed change would save, 0 if they are not known.
    """

    pass_: str
    kind: str
    message: str
    loc: Loc | None = None
    node: str = ""
    kernel: str = ""
    lost: float = 0.0

    @property
    def subject(self) -> str:
        """The node or kernel that it is about, as in `%x` or `@add_1`; "" for neither."""
        return f"%{self.node}" if self.node else f"@{self.kernel}" if self.kernel else ""

    def __str__(self) -> str:
        about = f" ({self.subject})" if self.subject else ""
        lost = f", {format_seconds(self.lost)} lost" if self.lost else ""
        return f"{f'{self.loc}: ' if self.loc else ''}{self.kind} {self.pass_}: {self.message}{lost}{about}"


def format_seconds(seconds: float) -> str:
    """Format a short time with a unit."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


@dataclass
class Remarks:
    """The remarks of one compilation, in order."""

    items: list[Remark] = field(default_factory=list)

    def add(self, remark: Remark) -> None:
        assert remark.kind in REMARK_KINDS, remark.kind
        self.items.append(remark)

    def select(self, pass_: str = "", kind: str = "") -> tuple[Remark, ...]:
        """Return the remarks of one pass, of one kind, or both; "" selects all."""
        return tuple(r for r in self.items if pass_ in ("", r.pass_) and kind in ("", r.kind))

    def __iter__(self) -> Iterator[Remark]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        return "\n".join(map(str, self.items))
