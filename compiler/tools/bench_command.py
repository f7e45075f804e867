"""Command `bench`: check and time kernels from files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compiler.errors import TilewrightError
from compiler.tools.command_line import add_command, add_target_arguments, show, status_spinner


def add_bench_command(commands: Any) -> None:
    """Add the command `bench`."""
    text = "check kernels of Tile IR against the interpreter and each other, and time them in turns"
    c = add_command(commands, "bench", bench_kernels, text)
    c.add_argument(
        "files", nargs="+", type=Path, metavar="KERNEL.ir", help="a file with one kernel; the first is the reference"
    )
    c.add_argument("--seconds", type=float, default=0.5, metavar="S", help="time for each kernel (0.5)")
    add_target_arguments(c)


def bench_kernels(args: argparse.Namespace) -> None:
    """tilewright bench"""
    from compiler.codegen.backend import target_by_name
    from compiler.codegen.llvm.targets import CPUTarget
    from compiler.driver.given_kernels import read_kernel
    from compiler.tools.kernel_bench import bench, bench_table

    target = target_by_name(args.target, args.machine)
    if not isinstance(target, CPUTarget) or target.missing_features():
        raise TilewrightError(f"kernels for {args.target} cannot run here")
    kernels = {str(file): read_kernel(file) for file in args.files}
    with status_spinner("measuring"):
        rows = bench(kernels, target, args.seconds)
    show(bench_table(rows))
    if noisy := next((r.timing.warning for r in rows if r.timing.is_noisy), ""):
        show(noisy)
    if wrong := [r for r in rows if r.problem]:
        raise TilewrightError("; ".join(f"{r.name} is wrong: {r.problem}" for r in wrong))
