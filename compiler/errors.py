"""Errors for people: what is wrong, where in the user's program, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A line of the user's program."""

    file: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class TilewrightError(Exception):
    """Base of every error this compiler raises on purpose."""


class ParseError(TilewrightError):
    """IR text that does not parse; says line and column."""

    def __init__(self, message: str, line: int, column: int, source_line: str = "") -> None:
        self.line, self.column = line, column
        mark = f"\n  {source_line}\n  {' ' * (column - 1)}^" if source_line else ""
        super().__init__(f"line {line}, column {column}: {message}{mark}")


class VerifyError(TilewrightError):
    """IR that breaks a rule; names the node, the rule and the types."""


class TypeRuleError(TilewrightError):
    """Operands or attributes that an op does not accept."""


@dataclass(frozen=True)
class UnsupportedOp:
    """One op of the user's program that has no counterpart here."""

    target: str
    reason: str
    loc: Loc | None = None


class UnsupportedOpError(TilewrightError):
    """Every unsupported op of a program at once, each with the user's line."""

    def __init__(self, unsupported_ops: Sequence[UnsupportedOp]) -> None:
        self.unsupported_ops = tuple(unsupported_ops)
        lines = [
            f"  {u.target}: {u.reason}"
            + (f"\n      at {u.loc}" + (f": {u.loc.code}" if u.loc.code else "") if u.loc else "")
            for u in self.unsupported_ops
        ]
        super().__init__(
            f"{len(self.unsupported_ops)} operation(s) are not supported:\n"
            + "\n".join(lines)
            + '\nPass fallback="eager" to run them in PyTorch inside the compiled program.'
        )


class DynamicShapeError(TilewrightError):
    """Something that only known sizes allow, asked of sizes that are open."""


class ArgumentError(TilewrightError):
    """A call with arguments the compiled program does not accept."""


class PassError(TilewrightError):
    """A pass that failed, produced invalid IR, or changed an answer."""


class LoweringError(TilewrightError):
    """A group that is no single kernel; fusion asks and goes another way."""
