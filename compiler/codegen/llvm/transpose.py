"""Blocks of elements turned in registers: rows that lie side by side in memory become the lanes of vectors, and back.

A network of shuffles of two vectors each, log2(width) for every vector, as in Eklundh, "A Fast Computer Method for Matrix Transposing",
1972.  The first ones stay within chunks of 16 bytes, where most machines shuffle for less; the others move whole chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.llvm.builder import Builder

CHUNK = 16
"""Bytes of a vector that are shuffled among themselves."""


def narrowest(lanes: int, bytes_: int) -> int:
    """The least columns of a block with `lanes` rows: what fills a chunk."""
    return min(lanes, max(1, CHUNK // bytes_))


def width_of(columns: int, lanes: int, bytes_: int) -> int:
    """How many columns a block takes in registers that has `columns` of them: a power of two."""
    return max(narrowest(lanes, bytes_), 1 << (columns - 1).bit_length())


def to_columns(b: Builder, rows: Sequence[str], element: str, width: int, inside: int) -> list[str]:
    """The `width` columns of a block, each a vector with a lane for every row; a row is a vector of `width` elements.

    A chunk has `inside` elements.  Of rows narrower than their number, several first share a vector.
    """
    lanes = len(rows)
    shared = lanes // width
    low = [r for r in range(lanes) if r // inside % shared == 0]
    vectors = [_joined(b, [rows[r + h * inside] for h in range(shared)], element, width) for r in low]
    return exchanged(b, vectors, element, lanes, inside)


def to_rows(b: Builder, columns: Sequence[str], element: str, lanes: int, inside: int) -> list[str]:
    """The rows of a block, each a vector of as many elements as there are columns, of `lanes` lanes each."""
    width = len(columns)
    vectors = exchanged(b, columns, element, lanes, inside)
    shared, chunks = lanes // width, width // inside
    rows = []
    for r in range(lanes):
        picks = [(c * shared + r // width) * inside + k for c in range(chunks) for k in range(inside)]
        rows.append(_shuffle(b, vectors[r % width], "poison", element, lanes, picks) if shared > 1 else vectors[r])
    return rows


def exchanged(b: Builder, vectors: Sequence[str], element: str, lanes: int, inside: int) -> list[str]:
    """The low bits of lane numbers change places with those of vector numbers, as many as vector numbers have.

    The lane bits that stay end between those that count elements of a chunk and those that count chunks.
    """
    count = len(vectors)
    bits, first = count.bit_length() - 1, inside.bit_length() - 1
    now = list(vectors)
    for bit in range(bits):
        within = bit < first
        for k in range(count):
            if k >> bit & 1 == 0:
                other = k | 1 << bit
                pair = now[k], now[other]
                now[k], now[other] = (
                    _shuffle(b, *pair, element, lanes, _picks(lanes, inside, 1 << bit if within else 0, high))
                    for high in (0, 1)
                )
    # the steps within chunks take lane bits from the highest on, so that their vectors' bits come out turned round
    turned = [sum((k >> x & 1) << (first - 1 - x) for x in range(first)) | k >> first << first for k in range(count)]
    return [now[k] for k in turned]


def _picks(lanes: int, inside: int, grain: int, high: int) -> list[int]:
    """Which elements of two vectors side by side a step takes for the lower or the higher of its results.

    Within chunks: of both, in turns, the lower or higher half of each chunk in pieces of `grain` elements.  Between chunks, where
    `grain` is 0: the even or the odd chunks of the first, then those of the second.
    """
    if not grain:
        chunks = [c for c in range(2 * lanes // inside) if c % 2 == high]
        return [c * inside + k for c in chunks for k in range(inside)]
    half = inside // 2
    pieces = range(0, half, grain)
    return [
        side * lanes + chunk + high * half + piece + k
        for chunk in range(0, lanes, inside)
        for piece in pieces
        for side in (0, 1)
        for k in range(grain)
    ]


def _joined(b: Builder, parts: list[str], element: str, width: int) -> str:
    """Vectors of `width` elements one behind the other."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [_shuffle(b, one, two, element, width, range(2 * width)) for one, two in pairs]
        width *= 2
    return parts[0]


def _shuffle(b: Builder, one: str, two: str, element: str, lanes: int, picks: Sequence[int]) -> str:
    vector, chosen = f"<{lanes} x {element}>", ", ".join(f"i32 {p}" for p in picks)
    return b.emit(f"shufflevector {vector} {one}, {vector} {two}, <{len(picks)} x i32> <{chosen}>")
