"""Occupancy: how many blocks of a kernel a multiprocessor of a GPU holds at once, limited by its registers, shared memory and threads."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.cost.machine import GPU


@dataclass(frozen=True)
class BlockResources:
    """Resources of one block: `warps`, 32-bit `registers` of a thread, and bytes of shared memory."""

    warps: int
    registers: int
    shared_bytes: int


def resident_blocks(used: BlockResources, gpu: GPU) -> int:
    """Return the blocks that a multiprocessor holds at once; 0 if one block does not fit, or its threads need too many registers."""
    threads = used.warps * gpu.warp_threads
    if used.registers > gpu.thread_registers or used.shared_bytes > gpu.block_shared_bytes:
        return 0
    return min(
        gpu.resident_blocks,
        gpu.resident_threads // threads,
        gpu.register_file // (threads * used.registers),
        gpu.shared_bytes // (used.shared_bytes + gpu.system_shared_bytes),
    )


def occupancy(used: BlockResources, gpu: GPU) -> float:
    """Return the share of a multiprocessor's threads that are resident."""
    return resident_blocks(used, gpu) * used.warps * gpu.warp_threads / gpu.resident_threads
