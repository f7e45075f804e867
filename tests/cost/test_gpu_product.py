"""Blocks of matrix products on GPUs: what fits, what limits them, and what is chosen."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from compiler.cost.gpu_occupancy import BlockResources, occupancy, resident_blocks
from compiler.cost.gpu_product import MatrixProduct, ProductBlock, best_block, block_resources, candidate_blocks, price
from compiler.cost.machine import GPU, shipped_machine, shipped_names

H100 = GPU()
GPUS = [gpu for gpu in map(shipped_machine, shipped_names()) if isinstance(gpu, GPU)]
LARGE = MatrixProduct(8192, 8192, 8192, "f16", 2, 2)


def test_the_defaults_describe_an_h100() -> None:
    assert shipped_machine("h100") == H100


def test_occupancy_is_limited_by_the_scarcest_resource() -> None:
    assert resident_blocks(BlockResources(4, 32, 0), H100) == 16  # threads
    assert resident_blocks(BlockResources(4, 128, 0), H100) == 4  # registers
    assert resident_blocks(BlockResources(4, 32, 100 << 10), H100) == 2  # shared memory
    assert resident_blocks(BlockResources(1, 16, 0), H100) == 32  # blocks
    assert occupancy(BlockResources(4, 128, 0), H100) == 0.25


@pytest.mark.parametrize(
    "used", [BlockResources(4, 256, 0), BlockResources(4, 32, 228 << 10), BlockResources(16, 200, 0)]
)
def test_a_block_that_is_too_large_is_not_resident(used: BlockResources) -> None:
    assert resident_blocks(used, H100) == 0


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: f"{g.multiprocessors}x{g.frequency:.2g}")
@pytest.mark.parametrize("dtype", ["f16", "i8", "f32"])
def test_the_chosen_block_fits_and_uses_matrix_units_well(gpu: GPU, dtype: str) -> None:
    size = {"f16": 2, "i8": 1, "f32": 4}[dtype]
    found = best_block(replace(LARGE, dtype=dtype, element_bytes=size), gpu)
    assert found is not None
    block, cost = found
    assert cost.resources.registers <= gpu.thread_registers
    assert cost.resources.shared_bytes <= gpu.block_shared_bytes
    assert block.rows >= gpu.matrix_rows
    peak = 2 * 8192.0**3 / (gpu.matrix_flops(dtype) * gpu.frequency * gpu.multiprocessors)
    assert cost.seconds < 3 * peak


def test_few_blocks_leave_multiprocessors_idle() -> None:
    p = MatrixProduct(256, 256, 4096, "f16", 2, 2)
    small, large = (price(p, ProductBlock(n, n, 64, 4, 3), H100) for n in (64, 128))
    assert (small.blocks, large.blocks) == (16, 4)
    assert small.seconds < large.seconds


def test_stages_hide_the_latency_of_memory() -> None:
    times = [price(LARGE, ProductBlock(128, 256, 64, 8, stages), H100).seconds for stages in (2, 3, 4)]
    assert times == sorted(times, reverse=True)


def test_short_rows_of_a_block_waste_lines() -> None:
    block = ProductBlock(128, 128, 32, 8, 3)
    strided = replace(LARGE, lhs_neighbours="")
    assert price(strided, block, H100).seconds > price(LARGE, block, H100).seconds


@pytest.mark.parametrize(("rows", "columns", "depth", "needed"), [(16, 32, 32, 94), (16, 16, 32, 93), (16, 16, 16, 62)])
def test_a_computed_operand_without_matrix_unit_keeps_the_other_in_registers(
    rows: int, columns: int, depth: int, needed: int
) -> None:
    """`needed` are registers without spills that ptxas found for layers of SqueezeNet and MobileNetV2."""
    f32 = replace(LARGE, dtype="f32", element_bytes=4)
    block = ProductBlock(rows, columns, depth, 4, 2)
    copied, computed = (block_resources(block, replace(f32, rhs_computed=c), H100).registers for c in (False, True))
    assert copied < needed <= computed <= 1.3 * needed
    assert block_resources(block, replace(LARGE, rhs_computed=True), H100) == block_resources(block, LARGE, H100)


def test_rows_of_a_computed_product_may_not_fit() -> None:
    """ptxas spilled 1124 bytes of a layer of EfficientNet in this block."""
    f32 = replace(LARGE, dtype="f32", element_bytes=4, rhs_computed=True)
    assert block_resources(ProductBlock(256, 32, 16, 4, 2), f32, H100).registers > H100.thread_registers


def test_loads_are_pipelined_along_the_innermost_loop() -> None:
    """A window of 3 x 3 around 32 channels has nine loops of two steps in blocks of 16, or one of nine steps in blocks of 32."""
    window = replace(LARGE, depth=32, repeats=9)
    stages = {(b.depth, b.stages) for b in candidate_blocks(window, H100, ProductBlock(64, 64, 0, 4, 0))}
    assert stages == {(16, 2), (32, 2), (32, 3), (32, 4), (32, 5)}


def test_an_epilogue_takes_registers() -> None:
    block = ProductBlock(128, 256, 64, 8, 3)
    assert block_resources(block, LARGE, H100).registers <= H100.thread_registers
    assert price(replace(LARGE, epilogue_ops=9), block, H100).seconds == inf


def test_parts_share_the_sum() -> None:
    p = MatrixProduct(16, 64, 4096, "f16", 2, 2, epilogue_ops=5)
    parts = p.in_parts(8, along_depth=True, partial_bytes=4)
    assert (parts.depth, parts.batch, parts.result_bytes, parts.epilogue_ops) == (512, 8, 4, 0)
    assert p.in_parts(1, along_depth=True, partial_bytes=4) is p


def test_what_is_fixed_stays() -> None:
    fixed = ProductBlock(64, 0, 32, 8, 0)
    assert {(b.rows, b.depth, b.warps) for b in candidate_blocks(LARGE, H100, fixed)} == {(64, 32, 8)}
