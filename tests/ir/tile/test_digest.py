"""The digest sees through names and nothing else."""

from dataclasses import fields, replace
from typing import get_args

import pytest

from compiler.ir.scalar import Const, IndexValue, Load, PrimitiveCall, Ref, const
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.kernel import (
    AsyncCopy,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Local,
    Param,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    Wait,
)
from compiler.ir.types import TensorType, f32

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


def test_it_knows_every_field_of_tile_ir():
    """A field added to Tile IR must enter the digest too: then add it here."""
    known = {
        Kernel: "name params body max_chunks", Param: "name type role", Range: "var lo hi tile lanes unroll accumulators balanced", Let: "name value",
        Store: "buffer index value nontemporal", Local: "buffer type space", BoundsCheck: "name low high", Prefetch: "buffer index level reuse", For: "range body parallel",
        AsyncCopy: "source source_index target target_index sizes", Wait: "buffer pending", Reduce: "name op ranges body value", Const: "dtype value", Ref: "dtype name", IndexValue: "dtype index",
        Load: "dtype buffer index mask other", PrimitiveCall: "dtype primitive operands",
    }  # fmt: skip
    assert {kind: " ".join(f.name for f in fields(kind)) for kind in known} == known
    assert set(get_args(Stmt)) <= set(known)


def test_names_do_not_count():
    renamed = KERNEL
    for old, new in (
        ("@first", "@second"),
        ("%x", "%weird"),
        ("%y", "%a"),
        ("%i", "%z"),
        ("%k", "%b"),
        ("%s", "%total"),
    ):
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


COPY = """
kernel @first(in %x: f32[8, 16], out %y: f32[8]) {
  local %s: f32[16] in shared
  copy_async %x[0, 0] -> %s[0] size 4
  wait %s
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [("%x[0, 0]", "%x[1, 0]"), ("%s[0]", "%s[1]"), ("size 4", "size 5"), ("wait %s", "wait %s pending 1")],
)
def test_copies_and_waits_count(old, new):
    assert digest(COPY.replace("%s", "%t")) == digest(COPY)
    assert digest(COPY.replace(old, new)) != digest(COPY)


def test_a_name_bound_twice_is_two_values():
    """One expression, the very same object, means another value once its name is bound again."""
    params = tuple(Param(name, TensorType(f32, (1,)), "out") for name in ("y", "z"))
    a = Ref(f32, "a")
    first, again = Let("a", const(1.0, f32)), Let("a", const(2.0, f32))
    stores = Store("y", (0,), a), Store("z", (0,), a)
    rebound = Kernel("k", params, (first, stores[0], again, stores[1]))
    unused = Kernel("k", params, (first, stores[0], replace(again, name="b"), stores[1]))
    assert kernel_digest(rebound) != kernel_digest(unused)
