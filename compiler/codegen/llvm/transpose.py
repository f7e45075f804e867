"""Blocks of elements turned in registers: rows that lie side by side in memory become the lanes of vectors, and back.

A network of shuffles of two vectors each, log2(width) for every vector, as in Eklundh, "A Fast Computer Method for Matrix Transposing",
1972.  The first ones stay within chunks of 16 bytes, where most machines shuffle for less; the others move whole chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.llvm.builder import IRBuilder

CHUNK_BYTES = 16
"""Bytes of a vector that are shuffled among themselves."""


def min_block_columns(lanes: int, bytes_: int) -> int:
    """The least columns of a block with `lanes` rows: what fills a chunk."""
    return min(lanes, max(1, CHUNK_BYTES // bytes_))


def register_columns(columns: int, lanes: int, bytes_: int) -> int:
    """How many columns a block takes in registers that has `columns` of them: a power of two."""
    return max(min_block_columns(lanes, bytes_), 1 << (columns - 1).bit_length())


def to_columns(b: IRBuilder, rows: Sequence[str], element: str, width: int, chunk_elements: int) -> list[str]:
    """The `width` columns of a block, each a vector with a lane for every row; a row is a vector of `width` elements.

    A chunk has `inside` elements.  Of rows narrower than their number, several first share a vector.
    """
    lanes = len(rows)
    shared = lanes // width
    low = [r for r in range(lanes) if r // chunk_elements % shared == 0]
    vectors = [_concat_vectors(b, [rows[r + h * chunk_elements] for h in range(shared)], element, width) for r in low]
    return swap_index_bits(b, vectors, element, lanes, chunk_elements)


def to_rows(b: IRBuilder, columns: Sequence[str], element: str, lanes: int, chunk_elements: int) -> list[str]:
    """The rows of a block, each a vector of as many elements as there are columns, of `lanes` lanes each."""
    width = len(columns)
    vectors = swap_index_bits(b, columns, element, lanes, chunk_elements)
    shared, chunks = lanes // width, width // chunk_elements
    rows = []
    for r in range(lanes):
        picks = [(c * shared + r // width) * chunk_elements + k for c in range(chunks) for k in range(chunk_elements)]
        rows.append(_shuffle(b, vectors[r % width], "poison", element, lanes, picks) if shared > 1 else vectors[r])
    return rows


def swap_index_bits(b: IRBuilder, vectors: Sequence[str], element: str, lanes: int, chunk_elements: int) -> list[str]:
    """The low bits of lane numbers change places with those of vector numbers, as many as vector numbers have.

    The lane bits that stay end between those that count elements of a chunk and those that count chunks.
    """
    count = len(vectors)
    bits, first = count.bit_length() - 1, chunk_elements.bit_length() - 1
    now = list(vectors)
    for bit in range(bits):
        within = bit < first
        for k in range(count):
            if k >> bit & 1 == 0:
                other = k | 1 << bit
                pair = now[k], now[other]
                now[k], now[other] = (
                    _shuffle(
                        b, *pair, element, lanes, _shuffle_mask(lanes, chunk_elements, 1 << bit if within else 0, high)
                    )
                    for high in (0, 1)
                )
    # the steps within chunks take lane bits from the highest on, so that their vectors' bits come out turned round
    bit_reversed = [
        sum((k >> x & 1) << (first - 1 - x) for x in range(first)) | k >> first << first for k in range(count)
    ]
    return [now[k] for k in bit_reversed]


def _shuffle_mask(lanes: int, chunk_elements: int, grain: int, high: int) -> list[int]:
    """Which elements of two vectors side by side a step takes for the lower or the higher of its results.

    Within chunks: of both, in turns, the lower or higher half of each chunk in pieces of `grain` elements.  Between chunks, where
    `grain` is 0: the even or the odd chunks of the first, then those of the second.
    """
    if not grain:
        chunks = [c for c in range(2 * lanes // chunk_elements) if c % 2 == high]
        return [c * chunk_elements + k for c in chunks for k in range(chunk_elements)]
    half = chunk_elements // 2
    pieces = range(0, half, grain)
    return [
        side * lanes + chunk + high * half + piece + k
        for chunk in range(0, lanes, chunk_elements)
        for piece in pieces
        for side in (0, 1)
        for k in range(grain)
    ]


def _concat_vectors(b: IRBuilder, parts: list[str], element: str, width: int) -> str:
    """Vectors of `width` elements one behind the other."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [_shuffle(b, one, two, element, width, range(2 * width)) for one, two in pairs]
        width *= 2
    return parts[0]


def _shuffle(b: IRBuilder, one: str, two: str, element: str, lanes: int, mask: Sequence[int]) -> str:
    vector, chosen = f"<{lanes} x {element}>", ", ".join(f"i32 {p}" for p in mask)
    return b.emit(f"shufflevector {vector} {one}, {vector} {two}, <{len(mask)} x i32> <{chosen}>")
