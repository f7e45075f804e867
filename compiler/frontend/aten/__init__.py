"""Conversions from ATen, by family.  Importing this package registers them all."""

from compiler.frontend.aten import (  # noqa: F401
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
