"""On-disk cache of compiled kernels, programs and tuning results.

    entry ::= magic (8 bytes)  key (32)  CRC-32 of the code (4)  zeros (20)  code

An entry that is truncated, corrupt, under a wrong name, or owned by another user counts as absent: the kernel is compiled
again and the entry replaced.  Entries are written to a temporary file and renamed, so a reader never sees a partial one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import llvmlite
import numpy as np

import compiler.codegen
import compiler.ir
import compiler.math
from compiler.options import Options
from compiler.runtime.constants import aligned_empty
from compiler.runtime.cpu_limits import available_cpus
from compiler.target import Target

ENTRY_MAGIC = b"TWOBJ\x00\x00\x02"
"""First bytes of an entry: file type and format version."""

HEADER = struct.Struct("<8s32sI20x")
"""Magic, key and checksum; as long as a cache line, so that code starts on one where the entry does."""

SIZE_LIMIT = 512 << 20
"""Approximate limit in bytes of all entries; the least recently used are evicted.  Chosen empirically."""

CHUNK_BYTES = 4 << 20
"""Bytes of a large entry that a thread reads at a time.  Threads share the first use of memory, which takes longer than the copy."""

SHARD_COUNT = 256
"""Directories that keys are spread over, each with an equal share of the limit: eviction scans only one."""

SCANS_PER_SHARE = 64
"""Scans of a shard while its share of the limit is written once.  A scan of 10,000 entries takes 50 ms, as long as to compile a small graph."""

Buffer: TypeAlias = bytes | memoryview

SOURCE_SUFFIXES = (".py", ".toml", ".ll")
"""Endings of the files that decide what the compiler does."""

CODE_PACKAGES = (compiler.codegen, compiler.ir, compiler.math)
"""Packages whose sources decide what a kernel's code is."""

OMITTED = frozenset({"triton", "ops"})
"""Directories that do not decide what becomes of a kernel."""


@dataclass(frozen=True)
class ObjectCache:
    """Object files by key in `directory`, spread over `shards` directories; disabled if it is None.  Write errors are ignored.

    A shard exceeds its share of `size_limit` by about 1 / `SCANS_PER_SHARE` of it.
    """

    directory: Path | None
    size_limit: int = SIZE_LIMIT
    shards: int = SHARD_COUNT

    def get(self, key: str) -> bytes | None:
        """Return the code stored under `key`, or None if there is no valid entry."""
        view = self.view(key)
        return None if view is None else bytes(view)

    def view(self, key: str) -> memoryview | None:
        """Return `get` without a copy, from a cache line on."""
        if self.directory is None:
            return None
        path = self._path(key)
        try:
            entry = _read_owned(path)
        except OSError:
            return None
        code = _decode_entry(key, entry)
        if code is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return code

    def put(self, key: str, *code: Buffer) -> None:
        """Store `code`, in one or several parts, under `key`, evicting old entries of its shard."""
        if self.directory is None:
            return
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines((_encode_header(key, code), *code))
                os.replace(temporary, path)
                if self._is_scan_due(key, sum(len(part) for part in code)):
                    self._evict(path.parent)
            except OSError:
                Path(temporary).unlink(missing_ok=True)

    def _is_scan_due(self, key: str, size: int) -> bool:
        """Return True for a part of the keys, which are uniform, in proportion to the bytes stored: no process has to count them."""
        return int(key[-8:], 16) * (self.size_limit // self.shards) < SCANS_PER_SHARE * size << 32

    def _evict(self, shard: Path) -> None:
        """Delete the least recently used entries of a shard until it fits its share; keep at least one."""
        entries = []
        with os.scandir(shard) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    status = file.stat()
                    entries.append((status.st_mtime, status.st_size, file.path))
        excess = sum(size for _, size, _ in entries) - self.size_limit // self.shards
        for _, size, path in sorted(entries)[:-1]:
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
                excess -= size

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / (key[:2] if self.shards > 1 else "") / f"{key}.o"


def object_cache_for(options: Options) -> ObjectCache:
    """Return the object cache in the directory `options.cache`; "" disables it."""
    return ObjectCache(Path(options.cache) if options.cache else None)


def object_key(content: str, target: Target) -> str:
    """Return the cache key of `content` (such as a kernel's digest) on `target`, for this version of the compiler."""
    parts = (content, str(target), source_hash(*CODE_PACKAGES, omitted=OMITTED), llvmlite.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read_owned(path: Path) -> memoryview:
    """Return the content of a file of this user, nothing of another's."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not _is_owned(status):
            return memoryview(b"")
        content = aligned_empty((status.st_size,), np.dtype(np.uint8)).data
        if len(content) <= CHUNK_BYTES:
            return content[: file.readinto(content)]
        read_chunk = partial(_read_chunk, file.fileno(), content)
        with ThreadPoolExecutor(available_cpus()) as pool:
            return content[: sum(pool.map(read_chunk, range(0, len(content), CHUNK_BYTES)))]


def _read_chunk(file: int, content: memoryview, start: int) -> int:
    """Read `CHUNK_BYTES` from `start` to their place in `content`; return how many there were."""
    return os.preadv(file, [content[start : start + CHUNK_BYTES]], start)


def _encode_header(key: str, code: Iterable[Buffer]) -> bytes:
    checksum = reduce(lambda crc, part: zlib.crc32(part, crc), code, 0)
    return HEADER.pack(ENTRY_MAGIC, bytes.fromhex(key), checksum)


def _decode_entry(key: str, entry: memoryview) -> memoryview | None:
    code = entry[HEADER.size :]
    return code if code and entry[: HEADER.size] == _encode_header(key, [code]) else None


def _is_owned(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


@lru_cache
def source_hash(*packages: ModuleType, omitted: frozenset[str] = frozenset()) -> str:
    """Return a hash of the sources of `packages`, without directories named in `omitted`: correct also for an edited checkout."""
    roots = [Path(package.__path__[0]) for package in packages]
    sources = (f for root in roots for f in root.rglob("*.*") if f.suffix in SOURCE_SUFFIXES)
    files = sorted(f for f in sources if not omitted.intersection(f.parts))
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()
