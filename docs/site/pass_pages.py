"""A page for each pass: its docstring, its options, where it runs, and IR before and after it from its tests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

from compiler.codegen.backend import backends
from compiler.errors import ParseError
from compiler.ir.text.ir_text import parse_ir, print_ir
from compiler.passes.base import Pass, pass_options
from compiler.passes.pipeline_text import available_passes, parse_pipeline
from docs.site.markdown import docstring, fenced, table
from docs.site.recorded_checks import Check, recorded_checks

KINDS = {"Graph": "graph pass", "Program": "program pass", "Kernel": "tile pass"}
"""What a pass is called, by the type of its IR."""


def pass_pages() -> dict[str, str]:
    """Return a page for each pass of the compiler, and one that lists them."""
    passes = {n: make for n, make in sorted(available_passes().items()) if make.__module__.startswith("compiler.")}
    checks = list(recorded_checks())
    pages = {f"docs/passes/{name}.md": pass_page(name, make, checks) for name, make in passes.items()}
    return pages | {"docs/passes/index.md": index_page(passes)}


def index_page(passes: dict[str, Callable[..., Pass[Any]]]) -> str:
    """Return the page that lists passes by kind, with the first sentence of each."""
    parts = [
        "# Passes\n\nEvery pass, made from its declaration and its tests. `tilewright passes NAME` prints the same text. "
        "[Write a pass](../write-a-pass.md) shows how to add one.\n"
    ]
    for kind, title in KINDS.items():
        rows = [
            (f"[`{name}`]({name}.md)", inspect.cleandoc(make.__doc__ or "").split("\n\n")[0].replace("\n", " "))
            for name, make in passes.items()
            if make().ir_type.__name__ == kind
        ]
        parts.append(f"## {title.capitalize()}es\n\n{table(('pass', 'effect'), rows)}")
    return "\n".join(parts)


def pass_page(name: str, make: Callable[..., Pass[Any]], checks: list[Check]) -> str:
    """Return the page of one pass."""
    file = make.__module__.replace(".", "/") + ".py"
    exact = "Results keep their bits." if make().exact else "Results may round differently."
    kind = KINDS[make().ir_type.__name__].capitalize()
    parts = [
        f"# {name}",
        f"{kind}. {exact} Source: [`{file}`](../../{file}).",
        docstring(make.__doc__ or ""),
        *options_section(make),
        *pipelines_section(name),
        *examples_section(name, checks),
    ]
    return "\n\n".join(parts) + "\n"


def options_section(make: Callable[..., Pass[Any]]) -> Iterator[str]:
    """Yield the table of the options of a pass."""
    types = get_type_hints(make) if isinstance(make, type) else {}
    rows = [
        (
            f"`{f.name.replace('_', '-')}`",
            f"`{inspect.formatannotation(types[f.name])}`",
            default_text(f.metadata, f.default),
        )
        for f in pass_options(make)
    ]
    if rows:
        yield f"## Options\n\n{table(('option', 'type', 'default'), rows)}"


def default_text(metadata: Any, default: object) -> str:
    """Describe the default of an option."""
    if "machine" in metadata:
        return f"`{metadata['machine']}` of the [machine](../../compiler/cost/machine.py)"
    return f"`{default}`"


def pipelines_section(name: str) -> Iterator[str]:
    """Yield the default pipelines that run a pass, the pass in bold."""
    rows = []
    for backend in backends().values():
        for level, text in (("graph", backend.pipelines.graph), ("program", backend.pipelines.program)):
            passes = [p.name for p in parse_pipeline(text)]
            if name in passes:
                links = [f"**{p}**" if p == name else f"[{p}]({p}.md)" for p in passes]
                rows.append((f"{backend.name}, {level}", ", ".join(links)))
    if rows:
        yield f"## Default pipelines\n\n{table(('backend', 'passes'), rows)}"


def examples_section(name: str, checks: list[Check]) -> Iterator[str]:
    """Yield the shortest change and the shortest refusal that tests of a pass check."""
    own = [c for c in checks if re.fullmatch(rf"{name}(\{{[^}}]*\}})?", c.pipeline) and is_readable(c)]
    by_length = sorted(own, key=lambda c: len(c.before + c.after + c.unchanged))
    changed = [c for c in by_length if c.after]
    refused = [c for c in by_length if c.unchanged and c.remark]
    if changed:
        yield f"## Before and after\n\n{run_by(changed[0])}"
        yield fenced(print_ir(parse_ir(changed[0].before)))
        yield f"`{changed[0].pipeline}` makes of it:"
        yield fenced(print_ir(parse_ir(changed[0].after)))
    if refused:
        yield f'## A refusal\n\n{run_by(refused[0])} The remark says "{refused[0].remark}".'
        yield fenced(print_ir(parse_ir(refused[0].unchanged)))


def is_readable(check: Check) -> bool:
    """Return False if the IR has an op that a fixture of the test declares."""
    try:
        return bool(parse_ir(check.before or check.unchanged))
    except ParseError:
        return False


def run_by(check: Check) -> str:
    """Say which test runs an example."""
    return f"Checked by `{check.test}` in [`{check.file}`](../../{check.file})."
