"""fuse: one loop for two adjacent ones, and stored values read from registers."""

from __future__ import annotations

import pytest

from compiler.errors import TransformError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Block, For, Reduce
from compiler.ir.tile.substitution import NameSupply
from compiler.transforms.fuse import forward_store, fuse, require_local_stores
from tests.transforms.apply import body_of, check_transform


def kernel(body: str) -> str:
    return f"kernel @k(in %x: f32[9], out %y: f32[9], out %z: f32[9, 9]) {{ {body} }}"


def fused(body: Block) -> Block:
    *rest, first, second = body
    assert isinstance(first, For)
    assert isinstance(second, (For, Reduce))
    return (*rest, fuse(first, second, NameSupply(parse_kernel(kernel("")).with_body(body))))


def test_two_loops_over_the_same_range() -> None:
    check_transform(
        fused,
        before=kernel("""for %i in 0..9 { store %x[%i], %y[%i] }
                         for %k in 0..9 { for %j in 0..9 { store %y[%k], %z[%k, %j] } }"""),
        after=kernel("for %k in 0..9 { store %x[%k], %y[%k] for %j in 0..9 { store %y[%k], %z[%k, %j] } }"),
    )


def test_names_that_clash_are_renamed() -> None:
    check_transform(
        fused,
        before=kernel("""parallel %i in 0..9 { %v = %x[%i] * 2.0 store %v, %y[%i] }
                         parallel %k in 0..9 { %v = %x[%k] * 3.0 store %v, %z[%k, 0] }"""),
        after=kernel("parallel %k in 0..9 { %u = %x[%k]*2.0 store %u, %y[%k] %v = %x[%k]*3.0 store %v, %z[%k, 0] }"),
    )


REFUSED = {
    "the ranges of %i and %k differ": """
        for %i in 0..9 { store %x[%i], %y[%i] }  for %k in 0..8 { store %y[%k], %z[%k, 0] }""",
    "only one of the loops %i and %k is parallel": """
        for %i in 0..9 { store %x[%i], %y[%i] }  parallel %k in 0..9 { store %y[%k], %z[%k, 0] }""",
    "iterations of %k depend on each other through %y": """
        for %i in 0..9 { store %x[%i], %y[%i] }  for %k in 0..9 { store %y[8 - %k], %z[%k, 0] }""",
    "depend on each other through %y": """
        for %i in 0..9 { store %x[%i], %y[%i] }  for %k in 0..9 { store %x[%k], %y[0] }""",
    "each other through %z": """
        for %i in 0..9 { for %j in 0..9 { store %x[%i], %z[%i, %j] } }
        for %k in 0..9 { for %j in 0..9 { store %x[%k], %z[%j, %k] } }""",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason: str) -> None:
    with pytest.raises(TransformError, match=reason):
        fused(body_of(kernel(REFUSED[reason])))


def test_a_reduction_stores_to_local_buffers_only() -> None:
    (loop,) = body_of(kernel("for %i in 0..9 { store %x[%i], %y[%i] }"))
    assert isinstance(loop, For)
    require_local_stores(loop, {"y"})
    with pytest.raises(TransformError, match="a reduction must not store to %y"):
        require_local_stores(loop, {"t"})


def test_a_stored_value_is_read_from_its_register() -> None:
    before = kernel("store %x[0] * 2.0, %y[3]  store %y[3] + %y[4], %z[0, 0]")
    after = kernel("%v = %x[0] * 2.0  store %v, %y[3]  store %v + %y[4], %z[0, 0]")
    check_transform(lambda b: forward_store(b, 0, "v"), before, after)
    with pytest.raises(TransformError, match="%y is stored to again"):
        forward_store(body_of(kernel("store %x[0], %y[3]  store %x[1], %y[4]")), 0, "v")
