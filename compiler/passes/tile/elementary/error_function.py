"""erf, and gelu by it."""

from __future__ import annotations

from compiler.ir.scalar import Expr, absolute, copysign, fma, where
from compiler.ir.types import f32, f64
from compiler.passes.tile.elementary.binary import at_most
from compiler.passes.tile.elementary.polynomial import polynomial

THRESHOLD = 1.5

# erf(x) / x - 1 in x^2 on |x| <= 1.5: erf x to 2^-26.0 (degree 7) and 2^-56.0 (degree 14).
NEAR = {
    f32: (
        0.12837915, -0.37612548, 0.11282963, -0.026836928, 0.0051724436, -0.0008043209, 9.194293e-05, -5.6502954e-06,
    ),
    f64: (
        0.12837916709551256, -0.37612638903183476, 0.11283791670946859, -0.026866170644150523, 0.005223977619324838,
        -0.0008548326792868147, 0.00012055327291331805, -1.4925553770729781e-05, 1.6460952074000925e-06,
        -1.635575954572347e-07, 1.4743712294336685e-08, -1.200195203231247e-09, 8.489957214255968e-11,
        -4.631401191964372e-12, 1.4119147452997476e-13,
    ),
}  # fmt: skip

# erf(centre + t) on [1.5, end], from where on it rounds to 1: absolute error 2^-24.7 (degree 10).
# The centre of f32 is one where erf has a float very near.
CENTRE = {f32: 2.788}
END = {f32: 3.925}
FAR = {
    f32: (
        0.9999195, 0.0004747125, -0.0013246547, 0.0023080865, -0.002766619, 0.0023747357, -0.0014972518, 0.00065898075,
        -9.9220284e-05, -9.083931e-05, 4.252504e-05,
    ),
}  # fmt: skip


def erf(x: Expr) -> Expr:
    """The error function to 2 ulp.  f32: 26 operations.

    An odd polynomial up to 1.5; beyond, the polynomial of erf itself: entire, it is as easy as exp(-x^2) times another
    polynomial would be, needs no range reduction and no division.  Both are computed and one is chosen.
    """
    a = absolute(x)
    near = fma(a, polynomial(a * a, NEAR[x.dtype]), a)
    far = polynomial(at_most(a, END[x.dtype]) - CENTRE[x.dtype], FAR[x.dtype])
    return copysign(where(a < THRESHOLD, near, far), x)
