"""Which outputs may be written over which inputs."""

import pytest

from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.inplace import aliasable_pairs


def pairs(body: str, params: str = "in %x: f32[8, 8], out %y: f32[8, 8]") -> set[tuple[str, str]]:
    return set(aliasable_pairs(parse_kernel(f"kernel @k({params}) {{ {body} }}")))


def over(body: str) -> str:
    return f"for %i in 0..8 {{ for %j in 0..8 {{ {body} }} }}"


@pytest.mark.parametrize(
    "body",
    [
        over("store exp(%x[%i, %j]), %y[%i, %j]"),
        over("%a = %x[%i, %j]   store %a * %a, %y[%i, %j]"),
        "for %f in 0..64 tile 16 lanes 16 { store exp(%x[0, %f]), %y[0, %f] }",
        "for %i in 0..8 { for %j in 0..4 { store %x[%i, %j], %y[%i, %j] }  for %j in 4..8 { store %x[%i, %j], %y[%i, %j] } }",
        "for %b in 0..2 { for %f in %b*32..%b*32 + 32 { store exp(%x[%f//8, %f%8]), %y[%f//8, %f%8] } }",
    ],
    ids=["elementwise", "through a binding", "flat", "peeled", "in blocks"],
)
def test_shares(body):
    assert pairs(body) == {("x", "y")}


@pytest.mark.parametrize(
    ("body", "shares"),
    [
        ("for %i in 0..8 { for %j in 0..8 { store %x[%i, %j], %y[%i*8 + %j] } }", True),
        ("for %i in 0..8 { for %j in 0..6 { store %x[%i, %j], %y[%i*8 + %j] }  for %j in 6..8 { store %x[%i, %j], %y[%i*8 + %j] } }", True),
        ("for %i in 0..8 { for %j in 0..6 { store %x[%i, %j], %y[%i*8 + %j] }  for %j in 5..8 { store %x[%i, %j], %y[%i*8 + %j] } }", False),
        ("for %i in 0..8 { for %j in 0..8 { store %x[%j, %i], %y[%i*8 + %j] } }", False),
        ("for %i in 0..8 { for %j in 0..8 { store %x[%i, %j], %y[%i + %j*8] } }", False),
    ],
    ids=["flattened", "peeled", "overlapping", "read transposed", "stored transposed"],
)  # fmt: skip
def test_other_shapes_of_the_same_memory(body, shares):
    assert pairs(body, "in %x: f32[8, 8], out %y: f32[64]") == ({("x", "y")} if shares else set())


@pytest.mark.parametrize(
    "body",
    [
        over("store %x[%j, %i], %y[%i, %j]"),
        over("store %x[%i, %j] + %x[%i, 0], %y[%i, %j]"),
        over("store %x[%i, 0], %y[%i, 0]"),
        over("%a = %x[%i, %j]   store %a, %y[%i, %j]   store %a + 1.0, %z[%i, %j]"),
        over("store %x[%i, %j], %y[%i, %j]") + over("store %x[%i, %j], %y[%i, %j]"),
        "for %b in 0..2 { for %f in %b*31..%b*31 + 32 { store exp(%x[%f//8, %f%8]), %y[%f//8, %f%8] } }",
        "copy_async %x[0, 0] -> %z[0, 0] size 8, 8 " + over("store %x[%i, %j], %y[%i, %j]") + " wait %z",
        over("%s = reduce add %k in 0..8 { yield %x[%i, %k] }   store %x[%i, %j] / %s, %y[%i, %j]"),
    ],
    ids=[
        "transposed",
        "another element",
        "stored again",
        "used after the store",
        "two passes",
        "blocks that overlap",
        "copied asynchronously",
        "row sum",
    ],
)
def test_refuses(body):
    z = ", out %z: f32[8, 8]" if "%z" in body else ""
    assert ("x", "y") not in pairs(body, f"in %x: f32[8, 8], out %y: f32[8, 8]{z}")


def test_refuses_another_layout():
    body = over("store %x[%i, %j], %y[%i, %j]")
    assert not pairs(body, "in %x: f32[8, 8]{1, 0}, out %y: f32[8, 8]")
