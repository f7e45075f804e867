"""Every op of Graph IR, one declaration each, in families.  Importing this package fills the registry.

An op is called by its name, `ops.silu(x)`; a name that Python has taken gets a trailing underscore: `ops.sum_(x, dims=[0])`.
"""

from compiler.ir.ops.activation import (
    elu, gelu, hardsigmoid, hardswish, leaky_relu, log_sigmoid, mish, relu, silu, softplus,
)  # fmt: skip
from compiler.ir.ops.arithmetic import (
    abs_, add, atan2, copysign, div, divide_toward_zero, floor_divide, fmod, maximum, minimum, mul, neg, pow_,
    reciprocal, remainder, rsqrt, sign, sqrt, sub,
)  # fmt: skip
from compiler.ir.ops.attention import attention
from compiler.ir.ops.cast import as_dtype, bitcast, cast
from compiler.ir.ops.contraction import conv, conv_transposed, convolution, linear, matmul, pad_spatial, window_count
from compiler.ir.ops.control import eager, fused, item
from compiler.ir.ops.creation import dim_value, full, iota
from compiler.ir.ops.gather import gather, index, take
from compiler.ir.ops.logic import (
    and_, eq, ge, gt, isinf, isnan, le, lt, ne, not_, or_, shift_left, shift_right, where, xor,
)  # fmt: skip
from compiler.ir.ops.normalization import batch_norm, group_norm, layer_norm, log_softmax, rms_norm, softmax
from compiler.ir.ops.opaque import cumprod, cumsum, erfc, index_put, integer_power, results, scatter, sort, topk
from compiler.ir.ops.pieces import cat, insert, pad
from compiler.ir.ops.pooling import max_pool, sum_pool
from compiler.ir.ops.reductions import all_, amax, amin, any_, argmax, argmin, logsumexp, mean, norm, prod, sum_, var
from compiler.ir.ops.rounding import ceil, floor, frac, round_, trunc
from compiler.ir.ops.transcendental import (
    acos, acosh, asin, asinh, atan, atanh, cos, cosh, erf, exp, exp2, expm1, log, log10, log1p, log2, sigmoid, sin,
    sinh, tan, tanh,
)  # fmt: skip
from compiler.ir.ops.views import expand, flip, permute, reshape, select, slice_, transpose, unfold, unsqueeze

__all__ = [
    "abs_", "acos", "acosh", "add", "all_", "amax", "amin", "and_", "any_", "argmax", "argmin", "as_dtype", "asin",
    "asinh", "atan", "atan2", "atanh", "attention", "batch_norm", "bitcast", "cast", "cat", "ceil", "conv",
    "conv_transposed", "convolution", "copysign", "cos", "cosh", "cumprod", "cumsum", "dim_value", "div",
    "divide_toward_zero", "eager", "elu", "eq", "erf", "erfc", "exp", "exp2", "expand", "expm1", "flip", "floor",
    "floor_divide", "fmod", "frac", "full", "fused", "gather", "ge", "gelu", "group_norm", "gt", "hardsigmoid",
    "hardswish", "index", "index_put", "insert", "integer_power", "iota", "isinf", "isnan", "item", "layer_norm", "le",
    "leaky_relu", "linear", "log", "log10", "log1p", "log2", "log_sigmoid", "log_softmax", "logsumexp", "lt", "matmul",
    "max_pool", "maximum", "mean", "minimum", "mish", "mul", "ne", "neg", "norm", "not_", "or_", "pad", "pad_spatial",
    "permute", "pow_", "prod", "reciprocal", "relu", "remainder", "reshape", "results", "rms_norm", "round_", "rsqrt",
    "scatter", "select", "shift_left", "shift_right", "sigmoid", "sign", "silu", "sin", "sinh", "slice_", "softmax",
    "softplus", "sort", "sqrt", "sub", "sum_", "sum_pool", "take", "tan", "tanh", "topk", "transpose", "trunc",
    "unfold", "unsqueeze", "var", "where", "window_count", "xor",
]  # fmt: skip
