"""Recycled memory: it comes back when its last user dies, never before, and within its limit."""

import ctypes
import gc
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compiler.runtime.pool import HUGE_PAGE, PAGE, MemoryPool, size_class

MIB = 1 << 20


def vector(pool: MemoryPool, nbytes: int = MIB) -> torch.Tensor:
    return pool.empty_tensor((nbytes // 4,), (1,), torch.float32, nbytes // 4)


def test_a_dead_tensor_serves_the_next_request():
    pool = MemoryPool()
    x = vector(pool)
    address = x.data_ptr()
    assert vector(pool).data_ptr() != address
    del x
    assert address in {vector(pool).data_ptr(), vector(pool).data_ptr()}


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
    x = MemoryPool().empty_tensor((3, 5, 7), (1, 3, 15), dtype, 105)
    assert (x.shape, x.stride(), x.dtype) == ((3, 5, 7), (1, 3, 15), dtype)
    assert not x._is_view()
    values = torch.arange(105).reshape(3, 5, 7).to(dtype)
    assert torch.equal(x.copy_(values), values)


def test_alignment():
    pool = MemoryPool()
    assert pool.allocate(100).address % PAGE == 0
    assert pool.allocate(5 * MIB).address % HUGE_PAGE == 0


@given(st.integers(0, 1 << 40))
def test_a_size_class_wastes_little(nbytes):
    size = size_class(nbytes)
    assert nbytes <= size <= max(PAGE, nbytes * 9 / 8 + PAGE)
    assert size_class(size) == size


def test_every_byte_is_there():
    block = MemoryPool().allocate(3 * MIB + 5)
    ctypes.memset(block.address, 1, block.size)


def test_idle_memory_is_bounded():
    pool = MemoryPool(idle_limit=4 * MIB)
    tensors = [vector(pool, MIB) for _ in range(8)]
    newest = tensors[-1].data_ptr()
    while tensors:
        del tensors[0]
    assert pool.idle_bytes == 4 * MIB
    assert vector(pool, MIB).data_ptr() == newest


def test_sizes_idle_for_longest_go_first():
    pool = MemoryPool(idle_limit=4 * MIB)
    old, new = pool.allocate(3 * MIB), pool.allocate(2 * MIB)
    pool.release(old)
    pool.release(new)
    assert pool.allocate(2 * MIB) is new
    assert pool.idle_bytes == 0


def test_clear():
    pool = MemoryPool()
    pool.release(pool.allocate(MIB))
    pool.clear()
    assert pool.idle_bytes == 0


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
