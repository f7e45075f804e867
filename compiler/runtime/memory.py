"""Static memory planning: intermediates share one workspace, at offsets fixed before the first run.

Offsets are assigned greedily by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference"
(2020): the largest buffer first, each into the smallest gap that fits between buffers alive at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.analysis.accesses import Accesses
from compiler.errors import VerifyError
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Block, Kernel, Store, extent_hint, is_parallel_loop, stmt_body, walk
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Step, walk_steps

ALIGNMENT = 64
"""Alignment of buffers in bytes: a cache line, and the widest vector register."""

MAX_PARTIAL_STORES = 1 / 8
"""Largest share of stores of some lanes in a kernel that works in place.

Each waits 50 cycles, and a vector that need not be read into the cache before it is written saves 2 to 10 (Emerald Rapids).
"""


@dataclass(frozen=True)
class Lifetime:
    """Lifetime of `size` bytes, from step `first`, which writes them, to step `last`, their last use."""

    first: int
    last: int
    size: int

    def overlaps(self, other: Lifetime) -> bool:
        """Return True if both are alive in some step."""
        return self.first <= other.last and other.first <= self.last

    def union(self, other: Lifetime) -> Lifetime:
        """Return the lifetime of memory that holds both, one after the other."""
        return Lifetime(min(self.first, other.first), max(self.last, other.last), max(self.size, other.size))


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets of buffers in a workspace of `size` bytes; without reuse it would take `size_without_reuse`."""

    offsets: Mapping[str, int]
    size: int
    size_without_reuse: int


InPlacePairs: TypeAlias = Mapping[str, Collection[tuple[str, str]]]
"""For each kernel, the pairs (input, output) of parameters that may be the same memory."""


def in_place_pairs(program: Program) -> InPlacePairs:
    """Return the parameters of each kernel that may alias (see compiler.ir.tile.inplace), where that takes no more time."""
    return {name: faster_pairs(kernel, aliasable_pairs(kernel)) for name, kernel in program.kernels.items()}


