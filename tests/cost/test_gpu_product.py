"""Blocks of matrix products on GPUs: what fits, what limits them, and what is chosen."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from compiler.cost.gpu_occupancy import BlockResources, occupancy, resident_blocks
from compiler.cost.gpu_product import (
    ANY_BLOCK,
    MatrixProduct,
    ProductBlock,
    best_block,
    block_resources,
    candidate_blocks,
    product_cost,
)
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
    small, large = (product_cost(p, ProductBlock(n, n, 64, 4, 3), H100) for n in (64, 128))
    assert (small.blocks, large.blocks) == (16, 4)
    assert small.seconds < large.seconds


def test_blocks_follow_each_other_in_the_program_that_holds_an_operand() -> None:
    """Normalized rows in registers: three blocks of columns leave as many multiprocessors idle as one."""
    p, block = MatrixProduct(3136, 384, 96, "f32", 4, 4), ProductBlock(64, 128, 32, 8, 1)
    free, held = (product_cost(replace(p, lhs_held=h), block, H100) for h in (False, True))
    assert (free.blocks, held.blocks) == (147, 49)
    assert held.seconds > free.seconds


def test_stages_hide_the_latency_of_memory() -> None:
    times = [product_cost(LARGE, ProductBlock(128, 256, 64, 8, stages), H100).seconds for stages in (2, 3, 4)]
    assert times == sorted(times, reverse=True)


def test_short_rows_of_a_block_waste_lines() -> None:
    block = ProductBlock(128, 128, 32, 8, 3)
    strided = replace(LARGE, lhs_neighbours="")
    assert product_cost(strided, block, H100).seconds > product_cost(LARGE, block, H100).seconds


@pytest.mark.parametrize(
    ("block", "needed"),
    [
        ((64, 32, 16, 8), 64),
        ((64, 64, 16, 4), 96),
        ((64, 64, 32, 8), 77),
        ((128, 64, 16, 4), 168),
        ((128, 128, 16, 8), 159),
    ],
)
def test_registers_of_a_product_without_matrix_unit(block: tuple[int, int, int, int], needed: int) -> None:
    """`needed` are registers without spills that ptxas found for layers of GPT-2 and ViT."""
    f32 = replace(LARGE, dtype="f32", element_bytes=4)
    assert 0.9 * needed <= block_resources(ProductBlock(*block, 3), f32, H100).registers <= 1.6 * needed


def test_a_computed_operand_takes_registers_and_cycles() -> None:
    f32, block = replace(LARGE, dtype="f32", element_bytes=4), ProductBlock(64, 64, 16, 4, 2)
    computed = replace(f32, lhs_computed=True)
    assert block_resources(block, computed, H100).registers > block_resources(block, f32, H100).registers
    assert product_cost(computed, block, H100).seconds > product_cost(f32, block, H100).seconds


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "block", "microseconds"),
    [
        (512, 3072, 768, ProductBlock(64, 16, 32, 8, 5), 731.7),
        (512, 768, 3072, ProductBlock(64, 16, 32, 4, 5), 386.5),
        (197, 384, 1536, ProductBlock(64, 16, 32, 4, 5), 75.1),
    ],
)
def test_lanes_that_read_the_same_bank_wait(
    rows: int, columns: int, depth: int, block: ProductBlock, microseconds: float
) -> None:
    """Layers of GPT-2 and ViT on an H100, before their weights were stored with columns as neighbours."""
    along_depth = MatrixProduct(rows, columns, depth, "f32", 4, 4, rhs_neighbours="depth")
    seconds = product_cost(along_depth, block, H100).seconds
    assert seconds == pytest.approx(microseconds * 1e-6, rel=0.3)
    assert product_cost(replace(along_depth, rhs_neighbours="side"), block, H100).seconds < 0.6 * seconds
    assert product_cost(along_depth, replace(block, stages=1), H100).seconds < 0.9 * seconds, "through registers"


def test_the_left_operand_of_a_repeated_product_is_loaded_once() -> None:
    scores = MatrixProduct(64, 64, 128, "bf16", 2, 4, batch=4096, repeats=64, lhs_repeated=True)
    whole, half = ProductBlock(64, 64, 128, 4, 3), ProductBlock(64, 64, 64, 4, 3)
    assert scores.keeps_lhs(whole.depth)
    assert not scores.keeps_lhs(half.depth)
    assert (
        product_cost(scores, whole, H100).resident
        > product_cost(replace(scores, lhs_repeated=False), whole, H100).resident
    )
    assert max(b.depth for b in candidate_blocks(scores, H100, ANY_BLOCK)) == 128


def test_loads_are_pipelined_along_the_innermost_loop() -> None:
    """A window of 3 x 3 around 64 channels has nine loops of four steps in blocks of 16, or of fewer, which no pipeline fills."""
    window = replace(LARGE, depth=64, repeats=9)
    stages = {(b.depth, b.stages) for b in candidate_blocks(window, H100, ProductBlock(64, 64, 0, 4, 0))}
    assert stages == {(16, 2), (32, 2), (64, 2)}
    assert {b.stages for b in candidate_blocks(LARGE, H100, ProductBlock(64, 64, 64, 4, 0))} == {3, 4, 5}


def test_an_epilogue_takes_registers() -> None:
    block = ProductBlock(128, 256, 64, 8, 3)
    assert block_resources(block, LARGE, H100).registers <= H100.thread_registers
    assert product_cost(replace(LARGE, epilogue_ops=30), block, H100).seconds == inf


def test_parts_share_the_sum() -> None:
    p = MatrixProduct(16, 64, 4096, "f16", 2, 2, epilogue_ops=5)
    parts = p.in_parts(8, along_depth=True, partial_bytes=4)
    assert (parts.depth, parts.batch, parts.result_bytes, parts.epilogue_ops) == (512, 8, 4, 0)
    assert p.in_parts(1, along_depth=True, partial_bytes=4) is p


def test_what_is_fixed_stays() -> None:
    fixed = ProductBlock(64, 0, 32, 8, 0)
    assert {(b.rows, b.depth, b.warps) for b in candidate_blocks(LARGE, H100, fixed)} == {(64, 32, 8)}
