"""distribute-sums: sums whose terms are contractions, where no tile of rows divides them."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX2, AVX512, Machine
from compiler.testing.checks import check_pass

PARAMS = "in %x: f32[{n}, 8], in %w: f32[8, 16], out %y: f32[16]"


def kernel(body: str, n: int) -> str:
    return f"kernel @k({PARAMS.format(n=n)}) {{ parallel %j in 0..16 tile 16 lanes 16 {{ {body} }} }}"


def fused(n: int) -> str:
    """The sum over rows of a product, squared."""
    return kernel(f"""
      %t = reduce add %r in 0..{n} {{ %s = reduce add %k in 0..8 {{ yield %x[%r, %k] * %w[%k, %j] }} yield %s * %s }}
      store %t, %y[%j]""", n)  # fmt: skip


def test_a_sum_that_no_tile_divides_stores_its_terms() -> None:
    check_pass(
        "distribute-sums",
        before=fused(37),
        after=kernel(
            """
            local %e: f32[37]
            for %r in 0..37 { %s = reduce add %k in 0..8 { yield %x[%r, %k] * %w[%k, %j] } store %s * %s, %e[%r] }
            %t = reduce add %l in 0..37 { yield %e[%l] }
            store %t, %y[%j]""",
            37,
        ),
        remark="the terms of %t in a loop of their own",
        machine=AVX512,
    )


def test_terms_that_are_stored_already_are_stored_once() -> None:
    rows = "%s = reduce add %k in 0..8 { yield %x[%r, %k] * %w[%k, %j] } store %s, %e[%r]"
    check_pass(
        "distribute-sums",
        before=kernel(
            f"local %e: f32[37] %t = reduce add %r in 0..37 {{ {rows} yield %s }} store %t * %e[0], %y[%j]", 37
        ),
        after=kernel(
            f"""local %e: f32[37]  for %r in 0..37 {{ {rows} }}  %t = reduce add %l in 0..37 {{ yield %e[%l] }}
            store %t * %e[0], %y[%j]""",
            37,
        ),
        machine=AVX512,
    )


@pytest.mark.parametrize(("n", "machine"), [(24, AVX512), (12, AVX512)])
def test_sums_of_whole_tiles_stay(n: int, machine: Machine) -> None:
    check_pass("distribute-sums", unchanged=fused(n), machine=machine)


def test_sums_without_contractions_stay() -> None:
    text = kernel("%t = reduce add %r in 0..37 { yield %x[%r, 0] * %w[0, %j] } store %t, %y[%j]", 37)
    check_pass("distribute-sums", unchanged=text, machine=AVX2)