def faster_pairs(kernel: Kernel, pairs: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
    """Return the pairs (input, output) whose output is no slower to store in place."""
    slow = partly_stored_buffers(kernel) if pairs else set()
    return {(a, b) for a, b in pairs if b not in slow}


def partly_stored_buffers(kernel: Kernel) -> set[str]:
    """Return the buffers of whose vector stores more than `MAX_PARTIAL_STORES` write some lanes only.

    In place, the next row is read where lanes that were not written end.  The CPU cannot forward them and waits for the store.
    """
    stores, partial = Counter[str](), Counter[str]()
    for a in Accesses(kernel).all:
        lanes = next((r for r in a.loops if r.lanes > 1), None)
        if a.is_store and lanes and a.execution_count:
            length = min(max(lanes.tile, lanes.lanes), extent_hint(lanes))
            tiles = a.execution_count // length
            stores[a.buffer] += tiles * -(-length // lanes.lanes)
            partial[a.buffer] += tiles * (length % lanes.lanes > 0)
    return {b for b, n in stores.items() if partial[b] > MAX_PARTIAL_STORES * n}


def grid_in_place_pairs(program: Program) -> InPlacePairs:
    """Return the same for kernels that a grid runs: each of its programs repeats the stores outside a parallel loop."""
    pairs = in_place_pairs(program)
    repeated = {name: repeated_stores(kernel) for name, kernel in program.kernels.items()}
    return {name: {(a, b) for a, b in pairs[name] if b not in repeated[name]} for name in pairs}


def repeated_stores(kernel: Kernel) -> set[str]:
    """Return the buffers that `kernel` stores to outside one of its parallel loops."""

    def stores(body: Block, loops: int) -> Iterator[str]:
        for s in body:
            if isinstance(s, Store) and loops:
                yield s.buffer
            yield from stores(stmt_body(s), loops - is_parallel_loop(s))

    return set(stores(kernel.body, sum(map(is_parallel_loop, walk(kernel.body)))))


def plan_memory(program: Program, names: Collection[str], pairs: InPlacePairs) -> MemoryPlan:
    """Plan offsets for the buffers `names`; a kernel overwrites an input that dies there if `pairs` allows it."""
    lives = lifetimes(program, names)
    owner = _assign_in_place(program, lives, pairs)
    blocks: dict[str, Lifetime] = {}
    for name, life in lives.items():
        block = owner[name]
        blocks[block] = blocks[block].union(life) if block in blocks else life
    offsets = assign_offsets(blocks)
    size = max((offsets[b] + align_up(life.size) for b, life in blocks.items()), default=0)
    return MemoryPlan({n: offsets[owner[n]] for n in lives}, size, sum(align_up(life.size) for life in lives.values()))


def lifetimes(program: Program, names: Collection[str]) -> dict[str, Lifetime]:
    """Return the lifetime of each buffer in `names`; VerifyError if one is read before it is written."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(program.steps):
        reads, writes = accessed_buffers(program, step)
        for name in reads:
            if name in names and name not in first:
                raise VerifyError(f"buffer %{name} is read by step {k} ({step}) before it is written")
            last[name] = k
        for name in writes:
            first.setdefault(name, k)
            last[name] = k
    return {n: Lifetime(first[n], last[n], _bytes(program, n)) for n in names if n in first}


def accessed_buffers(program: Program, step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the root buffers that `step` reads and those that it writes; a repeat reads what it does not write first."""
    reads, writes = dict[str, None](), dict[str, None]()
    for inner in walk_steps((step,)):
        read, written = _step_accesses(program, inner)
        reads.update((b, None) for b in map(program.root_buffer, read) if b not in writes)
        writes.update((b, None) for b in map(program.root_buffer, written))
    return tuple(reads), tuple(writes)


def _step_accesses(program: Program, step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the buffers that `step` itself reads, without nested steps, and those that it writes."""
    if isinstance(step, Copy):
        return (step.source,), (step.target,)
    if isinstance(step, OpaqueCall):
        return step.arguments, step.results
    if not isinstance(step, Launch):
        return (), ()
    pairs = list(zip(program.kernels[step.kernel].params, step.arguments, strict=True))
    return tuple(a for p, a in pairs if not p.is_written), tuple(a for p, a in pairs if p.is_written)


def assign_offsets(lives_by_name: Mapping[str, Lifetime]) -> dict[str, int]:
    """Return an offset in bytes for each lifetime, such that overlapping lifetimes get disjoint memory."""
    assigned: list[tuple[int, Lifetime]] = []
    offsets: dict[str, int] = {}
    for name, life in sorted(lives_by_name.items(), key=lambda item: (-item[1].size, item[1].first, item[0])):
        occupied = sorted((start, start + align_up(other.size)) for start, other in assigned if other.overlaps(life))
        offsets[name] = _best_gap(occupied, align_up(life.size))
        assigned.append((offsets[name], life))
    return offsets


def _best_gap(occupied: Sequence[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap of at least `size` bytes between sorted intervals, or their end."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in occupied:
        gap = start - end
        if gap >= size and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, stop)
    return best[1] if best else end


def _assign_in_place(program: Program, lives: Mapping[str, Lifetime], pairs: InPlacePairs) -> dict[str, str]:
    """Return the buffer whose memory each buffer uses: itself, or an input of the kernel that writes it."""
    owner = {name: name for name in lives}
    for k, source, target in in_place_candidates(program, pairs):
        fits = source in lives and target in lives and lives[source].size == lives[target].size
        if fits and lives[source].last == k == lives[target].first and owner[target] == target:
            owner[target] = owner[source]
    return owner


def in_place_candidates(program: Program, pairs: InPlacePairs) -> Iterator[tuple[int, str, str]]:
    """Yield (step, input, output) for outputs that may overwrite an input; each buffer at most once per step."""
    for k, step in enumerate(program.steps):
        if not isinstance(step, Launch):  # not inside repeats, where the input may be read again
            continue
        argument = dict(zip((p.name for p in program.kernels[step.kernel].params), step.arguments, strict=True))
        roots, used = [program.root_buffer(a) for a in step.arguments], set[str]()
        for source, target in sorted(pairs.get(step.kernel, ())):
            pair = argument[source], argument[target]
            if roots.count(pair[0]) == 1 and not used & {*pair}:
                used |= {*pair}
                yield k, *pair


def _bytes(program: Program, name: str) -> int:
    size = program.buffers[name].nbytes
    if not isinstance(size, int):
        raise VerifyError(
            f"buffer %{name}: {program.buffers[name]} has symbolic dimensions; specialize the program first"
        )
    return size


def align_up(size: int, unit: int = ALIGNMENT) -> int:
    """Return `size` rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit
