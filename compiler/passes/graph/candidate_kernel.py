"""The kernel of a body that a graph pass considers."""

from __future__ import annotations

from collections.abc import Hashable

from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.kernel import Kernel
from compiler.lowering.kernel import lower_kernel
from compiler.passes.base import Context


def candidate_kernel(body: Graph, key: Hashable, context: Context) -> Kernel | str:
    """Return the kernel of `body`, or why lowering has none or the target cannot express it; lowering finds it again by `key`."""
    try:
        kernel = context.lowered_kernels[key] = lower_kernel(body, "candidate", context.machine)
    except LoweringError as error:
        return str(error)
    return context.kernel_problem(kernel) or kernel
