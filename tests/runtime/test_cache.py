"""The cache never hands out code that is not exactly what was stored."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.targets import host_target
from compiler.ir.text.tile_parser import parse_kernel
from compiler.runtime.build import Build
from compiler.runtime.cache import SHARD_COUNT, ObjectCache, object_key
from compiler.runtime.memory import ALIGNMENT

KEY, OTHER = object_key("one", target_by_name("x86-64")), object_key("other", target_by_name("x86-64"))


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path)


def entry(cache: ObjectCache) -> Path:
    (path,) = cache.directory.glob("*/*")
    return path


def test_returns_what_was_put(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    assert cache.get(OTHER) is None


def test_parts_are_one_code_that_starts_on_a_cache_line(cache):
    cache.put(KEY, b"co", b"", memoryview(b"de"))
    code = cache.view(KEY)
    assert code == b"code"
    assert np.frombuffer(code, np.uint8).ctypes.data % ALIGNMENT == 0


def test_large_entries_are_read_in_chunks_by_several_threads(cache, monkeypatch):
    code = os.urandom(100_000)
    cache.put(KEY, code)
    monkeypatch.setattr("compiler.runtime.cache.CHUNK_BYTES", 4096)
    assert cache.get(KEY) == code
    file = entry(cache)
    file.write_bytes(file.read_bytes()[:-1])
    assert cache.get(KEY) is None


def test_keys_tell_targets_apart():
    assert object_key("one", target_by_name("x86-64-v3")) != KEY != OTHER


@pytest.mark.parametrize("position", [0, 20, 50, -1])
def test_a_damaged_entry_is_absent(cache, position):
    cache.put(KEY, b"code")
    path = entry(cache)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert cache.get(KEY) is None


@pytest.mark.parametrize("length", [0, 7, 63, 64, 67])
def test_a_truncated_entry_is_absent(cache, length):
    cache.put(KEY, b"code")
    path = entry(cache)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get(KEY) is None


def test_an_entry_under_another_name_is_absent(cache):
    cache.put(KEY, b"code")
    path = cache._path(OTHER)
    path.parent.mkdir(exist_ok=True)
    entry(cache).rename(path)
    assert cache.get(OTHER) is None


def test_the_oldest_of_a_shelf_go_first(tmp_path):
    cache = ObjectCache(tmp_path, size_limit=250 * SHARD_COUNT)
    first, second, third, last = (f"ab{k:062x}" for k in range(4))
    elsewhere = "cd" + "0" * 62
    for age, key in enumerate([first, second, elsewhere]):
        cache.put(key, bytes(28))
        os.utime(cache._path(key), (1000 + age, 1000 + age))
    cache.get(first)  # used just now
    cache.put(third, bytes(28))
    assert [cache.get(k) is not None for k in (first, second, third, elsewhere)] == [True, False, True, True]
    cache.put(last, bytes(1000))
    assert [cache.get(k) is not None for k in (first, third, last, elsewhere)] == [False, False, True, True]


def test_small_entries_scan_seldom_and_keep_the_limit(tmp_path, monkeypatch):
    cache, scans = ObjectCache(tmp_path, size_limit=20_000, shards=1), []
    evict = ObjectCache._evict
    monkeypatch.setattr(ObjectCache, "_evict", lambda self, shard: (scans.append(shard), evict(self, shard)))
    for k in range(1000):
        cache.put(hashlib.sha256(bytes([k % 256, k // 256])).hexdigest(), bytes(10))
    assert 20 < len(scans) < 60  # 32 in the mean
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 22_500  # the limit, and some scans' worth


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = ObjectCache(tmp_path / "file")
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None


def test_no_directory_keeps_nothing():
    cache = ObjectCache(None)
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None


INC = """
kernel @{name}(in %{x}: f32[64], out %y: f32[64]) {{
  for %i in 0..64 tile 64 lanes 16 {{ store %{x}[%i] + 1.0, %y[%i] }}
}}
"""


def test_like_kernels_are_compiled_once(cache):
    build = Build(host_target(), cache)
    build.add_kernels([parse_kernel(INC.format(name="one", x="a")), parse_kernel(INC.format(name="two", x="b"))])
    assert build.symbols["one"] == build.symbols["two"]
    assert len(build.objects) == len(build.seconds) == 1


def test_the_next_build_finds_them(cache):
    kernel = parse_kernel(INC.format(name="one", x="a"))
    first, second = Build(host_target(), cache), Build(host_target(), cache)
    first.add_kernels([kernel])
    second.add_kernels([kernel])
    assert (first.cache_hits, second.cache_hits) == (0, 1)
    assert second.objects == first.objects


def test_a_damaged_kernel_is_compiled_again(cache):
    kernel = parse_kernel(INC.format(name="one", x="a"))
    first, second, third = (Build(host_target(), cache) for _ in range(3))
    first.add_kernels([kernel])
    entry(cache).write_bytes(entry(cache).read_bytes()[:-1] + b"?")
    second.add_kernels([kernel])
    third.add_kernels([kernel])
    assert (second.cache_hits, third.cache_hits) == (0, 1)
    assert second.objects == first.objects
