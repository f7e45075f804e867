"""On-disk cache of compiled programs: what passes and code generation made of a graph, for the next process.

    entry ::= number of parts and length of each (8 bytes each)  pickle of `Entry`  arrays of constants
    key   ::= hash of the graph, its constants, the target, the options that decide, and the sources of the compiler and its plugins

Constants of the graph are stored as references.  Those that passes computed are stored as they were packed, each from a
cache line on, so that they stay where the entry is read to.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import platform
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

import compiler
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData, LazyConstant
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS
from compiler.ir.text.graph_printer import print_with_resources
from compiler.ir.tile.kernel import dim_hint
from compiler.ir.tile.program import Program
from compiler.ir.types import TensorType
from compiler.options import Options
from compiler.passes.base import PASSES, declaring_module
from compiler.runtime.build import Build
from compiler.runtime.cache import Buffer, ObjectCache, object_cache_for, object_key, source_hash
from compiler.runtime.constants import keep_packed, pack_once, unpack
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.cpu_limits import available_cpus
from compiler.runtime.memory import align_up
from compiler.runtime.prefaulted_arena import PrefaultedArena

DECIDING_OPTIONS = ("fuse", "winograd", "matmul_precision", "graph_passes", "tile_passes", "effort", "fallback")
"""Options that decide what a graph becomes."""

SIZE_LIMIT = 2 << 30
"""Approximate limit in bytes of all entries; the least recently used are evicted.  Chosen empirically."""

MAX_ENTRY_BYTES = 256 << 20
"""Largest entry: to read a larger one takes as long as to compile.  Chosen empirically."""


@dataclass(frozen=True)
class Entry:
    """A compiled program.  `constants` maps buffers to positions among the graph's constants, or to packed arrays."""

    program: Program
    constants: Mapping[str, int | Array]
    objects: Mapping[str, bytes]
    symbols: Mapping[str, str]
    wants_small_variant: bool


def program_key(graph: Graph, options: Options, target: CPUTarget) -> str:
    """Return the key of the program that `graph` becomes; equal graphs have equal keys in every process.

    "" if a pass or an op is declared where no file has its source, as in a notebook.
    """
    plugins = plugin_sources()
    if None in plugins:
        return ""
    text, resources = print_with_resources(graph)
    constants = resources.values()
    with ThreadPoolExecutor(available_cpus()) as pool:
        pool.map(lambda data: data.digest, sorted(constants, key=lambda data: -math.prod(data.shape)))
        versions = [source_hash(compiler), torch.__version__, np.__version__, platform.python_version()]
    chosen = [str(getattr(options, name)) for name in DECIDING_OPTIONS]
    digests = [data.digest for data in constants]
    parts = (text, *resources, *digests, repr(target.machine), *chosen, *versions, *map(str, plugins))
    return object_key(hashlib.sha256("\0".join(parts).encode()).hexdigest(), target)


def plugin_sources() -> list[str | None]:
    """Return digests of the loaded modules of packages that declare passes or ops, None for one without a file."""
    rules = (f for op in OPS.values() for f in (op.type_rule, *vars(op.structure).values()) if callable(f))
    packages = {declaring_module(f).split(".")[0] for f in (*PASSES.values(), *rules)} - {compiler.__name__}
    if not packages:
        return []
    modules = [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] in packages]
    files = [getattr(m, "__file__", None) for m in modules]
    return [hashlib.sha256(Path(f).read_bytes()).hexdigest() if f else None for f in files]


def store(key: str, graph: Graph, executable: CPUExecutable, options: Options, wants_small_variant: bool) -> None:
    """Store a program under `key`, unless it is too large or calls something that cannot be pickled."""
    positions = {data: k for k, data in enumerate(_constants(graph))}
    program, build = executable.program, executable.build
    constants = {name: positions.get(data, executable.constants[name]) for name, data in program.constants.items()}
    if sum(a.nbytes for a in constants.values() if isinstance(a, np.ndarray)) > MAX_ENTRY_BYTES:
        return
    entry = Entry(replace(program, constants={}), constants, build.objects, build.symbols, wants_small_variant)
    try:
        _cache(options).put(key, *_pack_parts(entry))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return


def load(key: str, graph: Graph, options: Options, target: CPUTarget) -> tuple[CPUExecutable, bool] | None:
    """Return the executable stored under `key`, and if it wants a variant for small sizes; None if there is none.

    Every core packs constants of the graph.
    """
    data = _cache(options).view(key)
    if data is None:
        return None
    pickled, *arrays = _split_parts(data)
    # as trustworthy as the object files: entries of other users count as absent
    entry: Entry = pickle.loads(pickled, buffers=arrays)
    own, buffers, arena = _constants(graph), entry.program.buffers, PrefaultedArena()

    def restore(name: str, stored: int | Array) -> ConstantData:
        if not isinstance(stored, int):
            return _packed_constant(buffers[name], stored)
        pack_once(own[stored], buffers[name], arena)
        return own[stored]

    packed = (_packed_bytes(buffers[n]) for n, stored in entry.constants.items() if isinstance(stored, int))
    arena.reserve(sum(packed), prefault=False)  # threads touch what they pack to
    with ThreadPoolExecutor(available_cpus()) as pool:
        restored = list(pool.map(restore, entry.constants.keys(), entry.constants.values()))
    arena.trim()
    program = replace(entry.program, constants=dict(zip(entry.constants, restored, strict=True)))
    build = Build(target, object_cache_for(options), dict(entry.objects), dict(entry.symbols), kernels=program.kernels)
    return CPUExecutable(program, target, options, build), entry.wants_small_variant


def _pack_parts(entry: Entry) -> list[Buffer]:
    arrays: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(entry, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
    parts = [memoryview(pickled), *(a.raw() for a in arrays)]
    lengths = np.array([len(parts), *(p.nbytes for p in parts)], np.int64).data.cast("B")
    return [b for part in (lengths, *parts) for b in (part, bytes(align_up(part.nbytes) - part.nbytes))]


def _split_parts(data: memoryview) -> list[memoryview]:
    count = int(np.frombuffer(data, np.int64, 1)[0])
    lengths = [8 * (1 + count), *map(int, np.frombuffer(data, np.int64, count, 8))]
    starts = accumulate(map(align_up, lengths), initial=0)
    return [data[start : start + n] for start, n in zip(starts, lengths, strict=False)][1:]


def _constants(graph: Graph) -> list[ConstantData]:
    return [node.attrs["value"] for node in graph.constants]


def _packed_bytes(type: TensorType) -> int:
    """Return the memory that a constant takes once it is packed; none where it stays as the user stores it."""
    return align_up(dim_hint(type.nbytes)) if type.layout else 0


def _packed_constant(type: TensorType, packed: Array) -> ConstantData:
    """Return the constant of which `packed` is the packed form."""
    constant = LazyConstant(type.dtype, type.static_shape(), partial(_slice, packed, type))
    keep_packed(constant, type, packed)
    return constant


def _slice(packed: Array, type: TensorType, start: int, stop: int) -> Array:
    return unpack(packed, type)[..., start:stop]


def _cache(options: Options) -> ObjectCache:
    return ObjectCache(Path(options.cache) / "programs", SIZE_LIMIT, shards=1)
