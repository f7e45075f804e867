"""The digest sees through names and nothing else."""

import re
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
        Kernel: "name params body max_chunks warps max_registers persistent warp_specialized subtiles", Param: "name type role descriptor", Range: "var lo hi tile lanes unroll accumulators stages balanced", Let: "name value",
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


SIZES = """
kernel @first(size a in 2..4097 hint 500, size b in 1..65 hint 8, in %x: f32[b, a], out %y: f32[b]) max_chunks a*b//4000 {
  parallel %i in 0..b {
    local %row: f32[a]
    for %k in 0..a { store %x[%i, %k] * 2.0, %row[%k] }
    %s = reduce add %k in 0..a tile 16 lanes 16 { yield %row[%k] }
    store %s, %y[%i]
  }
}
"""


def rename_sizes(a: str, b: str) -> str:
    return re.sub(r"\b[ab]\b", lambda m: {"a": a, "b": b}[m[0]], SIZES)


def test_names_of_sizes_do_not_count_but_their_order_does() -> None:
    """A kernel takes its sizes as numbers, in the order of their names."""
    assert digest(rename_sizes("s19", "s77")) == digest(SIZES)
    assert digest(rename_sizes("s77", "s19")) != digest(SIZES)


@pytest.mark.parametrize(
    ("old", "new"),
    [("2..4097", "3..4097"), ("f32[b, a]", "f32[b, b]"), ("a*b//4000", "a*a//4000"), ("f32[a]", "f32[a + 1]"),
     ("0..b", "0..a")],
)  # fmt: skip
def test_where_sizes_stand_counts(old: str, new: str) -> None:
    assert old in SIZES
    assert digest(SIZES.replace(old, new)) != digest(SIZES)


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
