"""Recycled memory: it comes back when its last user dies, never before, and within its limit."""

import ctypes
import gc
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compiler.runtime.pool import HUGE_PAGE, PAGE, MemoryPool, map_block, size_class

MIB = 1 << 20


def vector(pool: MemoryPool, nbytes: int = MIB) -> torch.Tensor:
    return pool.queue(nbytes, torch.float32).empty_tensor((nbytes // 4,), (1,))


def test_a_dead_tensor_serves_the_next_request():
    pool = MemoryPool()
    x = vector(pool)
    address = x.data_ptr()
    assert vector(pool).data_ptr() != address
    del x
    x, y = vector(pool), vector(pool)
    assert address in {x.data_ptr(), y.data_ptr()}


def test_a_view_keeps_the_block():
    pool = MemoryPool()
    x = vector(pool)
    view = x[1000:1004].fill_(7)
    del x
    gc.collect()
    assert pool.idle_bytes == 0
    vector(pool).fill_(1)
    assert view.tolist() == [7, 7, 7, 7]
    del view
    assert pool.idle_bytes > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_are_what_they_say(dtype):
    x = MemoryPool().queue(105 * dtype.itemsize, dtype).empty_tensor((3, 5, 7), (1, 3, 15))
    assert (x.shape, x.stride(), x.dtype) == ((3, 5, 7), (1, 3, 15), dtype)
    assert not x._is_view()
    values = torch.arange(105).reshape(3, 5, 7).to(dtype)
    assert torch.equal(x.copy_(values), values)


def test_alignment():
    assert map_block(100).address % PAGE == 0
    assert map_block(5 * MIB).address % HUGE_PAGE == 0
    assert vector(MemoryPool(), 5 * MIB).data_ptr() % HUGE_PAGE == 0


@given(st.integers(0, 1 << 40))
def test_a_size_class_wastes_little(nbytes):
    size = size_class(nbytes)
    assert nbytes <= size <= max(PAGE, nbytes * 9 / 8 + PAGE)
    assert size_class(size) == size


def test_every_byte_is_there():
    block = map_block(3 * MIB + 5)
    ctypes.memset(block.address, 1, block.size)


def test_held_memory_is_bounded():
    pool = MemoryPool(limit=4 * MIB)
    tensors = [vector(pool, MIB).fill_(k) for k in range(8)]
    assert [int(x[-1]) for x in tensors] == list(range(8)), "blocks that the pool forgets stay mapped"
    newest = tensors[-1].data_ptr()
    tensors.clear()
    assert pool.idle_bytes == 4 * MIB
    assert vector(pool, MIB).data_ptr() == newest


def test_a_block_larger_than_the_limit_is_not_kept():
    pool = MemoryPool(limit=4 * MIB)
    x = vector(pool, 8 * MIB).fill_(5)
    assert int(x[-1]) == 5
    del x
    assert pool.idle_bytes == 0


def test_blocks_used_longest_ago_go_first():
    pool = MemoryPool(limit=4 * MIB)
    vector(pool, 2 * MIB)
    new = vector(pool, MIB).data_ptr()
    vector(pool, 2 * MIB + 1)
    assert vector(pool, MIB).data_ptr() == new
    assert pool.idle_bytes == MIB + size_class(2 * MIB + 1)


def test_an_idle_block_is_found_among_many_in_use():
    pool = MemoryPool()
    tensors = [vector(pool) for _ in range(40)]
    address = tensors[20].data_ptr()
    del tensors[20]
    assert address in {vector(pool).data_ptr() for _ in range(10)}


def test_a_block_made_in_inference_mode_serves_training():
    pool = MemoryPool()
    with torch.inference_mode():
        vector(pool)
    x = vector(pool).fill_(2).requires_grad_()
    (x * x).sum().backward()
    assert x.grad is not None
    assert float(x.grad[0]) == 4


def test_clear():
    pool = MemoryPool()
    x = vector(pool)
    vector(pool)
    pool.clear()
    assert pool.idle_bytes == 0
    address = x.fill_(3).data_ptr()
    assert vector(pool).data_ptr() != address


def test_threads_never_share_a_block():
    pool, wrong = MemoryPool(), []

    def work(mark: int) -> None:
        for _ in range(200):
            x = vector(pool, 1 << 16).fill_(mark)
            y = vector(pool, 1 << 16).fill_(-mark)
            if not (bool((x == mark).all()) and bool((y == -mark).all())):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(k + 1,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
