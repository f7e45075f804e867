"""Register transposes: rows that are contiguous in memory become the lanes of vectors, and back.

A network of two-vector shuffles, log2(width) per vector, as in Eklundh, "A Fast Computer Method for Matrix Transposing",
1972.  The first stages shuffle within chunks of 16 bytes, which most machines do faster.  Later stages move chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.llvm.builder import IRBuilder

CHUNK_BYTES = 16
"""Bytes of the parts of a vector within which the first stages shuffle: an SSE register, and a 128-bit lane of AVX."""


def min_block_columns(lanes: int, bytes_: int) -> int:
    """Return the fewest columns of a block with `lanes` rows of elements of `bytes_` bytes: they fill a chunk."""
    return min(lanes, max(1, CHUNK_BYTES // bytes_))


def register_columns(columns: int, lanes: int, bytes_: int) -> int:
    """Return the number of columns that a block is padded to in registers: a power of two."""
    return max(min_block_columns(lanes, bytes_), 1 << (columns - 1).bit_length())


def to_columns(b: IRBuilder, rows: Sequence[str], element: str, width: int, chunk_elements: int) -> list[str]:
    """Return the `width` columns of a block as vectors of `len(rows)` lanes; a row is a vector of `width` elements.

    A chunk has `chunk_elements` elements.  If rows are narrower than a vector, several are concatenated first.
    """
    lanes = len(rows)
    rows_per_vector = lanes // width
    first_rows = [r for r in range(lanes) if r // chunk_elements % rows_per_vector == 0]
    groups = [[rows[r + h * chunk_elements] for h in range(rows_per_vector)] for r in first_rows]
    vectors = [concat_vectors(b, group, element, width) for group in groups]
    return swap_index_bits(b, vectors, element, lanes, chunk_elements)


def to_rows(b: IRBuilder, columns: Sequence[str], element: str, lanes: int, chunk_elements: int) -> list[str]:
    """Return the `lanes` rows of a block; a column is a vector of `lanes` lanes, a row has one element per column."""
    width = len(columns)
    vectors = swap_index_bits(b, columns, element, lanes, chunk_elements)
    rows_per_vector, chunks = lanes // width, width // chunk_elements
    if rows_per_vector == 1:
        return vectors
    rows = []
    for r in range(lanes):
        starts = [(c * rows_per_vector + r // width) * chunk_elements for c in range(chunks)]
        mask = [start + k for start in starts for k in range(chunk_elements)]
        rows.append(shuffle(b, vectors[r % width], "poison", element, lanes, mask))
    return rows


def interleave(b: IRBuilder, columns: Sequence[str], element: str, lanes: int) -> list[str]:
    """Return vectors of lane 0 of every column, then lane 1 of every column, and so on; as many as there are columns.

    An even number of different columns is two interleaved halves.  Equal columns take part in one shuffle.
    """
    count, sources = len(columns), list(dict.fromkeys(columns))
    if count == 1:
        return list(columns)
    if count % 2 == 0 and len(sources) > 1:
        halves = [interleave(b, columns[k::2], element, lanes) for k in (0, 1)]
        masks = [[start + k // 2 + k % 2 * lanes for k in range(lanes)] for start in (0, lanes // 2)]
        return [shuffle(b, x, y, element, lanes, mask) for x, y in zip(*halves, strict=True) for mask in masks]
    vectors = []
    for first in range(0, count * lanes, lanes):
        places = [divmod(first + k, count) for k in range(lanes)]  # lane and column of each element
        picks = [lane if columns[c] == sources[0] else -1 for lane, c in places]
        vector = sources[0]
        for source in sources[1:]:
            picks = [lanes + lane if columns[c] == source else p for p, (lane, c) in zip(picks, places, strict=True)]
            vector = shuffle(b, vector, source, element, lanes, picks)
            picks = [k if p >= 0 else -1 for k, p in enumerate(picks)]
        vectors.append(vector if sources[1:] else shuffle(b, vector, "poison", element, lanes, picks))
    return vectors


def swap_index_bits(b: IRBuilder, vectors: Sequence[str], element: str, lanes: int, chunk_elements: int) -> list[str]:
    """Swap all bits of the vector number with as many bits of the lane number.

    Of the lane bits that remain, those within a chunk come out low and those that number chunks come out high.
    """
    count = len(vectors)
    bits, chunk_bits = count.bit_length() - 1, chunk_elements.bit_length() - 1
    swapped = list(vectors)
    for bit in range(bits):
        grain = 1 << bit if bit < chunk_bits else 0
        masks = [_shuffle_mask(lanes, chunk_elements, grain, high) for high in (0, 1)]
        for k in range(count):
            if k >> bit & 1 == 0:
                other = k | 1 << bit
                pair = swapped[k], swapped[other]
                swapped[k], swapped[other] = (shuffle(b, *pair, element, lanes, mask) for mask in masks)
    # stages within chunks take lane bits from the highest down, so these bits of the vector number come out reversed
    low_reversed = [sum((k >> x & 1) << (chunk_bits - 1 - x) for x in range(chunk_bits)) for k in range(count)]
    return [swapped[low | k >> chunk_bits << chunk_bits] for k, low in enumerate(low_reversed)]


def _shuffle_mask(lanes: int, chunk_elements: int, grain: int, high: int) -> list[int]:
    """Return the mask over two concatenated vectors that gives the lower (`high` = 0) or higher result of a stage.

    Within chunks: interleave runs of `grain` elements from the lower or higher half of each chunk of both vectors.
    Between chunks (`grain` = 0): the even or odd chunks of the first vector, then those of the second.
    """
    if not grain:
        chunks = [c for c in range(2 * lanes // chunk_elements) if c % 2 == high]
        return [c * chunk_elements + k for c in chunks for k in range(chunk_elements)]
    half = chunk_elements // 2
    return [
        vector * lanes + chunk + high * half + run + k
        for chunk in range(0, lanes, chunk_elements)
        for run in range(0, half, grain)
        for vector in (0, 1)
        for k in range(grain)
    ]


def concat_vectors(b: IRBuilder, vectors: Sequence[str], element: str, width: int) -> str:
    """Concatenate vectors of `width` elements, pairwise; their number is a power of two."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [shuffle(b, x, y, element, width, range(2 * width)) for x, y in pairs]
        width *= 2
    return vectors[0]


def shuffle(b: IRBuilder, x: str, y: str, element: str, lanes: int, mask: Sequence[int]) -> str:
    """Return the elements `mask` of two vectors of `lanes` elements, numbered through; -1 for any."""
    vector, indices = f"<{lanes} x {element}>", ", ".join(f"i32 {p}" if p >= 0 else "i32 poison" for p in mask)
    return b.emit(f"shufflevector {vector} {x}, {vector} {y}, <{len(mask)} x i32> <{indices}>")
