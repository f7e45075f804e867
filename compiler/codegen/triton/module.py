"""Source of a Triton module around the body of one function: imports, helpers, launch options and the grid."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from compiler.analysis.index_width import INT32_INDEX_LIMIT
from compiler.codegen.triton.descriptors import ALLOCATOR
from compiler.codegen.triton.triton_names import HELPERS, dtype_names
from compiler.ir.symbolic.index_atoms import format_index
from compiler.ir.symbolic.index_expr import maximum, product, substitute, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import BoundsCheck, Kernel, Range
from compiler.ir.tile.loop_nest import trip_count

MODULE_TEMPLATE = """\
\"\"\"{summary}\"\"\"

{imports}
{helpers}

{function}


kernel = {name}
signature = {signature}
options = {options}
{allocator}

def launch({names}):{set_allocator}
    kernel[({grid},)]({names}, **options)
"""


def grid_loops(kernel: Kernel) -> list[Range]:
    """Return the parallel loops of a kernel, whose blocks the programs of a grid compute."""
    return [s.range for s in tile.walk(kernel.body) if tile.is_parallel_loop(s)]


def block_count(kernel: Kernel, sizes: Mapping[str, str]) -> str:
    """Return the iterations of the parallel loops over blocks as a Python expression over the dynamic sizes.

    `sizes` has the Python names of these.
    """
    count = product(maximum(0, trip_count(r)) for r in grid_loops(kernel))
    return format_index(substitute(count, {size: var(name) for size, name in sizes.items()}))


@dataclass(frozen=True)
class TritonModule:
    """The function `name` of a kernel and what it needs around it.

    `params` and `sizes` have the Python names of the parameters and dynamic sizes; `largest_block` has the most elements of a
    value; `helpers` names the functions that the body calls.
    """

    kernel: Kernel
    name: str
    params: Mapping[str, str]
    sizes: Mapping[str, str]
    largest_block: int
    helpers: Collection[str]
    has_descriptors: bool

    def source(self, body: str) -> str:
        """Return the source of the module around the `body` of its function."""
        names = ", ".join((*self.params.values(), *self.sizes.values()))
        jit = f"@triton.jit(do_not_specialize={list(self.sizes.values())})" if self.sizes else "@triton.jit"
        return MODULE_TEMPLATE.format(
            summary=f"{self.kernel.name}({', '.join(f'{p.role} {self.params[p.name]}: {p.type}' for p in self.kernel.params)})",
            imports="\n".join(self.import_lines(body)),
            helpers=self.helper_source(),
            function=f"{jit}\ndef {self.name}({names}):\n{body}",
            name=self.name,
            names=names,
            grid=self.grid_text(),
            signature=self.signature(),
            options=self.launch_options(),
            allocator=ALLOCATOR if self.has_descriptors else "",
            set_allocator="\n    triton.set_allocator(allocate)" if self.has_descriptors else "",
        )

    def import_lines(self, body: str) -> Iterator[str]:
        """Yield the imports of a module."""
        yield from ["import torch"] if self.has_descriptors else []
        yield from ["import triton", "import triton.language as tl"]
        yield from ["from triton.language.extra import libdevice"] if "libdevice." in body else []

    def helper_source(self) -> str:
        """Return the source of the helper functions that the body calls."""
        return "".join(f"\n\n@triton.jit\n{text}\n" for name, text in HELPERS.items() if name in self.helpers)

    def signature(self) -> dict[str, str]:
        """Return Triton's type of each argument."""
        tensors = {self.params[p.name]: f"*{dtype_names(p.type.dtype)[1]}" for p in self.kernel.params}
        sizes = self.kernel.dynamic_sizes
        return tensors | {self.sizes[s.name]: "i64" if s.high >= INT32_INDEX_LIMIT else "i32" for s in sizes}

    def grid_text(self) -> str:
        """Return the number of programs as a Python expression over the dynamic sizes."""
        count, most = block_count(self.kernel, self.sizes), self.kernel.persistent
        if count.isdecimal():
            return str(min(int(count), most or int(count)))
        return f"min({most}, {count})" if most else count

    def launch_options(self) -> dict[str, int | bool]:
        """Return Triton's compile options; bounds checks need device assertions, without those for overflow."""
        body = self.kernel.body
        warps = self.kernel.warps or min(16, max(4, self.largest_block // 1024))
        has_checks = any(isinstance(s, BoundsCheck) for s in tile.walk(body))
        assertions = {"debug": True, "sanitize_overflow": False} if has_checks else {}
        stages = (
            max(r.stages for s in tile.walk(body) for r in tile.stmt_ranges(s)) if self.kernel.warp_specialized else 1
        )
        limit = {"maxnreg": self.kernel.max_registers} if self.kernel.max_registers else {}
        return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True, **limit, **assertions}
