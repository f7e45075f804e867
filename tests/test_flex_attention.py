"""`flex_attention`: scores that the user's functions change and hide, exported and captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import compiler
from compiler import Options, UnsupportedOpError
from compiler.report.measure import numerical_error
from compiler.torch_backend import tilewright

OPTIONS = Options(cache="")
LENGTH = 12


class Attention(nn.Module):
    """Attention of 4 heads whose scores are changed in a way that has a name."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.slope = nn.Parameter(torch.randn(4))
        self.table = nn.Parameter(torch.randn(4, 2 * LENGTH - 1))
        self.most = nn.Parameter(torch.tensor(2.0))
        self.document: Tensor
        self.register_buffer("document", torch.tensor([0] * 4 + [1] * 3 + [2] * 5))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        match self.way:
            case "plain":
                return flex_attention(q, k, v)
            case "sums of each row":
                return flex_attention(q, k, v, return_lse=True)
            case "shared heads":
                return flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
        changes = {
            "slope": lambda s, b, h, i, j: s + self.slope[h] * (i - j),
            "table": lambda s, b, h, i, j: s + self.table[h, i - j + LENGTH - 1],
            "cap": lambda s, b, h, i, j: torch.tanh(s / self.most) * self.most,
            "beside each other": lambda s, b, h, i, j: torch.where((i - j).abs() < 2, s * 2, s + b * 0.1),
        }
        if self.way in changes:
            return flex_attention(q, k, v, score_mod=changes[self.way], scale=0.3)
        masks = {
            "causal": lambda b, h, i, j: i >= j,
            "documents": lambda b, h, i, j: (self.document[i] == self.document[j]) & (i >= j),
            "window": lambda b, h, i, j: (i - j).abs() <= 3,
            "a prefix": lambda b, h, i, j: (i >= j) | (j < 4),
            "empty rows": lambda b, h, i, j: i > j,
            "by heads": lambda b, h, i, j: (h < 2) | (i >= j),
        }
        seen = create_block_mask(masks[self.way], None, 4, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=seen)


WAYS = (
    "plain", "sums of each row", "shared heads", "slope", "table", "cap", "beside each other",
    "causal", "documents", "window", "a prefix", "empty rows", "by heads",
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def arguments(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 4, LENGTH, 8, dtype=dtype) for _ in range(3))


def exported(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[..., Any]:
    return compiler.compile(model, args, options=OPTIONS)


def captured(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[..., Any]:
    return torch.compile(model, backend=tilewright, fullgraph=True)


@pytest.mark.parametrize("compiled", [exported, captured])
@pytest.mark.parametrize("way", WAYS)
def test_numbers(way: str, compiled: Callable[..., Callable[..., Any]]) -> None:
    model, args = Attention(way), arguments()
    got = compiled(model, args)(*args)
    true = model(*(a.double() for a in args))
    for mine, exact in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, true)), strict=True):
        assert numerical_error([mine], [exact]).relative < 1e-6


@pytest.mark.parametrize("way", ["plain", "slope", "empty rows"])
def test_halves_are_summed_in_f32(way: str) -> None:
    model, args = Attention(way), arguments(torch.bfloat16)
    got, true = exported(model, args)(*args), model(*(a.double() for a in args))
    own = numerical_error([model(*args)], [true]).relative
    assert got.dtype == torch.bfloat16
    assert numerical_error([got], [true]).relative < max(2 * own, 0.01)


def test_open_sizes() -> None:
    model, args, n = Attention("slope"), arguments(), Dim("n", min=2, max=64)
    compiled = compiler.compile(model, args, dynamic_shapes=({2: n},) * 3, options=OPTIONS)
    for length in (2, 12, 33):
        given = tuple(torch.randn(2, 4, length, 8) for _ in range(3))
        assert numerical_error([compiled(*given)], [model(*(a.double() for a in given))]).relative < 1e-6


@pytest.mark.parametrize("way", ["plain", "slope", "table", "cap", "causal", "window"])
def test_no_matrix_of_scores_is_kept(way: str) -> None:
    model, args = Attention(way), tuple(torch.randn(1, 4, 512, 32) for _ in range(3))
    model.table = nn.Parameter(torch.randn(4, 1023))
    compiled = compiler.compile(model, args, options=OPTIONS)
    assert compiled.print_ir("fused").count("= fused ") == 1


def test_operands_that_are_missing_are_named_instead() -> None:
    class Lacking(nn.Module):
        def forward(self, x: Tensor) -> Any:
            y = torch.special.bessel_y0(x.abs())
            return flex_attention(y, y, y)

    with pytest.raises(UnsupportedOpError, match="bessel_y0") as raised:
        compiler.compile(Lacking(), arguments()[:1], options=OPTIONS)
    assert len(raised.value.unsupported_ops) == 1


@pytest.mark.parametrize("several", [lambda s, v: s[None], lambda s, v: s * v])
def test_more_than_a_number_of_each_score_is_refused(several: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vector = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Any:
            return flex_attention(x, x, x, score_mod=lambda s, b, h, i, j: several(s, self.vector).sum())

    with pytest.raises(UnsupportedOpError, match=r"in score_mod or mask_mod(.|\n)*test_flex_attention\.py"):
        compiler.compile(Mixing(), arguments()[:1], options=OPTIONS)
