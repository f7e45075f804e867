"""Operators without a structure, which stay calls into PyTorch, each with the reason.

What draws random numbers says so itself; the others are listed here, but for those that have complex operands: they are
calls whatever they compute.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

RANDOM_REASON = "draws random numbers"

_OPERATORS_BY_REASON: dict[str, tuple[str, ...]] = {
    "sorting": (
        "kthvalue.default", "median.default", "median.dim", "mode.default", "msort.default", "nanmedian.default", "nanmedian.dim",
        "histogram.bins_tensor", "histogram.bin_ct",
    ),
    "complex numbers": (
        "_conj.default", "_conj_physical.default", "_fft_c2c.default", "_fft_c2r.default", "_fft_r2c.default", "complex.default", "polar.default",
        "view_as_complex.default", "view_as_real.default",
    ),
    "its gradient needs what PyTorch remembers of it": ("_embedding_bag.default",),
    "a factorisation or solution of linear equations": (
        "_linalg_det.default", "_linalg_eigh.default", "_linalg_eigvals.default", "_linalg_slogdet.default", "_linalg_solve_ex.default", "_linalg_svd.default",
        "_lu_with_info.default", "cholesky.default", "cholesky_inverse.default", "cholesky_solve.default", "geqrf.default",
        "linalg_cholesky_ex.default", "linalg_eig.default", "linalg_eigvals.default", "linalg_householder_product.default", "linalg_inv_ex.default",
        "linalg_ldl_factor_ex.default", "linalg_ldl_solve.default", "linalg_lstsq.default", "linalg_lu.default", "linalg_lu_factor_ex.default",
        "linalg_lu_solve.default", "linalg_matrix_exp.default", "linalg_qr.default", "linalg_solve_triangular.default", "lu_unpack.default", "ormqr.default",
        "triangular_solve.default",
    ),
}  # fmt: skip

_REASON_BY_OPERATOR = {f"aten.{name}": reason for reason, names in _OPERATORS_BY_REASON.items() for name in names}


@cache
def opaque_reason(overload: Any) -> str:
    """Why `overload` is a call into PyTorch; empty where it is none."""
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return RANDOM_REASON
    return _REASON_BY_OPERATOR.get(str(overload), "")


def has_data_dependent_shape(overload: Any) -> bool:
    """Whether the data of the operands decides how large the result is, or what Python sees of it."""
    return torch.Tag.dynamic_output_shape in overload.tags or torch.Tag.data_dependent_output in overload.tags
