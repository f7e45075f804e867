"""Conversions from ATen: small programs imported, interpreted, and compared with eager in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend_kit import FunctionModule, import_module, interpret_imported, to_float64
from torch import Tensor


def x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def whole(*shape: int, low: int = 0, high: int = 5) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1))


def truth(*shape: int) -> Tensor:
    return x(*shape) > 0


B = F.scaled_dot_product_attention
PROMOTION = {
    "int + float number": (lambda a: a + 1.5, whole(4)),
    "bool + int": (lambda a: a + 2, truth(4)),
    "int tensor * float scalar tensor": (lambda a, b: a * b, whole(3), torch.tensor(0.5)),
    "int / int": (lambda a: a / 2, whole(4)),
    "float tensor + rank 0 float": (lambda a, b: a + b, x(3), torch.tensor(2.0)),
    "i32 + i64 scalar tensor": (lambda a, b: a + b, whole(3).int(), torch.tensor(3)),
    "u8 + i8": (lambda a, b: a + b, whole(3).to(torch.uint8), whole(3).to(torch.int8)),
    "bool * bool": (lambda a, b: a * b, truth(4), truth(4)),
    "bool + bool": (lambda a, b: a + b, truth(4), ~truth(4)),
    "sin of int": (torch.sin, whole(4)),
    "where of int and float": (lambda c, a, b: torch.where(c, a, b), truth(4), whole(4), x(4)),
    "where with numbers": (lambda c: torch.where(c, 1.0, 0.0), truth(4)),
    "compare int with float": (lambda a: a > 1.5, whole(6)),
    "int // negative": (lambda a: a // -3, whole(9, low=-9, high=9)),
    "int % negative": (lambda a: a % -3, whole(9, low=-9, high=9)),
    "logic of ints": (torch.logical_or, truth(4), whole(4)),
    "sum of bools": (lambda a: a.sum(), truth(4, 5)),
    "cat of int and float": (lambda a, b: torch.cat([a, b]), whole(3), x(3)),
}  # fmt: skip
ELEMENTWISE = {
    "add alpha": (lambda a, b: torch.add(a, b, alpha=2.5), x(4), x(4)),
    "rsub": (lambda a: 1 - a, x(4)),
    "div floor": (lambda a, b: torch.div(a, b, rounding_mode="floor"), x(9), x(9)),
    "div trunc": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), x(9), x(9)),
    **{f"pow {e}": (lambda a, e=e: a.abs() ** e, x(5)) for e in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5)},
    "int pow": (lambda a: a**5, whole(5, low=-4)),
    "number to the power": (lambda a: 2**a, x(5)),
    "clamp": (lambda a: a.clamp(-0.5, 0.5), x(9)),
    "clamp int by float": (lambda a: a.clamp(max=2.5), whole(9)),
    "clamp by tensors": (lambda a, b: a.clamp(min=b), x(4, 3), x(3)),
    "hardtanh": (F.hardtanh, x(9)),
    "relu6": (F.relu6, x(9)),
    "logical": (lambda a, b: ~(a & b) ^ (a | b), truth(9), truth(3, 9)),
    "isfinite": (lambda a: torch.isfinite(a / a.round()), x(9)),
    "signbit": (torch.signbit, x(9)),
    "masked_fill": (lambda a, m: a.masked_fill(m, float("-inf")), x(3, 4), truth(4)),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.5), x(4), x(4), x(4)),
    "addcdiv": (lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1, value=0.5), x(4), x(4), x(4)),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.7), x(4), x(3, 4)),
    "lerp tensor": (torch.lerp, x(4), x(4), x(4)),
    "round decimals": (lambda a: torch.round(a, decimals=2), x(9)),
    **{f.__name__: (f, x(3, 6)) for f in (F.elu, F.selu, F.celu, F.silu, F.mish, F.softplus, F.hardswish, F.hardsigmoid, F.gelu, F.logsigmoid, F.leaky_relu, F.hardshrink, F.softshrink, F.tanhshrink, F.softsign, F.glu)},
    "gelu tanh": (lambda a: F.gelu(a, approximate="tanh"), x(9)),
    "threshold": (lambda a: F.threshold(a, 0.2, -1.0), x(9)),
    "prelu": (F.prelu, x(2, 3, 4), x(3)),
    "logit": (lambda a: torch.logit(a.sigmoid(), 1e-3), x(9)),
    "xlogy": (lambda a: torch.xlogy(a.round(), a.abs()), x(9)),
    "logaddexp": (torch.logaddexp, x(4), x(3, 4)),
    "hypot": (torch.hypot, x(4), x(4)),
    "sinc": (torch.sinc, x(9)),
    "nan_to_num": (lambda a: torch.nan_to_num(a / a.round(), 1.0, 2.0, 3.0), x(9)),
    "atan2": (torch.atan2, x(9), x(9)),
    "erfc": (torch.erfc, x(9)),
    "shifts": (lambda a: (a << 3) >> 1, whole(9)),
    "sign": (torch.sign, x(9)),
    "frac": (torch.frac, x(9)),
    "exp family": (lambda a: torch.exp(a) + torch.exp2(a) + torch.expm1(a), x(9)),
    "log family": (lambda a: a.abs().log() + a.abs().log2() + a.abs().log10() + a.abs().log1p(), x(9)),
    "trigonometry": (lambda a: a.sin() + a.cos() + a.tan() + a.atan() + a.sinh() + a.cosh() + a.tanh() + a.asinh(), x(9)),
    "view dtype": (lambda a: a.view(torch.int64) & 7, whole(9)),
    "square": (torch.square, x(4)),
    "copysign": (torch.copysign, x(4), x(4)),
}  # fmt: skip
VIEWS = {
    "view": (lambda a: a.view(2, -1), x(4, 6)),
    "permute": (lambda a: a.permute(2, 0, -2), x(2, 3, 4)),
    "mT": (lambda a: a.mT, x(2, 3, 4)),
    "transpose": (lambda a: a.transpose(-1, 0), x(2, 3, 4)),
    "squeeze": (lambda a: a.squeeze(), x(1, 3, 1)),
    "squeeze dim": (lambda a: a.squeeze(0).unsqueeze(-1), x(1, 3)),
    "flatten": (lambda a: a.flatten(1), x(2, 3, 4)),
    "unflatten": (lambda a: a.unflatten(-1, (2, -1)), x(3, 8)),
    "expand": (lambda a: a.expand(5, -1, 4), x(3, 1)),
    "slice": (lambda a: a[1:-1, ::2], x(4, 7)),
    "slice beyond": (lambda a: a[2:100], x(4, 7)),
    "select": (lambda a: a[:, -1], x(4, 7)),
    "ellipsis": (lambda a: a[..., None, 1:3], x(2, 3, 4)),
    "narrow": (lambda a: a.narrow(1, 1, 2), x(3, 4)),
    "split": (lambda a: a.split(3, 1), x(2, 7)),
    "split sizes": (lambda a: a.split([1, 4, 2], -1), x(2, 7)),
    "chunk": (lambda a: a.chunk(3, 1), x(2, 7)),
    "unbind": (lambda a: a.unbind(1), x(2, 3)),
    "cat": (lambda a, b: torch.cat([a, b, a], -1), x(2, 3), x(2, 4)),
    "stack": (lambda a, b: torch.stack([a, b], 1), x(2, 3), x(2, 3)),
    "flip": (lambda a: a.flip(0, -1), x(2, 3, 4)),
    "roll": (lambda a: a.roll((1, -2), (0, 1)), x(3, 5)),
    "roll flat": (lambda a: a.roll(2), x(3, 5)),
    "repeat": (lambda a: a.repeat(2, 1, 3), x(2, 3)),
    "repeat_interleave": (lambda a: a.repeat_interleave(3, 1), x(2, 3)),
    "tile": (lambda a: a.tile(2), x(2, 3)),
    "pad": (lambda a: F.pad(a, (1, 2, 0, 1), value=3.0), x(2, 3)),
    "crop": (lambda a: F.pad(a, (-1, 2)), x(2, 4)),
    "reflect": (lambda a: F.pad(a, (2, 1, 1, 0), mode="reflect"), x(1, 2, 4, 5)),
    "replicate": (lambda a: F.pad(a, (2, 1), mode="replicate"), x(1, 2, 5)),
    "circular": (lambda a: F.pad(a, (2, 1), mode="circular"), x(1, 2, 5)),
    "pixel_shuffle": (lambda a: F.pixel_shuffle(a, 2), x(1, 8, 3, 2)),
    "pixel_unshuffle": (lambda a: F.pixel_unshuffle(a, 2), x(1, 2, 4, 6)),
    "channel_shuffle": (lambda a: F.channel_shuffle(a, 2), x(1, 6, 2, 2)),
    "unfold": (lambda a: a.unfold(1, 3, 2), x(2, 9)),
    "as_strided": (lambda a: a.as_strided((2, 3), (4, 2), 1), x(2, 5)),
    "as_strided, the same": (lambda a: a.mean(1, keepdim=True).as_strided((2, 1), (1, 2)), x(2, 5)),
    "as_strided, overlapping": (lambda a: (a + 1).as_strided((3, 4), (2, 1)), x(9)),
    "as_strided, of turned memory": (lambda a: (a + 1).permute(2, 0, 1).as_strided((3, 2, 4), (8, 4, 1)), x(3, 2, 4)),
    "as_strided, overlapping, of turned memory": (lambda a: (a + 1).mT.as_strided((4, 3), (2, 1)), x(3, 4)),
    "as_strided_scatter, of turned memory": (lambda a, b: torch.as_strided_scatter((a + 1).mT, b, (2, 2), (4, 1), 2), x(2, 5), x(2, 2)),
    "as_strided_scatter": (lambda a, b: torch.as_strided_scatter(a, b, (2, 2), (4, 1), 2), x(2, 5), x(2, 2)),
    "im2col": (lambda a: F.unfold(a, (2, 3), padding=1, stride=2), x(2, 3, 6, 7)),
    "col2im": (lambda a: F.fold(a, (6, 7), (2, 3), padding=1, stride=2), x(2, 18, 16)),
    "col2im, dilated, one image": (lambda a: F.fold(a, (6, 8), (2, 3), dilation=(2, 3), padding=(0, 1), stride=2), x(12, 4)),
    "diagonal": (lambda a: a.diagonal(1, 0, 2), x(3, 2, 4)),
    "movedim": (lambda a: a.movedim((0, 1), (-1, 0)), x(2, 3, 4)),
    "slice_scatter": (lambda a, b: a.slice_scatter(b, 1, 1, 6, 2), x(2, 7), x(2, 3)),
    "select_scatter": (lambda a, b: a.select_scatter(b, 0, -1), x(3, 4), x(4)),
    "tril": (lambda a: a.tril(-1), x(4, 5)),
    "triu": (torch.triu, x(2, 4, 4)),
}  # fmt: skip
CREATION = {
    "arange": (lambda a: a + torch.arange(4), x(4)),
    "arange step": (lambda a: a + torch.arange(1, 9, 2), x(4)),
    "arange down": (lambda a: a + torch.arange(7, 0, -2), x(4)),
    "arange float": (lambda a: a + torch.arange(0, 1, 0.25, dtype=torch.float64), x(4)),
    "linspace": (lambda a: a + torch.linspace(-1, 1, 4, dtype=torch.float64), x(4)),
    "eye": (lambda a: a @ torch.eye(4, dtype=a.dtype), x(2, 4)),
    "full_like": (lambda a: torch.full_like(a, 7) + torch.ones_like(a) + torch.zeros_like(a), x(4)),
    "new": (lambda a: a.new_ones(4) + a.new_full((4,), 2.0) + a.new_zeros(4), x(4)),
    "one_hot": (lambda a: F.one_hot(a, 6), whole(5)),
    "full": (lambda a: a + torch.full((3, 1), 2), x(4)),
    "outer": (torch.outer, x(3), x(4)),
}  # fmt: skip
REDUCTIONS = {
    "sum": (lambda a: a.sum(), x(3, 4)),
    "sum dim": (lambda a: a.sum((0, -1), keepdim=True), x(2, 3, 4)),
    "mean": (lambda a: a.mean(1), x(3, 4)),
    "prod": (lambda a: a.prod(1), x(3, 4)),
    "amax": (lambda a: a.amax(0) + a.max(), x(3, 4)),
    "max dim": (lambda a: a.max(1), x(3, 4)),
    "min dim": (lambda a: a.min(0, keepdim=True), x(3, 4)),
    "argmax": (lambda a: a.argmax(), x(3, 4)),
    "argmin": (lambda a: a.argmin(1, keepdim=True), x(3, 4)),
    "any": (lambda a: a.any(1), whole(3, 4, high=2)),
    "all": (lambda a: a.all(), truth(3)),
    "var": (lambda a: a.var(1), x(3, 4)),
    "var biased": (lambda a: a.var(0, unbiased=False), x(3, 4)),
    "std": (lambda a: a.std(), x(3, 4)),
    "var_mean": (lambda a: torch.var_mean(a, 1), x(3, 4)),
    "logsumexp": (lambda a: a.logsumexp(1), x(3, 4)),
    **{f"norm {p}": (lambda a, p=p: torch.linalg.vector_norm(a, p, 1), x(3, 4)) for p in (0, 1, 2, 3, float("inf"))},
    "normalize": (lambda a: F.normalize(a, dim=1), x(3, 4)),
    "softmax": (lambda a: a.softmax(0), x(3, 4)),
    "log_softmax": (lambda a: a.log_softmax(-1), x(3, 4)),
    "cumsum": (lambda a: a.cumsum(1), x(3, 4)),
    "topk": (lambda a: a.topk(2), x(3, 4)),
    "sort": (lambda a: a.sort(0, descending=True), x(3, 4)),
    "argsort": (lambda a: a.argsort(1), x(3, 4)),
    "count_nonzero": (lambda a: a.count_nonzero(1), whole(3, 4, high=2)),
    "mse": (F.mse_loss, x(3, 4), x(3, 4)),
    "l1": (F.l1_loss, x(3), x(3)),
    "cross_entropy": (F.cross_entropy, x(5, 7), whole(5)),
    "aminmax": (lambda a: torch.aminmax(a, dim=1), x(3, 4)),
    "cosine": (lambda a, b: F.cosine_similarity(a, b), x(3, 4), x(3, 4)),
}  # fmt: skip
CONTRACTIONS = {
    "matmul": (torch.matmul, x(2, 1, 3, 4), x(5, 4, 2)),
    "vectors": (torch.matmul, x(4), x(4)),
    "matrix vector": (torch.matmul, x(2, 3, 4), x(4)),
    "vector matrix": (torch.matmul, x(3), x(3, 4)),
    "linear": (F.linear, x(2, 3, 4), x(5, 4), x(5)),
    "linear vector": (F.linear, x(4), x(5, 4)),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), x(4), x(3, 2), x(2, 4)),
    "baddbmm": (torch.baddbmm, x(2, 1, 4), x(2, 3, 5), x(2, 5, 4)),
    "einsum": (lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b), x(2, 3, 4, 5), x(2, 3, 6, 5)),
    "conv1d": (lambda a, w, b: F.conv1d(a, w, b, stride=2, padding=1), x(2, 3, 9), x(4, 3, 3), x(4)),
    "conv2d": (lambda a, w: F.conv2d(a, w, dilation=2, padding=(1, 2), groups=2), x(2, 4, 9, 8), x(6, 2, 3, 3)),
    "conv same": (lambda a, w: F.conv2d(a, w, padding="same"), x(1, 2, 5, 6), x(3, 2, 2, 3)),
    "conv3d": (F.conv3d, x(1, 2, 4, 4, 4), x(3, 2, 2, 2, 2)),
    "conv unbatched": (F.conv2d, x(2, 5, 6), x(3, 2, 2, 3)),
    "conv_transpose": (lambda a, w, b: F.conv_transpose2d(a, w, b, stride=2, padding=1, output_padding=1), x(2, 3, 4, 5), x(3, 4, 3, 3), x(4)),
    "attention": (B, x(2, 3, 5, 8), x(2, 3, 7, 8), x(2, 3, 7, 8)),
    "causal": (lambda q: B(q, q, q, is_causal=True), x(2, 3, 5, 8)),
    "attention mask": (lambda q, m: B(q, q, q, m), x(2, 3, 5, 8), truth(5, 5)),
    "attention bias": (lambda q, m: B(q, q, q, m, scale=0.3), x(2, 3, 5, 8), x(5, 5)),
    "grouped": (lambda q, k: B(q, k, k, enable_gqa=True), x(2, 4, 5, 8), x(2, 2, 5, 8)),
}  # fmt: skip
POOLING = {
    "max_pool1d": (lambda a: F.max_pool1d(a, 3, 2, 1), x(2, 3, 9)),
    "max_pool2d": (lambda a: F.max_pool2d(a, 3, 2, 1), x(2, 3, 9, 8)),
    "max_pool ceil": (lambda a: F.max_pool2d(a, 3, 2, ceil_mode=True), x(2, 3, 8, 8)),
    "max_pool dilated": (lambda a: F.max_pool2d(a, 2, dilation=2), x(1, 1, 7, 7)),
    "max_pool indices": (lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), x(2, 3, 9, 8)),
    "avg_pool1d": (lambda a: F.avg_pool1d(a, 3, 2, 1), x(2, 3, 9)),
    "avg_pool2d": (lambda a: F.avg_pool2d(a, (2, 3), padding=1), x(2, 3, 9, 8)),
    "avg_pool exclude": (lambda a: F.avg_pool2d(a, 3, 2, 1, count_include_pad=False), x(2, 3, 9, 8)),
    "avg_pool ceil": (lambda a: F.avg_pool2d(a, 3, 2, 1, ceil_mode=True), x(2, 3, 8, 8)),
    "avg_pool divisor": (lambda a: F.avg_pool2d(a, 2, divisor_override=3), x(1, 1, 4, 4)),
    "adaptive 1": (lambda a: F.adaptive_avg_pool2d(a, 1), x(2, 3, 5, 4)),
    "adaptive divides": (lambda a: F.adaptive_avg_pool2d(a, (2, None)), x(2, 3, 4, 5)),
    "adaptive uneven": (lambda a: F.adaptive_avg_pool2d(a, (3, 4)), x(2, 3, 7, 6)),
    "nearest": (lambda a: F.interpolate(a, scale_factor=2), x(1, 2, 3, 4)),
    "nearest uneven": (lambda a: F.interpolate(a, (5, 7)), x(1, 2, 3, 4)),
    "bilinear": (lambda a: F.interpolate(a, (5, 7), mode="bilinear"), x(1, 2, 3, 4)),
    "bilinear align": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear", align_corners=True), x(1, 2, 3, 4)),
}  # fmt: skip
NORMS = {
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (4,), w, b), x(2, 3, 4), x(4), x(4)),
    "layer_norm plain": (lambda a: F.layer_norm(a, (3, 4)), x(2, 3, 4)),
    "rms_norm": (lambda a, w: F.rms_norm(a, (4,), w, 1e-6), x(2, 3, 4), x(4)),
    "group_norm": (lambda a, w, b: F.group_norm(a, 2, w, b), x(2, 4, 3, 3), x(4), x(4)),
    "groups of nothing": (lambda a: torch.ops.aten.native_group_norm(a, None, None, 0, 2, 1, 1, 1e-5), x(0, 2)),
    "batch_norm": (lambda a, m, v, w, b: F.batch_norm(a, m, v.abs(), w, b), x(2, 3, 4, 4), x(3), x(3), x(3), x(3)),
    "batch_norm plain": (lambda a, m, v: F.batch_norm(a, m, v.abs()), x(2, 3, 4), x(3), x(3)),
    "batch statistics": (lambda a: F.batch_norm(a, None, None, training=True), x(5, 3)),
    "instance_norm": (lambda a: F.instance_norm(a), x(2, 3, 4, 4)),
}  # fmt: skip
INDEXING = {
    "embedding": (F.embedding, whole(2, 3), x(5, 4)),
    "gather": (lambda a, i: a.gather(1, i), x(3, 5), whole(3, 2)),
    "index_select": (lambda a, i: a.index_select(-1, i), x(3, 5), whole(4)),
    "index": (lambda a, i: a[:, i], x(3, 5), whole(2, 2, low=-5)),
    "index two": (lambda a, i, j: a[i, :, j], x(5, 2, 5), whole(4), whole(4)),
    "index_put": (lambda a, i, v: a.index_put((i,), v, accumulate=True), x(5, 2), whole(3), x(3, 2)),
    "mask put": (lambda a, m: a.masked_fill(m, 0) + a.index_put((m,), torch.tensor(2.0)), x(5), truth(5)),
    "scatter": (lambda a, i: a.scatter(1, i, 7.0), x(3, 5), whole(3, 1)),
    "scatter_add": (lambda a, i, v: a.scatter_add(1, i, v), x(3, 5), whole(3, 2), x(3, 2)),
    "index_add": (lambda a, i, v: a.index_add(0, i, v), x(5, 2), whole(3), x(3, 2)),
    "index_copy": (lambda a, v: a.index_copy(0, torch.tensor([2, 0]), v), x(5, 2), x(2, 2)),
    "take": (lambda a, i: a.take(i), x(3, 5), whole(4)),
    "take of one position": (lambda a, i: (a.take(i), a[0, 0].take(i - i)), x(3, 5), whole()),
    "take_along_dim": (lambda a, i: torch.take_along_dim(a, i, 1), x(3, 5), whole(1, 2)),
    "index_fill": (lambda a: a.index_fill(0, torch.tensor([1, 3]), 9.0), x(5, 2)),
}  # fmt: skip
SEARCH = {
    "bucketize": (lambda a: torch.bucketize(a, torch.tensor([-0.5, 0.0, 0.5]), right=True), x(9)),
    "searchsorted": (lambda a, b: torch.searchsorted(a.sort(1)[0], b), x(3, 6), x(3, 4)),
    "cdist": (torch.cdist, x(2, 3, 4), x(2, 5, 4)),
    "cdist 1": (lambda a, b: torch.cdist(a, b, p=1.0), x(3, 4), x(5, 4)),
    "bicubic": (lambda a: F.interpolate(a, (5, 7), mode="bicubic"), x(1, 2, 4, 4)),
    "grid_sample": (lambda a, g: F.grid_sample(a, g.tanh(), align_corners=False), x(1, 2, 4, 4), x(1, 3, 3, 2)),
    "adaptive_max": (lambda a: F.adaptive_max_pool2d(a, 2), x(1, 2, 6, 6)),
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "promotion": PROMOTION, "elementwise": ELEMENTWISE, "views": VIEWS, "creation": CREATION, "reductions": REDUCTIONS,
    "contractions": CONTRACTIONS, "pooling": POOLING, "norms": NORMS, "indexing": INDEXING, "search": SEARCH,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_import(family: str) -> None:
    """Every case of the family in one program (exporting costs more than the cases do)."""
    cases = FAMILIES[family]
    arguments = {name: tuple(args) for name, (_, *args) in cases.items()}

    def program(arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: case[0](*arguments[name]) for name, case in cases.items()}

    imported = import_module(FunctionModule(program), (arguments,))
    got, truth = interpret_imported(imported, (arguments,), dtype=torch.float64), program(to_float64(arguments))
    wrong = {}
    for name in cases:
        try:
            torch.testing.assert_close(
                to_float64(got[name]), to_float64(truth[name]), rtol=1e-6, atol=1e-6, equal_nan=True
            )
        except AssertionError as problem:
            wrong[name] = str(problem)
    assert not wrong
