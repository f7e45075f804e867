"""Tensor descriptors in Triton source: blocks of matrix operands that are copied as boxes (TMA).

x_boxes = tl.make_tensor_descriptor(x, [4096, 1024], [1024, 1], [128, 64])      once in each program
x_block = x_boxes.load([i_start, k_start])                                      zeros outside the tensor
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from compiler.analysis.accesses import Accesses
from compiler.analysis.index_width import has_long_indices
from compiler.analysis.tensor_box import TensorBox, tensor_box
from compiler.ir.scalar import Const, Load
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.tile.kernel import Kernel, Range

ALLOCATOR = """\


def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")
"""
"""Source of the function that gives descriptors their memory when a kernel is launched."""


class TensorDescriptors:
    """The descriptors of a kernel: those that its parameters may have, and declarations of those that are used."""

    def __init__(self, kernel: Kernel, params: Mapping[str, str], fresh_name: Callable[[str], str]) -> None:
        self.params = params
        self.fresh_name = fresh_name
        is_long = has_long_indices(kernel)  # descriptors take indices of 32 bits
        self.types = {p.name: p.type for p in kernel.params if p.descriptor and not is_long}
        self.names: dict[str, str] = {}  # of each descriptor by its text
        loads = (a for a in Accesses(kernel).all if a.buffer in self.types and not a.is_store)
        boxes = (tensor_box(a.index, self.types[a.buffer], a.loops) for a in loads)
        self.loops = {v for box in boxes if box for v in box.axes}

    def box_of(self, e: Load, loops: Iterable[Range], fill: Const | None) -> TensorBox | None:
        """Return the box that a load reads, with `fill` outside of partial blocks; None if there is none, or no descriptor."""
        if e.buffer not in self.types or e.mask is not None or (fill is not None and fill.value != 0):
            return None
        return tensor_box(e.index, self.types[e.buffer], tuple(loops))

    def box_text(self, e: Load, box: TensorBox, scalar_text: Callable[[Dim], str]) -> str:
        """Return the load of a box; declares its descriptor."""
        shape, strides = (", ".join(map(scalar_text, dims)) for dims in (box.shape, box.strides))
        extents = [n for n, v in zip(box.extents, box.loops, strict=True) if v]
        text = f"tl.make_tensor_descriptor({self.params[e.buffer]}, [{shape}], [{strides}], {list(box.extents)})"
        if text not in self.names:
            self.names[text] = self.fresh_name(f"{self.params[e.buffer]}_boxes")
        starts = (var(start_key(v)) if v else 0 for v in box.loops)
        first = (scalar_text(start + d) for start, d in zip(starts, box.offsets, strict=True))
        reshape = f".reshape({', '.join(map(str, extents))})" * (len(extents) < len(box.extents))
        return f"{self.names[text]}.load([{', '.join(first)}]){reshape}"

    def declarations(self) -> list[str]:
        """Return the statements that make the descriptors."""
        return [f"{name} = {text}" for text, name in self.names.items()]


def start_key(v: str) -> str:
    """Return the key in `TritonExprEmitter.names` of the first index in a loop's block, which no variable of Tile IR has."""
    return f"start {v}"
