"""Every kernel of the networks compiled for GPUs that are not here.

    python -m benchmarks gpu_compile [ROW ...] [--targets sm90,gfx942] [--dtypes f32,f16,bf16] [--inductor]

Counts what Triton or its assembler refuses and the faults of the code as `gpu_static` finds them, and says how long that takes and
how large the binaries are.  A network of a narrow dtype is `model.half()` or `model.bfloat16()`.  With `--inductor`, a row for each dtype has
Inductor's kernels for sm90, in all configurations that it would time, beside its calls of cuBLAS and cuDNN.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.gpu_static import faults
from benchmarks.networks import NETWORKS
from benchmarks.offline_inductor import compile_with_inductor
from compiler.codegen.triton.loader import compile_offline
from compiler.codegen.triton.program_sources import emit_program
from compiler.codegen.triton.targets import GPU_TARGETS, GPUTarget
from compiler.codegen.triton.triton_names import RefusedKernelsError
from compiler.cost.machine import GPU
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES
from compiler.report.render import table


@dataclass(frozen=True)
class Compiled:
    """A network for a target: its kernels and those that differ, problems, seconds, and bytes of source and of binaries."""

    kernels: int = 0
    distinct: int = 0
    problems: tuple[str, ...] = ()
    pass_seconds: float = 0.0
    triton_seconds: float = 0.0
    source_bytes: int = 0
    binary_bytes: int = 0
    library_calls: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """The fields as cells of a table."""
        seconds = f"{self.pass_seconds:.1f}", f"{self.triton_seconds:.1f}"
        sizes = f"{self.source_bytes / 1024:.0f}", f"{self.binary_bytes / 1024:.0f}"
        return f"{self.kernels}", f"{self.distinct}", f"{len(self.problems)}", *seconds, *sizes, f"{self.library_calls}"


def main(words: Sequence[str] = ()) -> None:
    """Print a row for each network, dtype and target; SystemExit if a kernel fails."""
    import triton

    parser = argparse.ArgumentParser("gpu_compile")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="part of a network's name (all networks)")
    parser.add_argument("--targets", default="sm90,gfx942", help="comma-separated (%(default)s)")
    parser.add_argument("--dtypes", default="f32", help="comma-separated, of f32, f16 and bf16 (%(default)s)")
    parser.add_argument("--inductor", action="store_true", help="compile by Inductor too")
    args = parser.parse_args(words)
    triton.knobs.compilation.always_compile = True
    failures = 0
    heads = ["kernels", "distinct", "failed", "passes s", "Triton s", "source KiB", "binaries KiB", "library calls"]
    rows = table("kernels compiled offline, batch size 1", ["network", "dtype", "target"], heads)
    for name in BenchmarkArguments(tuple(args.rows)).select_rows(NETWORKS):
        for dtype in args.dtypes.split(","):
            for target in args.targets.split(","):
                compiled = compile_network(name, dtype, GPU_TARGETS[target])
                failures += len(compiled.problems)
                rows.add_row(name, dtype, target, *compiled.cells)
                print(name, dtype, target, *compiled.cells, *compiled.problems, sep="  ", file=sys.stderr)
            if args.inductor:
                rows.add_row(name, dtype, "sm90, Inductor", *compile_peer(name, dtype).cells)
    print_table(rows)
    if failures:
        raise SystemExit(f"{failures} kernels failed")


def network(name: str, dtype: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a network and the arguments of a call with all floats in a dtype."""
    model, args = NETWORKS[name]()
    to = to_torch(DTYPES[dtype])
    return model.to(to), tuple(a.to(to) if a.is_floating_point() else a for a in args)


def compile_peer(name: str, dtype: str) -> Compiled:
    """Compile a network by Inductor, whose seconds are not told apart."""
    program = compile_with_inductor(*network(name, dtype), GPU())
    binaries = program.binaries
    return Compiled(
        len(binaries), len(set(binaries)), triton_seconds=program.seconds, source_bytes=len(program.code),
        binary_bytes=sum(map(len, binaries)), library_calls=program.library_calls,
    )  # fmt: skip


def compile_network(name: str, dtype: str, target: GPUTarget) -> Compiled:
    """Compile a network, and each kernel that differs from the others."""
    model, args = network(name, dtype)
    start = time.perf_counter()
    try:
        with torch.no_grad():
            compiled = compiler.compile(model, args, options={"target": target.name, "cache": ""})
    except RefusedKernelsError as error:
        return Compiled(problems=tuple(map(str, error.refused_kernels)))
    program = compiled.stages.scheduled
    sources = emit_program(program)
    scheduled, binary_bytes, problems = time.perf_counter(), 0, []
    distinct = {source: name for name, source in sources.items()}
    for source, kernel in distinct.items():
        try:
            binary = compile_offline(source, target)
        except Exception as error:  # whatever Triton, LLVM or an assembler raises
            problems.append(f"{kernel}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        binary_bytes += sum(len(data) for kind, data in binary.artefacts.items() if kind in ("cubin", "hsaco"))
        problems += (f"{kernel}: {fault}" for fault in faults(program.kernels[kernel], target, binary.resources))
    seconds = scheduled - start, time.perf_counter() - scheduled
    return Compiled(len(sources), len(distinct), tuple(problems), *seconds, sum(map(len, distinct)), binary_bytes)
