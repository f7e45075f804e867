"""The digest sees through names and nothing else."""

import pytest

from compiler.ir.digest import kernel_digest
from compiler.ir.tile_parser import parse_kernel

KERNEL = """
kernel @first(in %x: f32[8, 16], out %y: f32[8]) {
  parallel %i in 0..8 {
    %s = reduce add %k in 0..16 tile 16 lanes 16 { yield %x[%i, %k] * 2.0 }
    store exp(%s), %y[%i]
  }
}
"""


def digest(text: str) -> str:
    return kernel_digest(parse_kernel(text))


def test_names_do_not_count():
    renamed = KERNEL
    for old, new in (("@first", "@second"), ("%x", "%weird"), ("%y", "%a"), ("%i", "%z"), ("%k", "%b"), ("%s", "%total")):
        renamed = renamed.replace(old, new)
    assert digest(renamed) == digest(KERNEL)


@pytest.mark.parametrize(
    ("old", "new"),
    [("f32[8, 16]", "f32[8, 17]"), ("2.0", "3.0"), ("exp", "log"), ("add", "max"), ("lanes 16", "lanes 8"), ("parallel", "for"),
     ("%x[%i, %k]", "%x[%k, %i]"), ("in %x", "inout %x"), ("tile 16 ", "")],
)  # fmt: skip
def test_everything_else_counts(old, new):
    assert old in KERNEL
    assert digest(KERNEL.replace(old, new)) != digest(KERNEL)


def test_a_name_bound_twice_is_two_values():
    text = "kernel @k(in %x: f32[4], out %y: f32[4], out %z: f32[4]) { for %i in 0..4 { %BODY } }"
    one = "a = %x[%i]  store %a, %y[%i]  %a = exp(%x[%i])  store %a, %z[%i]"
    other = "a = %x[%i]  store %a, %y[%i]  %b = exp(%x[%i])  store %a, %z[%i]"
    assert digest(text.replace("BODY", one)) != digest(text.replace("BODY", other))
