"""Contractions of kernels as matrix products: blocks with whole rows of local buffers."""

from __future__ import annotations

import pytest

from compiler.analysis.accesses import Accesses
from compiler.cost.gpu_contraction import ProductLoops, oversized_product, product_loops
from compiler.cost.machine import GPU
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import walk

MLP = """kernel @mlp(in %x: f32[64, 96], in %w0: f32[384, 96], in %w1: f32[96, 384], out %y: f32[64, 96]) {
  parallel %i in 0..64 {
    local %p: f32[96]
    for %c in 0..96 { store exp(%x[%i, %c]), %p[%c] }
    local %a: f32[384]
    for %k in 0..384 {
      %s = reduce add %r in 0..96 { yield %p[%r] * %w0[%k, %r] }
      store max(%s, 0), %a[%k]
    }
    for %j in 0..96 {
      %t = reduce add %l in 0..384 { yield %a[%l] * %w1[%j, %l] }
      store %t, %y[%i, %j]
    }
  }
}"""


@pytest.mark.parametrize(("kibibytes", "product"), [(227, "%s"), (1024, "")])
def test_rows_of_local_buffers_fix_the_sides_of_a_block(kibibytes: int, product: str) -> None:
    """A block has 512 sums of 128 terms, for which the first weights alone take 256 KiB of shared memory."""
    size = kibibytes << 10
    gpu = GPU(block_shared_bytes=size, shared_bytes=size + 1024, register_file=1 << 17, has_matrix_f32=True)
    problem = oversized_product(parse_kernel(MLP), gpu)
    assert problem.startswith(f"no block of {product} fits" if product else "")
    assert bool(problem) == bool(product)


def test_registers_of_a_product_without_matrix_unit() -> None:
    """128 terms of an operand do not fit the registers of a thread, whatever the shared memory."""
    assert "%s fits" in oversized_product(parse_kernel(MLP), GPU(block_shared_bytes=1 << 20, shared_bytes=1 << 21))


@pytest.mark.parametrize(("columns", "is_held"), [("for %j in 0..96", True), ("parallel %j in 0..96", False)])
def test_rows_are_held_where_their_program_computes_all_columns(columns: str, is_held: bool) -> None:
    """Only the rows: the weights are read from memory."""
    kernel = parse_kernel(MLP.replace("for %j in 0..96", columns))
    table = Accesses(kernel)
    *_, second = filter(None, map(contraction_of, walk(kernel.body)))
    found = product_loops(table, second)
    assert isinstance(found, ProductLoops)
    assert (found.product.lhs_held, found.product.rhs_held) == (is_held, False)
