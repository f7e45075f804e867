"""Table of all conversions by the overload name of the operator that they convert."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial

import compiler.ir.ops  # noqa: F401  (fills the registry of ops)
from compiler.frontend.conversions import (  # noqa: F401  (each registers its conversions)
    backward,
    block_quantization,
    contraction,
    creation,
    einsum,
    elementwise,
    indexing,
    normalization,
    pooling,
    pooling_backward,
    quantization,
    recurrent,
    recurrent_backward,
    reductions,
    scans,
    scatters,
    search,
    views,
)
from compiler.frontend.promotion import apply_promoted
from compiler.frontend.registry import _CONVERSIONS, Conversion
from compiler.ir.graph.node import OPS, Op
from compiler.ir.ops.graph_ops import lookup_operator


def conversions() -> dict[str, Conversion]:
    """Return all conversions: those registered by `@converts`, and those implied by op declarations (`aten=`).

    Raises ValueError for an overload with several conversions, or one that does not fit the op that names it.
    """
    return _table(len(OPS), len(_CONVERSIONS))


@lru_cache(maxsize=1)
def _table(declared_ops: int, registered: int) -> dict[str, Conversion]:
    """Return the table of `conversions`, built again once an op or a conversion has been added."""
    implied = [(name, op) for op in OPS.values() for name in op.aten]
    counts = Counter([*_CONVERSIONS, *(name for name, _ in implied)])
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"several conversions of {', '.join(repeated)}")
    return {name: implied_conversion(op, name) for name, op in implied} | _CONVERSIONS


def implied_conversion(op: Op, overload: str) -> Conversion:
    """Return the conversion of `overload` to `op`, whose operands and attributes are the arguments in the same order.

    Operands are promoted to a common dtype, attributes are passed unchanged.  Raises ValueError if the two signatures do
    not match one to one.
    """
    schema, count = lookup_operator(overload)._schema, len(op.operand_specs)
    operands, others = schema.arguments[:count], schema.arguments[count:]
    plain = not any(
        o.optional or o.variadic or o.independent_dtype or o.kind in ("bool", "tuple") for o in op.operand_specs
    )
    tensors = len(operands) == count and all(str(a.type) in ("Tensor", "number") for a in operands)
    attributes = len(others) <= len(op.attr_defaults) and all(
        a.name in op.attr_defaults for a in others if a.kwarg_only
    )
    if not (plain and tensors and attributes and [str(r.type) for r in schema.returns] == ["Tensor"]):
        raise ValueError(f"{overload} does not map one to one to op {op.name}; write a conversion with @converts")
    return partial(apply_promoted, op)
