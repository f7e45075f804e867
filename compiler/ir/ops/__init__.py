"""Declarations of all Graph IR ops, one module per family.  Importing this package fills the registry.

Call an op by its name, `ops.silu(x)`; names that are keywords or builtins of Python end in an underscore: `ops.sum_(x, dims=[0])`.
"""

from compiler.ir.ops.activation import (
    elu,
    gelu,
    hardsigmoid,
    hardswish,
    leaky_relu,
    log_sigmoid,
    mish,
    relu,
    silu,
    softplus,
)
from compiler.ir.ops.arithmetic import (
    abs_,
    add,
    atan2,
    copysign,
    div,
    floor_divide,
    fma,
    fmod,
    maximum,
    minimum,
    mul,
    neg,
    pow_,
    reciprocal,
    remainder,
    rsqrt,
    sign,
    sqrt,
    sub,
    trunc_divide,
)
from compiler.ir.ops.attention import attention, attention_probabilities, expand_kv_heads, masked_scores
from compiler.ir.ops.bessel import i0, i0e, i1, i1e
from compiler.ir.ops.cast import as_dtype, bitcast, cast
from compiler.ir.ops.col2im import col2im
from compiler.ir.ops.concat_pad import cat, pad, slice_scatter
from compiler.ir.ops.constant_linear import constant_linear
from compiler.ir.ops.contraction import conv, conv_phases, conv_transposed, convolution, linear, matmul, pad_spatial
from compiler.ir.ops.control_flow import cond, while_loop
from compiler.ir.ops.creation import bounds_mask, dim_value, full, iota, iota_along
from compiler.ir.ops.gamma import digamma, lgamma
from compiler.ir.ops.gather import gather, index, take
from compiler.ir.ops.graph_ops import eager, effect, fused, result_nodes, sized_arange, tuple_get
from compiler.ir.ops.logic import (
    and_,
    eq,
    ge,
    gt,
    isinf,
    isnan,
    le,
    lt,
    ne,
    not_,
    or_,
    shift_left,
    shift_right,
    where,
    xor,
)
from compiler.ir.ops.normalization import batch_norm, group_norm, layer_norm, log_softmax, rms_norm, softmax
from compiler.ir.ops.pooling import max_pool, sum_pool
from compiler.ir.ops.radix_sort import counting_sort
from compiler.ir.ops.recurrence import recurrence
from compiler.ir.ops.reductions import all_, amax, amin, any_, argmax, argmin, logsumexp, mean, norm, prod, sum_, var
from compiler.ir.ops.rounding import ceil, floor, frac, round_, trunc
from compiler.ir.ops.scan import cummax, cummax_index, cummin, cummin_index, cumprod, cumsum, forward_fill, logcumsumexp
from compiler.ir.ops.scatter import index_put, scatter
from compiler.ir.ops.sorting import sort, topk
from compiler.ir.ops.special import erfc, erfcx, integer_power
from compiler.ir.ops.transcendental import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    exp_ftz,
    expm1,
    log,
    log1p,
    log2,
    log10,
    sigmoid,
    sin,
    sinh,
    tan,
    tanh,
)
from compiler.ir.ops.views import (
    as_shape,
    as_strided,
    expand,
    flip,
    permute,
    reshape,
    select,
    slice_,
    transpose,
    unfold,
    unsqueeze,
)
