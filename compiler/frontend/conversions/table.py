"""Every conversion by the name of the operator that it converts."""

from __future__ import annotations

from functools import cache, partial

import compiler.ir.ops  # noqa: F401  (fills the registry of ops)
from compiler.frontend.conversions import (  # noqa: F401  (each registers its conversions)
    backward,
    contraction,
    creation,
    elementwise,
    indexing,
    normalization,
    pooling,
    pooling_backward,
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
from compiler.ir.graph.node import OPS
from compiler.ir.graph.structure import Elementwise


@cache
def conversions() -> dict[str, Conversion]:
    """Every conversion: those written out and those that op declarations imply."""
    table = {
        name: partial(apply_promoted, o)
        for o in OPS.values()
        if isinstance(o.structure, Elementwise)
        for name in o.aten
    }
    return {**table, **_CONVERSIONS}
