"""Errors of the compiler: the problem, the line of the user's program, and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Loc:
    """Place in the user's program: file, line number from 1, source text, and the path of the module that the line belongs to.

    Code of libraries has a module path alone.
    """

    file: str = ""
    line: int = 0
    code: str = ""
    module: str = ""

    def __str__(self) -> str:
        if not self.file:
            return f"module {self.module}" if self.module else ""
        return f"{self.file}:{self.line}" + (f" in {self.module}" if self.module else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion of the names in `known` closest to `name`, or an empty string."""
    matches = difflib.get_close_matches(name, sorted(set(known)), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


class TilewrightError(Exception):
    """Base of all errors that the compiler raises."""


class ParseError(TilewrightError):
    """IR text that does not parse; names line and column, both from 1."""

    def __init__(self, message: str, line: int, column: int, source_line: str = "") -> None:
        self.line, self.column = line, column
        excerpt = f"\n  {source_line}\n  {' ' * (column - 1)}^" if source_line else ""
        super().__init__(f"line {line}, column {column}: {message}{excerpt}")


class VerifyError(TilewrightError):
    """IR that violates a rule; names the node, the rule and the types."""


class TypeRuleError(TilewrightError):
    """Operands or attributes that an op does not accept."""


@dataclass(frozen=True)
class UnsupportedOp:
    """Operator of the user's program that has no conversion to Graph IR, or kernel without code; with the reason and the user's line.

    `can_fall_back` says whether `fallback="eager"` would run it in PyTorch.
    """

    target: str
    reason: str
    loc: Loc | None = None
    can_fall_back: bool = True

    def __str__(self) -> str:
        code = f": {self.loc.code}" if self.loc and self.loc.code else ""
        return f"  {self.target}: {self.reason}" + (f"\n      at {self.loc}{code}" if self.loc else "")


class UnsupportedOpError(TilewrightError):
    """All unsupported operators of a program, each with the user's line."""

    def __init__(self, unsupported_ops: Sequence[UnsupportedOp]) -> None:
        self.unsupported_ops = tuple(unsupported_ops)
        lines = [f"{len(self.unsupported_ops)} operation(s) are not supported:", *map(str, self.unsupported_ops)]
        if all(op.can_fall_back for op in self.unsupported_ops):
            lines.append('Pass fallback="eager" to run them in PyTorch inside the compiled program.')
        super().__init__("\n".join(lines))


class DynamicShapeError(TilewrightError):
    """Operation that needs static sizes, applied to dynamic ones."""


USE_TORCH_COMPILE = 'use torch.compile(model, backend="tilewright")'
"""Remedy for what only the other entry point takes."""


class TargetError(TilewrightError):
    """Target that does not exist, that this machine cannot run, or that cannot express a kernel."""


class PartialTileError(TargetError):
    """Kernel with a loop whose last tile is partial where code needs whole tiles; `loop` is the range of the loop."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        where = f"%{loop.var} in {loop.lo}..{loop.hi} tile {loop.tile}"
        super().__init__(f"the last tile of {where} is partial; `peel` must run after the pass that tiles it")


class OptionError(TilewrightError, ValueError):
    """Option that does not exist, or a value that it does not take."""


class PluginError(TilewrightError):
    """Module of another package that cannot be loaded."""


class ArgumentError(TilewrightError):
    """Call with arguments that the compiled program does not accept."""


class ExportError(TilewrightError):
    """Module that `torch.export` cannot trace; PyTorch's error is the cause."""


class PassError(TilewrightError):
    """Pass that failed, produced invalid IR, or changed a result.

    `reproducer` is the file with the IR before the pass, "" if none was written.
    """

    reproducer: str = ""


class LoweringError(TilewrightError):
    """Group of nodes that cannot be lowered to one kernel; fusion catches it and tries another group."""


class TransformError(TilewrightError):
    """Loop transformation that would change what a kernel computes; a pass catches it and says why it did nothing."""
