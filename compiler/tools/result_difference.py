"""Comparison of compiled results with those of PyTorch: types, and errors against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5}
"""Tolerance relative to the float64 result, by dtype, in addition to `EAGER_ERROR_FACTOR` times eager's own error.

Twice the machine epsilon for reduced floats.
"""

EAGER_ERROR_FACTOR = 4
"""Allowed multiple of PyTorch's largest error, chosen empirically.  In ill-conditioned samples two orders of rounding are two
draws from one distribution, so neither error bounds the other closely."""


def result_difference(got: Any, expected: Any, wide: Callable[[], Any], values: bool = True) -> str:
    """Describe how `got` differs from `expected`, the results of PyTorch, or return "" if it does not.

    Errors are measured against `wide()`, the float64 results or None.  Without `values`, only types are compared.
    """
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    truth: list[Any] | None = None
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            if a != b and repr(a) != repr(b):  # NaN equals NaN
                return f"different value: {a} instead of {b}"
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"different type: {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        if not values:
            continue
        if not (b.is_floating_point() or b.is_complex()):
            if not torch.equal(a, b):
                return f"different {b.dtype} elements"
            continue
        if truth is None:
            truth = tree_leaves(wide())
        best = truth[k] if len(truth) == len(theirs) and isinstance(truth[k], torch.Tensor) else b
        if problem := _float_difference(a, b, best if best.shape == b.shape else b):
            return problem
    return ""


def _float_difference(ours: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor) -> str:
    """Describe a difference in the positions of NaN and infinity, or an error above the tolerance and PyTorch's own."""
    if theirs.is_complex():
        parts = [torch.view_as_real(t.to(torch.complex128).resolve_conj()) for t in (ours, theirs, truth)]
    else:
        parts = [t.double() for t in (ours, theirs, truth)]
    component = theirs.dtype.to_real()
    tolerance = TOLERANCES.get(component) or 2 * torch.finfo(component).eps
    a, b, best = parts
    special = ~torch.isfinite(b)
    if not torch.equal(special, ~torch.isfinite(a)) or not torch.equal(
        a[special].nan_to_num(nan=0.5), b[special].nan_to_num(nan=0.5)
    ):
        return "NaN or infinity in different positions"
    best = torch.where(torch.isfinite(best), best, b)
    error = torch.where(special, 0.0, (a - best).abs())
    eager_error = torch.where(special, 0.0, (b - best).abs())
    allowed = EAGER_ERROR_FACTOR * (float(eager_error.max()) if eager_error.numel() else 0.0)
    excess = error - tolerance * (best.abs().nan_to_num() + 1e-1) - allowed
    if not excess.numel() or float(excess.max()) <= 0:
        return ""
    return f"different values, off by about 1e{round(math.log10(float(error.max())))}"
