"""Debug information of a kernel: LLVM metadata that give each instruction a line of the kernel's Tile IR, and how to read it back.

    %v1 = fmul float %x, %y, !dbg !DILocation(line: 4, scope: !4)          in LLVM IR
    .loc  1 4 0                                                            in assembly: the file, the line, the column

See "Source Level Debugging with LLVM", https://llvm.org/docs/SourceLevelDebugging.html.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from compiler.ir.text.statement_lines import StatementLines

FIRST_SCOPE = 4
"""Number of the metadata node of a module's first function; those below are the compile unit, its file and a flag."""

LOCATION = re.compile(r", !dbg !DILocation\(line: (\d+), scope: !\d+\)$")
SCOPE = re.compile(r" !dbg !\d+ \{$")
DIRECTIVE = re.compile(r"\s+\.(?:loc|cfi_\w+)\b|\s+\.file\s+\d|\.L(?:tmp|func_begin)\d+:$")
"""Lines of assembly that stand there only because of the debug information."""

ASSEMBLY_LOCATION = re.compile(r"\s+\.loc\s+\d+ (\d+)")
INSTRUCTION = re.compile(r"\s+[^\s.#]")


@dataclass(frozen=True)
class DebugInfo:
    """The lines that the code of a kernel refers to; assembly has them as directives."""

    lines: StatementLines

    def metadata(self, functions: Sequence[str]) -> list[str]:
        """Return the metadata of a module whose `functions`, by name, have the scopes from `FIRST_SCOPE` on."""
        flags = "DISPFlagLocalToUnit | DISPFlagDefinition | DISPFlagOptimized"
        return [
            "!llvm.dbg.cu = !{!1}",
            "!llvm.module.flags = !{!3}",
            "!1 = distinct !DICompileUnit(language: DW_LANG_C99, file: !2, isOptimized: true, runtimeVersion: 0,"
            " emissionKind: DebugDirectivesOnly)",
            '!2 = !DIFile(filename: "kernel.tile", directory: "")',
            '!3 = !{i32 2, !"Debug Info Version", i32 3}',
            *(
                f'!{scope} = distinct !DISubprogram(name: "{function}", file: !2, line: 1, scopeLine: 1, spFlags: {flags}, unit: !1)'
                for scope, function in enumerate(functions, FIRST_SCOPE)
            ),
        ]


def split_llvm(module: str) -> tuple[str, tuple[int, ...]]:
    """Return a module as it is without its debug information, and the line that this gives each of its lines."""
    code, lines = list[str](), list[int]()
    for text in module.splitlines():
        if re.match(r"!(?:llvm\.|[1-9])", text):
            continue
        location = LOCATION.search(text)
        code.append(text[: location.start()] if location else SCOPE.sub(" {", text))
        lines.append(int(location[1]) if location else 0)
    return "\n".join(code) + "\n", tuple(lines)


def split_assembly(assembly: str) -> tuple[str, tuple[int, ...]]:
    """Return assembly without the directives of debug information, and the source line of each of its lines, or 0.

    A directive gives the line of the instructions up to the next directive.
    """
    code, lines, line = list[str](), list[int](), 0
    for text in assembly.splitlines():
        if found := ASSEMBLY_LOCATION.match(text):
            line = int(found[1])
        elif re.match(r"\.Lfunc_end", text):
            line = 0
        if not DIRECTIVE.match(text):
            code.append(text)
            lines.append(line if INSTRUCTION.match(text) else 0)
    return "\n".join(code) + "\n", tuple(lines)


def transfer_lines(text: str, lines: Sequence[int], plain: str) -> tuple[int, ...]:
    """Return the lines of code compiled without debug information from those of `text`, compiled with it; 0 where they differ.

    AArch64 saves registers in another order where it describes them to debuggers.
    """
    if plain == text:
        return tuple(lines)
    shown = plain.splitlines()
    moved = [0] * len(shown)
    for k, own, count in SequenceMatcher(None, shown, text.splitlines()).get_matching_blocks():
        moved[k : k + count] = lines[own : own + count]
    return tuple(moved)
