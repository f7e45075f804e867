"""Distributions of small programs: a contraction, reduction or gather, and 2 to 7 operators behind it that may fuse."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.survey.operators import (
    UNARY,
    attention,
    contraction,
    convolution,
    embedding,
    embedding_bag,
    gather,
    linear,
    pooling,
    product,
    reduction,
    scan,
    transposed_convolution,
)
from benchmarks.survey.program import Builder, Family

MOST_OPERATORS = 8
"""Operators of a program."""


def followers(b: Builder, x: str) -> list[str]:
    """Return expressions of what may follow value `x`, as its shape allows."""
    shape = list(b.of(x).shape)
    rank = len(shape)
    found = [b.pick(*UNARY).format(x), b.pick(*UNARY).format(x), f"{x} * {b.pick(0.5, 2.0)}"]
    if not b.of(x).is_floating_point() or not rank:
        return [f"{x} * 2", f"{x} + 1"]
    dim = b.rng.randrange(rank)
    found += [
        f"F.softmax({x}, dim={dim})",
        f"{x}.{b.pick('mean', 'sum', 'amax')}({dim}, keepdim={b.pick(True, False)})",
    ]
    found += [f"F.layer_norm({x}, [{shape[-1]}])", f"{x} / ({x}.norm(dim={dim}, keepdim=True) + 1e-6)"]
    found += [f"{x}.transpose({dim}, {rank - 1})", f"torch.where({x} > 0, {x}, -0.1 * {x})", f"F.pad({x}, (1, 1))"]
    if shape[dim] % 2 == 0:
        halves = f"({x}.chunk(2, dim={dim})[0] * torch.sigmoid({x}.chunk(2, dim={dim})[1]))"
        found += [halves, f"{x}.narrow({dim}, 0, {shape[dim] // 2})"]
    if rank >= 3:
        found += [
            f"{x}.flatten(1, 2)",
            f"F.{b.pick('avg', 'max')}_pool1d({x}, 2)"
            if rank == 3 and shape[-1] > 1
            else f"{x} - {x}.mean(dim=1, keepdim=True)",
        ]
    if rank == 4 and min(shape[-2:]) > 1:
        found += [
            f"F.{b.pick('avg', 'max')}_pool2d({x}, 2)",
            f"{x}.mean(dim=(2, 3))",
            f'F.interpolate({x}, scale_factor=2, mode="nearest")',
        ]
    return found


def follow(b: Builder, x: str) -> str:
    """Add one statement that reads `x` and return its value."""
    shape = list(b.of(x).shape)
    kind = f".to({x}.dtype)"
    if shape and b.of(x).is_floating_point():
        if b.chance(0.2):
            channel = [d if k == max(0, min(1, len(shape) - 1)) else 1 for k, d in enumerate(shape)]
            return b.value(b.pick("{} + {}", "{} * {}").format(x, b.weight(channel, b.chance(0.7)) + kind))
        if b.chance(0.12):
            return b.value(f"{x} + {b.weight(shape, False)}{kind}")  # residual
        if b.chance(0.12):
            return b.value(f"{x} @ {b.weight([shape[-1], b.size(4, 256)], b.chance(0.7))}{kind}")
    return b.value(b.pick(*followers(b, x)))


def behind(producer: Family) -> Family:
    """Return the family of programs that begin with `producer`."""

    def build(b: Builder) -> str:
        x = producer(b)
        for _ in range(b.rng.randint(1, MOST_OPERATORS - len(b.statements))):
            x = follow(b, x)
        return x

    return build


PRODUCERS: tuple[Callable[[Builder], str], ...] = (
    convolution, transposed_convolution, product, linear, contraction, attention, reduction, pooling, scan, embedding, embedding_bag, gather,
)  # fmt: skip

FUSED_PROGRAMS: dict[str, Family] = {f"{p.__name__.replace('_', ' ')} and more": behind(p) for p in PRODUCERS}
"""Families of programs, by the operator they begin with."""
