"""Error function."""

from __future__ import annotations

from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr, absolute, copysign, fma, where
from compiler.ir.types import f32, f64
from compiler.math.binary import min_keeping_nan

THRESHOLD = 1.4142  # x^2 < 2: an ulp of x^2 doubles there

NEAR = {
    f32: (
        0.12837917, -0.37612608, 0.11283417, -0.026850242, 0.0051912167, -0.0008179549, 9.685834e-05, -6.3465804e-06,
    ),
    f64: (
        0.12837916709551256, -0.37612638903183476, 0.11283791670946859, -0.026866170644150523, 0.005223977619324838,
        -0.0008548326792868147, 0.00012055327291331805, -1.4925553770729781e-05, 1.6460952074000925e-06,
        -1.635575954572347e-07, 1.4743712294336685e-08, -1.200195203231247e-09, 8.489957214255968e-11,
        -4.631401191964372e-12, 1.4119147452997476e-13,
    ),
}  # fmt: skip
"""erf(x) / x - 1 in x^2 on |x| <= 1.4143: erf x to 2^-27.1 (degree 7) and 2^-56.0 (degree 14)."""

CENTRE = {f32: 2.474, f64: 3.671875}
"""Centre of `FAR`; for f32 one at which erf is very near a float."""
END = {f32: 3.875, f64: 5.915}
"""x from which on erf rounds to 1."""
FAR = {
    f32: (
        0.9995326, 0.0024796494, -0.0061324444, 0.009279601, -0.009448769, 0.006602614, -0.0028971203, 0.0004086298,
        0.00035160335, -0.00021586324, 3.8641865e-05,
    ),
    f64: (
        0.9999997928624823, 1.5740104356851969e-06, -5.779569566695931e-06, 1.3623234524790782e-05,
        -2.3084883980413985e-05, 2.9818952971338257e-05, -3.034118667039949e-05, 2.4731405043172455e-05,
        -1.620097507451926e-05, 8.410661045162911e-06, -3.296403612762989e-06, 8.244345313696692e-07,
        -5.085132827738897e-09, -1.1339445543527977e-07, 6.015575813229376e-08, -1.541135426482776e-08,
        5.252033243125757e-11, 1.6767130180964848e-09, -6.87931312477741e-10, 9.93845134899058e-11,
        2.798675220862816e-11, -1.884242817977033e-11, 4.085983068204143e-12, 2.757940181324075e-13,
        -4.61758076600678e-13, 1.1140448464916606e-13, 1.155807925327225e-14, -1.0666778852059851e-14,
        9.053492737258961e-16, 4.4339656688300343e-16, -7.593917353974394e-17, -7.697300977604623e-18,
        1.816014667928458e-18,
    ),
}  # fmt: skip
"""erf(CENTRE + t) from THRESHOLD to END: absolute error 2^-23.8 (degree 10) and 2^-55.2 (degree 32)."""


def erf(x: Expr) -> Expr:
    """Error function.

    Error 2.0 ulp in f32, 3.0 in f64.  Cost f32: 26 operations, f64: 57.

    An odd polynomial up to sqrt 2; beyond, a polynomial of erf itself.  erf is entire, so this costs no more than exp(-x^2)
    times another polynomial, and needs no range reduction and no division.  Both are computed and one is selected.
    """
    a = absolute(x)
    near = fma(a, polynomial(a * a, NEAR[x.dtype]), a)
    far = polynomial(min_keeping_nan(a, END[x.dtype]) - CENTRE[x.dtype], FAR[x.dtype])
    return copysign(where(a < THRESHOLD, near, far), x)
