"""Schedules as text: the directives and passes that make a scheduled kernel of a lowered one.

    schedules ::= schedule*
    schedule  ::= "schedule" @kernel "{" step* "}"
    step      ::= directive                       a decision (see compiler.passes.schedule.directives)
                | pass                            the compiler decides, as in `cache-operand` or `peel{max-expanded-ops=64}`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.errors import PassError
from compiler.ir.text.lexer import Cursor, format_name
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context, Pass
from compiler.passes.manager import PassInstrument, run_pass
from compiler.passes.pipeline_text import Pipeline, available_passes, parse_pipeline
from compiler.passes.schedule.directives import READERS

LEGALIZATION = ("peel", "expand-math")
"""Passes that a kernel needs before code generation, whatever its schedule: no partial tiles, functions as arithmetic."""

_PASS = re.compile(r"[\w-]+(\s*\{[^}]*\})?")


@dataclass(frozen=True)
class Schedule:
    """The steps from the kernel as it was lowered to the one that is run; `str` is its text."""

    kernel: str
    steps: Pipeline

    def __str__(self) -> str:
        return "\n".join([f"schedule {format_name('@', self.kernel)} {{", *(f"  {s}" for s in self.steps), "}"])

    def apply(self, kernel: Kernel, context: Context, instruments: Sequence[PassInstrument] = ()) -> Kernel:
        """Return the scheduled kernel, ready for code generation; PassError names an illegal step, with the reason."""
        if kernel.name != self.kernel:
            raise PassError(f"this is a schedule of @{self.kernel}, not of @{kernel.name}")
        named = {s.name for s in self.steps}
        implied = parse_pipeline(",".join(p for p in LEGALIZATION if p not in named))
        for step in (*self.steps, *implied):
            for instrument in instruments:
                instrument.before_pass(step, kernel, context)
            kernel = run_pass(step, kernel, context, instruments, f"schedule of @{kernel.name}, `{step}`")
        return kernel


def parse_schedules(text: str) -> dict[str, Schedule]:
    """Parse any number of schedules by the names of their kernels.  Raises ParseError, or PassError for an unknown pass."""
    c, schedules = Cursor(text), dict[str, Schedule]()
    while c.next.kind != "end":
        c.expect("schedule")
        at, steps = c.expect_kind("global", "the kernel's @name"), list[Pass[Kernel]]()
        c.expect("{")
        while not c.accept("}"):
            steps.append(_read_step(c))
        if schedules.setdefault(at.text, schedule := Schedule(at.text, tuple(steps))) is not schedule:
            raise c.error(f"{at} has two schedules", at)
    return schedules


def _read_step(c: Cursor) -> Pass[Kernel]:
    """Read a directive, or a pass as pipelines write it."""
    at = c.expect_kind("word", "a directive or a pass")
    if at.text in READERS and (c.next.kind == "value" or at.text not in available_passes()):
        return READERS[at.text](c)
    match = _PASS.match(c.source.split("\n")[at.line - 1], at.column - 1)
    assert match
    while (c.next.line, c.next.column) <= (at.line, match.end()) and c.next.kind != "end":
        c.take()
    (step,) = parse_pipeline(match[0])
    if step.ir_type is not Kernel:
        raise c.error(f"{at} is no pass over kernels", at)
    return step
