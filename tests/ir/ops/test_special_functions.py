"""Special functions against mpmath: the errors that the docstrings of their rules promise, and what lies at the ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, nan
from typing import Any

import mpmath
import numpy as np
import pytest

from compiler.ir import ops
from compiler.ir.graph.node import Op
from compiler.ir.graph.structure import Elementwise
from compiler.ir.interpret.primitives import evaluate_call
from compiler.ir.scalar import Const, PrimitiveCall, Ref
from compiler.ir.types import DType, f32, f64

TRUTH: dict[str, tuple[Op, Callable[[Any], Any], float]] = {
    "lgamma": (ops.lgamma, lambda x: mpmath.re(mpmath.loggamma(x)) if x > 0 else mpmath.log(abs(mpmath.gamma(x))), 0.5),
    "digamma": (ops.digamma, mpmath.digamma, 0.5),
    "i0": (ops.i0, lambda x: mpmath.besseli(0, x), -inf),
    "i0e": (ops.i0e, lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)), -inf),
    "i1": (ops.i1, lambda x: mpmath.besseli(1, x), -inf),
    "i1e": (ops.i1e, lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)), -inf),
}
"""The op, the function, and from where on the first of its bounds holds."""


def values_of(op: Op, xs: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """What the op's rule makes of `xs`, in NumPy."""
    assert isinstance(op.structure, Elementwise)
    known: dict[int, Any] = {}
    for node in op.structure.fn(Ref(dtype, "x")).subexprs:
        if isinstance(node, PrimitiveCall):
            known[id(node)] = evaluate_call(node, tuple(known[id(a)] for a in node.operands))
        else:
            known[id(node)] = dtype.numpy.type(node.value) if isinstance(node, Const) else xs
    return np.asarray(known[id(node)])


def arguments(dtype: DType) -> np.ndarray[Any, Any]:
    """Random ones of all magnitudes and both signs, denser where the functions are small, but no poles."""
    random = np.random.default_rng(3)
    magnitudes = 10.0 ** random.uniform(-30, 8, 400)
    near = np.concatenate([c + random.normal(scale=1e-3, size=60) for c in (1, 1.4616321449683623, 2)])
    xs = np.concatenate(
        [random.uniform(0.5, 9, 600), random.uniform(-9, 0.5, 600), magnitudes, -magnitudes[magnitudes < 1e4], near]
    )
    xs = xs.astype(dtype.numpy)
    return xs[xs != np.rint(xs)]


def promises(op: Op) -> list[float]:
    """The numbers of "Error 5 epsilon from 1/2 on; below, ..., 9 epsilon of the larger of 1 and the result"."""
    assert isinstance(op.structure, Elementwise)
    return [float(n) for n in re.findall(r"(\d+) epsilon", op.structure.fn.__doc__ or "")]


@pytest.mark.parametrize("dtype", [f32, f64], ids=lambda d: d.name)
@pytest.mark.parametrize("name", TRUTH)
def test_errors_are_as_promised(name: str, dtype: DType) -> None:
    op, function, start = TRUTH[name]
    mpmath.mp.dps = 40
    largest = float(np.finfo(dtype.numpy).max)
    exact = {x: function(mpmath.mpf(float(x))) for x in arguments(dtype)}
    exact = {x: y for x, y in exact.items() if abs(y) < largest}
    xs = np.array(list(exact), dtype.numpy)
    scale = [abs(y) if x >= start else max(abs(y), 1) for x, y in zip(xs, exact.values(), strict=True)]
    got = values_of(op, xs, dtype)
    errors = np.array(
        [float(abs(g - y) / s) for g, y, s in zip(got.astype(object), exact.values(), scale, strict=True)]
    )
    errors /= np.finfo(dtype.numpy).eps
    right = xs >= start
    for bound, part in zip(promises(op), (right, ~right), strict=False):
        worst = errors[part].max()
        assert bound / 4 < worst <= bound, f"at {xs[part][errors[part].argmax()]}"


ENDS = np.array([0.0, -0.0, -1.0, -2.0, inf, -inf, nan, 1e300, -1e300])
TINY = (2 * np.pi) ** -0.5 * 1e-150
AT_ENDS = {
    "lgamma": [inf, inf, inf, inf, inf, inf, nan, 300 * np.log(10) * 1e300, inf],
    "digamma": [-inf, inf, nan, nan, inf, nan, nan, 300 * np.log(10), nan],
    "i0e": [1, 1, 0.46575961, 0.30850832, 0, 0, nan, TINY, TINY],
    "i1e": [0, 0, -0.20791042, -0.21526929, 0, 0, nan, TINY, -TINY],
}


@pytest.mark.parametrize("name", AT_ENDS)
def test_ends_and_poles(name: str) -> None:
    got = values_of(TRUTH[name][0], ENDS, f64)
    np.testing.assert_allclose(got, AT_ENDS[name], rtol=2e-3)
