"""Arguments that overlap in memory, one of them written: a graph reads all inputs before it writes any, eager PyTorch does not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler.errors import USE_TORCH_COMPILE, ArgumentError
from compiler.ir.graph.graph import Graph


def reject_overlapping_writes(graph: Graph, inputs: Sequence[torch.Tensor]) -> None:
    """Raise ArgumentError if an input that the graph writes overlaps in memory with another one."""
    writes = {target: graph.outputs[output] for output, target in graph.output_aliases.items()}
    spans = sorted((*_byte_span(x), k) for k, x in enumerate(inputs))
    for position, (_, end, j) in enumerate(spans):
        for start, _, k in spans[position + 1 :]:
            if start >= end:
                break
            target, other = (j, k) if j in writes else (k, j)
            if target in writes and overlap(inputs[j], inputs[k]):
                where = f" (at {writes[target].loc})" if writes[target].loc else ""
                raise ArgumentError(
                    f"input {graph.inputs[target].name} is written{where} and overlaps in memory with input "
                    f"{graph.inputs[other].name}; clone one of them, or {USE_TORCH_COMPILE}, "
                    "which takes such inputs"
                )


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return True if elements of `x` and `y` share a byte; allocates a flag for each byte of the memory that both span."""
    spans = _byte_span(x), _byte_span(y)
    (x_start, x_end), (y_start, y_end) = spans
    if max(x_start, y_start) >= min(x_end, y_end) or (x.is_contiguous() and y.is_contiguous()):
        return max(x_start, y_start) < min(x_end, y_end)
    low, high = min(x_start, y_start), max(x_end, y_end)
    marks = torch.zeros(high - low, dtype=torch.bool)
    seen_x, seen_y = (
        marks.as_strided((*t.shape, t.itemsize), (*(s * t.itemsize for s in t.stride()), 1), span[0] - low)
        for t, span in zip((x, y), spans, strict=True)
    )
    seen_x.fill_(True)
    return bool(seen_y.any())


def _byte_span(x: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte of `x` and behind its last; equal if it is empty or has no memory."""
    if not isinstance(x, torch.Tensor) or x.numel() == 0 or not (x.is_cpu or x.is_cuda) or x.layout != torch.strided:
        return 0, 0
    start = x.data_ptr()
    if x.is_contiguous():
        return start, start + x.nbytes
    return start, start + x.itemsize * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)))
