"""Parts of the command line that several commands share: consoles, arguments and options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from compiler.codegen.backend import targets
from compiler.options import EFFORTS, FALLBACKS, MATMUL_PRECISIONS, Options
from compiler.report.render import PLAIN_WIDTH, render_plain

out, err = Console(soft_wrap=True), Console(stderr=True)


def add_command(
    commands: Any, name: str, handler: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    """Add a command that runs `handler`; `text` is its help."""
    description, epilog = f"{text[:1].upper()}{text[1:]}.", "Defaults are in parentheses."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=description, epilog=epilog)
    add_load_argument(parser)
    parser.set_defaults(command=handler)
    return parser


def add_load_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names plugins."""
    text = "import a Python module with passes, ops or targets, also from the working directory (may be repeated)"
    parser.add_argument("--load", action="append", default=[], metavar="MODULE", help=text)


def add_optional_flag(c: argparse.ArgumentParser, flag: str, metavar: str, const: str, text: str) -> None:
    """Add a flag with an optional value: None if the flag is absent, `const` if it has no value."""
    c.add_argument(flag, nargs="?", const=const, metavar=metavar, help=text)


def add_model_arguments(c: argparse.ArgumentParser) -> None:
    """Add the arguments of every command that takes an exported program."""
    c.add_argument("model", metavar="MODEL.pt2", help="a program saved by torch.export.save")
    add_target_arguments(c)
    c.add_argument("--unfused", action="store_true", help="one kernel per op")
    edited = 'passes over {} in place of the default ones, or edits of these, as in "default,-{}"'
    c.add_argument("--graph-passes", default="", metavar="PIPELINE", help=edited.format("the graph", "winograd"))
    c.add_argument("--tile-passes", default="", metavar="PIPELINE", help=edited.format("kernels", "prefetch"))
    c.add_argument(
        "--matmul-precision",
        choices=MATMUL_PRECISIONS,
        default="f32",
        help="format to which operands of f32 products are rounded (f32)",
    )
    text = "operators without a conversion: error refuses them, eager runs them in PyTorch, strict also refuses those that always run there (error)"
    c.add_argument("--fallback", choices=FALLBACKS, default="error", help=text)
    add_schedule_argument(c, "schedule kernels as in FILE: schedules, or a kernel of Tile IR (may be repeated)")
    c.add_argument("--threads", type=int, metavar="N", help="threads of parallel kernels (those of PyTorch)")
    text = "fast: compile sooner; tune: measure alternatives of the most expensive kernels, and cache the fastest (default)"
    c.add_argument("--effort", choices=EFFORTS, default="default", help=text)


def add_target_arguments(c: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a target, registered by then, and its description for the cost model."""
    names = ", ".join(("host", *targets()))
    c.add_argument("--target", default="host", metavar="NAME", help=f"the machine to make code for: {names} (host)")
    c.add_argument(
        "--machine",
        default="",
        metavar="FILE",
        help="description of the machine for the cost model: a file that calibrate wrote, or a shipped one such as h200",
    )


def add_schedule_argument(c: argparse.ArgumentParser, text: str) -> None:
    """Add the argument that names files with schedules."""
    c.add_argument("--schedule", action="append", default=[], metavar="FILE", help=text)


def given_schedules(files: Sequence[str]) -> dict[str, str]:
    """Return the file of each kernel that one of `files` schedules."""
    from compiler.driver.given_kernels import given_names

    return {name: file for file in files for name in given_names(file)}


def options_from_args(args: argparse.Namespace) -> Options:
    """Return the options given by `add_model_arguments`; sets the number of threads."""
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    passes = {"graph_passes": args.graph_passes, "tile_passes": args.tile_passes}
    return Options(
        target=args.target,
        machine=args.machine,
        fuse=not args.unfused,
        matmul_precision=args.matmul_precision,
        fallback=args.fallback,
        effort=args.effort,
        schedules=given_schedules(args.schedule),
        **passes,
    )


def status_spinner(message: str) -> AbstractContextManager[Any]:
    """Show a spinner with `message` in a terminal."""
    return err.status(message)


def show(result: object) -> None:
    """Print a table in the width of the terminal, or in full where the output is none."""
    if out.is_terminal:
        out.print(result)
    else:
        print(render_plain(result, PLAIN_WIDTH))


def write_json(value: object, file: Path | None) -> None:
    """Write a value as JSON to a file, or print it."""
    text = json.dumps(value, indent=2)
    if file is None:
        print(text)
        return
    file.write_text(text, encoding="utf-8")
    err.print(f"wrote {file}")
