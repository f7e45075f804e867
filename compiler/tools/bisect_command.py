"""The command `tilewright bisect`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compiler.options import MATMUL_PRECISIONS, Options
from compiler.tools.command_line import add_command, add_target_arguments, out, status_spinner, write_json


def add_bisect_command(commands: Any) -> None:
    """Add the command `bisect`."""
    text = "find the rewrite that makes a program wrong, crash, or slow, and reduce the program around it"
    c = add_command(commands, "bisect", run_bisect, text)
    c.add_argument("file", metavar="FILE", help="a program saved by torch.export.save (.pt2), or IR text")
    c.add_argument(
        "-p",
        "--pipeline",
        default="",
        help='passes in place of the default ones, or edits of these, as in "default,-winograd" (default)',
    )
    c.add_argument("--slower-than", default="", metavar="PIPELINE", help="find what makes it slower than PIPELINE does")
    add_target_arguments(c)
    c.add_argument(
        "--matmul-precision",
        choices=MATMUL_PRECISIONS,
        default="f32",
        help="format to which operands of f32 products are rounded (f32)",
    )
    c.add_argument(
        "--out", type=Path, metavar="DIR", help="write the reduced IR and a Python script that repeats the fault to DIR"
    )
    c.add_argument("--no-reduce", action="store_true", help="name the rewrite, but do not reduce the program")
    c.add_argument("--json", action="store_true", help="print the result as JSON")


def run_bisect(args: argparse.Namespace) -> None:
    """tilewright bisect"""
    from compiler.ir.text.ir_text import parse_ir
    from compiler.testing.bisection.session import bisect

    options = Options(target=args.target, machine=args.machine, matmul_precision=args.matmul_precision)
    path = Path(args.file)
    model = args.file if path.suffix == ".pt2" else parse_ir(path.read_text(encoding="utf-8"))
    with status_spinner("bisecting"):
        found = bisect(
            model,
            options=options,
            passes=args.pipeline,
            slower_than=args.slower_than,
            reduce=not args.no_reduce,
            folder=args.out,
            isolated=True,
        )
    if args.json:
        write_json(found.as_dict() if found else {}, None)
    elif found is None:
        out.print("it is not slower" if args.slower_than else "every result is right", highlight=False)
    else:
        print(found)
