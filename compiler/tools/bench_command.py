"""Command `bench`: check and time kernels from files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compiler.errors import TilewrightError
from compiler.tools.command_line import add_command, add_schedule_argument, add_target_arguments, show, status_spinner


def add_bench_command(commands: Any) -> None:
    """Add the command `bench`."""
    text = "check kernels of Tile IR against the interpreter and each other, and time them in turns"
    c = add_command(commands, "bench", bench_kernels, text)
    c.add_argument(
        "files", nargs="+", type=Path, metavar="KERNEL.ir", help="a file with one kernel; the first is the reference"
    )
    add_schedule_argument(c, "add the kernel of the first file with a schedule (may be repeated)")
    c.add_argument("--seconds", type=float, default=0.5, metavar="S", help="time for each kernel (0.5)")
    add_target_arguments(c)


def bench_kernels(args: argparse.Namespace) -> None:
    """tilewright bench"""
    from compiler.codegen.backend import target_by_name
    from compiler.codegen.llvm.targets import CPUTarget
    from compiler.driver.given_kernels import given_kernel, read_kernel
    from compiler.ir.text.tile_parser import parse_kernel
    from compiler.passes.base import Context
    from compiler.tools.kernel_bench import bench, bench_table

    target = target_by_name(args.target, args.machine)
    if not isinstance(target, CPUTarget) or target.missing_features():
        raise TilewrightError(f"kernels for {args.target} cannot run here")
    texts = {str(file): file.read_text(encoding="utf-8") for file in args.files}
    kernels = {file: read_kernel(text, target) for file, text in texts.items()}
    first, context = parse_kernel(next(iter(texts.values()))), Context.for_target(target)
    kernels |= {file: given_kernel(file, first, target, context) for file in args.schedule}
    with status_spinner("measuring"):
        rows = bench(kernels, target, args.seconds)
    show(bench_table(rows))
    if noisy := next((r.timing.warning for r in rows if r.timing.is_noisy), ""):
        show(noisy)
    if wrong := [r for r in rows if r.problem]:
        raise TilewrightError("; ".join(f"{r.name} is wrong: {r.problem}" for r in wrong))
