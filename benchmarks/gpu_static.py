"""Quality of GPU kernels read from their code, without a GPU: `python -m benchmarks gpu_static [--targets sm90,gfx942] [--write]`.

Each case is compiled offline.  `ptxas -v` and the metadata of AMD's assembly say registers and spills, the disassembly which
instructions access memory and multiply.  A kernel is at fault if

- it spills, or takes more registers or shared memory than a block may have;
- it is bound by memory and never reads, or writes, 16 bytes in a thread at once (LDG.E.128, global_load_dwordx4, copies of boxes),
  where that is an eighth of its bytes and more than all resident threads access at once: smaller kernels want many threads instead.
  Where no 16 bytes follow each other in a program, as in overlapping windows of stride 2, narrow accesses are at fault if
  their cache lines take longer than memory;
- it multiplies matrices that fill a block in a dtype of matrix units without them: wgmma or tcgen05 where the target has them and a block
  has as many rows as they take, or could have as many without leaving multiprocessors idle, else mma.sync or MFMA.

Shared memory: a transpose whose loads and stores are both wide goes through shared memory, where Triton swizzles the rows of a block so
that the threads of a warp meet no bank twice; a transpose without wide accesses on both sides is at fault by the second rule.

`--write` replaces the table in docs/gpu.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks.gpu_accesses import accessed_bytes, line_seconds, neighbour_bytes, parameter_accesses
from benchmarks.gpu_cases import KERNELS, KernelCase
from compiler.analysis.accesses import Accesses
from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import compile_offline
from compiler.codegen.triton.resources import KernelResources
from compiler.codegen.triton.targets import GPU_TARGETS, GPUTarget
from compiler.cost.gpu_contraction import ProductLoops, product_loops
from compiler.cost.gpu_occupancy import BlockResources, occupancy
from compiler.cost.gpu_product import MIN_BLOCK
from compiler.cost.gpu_time import arithmetic_seconds, memory_seconds
from compiler.cost.machine import GPU
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, walk
from compiler.ir.types import DTYPES
from compiler.options import Options
from compiler.pipeline import lower_and_schedule

DOCUMENT = Path(__file__).parent.parent / "docs" / "gpu.md"


def case(name: str, build: Callable[..., Node], *types: str) -> KernelCase:
    """Return a case that is only compiled."""
    return KernelCase(name, types, build, lambda *x: x[0])


def convolution(x: Node, w: Node) -> Node:
    """3 x 3 convolution with padding, then relu."""
    return ops.relu(ops.convolution(x, w, stride=(1, 1), padding=(1, 1), dilation=(1, 1)))


STATIC_CASES = (
    *KERNELS,
    case("transpose, f16", lambda x: ops.permute(x, dims=(1, 0)), "f16[4096, 4096]"),
    case("row sums, bf16", lambda x: ops.sum_(x, dims=[1]), "bf16[8192, 4096]"),
    case("linear, few rows, f16", ops.linear, "f16[64, 4096]", "f16[1024, 4096]"),
    case("linear, f8e4m3fn", lambda x, w: ops.matmul(x, ops.permute(w, dims=(1, 0)), dtype=DTYPES["f32"]), *["f8e4m3fn[4096, 4096]"] * 2),
    case("linear, i8", lambda x, w: ops.matmul(x, ops.permute(w, dims=(1, 0)), dtype=DTYPES["i32"]), *["i8[4096, 4096]"] * 2),
    case("convolution, f16", convolution, "f16[32, 128, 28, 28]", "f16[128, 128, 3, 3]"),
    case(
        "causal attention, bf16", lambda q, k, v: ops.attention(q, k, v, scale=0.125, causal=True), *["bf16[4, 16, 2048, 64]"] * 3
    ),
)  # fmt: skip


@dataclass(frozen=True)
class StaticRow:
    """A compiled kernel of a case, and what is wrong with it."""

    case: str
    kernel: Kernel
    target: GPUTarget
    resources: KernelResources

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the code of the kernel, in words."""
        return tuple(faults(self.kernel, self.target, self.resources))

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row of the table."""
        r, gpu = self.resources, self.target.machine
        assert isinstance(gpu, GPU)
        used = BlockResources(r.warps, max(1, r.registers), r.shared_bytes)
        products = f"{r.warp_group_instructions or r.matrix_instructions}" if r.matrix_instructions else ""
        numbers = (r.warps, r.registers, r.spilled_bytes, r.shared_bytes >> 10)
        wide = f"{r.wide_accesses} of {r.global_accesses}"
        return (
            self.case, self.kernel.name, self.target.name, *map(str, numbers), f"{occupancy(used, gpu):.0%}", wide, products,
            "; ".join(self.faults) or "none",
        )  # fmt: skip


def faults(kernel: Kernel, target: GPUTarget, r: KernelResources) -> Iterator[str]:
    """Yield what is wrong with the code of a kernel."""
    gpu = target.machine
    assert isinstance(gpu, GPU)
    if r.spilled_bytes:
        yield f"spills {r.spilled_bytes} bytes"
    if r.registers > gpu.thread_registers:
        yield f"{r.registers} registers"
    if r.shared_bytes > gpu.block_shared_bytes:
        yield f"{r.shared_bytes} bytes of shared memory"
    if memory_seconds(kernel, gpu) > arithmetic_seconds(kernel, gpu):
        yield from (f"narrow {what}" for what in narrow_accesses(kernel, gpu, r))
    if fills_blocks(kernel):
        if not r.matrix_instructions:
            yield "no matrix instructions"
        elif gpu.loads_matrices_from_shared and not r.warp_group_instructions and fills_matrix_units(kernel, gpu):
            yield "mma.sync instead of wgmma"


WIDE_LOADS = r"LDG\S*\.128|LDGSTS\S*\.128|UTMALDG|(global|buffer)_load_(lds_)?(dwordx4|b128)"
WIDE_STORES = r"STG\S*\.128|UTMASTG|(global|buffer)_store_(dwordx4|b128)"


def narrow_accesses(kernel: Kernel, gpu: GPU, r: KernelResources) -> Iterator[str]:
    """Yield "loads" and "stores" where none moves 16 bytes, though some might or those of single elements take longer than memory."""
    table, least = Accesses(kernel), gpu.multiprocessors * gpu.resident_threads * gpu.access_bytes
    found = [parameter_accesses(table, is_store) for is_store in (False, True)]
    sizes = [accessed_bytes(table, accesses) for accesses in found]
    an_eighth = sum(sum(s.values()) for s in sizes) // 8
    for accesses, size, pattern, what in zip(found, sizes, (WIDE_LOADS, WIDE_STORES), ("loads", "stores"), strict=True):
        if sum(size.values()) < max(least, an_eighth) or r.count(pattern):
            continue
        large = [a for a in accesses if size[a.buffer] >= an_eighth]
        may_be_wide = any(neighbour_bytes(table, a) >= gpu.access_bytes for a in large)
        if may_be_wide or line_seconds(table, accesses, gpu) > memory_seconds(kernel, gpu):
            yield what


def narrow_products(kernel: Kernel) -> list[ProductLoops]:
    """Return the contractions of TF32 or a narrow dtype of matrix units that are as large as a block."""
    table = Accesses(kernel)
    found = (product_loops(table, c) for c in map(contraction_of, walk(kernel.body)) if c)
    products = [f for f in found if isinstance(f, ProductLoops)]
    return [
        f
        for f in products
        if f.product.dtype not in ("f32", "f64") and min(f.product.columns, f.product.depth) >= MIN_BLOCK
    ]


def fills_blocks(kernel: Kernel) -> bool:
    """Return True if a kernel has a contraction of a narrow dtype of matrix units that fills a block."""
    return any(f.product.rows >= MIN_BLOCK for f in narrow_products(kernel))


def fills_matrix_units(kernel: Kernel, gpu: GPU) -> bool:
    """Return True if a contraction has blocks of `matrix_rows`, or if such blocks would be at least one for each multiprocessor."""
    for found in narrow_products(kernel):
        product, (row, column, _) = found.product, found.loops
        blocks = (
            product.batch * ceil(product.rows / gpu.matrix_rows) * ceil(product.columns / max(column.tile, MIN_BLOCK))
        )
        if product.rows >= gpu.matrix_rows and (row.tile >= gpu.matrix_rows or blocks >= gpu.multiprocessors):
            return True
    return False


def static_rows(cases: Sequence[KernelCase], targets: Sequence[str]) -> Iterator[StaticRow]:
    """Compile the kernels of each case for each target."""
    for one in cases:
        for name in targets:
            target, graph = GPU_TARGETS[name], one.graph()
            for kernel in lower_and_schedule(graph, Options(target=name)).scheduled.kernels.values():
                yield StaticRow(one.name, kernel, target, compile_offline(emit_triton(kernel), target).resources)


HEADER = (
    "case", "kernel", "target", "warps", "registers", "spills, bytes", "shared, KiB", "occupancy", "16-byte accesses", "matrix instructions", "faults",
)  # fmt: skip


def markdown(rows: Sequence[StaticRow]) -> str:
    """Return the table of docs/gpu.md."""
    lines = [HEADER, tuple("---" for _ in HEADER), *(r.cells() for r in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(words: Sequence[str] = ()) -> int:
    """Print the table, and return 1 if a kernel is at fault."""
    parser = argparse.ArgumentParser("gpu_static")
    parser.add_argument("cases", nargs="*", help="words in the names of the cases (all)")
    parser.add_argument("--targets", default="sm90,gfx942")
    parser.add_argument("--write", action="store_true", help=f"replace the table in {DOCUMENT.name}")
    args = parser.parse_args(words)
    chosen = [c for c in STATIC_CASES if not args.cases or any(word in c.name for word in args.cases)]
    rows = []
    for row in static_rows(chosen, args.targets.split(",")):
        rows.append(row)
        print(" | ".join(row.cells()), flush=True)
    if args.write:
        begin, end = "<!-- table -->\n", "\n<!-- end of table -->"
        text = re.sub(f"(?s){begin}.*{end}", lambda _: begin + markdown(rows) + end, DOCUMENT.read_text())
        DOCUMENT.write_text(text)
    return int(any(r.faults for r in rows))
