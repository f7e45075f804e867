"""Index maps with guards: padding, concatenation and slice updates."""

from __future__ import annotations

import itertools

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Guard, GuardedRead, IndexMap, Position
from compiler.ir.ops.rules import check_dims, same_type
from compiler.ir.symbolic.index_expr import Dim, floordiv, mod
from compiler.ir.types import TensorType


def _pad_type(s: Signature) -> TensorType:
    x, before, after = s.types[0], s.attrs["before"], s.attrs["after"]
    if not len(before) == len(after) == x.rank:
        raise s.error("before and after need one entry per dimension")
    if any(isinstance(p, int) and p < 0 for p in (*before, *after)):
        raise s.error("padding must not be negative; use slice")
    return TensorType(x.dtype, tuple(a + d + b for a, d, b in zip(before, x.shape, after, strict=True)))


def _pad_reads(n: Node, i: Position) -> tuple[GuardedRead, ...]:
    before, after, shape = n.attrs["before"], n.attrs["after"], n.operands[0].shape
    source = tuple(d - p for d, p in zip(i, before, strict=True))
    guards = tuple(
        Guard(d, 0, size) for d, p, q, size in zip(source, before, after, shape, strict=True) if p != 0 or q != 0
    )
    return (GuardedRead(0, source, guards),)


def _pad_reference(x: torch.Tensor, before: tuple[int, ...], after: tuple[int, ...], value: float) -> torch.Tensor:
    padded = x.new_full(
        [b + n + a for b, n, a in zip(before, x.shape, after, strict=True)], value
    )  # `F.pad` rounds large integers
    padded[tuple(slice(b, b + n) for b, n in zip(before, x.shape, strict=True))] = x
    return padded


pad = declare_op(
    "pad", "x: any", IndexMap(_pad_reads, fill=lambda n: n.attrs["value"], operand_offsets=lambda n: (n.attrs["before"],)),
    type_rule=_pad_type, attrs={"before": REQUIRED, "after": REQUIRED, "value": 0}, reference=_pad_reference,
    samples=[
        sample_input("f32[4, 5]", before=[1, 0], after=[0, 2]), sample_input("f32[2, 3]", before=[0, 1], after=[0, 1], value=float("-inf")),
        sample_input("i64[3]", before=[2], after=[0], value=(1 << 63) - 1), sample_input("f32[0, 2]", before=[1, 0], after=[1, 0], value=0.5),
        sample_input("bf16[3]", before=[0], after=[0]),
    ],
)  # fmt: skip
"""`x` padded with `value`: `before[d]` elements before dimension d, `after[d]` after it."""


def _cat_type(s: Signature) -> TensorType:
    dim, first = s.attrs["dim"], s.types[0]
    check_dims(s, [dim])
    total: Dim = 0
    for t in s.types:
        if t.rank != first.rank or any(
            a != b for d, (a, b) in enumerate(zip(t.shape, first.shape, strict=True)) if d != dim
        ):
            raise s.error(f"shapes may differ in dimension {dim} only")
        total = total + t.shape[dim]
    return TensorType(first.dtype, (*first.shape[:dim], total, *first.shape[dim + 1 :]))


def _cat_reads(n: Node, i: Position) -> tuple[GuardedRead, ...]:
    dim, start, reads = n.attrs["dim"], 0, []
    for k, x in enumerate(n.operands):
        end = start + x.shape[dim]
        source = (*i[:dim], i[dim] - start, *i[dim + 1 :])
        reads.append(GuardedRead(k, source, (Guard(i[dim], start, end),) if len(n.operands) > 1 else ()))
        start = end
    return tuple(reads)


def _cat_offsets(n: Node) -> tuple[Position, ...]:
    starts = itertools.accumulate((x.shape[n.attrs["dim"]] for x in n.operands[:-1]), initial=0)
    return tuple(tuple(start if d == n.attrs["dim"] else 0 for d in range(n.type.rank)) for start in starts)


cat = declare_op(
    "cat", "first: any, rest*: any", IndexMap(_cat_reads, operand_offsets=_cat_offsets), type_rule=_cat_type, attrs={"dim": 0},
    reference=lambda *xs, dim: torch.cat(xs, dim),
    samples=[
        sample_input("f32[4, 5]", "f32[2, 5]", dim=0), sample_input("f32[4, 5]", "f32[4, 0]", "f32[4, 1]", dim=1), sample_input("i64[3]", dim=0),
        sample_input("bool[2, 1]", "bool[2, 2]", dim=1),
    ],
)  # fmt: skip


def _slice_scatter_type(s: Signature) -> TensorType:
    (x, new), dim = s.types, s.attrs["dim"]
    check_dims(s, [dim])
    if new.rank != x.rank or any(a != b for d, (a, b) in enumerate(zip(x.shape, new.shape, strict=True)) if d != dim):
        raise s.error(f"shapes may differ in dimension {dim} only")
    start, size, step, extent = s.attrs["start"], new.shape[dim], s.attrs["step"], x.shape[dim]
    if step < 1:
        raise s.error(f"the step must be positive, not {step}")
    is_static = isinstance(start, int) and isinstance(size, int) and isinstance(extent, int)
    if is_static and size and not 0 <= start <= start + (size - 1) * step < extent:
        raise s.error(f"elements {start}..{start + (size - 1) * step} are not all inside an extent of {extent}")
    return same_type(s)


def _slice_scatter_reads(n: Node, i: Position) -> tuple[GuardedRead, ...]:
    dim, start, step = n.attrs["dim"], n.attrs["start"], n.attrs["step"]
    size = n.operands[1].shape[dim]
    offset = i[dim] - start
    guards = [Guard(i[dim], start, start + (size - 1) * step + 1)]
    if step != 1:
        guards.append(Guard(mod(offset, step), 0, 1))
    return (GuardedRead(1, (*i[:dim], floordiv(offset, step), *i[dim + 1 :]), tuple(guards)), GuardedRead(0, i))


def _slice_scatter_reference(x: torch.Tensor, new: torch.Tensor, dim: int, start: int, step: int) -> torch.Tensor:
    result = x.clone()
    result.index_copy_(dim, start + step * torch.arange(new.shape[dim]), new)
    return result


slice_scatter = declare_op(
    "slice_scatter", "x: any, new: any", IndexMap(reads=_slice_scatter_reads),
    type_rule=_slice_scatter_type, attrs={"dim": REQUIRED, "start": 0, "step": 1}, reference=_slice_scatter_reference,
    samples=[
        sample_input("f32[4, 5]", "f32[4, 2]", dim=1, start=1), sample_input("f32[9]", "f32[3]", dim=0, start=2, step=3),
        sample_input("i64[3]", "i64[0]", dim=0), sample_input("bool[3, 2]", "bool[3, 2]", dim=0),
    ],
)  # fmt: skip
"""`x` with elements `start`, `start + step`, ... of dimension `dim` replaced by `new`."""
