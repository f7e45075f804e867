"""Results of conversions compared with those that PyTorch infers, the fake tensors in `meta["val"]` of an FX node."""

from __future__ import annotations

from typing import Any

import torch

from compiler.errors import TilewrightError
from compiler.frontend.unbacked_symbols import tensor_type
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.torch_types import from_torch


def result_tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in the value of a node, without None; an empty list if it holds anything else."""
    leaves = [v for v in value if v is not None] if isinstance(value, (list, tuple)) else [value]
    return leaves if all(isinstance(t, torch.Tensor) for t in leaves) else []


def round_statistics(node: torch.fx.Node, result: Any) -> Any:
    """Return `result` with all but the first of several results cast to the float dtype that PyTorch infers for them.

    These are statistics, such as mean and variance of a normalization, whose dtype is wider on a GPU than on a CPU.
    """
    expected: Any = node.meta.get("val")
    if not isinstance(result, tuple) or not isinstance(expected, (tuple, list)):
        return result
    first, *others = result
    pairs = zip(expected[1:], others, strict=False)
    rounded = (
        ops.as_dtype(ours, from_torch(theirs.dtype))
        if isinstance(ours, Node)
        and isinstance(theirs, torch.Tensor)
        and ours.dtype.is_float
        and theirs.dtype.is_floating_point
        else ours
        for theirs, ours in pairs
    )
    return (first, *rounded, *others[len(expected) - 1 :])


def check_result_type(node: torch.fx.Node, result: Any) -> None:
    """Raise TilewrightError unless `result` has the dtypes, ranks and static sizes that PyTorch infers."""
    expected: Any = node.meta.get("val")
    pairs = zip(expected, result, strict=False) if isinstance(result, tuple) else [(expected, result)]
    for theirs, ours in pairs:
        if ours is None or not isinstance(theirs, torch.Tensor):
            continue
        wanted = tensor_type(theirs)
        sizes = zip(wanted.shape, ours.shape, strict=False)
        mismatch = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
        if wanted.dtype != ours.dtype or wanted.rank != ours.type.rank or mismatch:
            problem = f"{node.target} was converted to {ours.type}, but PyTorch infers {wanted}"
            raise TilewrightError(f"{problem} (a bug; please report)")
