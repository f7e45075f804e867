"""The pass instruments that a user's options ask for."""

from __future__ import annotations

from compiler.options import Options
from compiler.passes.instrument import PrintIR, Verify
from compiler.passes.manager import PassInstrument
from compiler.passes.semantic_check import SemanticCheck
from compiler.runtime.native_interpreter import NativeInterpreter


def instruments_for(options: Options) -> list[PassInstrument]:
    """Return the instruments that the user's options ask for; PassError if one of them names an unknown pass."""
    instruments: list[PassInstrument] = []
    if options.verify:
        instruments.append(Verify())
    if options.check:
        instruments.append(SemanticCheck(run_native=NativeInterpreter(), strict=options.check == "strict"))
    if options.print_before or options.print_after or options.print_after_change:
        before, after = (tuple(filter(None, o.split(","))) for o in (options.print_before, options.print_after))
        instruments.append(PrintIR(before, after, options.print_after_change))
    return instruments
