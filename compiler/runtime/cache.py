"""On-disk cache of compiled kernels, programs and tuning results.

    entry ::= magic (8 bytes)  key (32)  sha256 of the code (32)  code

An entry that is truncated, corrupt, under a wrong name, or owned by another user counts as absent: the kernel is compiled
again and the entry replaced.  Entries are written to a temporary file and renamed, so a reader never sees a partial one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import llvmlite

import compiler.codegen
import compiler.ir
import compiler.math
from compiler.codegen.llvm.targets import CPUTarget
from compiler.options import Options

ENTRY_MAGIC = b"TWOBJ\x00\x00\x01"
"""First bytes of an entry: file type and format version."""

DIGEST_BYTES = hashlib.sha256().digest_size

SIZE_LIMIT = 512 << 20
"""Approximate limit in bytes of all entries; the least recently used are evicted.  Chosen empirically."""

SHARD_COUNT = 256
"""Directories that keys are spread over, each with an equal share of the limit: storing an entry scans only one."""


SOURCE_SUFFIXES = (".py", ".toml", ".ll")
"""Endings of the files that decide what the compiler does."""

CODE_PACKAGES = (compiler.codegen, compiler.ir, compiler.math)
"""Packages whose sources decide what a kernel's code is."""

OMITTED = frozenset({"triton", "ops"})
"""Directories that do not decide what becomes of a kernel."""


@dataclass(frozen=True)
class ObjectCache:
    """Object files by key in `directory`, spread over `shards` directories; disabled if it is None.  Write errors are ignored."""

    directory: Path | None
    size_limit: int = SIZE_LIMIT
    shards: int = SHARD_COUNT

    def get(self, key: str) -> bytes | None:
        """Return the code stored under `key`, or None if there is no valid entry."""
        view = self.view(key)
        return None if view is None else bytes(view)

    def view(self, key: str) -> memoryview | None:
        """Return `get` without a copy."""
        if self.directory is None:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                entry = file.read() if _is_owned(os.fstat(file.fileno())) else b""
        except OSError:
            return None
        code = _decode_entry(key, entry)
        if code is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return code

    def put(self, key: str, code: bytes) -> None:
        """Store `code` under `key`, evicting old entries of its shard."""
        if self.directory is None:
            return
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_encode_entry(key, code))
                os.replace(temporary, path)
                self._evict(path.parent)
            except OSError:
                Path(temporary).unlink(missing_ok=True)

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


def object_key(content: str, target: CPUTarget) -> str:
    """Return the cache key of `content` (such as a kernel's digest) on `target`, for this version of the compiler."""
    parts = (content, str(target), source_hash(*CODE_PACKAGES, omitted=OMITTED), llvmlite.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _encode_entry(key: str, code: bytes) -> bytes:
    return ENTRY_MAGIC + bytes.fromhex(key) + hashlib.sha256(code).digest() + code


def _decode_entry(key: str, entry: bytes) -> memoryview | None:
    header = len(ENTRY_MAGIC) + 2 * DIGEST_BYTES
    code = memoryview(entry)[header:]
    expected = ENTRY_MAGIC + bytes.fromhex(key) + hashlib.sha256(code).digest()
    return code if code and entry[:header] == expected else None


def _is_owned(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


@lru_cache
def source_hash(*packages: ModuleType, omitted: frozenset[str] = frozenset()) -> str:
    """Return a hash of the sources of `packages`, without directories named in `omitted`: correct also for an edited checkout."""
    roots = [Path(package.__path__[0]) for package in packages]
    sources = (f for root in roots for f in root.rglob("*.*") if f.suffix in SOURCE_SUFFIXES)
    files = sorted(f for f in sources if not omitted.intersection(f.parts))
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()
