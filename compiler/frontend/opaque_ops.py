"""Opaque operators: those that PyTorch runs inside a compiled program, each with the reason.

PyTorch tags random operators; the others are listed here.  Operators with operands or results of an
opaque dtype, such as complex numbers, always are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_leaves

from compiler.ir.torch_types import is_opaque_dtype

RANDOM_REASON = "random"
COMPLEX_REASON = "complex numbers"
DYNAMIC_SHAPE_REASON = "data-dependent shape"

_OPERATORS_BY_REASON: dict[str, tuple[str, ...]] = {
    "sorting": (
        "kthvalue.default", "median.default", "median.dim", "mode.default", "msort.default", "nanmedian.default", "nanmedian.dim",
        "histogram.bins_tensor", "histogram.bin_ct",
    ),
    COMPLEX_REASON: (
        "_conj.default", "_conj_physical.default", "_fft_c2c.default", "_fft_c2r.default", "_fft_r2c.default", "complex.default", "polar.default",
        "view_as_complex.default", "view_as_real.default",
    ),
    "backward needs PyTorch's saved state": ("_embedding_bag.default",),
    "linear algebra": (
        "_linalg_det.default", "_linalg_eigh.default", "_linalg_eigvals.default", "_linalg_slogdet.default", "_linalg_solve_ex.default", "_linalg_svd.default",
        "_lu_with_info.default", "cholesky.default", "cholesky_inverse.default", "cholesky_solve.default", "geqrf.default",
        "linalg_cholesky_ex.default", "linalg_eig.default", "linalg_eigvals.default", "linalg_householder_product.default", "linalg_inv_ex.default",
        "linalg_ldl_factor_ex.default", "linalg_ldl_solve.default", "linalg_lstsq.default", "linalg_lu.default", "linalg_lu_factor_ex.default",
        "linalg_lu_solve.default", "linalg_matrix_exp.default", "linalg_qr.default", "linalg_solve_triangular.default", "lu_unpack.default", "ormqr.default",
        "triangular_solve.default",
    ),
}  # fmt: skip

QUANTIZED_TENSOR_OPERATORS = frozenset({
    "aten.quantize_per_tensor.default", "aten.quantize_per_tensor.tensor_qparams", "aten.quantize_per_channel.default",
    "aten.quantize_per_tensor_dynamic.default", "aten.dequantize.self",
})  # fmt: skip
"""Operators on tensors of a quantized dtype, such as `torch.quint8`: PyTorch traces them as plain floats, so no call could tell."""

RNG_STATE_OPERATORS = frozenset({"run_and_save_rng_state", "run_with_rng_state"})
"""Operators that call a random operator, and return the generator's state before, or set one for the time of the call.

AOTAutograd writes them where the backward pass repeats a part of the forward pass (activation checkpointing).
"""

FUNCTIONALIZED_OPERATORS = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""Operators that call a mutating operator on copies of its arguments and return the copies."""

_REASON_BY_OPERATOR = {f"aten.{name}": reason for reason, names in _OPERATORS_BY_REASON.items() for name in names}


@cache
def opaque_reason(overload: Any) -> str:
    """Return the reason why `overload` is opaque; empty if it is not."""
    if str(overload) in RNG_STATE_OPERATORS or torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ()):
        return RANDOM_REASON
    return _REASON_BY_OPERATOR.get(str(overload), "")


def opaque_dtype_reason(node: torch.fx.Node) -> str:
    """Return the reason why only PyTorch computes with the elements of an operand or a result of `node`; empty if there is none."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    tensors = [t for value in values for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    opaque = {COMPLEX_REASON if t.is_complex() else f"{t.dtype} elements" for t in tensors if is_opaque_dtype(t.dtype)}
    return ", ".join(sorted(opaque))


def has_data_dependent_shape(overload: Any) -> bool:
    """Return True if the size or the Python-visible value of the result depends on the data of the operands."""
    tags = getattr(overload, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def fake_result(node: torch.fx.Node) -> Any:
    """Return fake tensors like the results of one of `RNG_STATE_OPERATORS`, whose nodes AOTAutograd makes without."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode((args, kwargs))
    assert mode is not None, "AOTAutograd traces with fake tensors"
    with mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]  # the node calls an operator
