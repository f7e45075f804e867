"""Blocks of random networks that `benchmarks.networks` lacks: shuffle units, mixers, experts, recurrent and audio layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.networks.layers import convolution
from benchmarks.networks.vit import Block


class ShuffleUnit(nn.Module):
    """Ma et al., "ShuffleNet V2" (2018): half of the channels pass, the others go through 1x1, depthwise, 1x1; [n, c, h, w] -> same."""

    def __init__(self, channels: int, kernel: int = 3) -> None:
        super().__init__()
        half = channels // 2
        depthwise = convolution(half, half, kernel, groups=half, activation=None)
        self.body = nn.Sequential(convolution(half, half), depthwise, convolution(half, half))

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, dim=1)
        return F.channel_shuffle(torch.cat((kept, self.body(changed)), dim=1), 2)


class ConvNextBlock(nn.Module):
    """Liu et al., "A ConvNet for the 2020s" (2022): depthwise 7x7, layer norm over channels, MLP; [n, c, h, w] -> same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class MixerBlock(nn.Module):
    """Tolstikhin et al., "MLP-Mixer" (2021): an MLP along tokens, then one along channels; [n, t, d] -> same."""

    def __init__(self, tokens: int, width: int, expansion: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(d, expansion * d), nn.GELU(), nn.Linear(expansion * d, d)) for d in (tokens, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlps[0](self.norms[0](x).mT).mT
        return x + self.mlps[1](self.norms[1](x))


class GatedMLP(nn.Module):
    """silu(gate(x)) * up(x), projected, behind an RMS norm, with residual: [n, t, d] -> same."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.down = nn.RMSNorm(width), nn.Linear(hidden, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Experts(nn.Module):
    """Mixture of experts in which every expert sees every token, weighted by the softmax of the best `top`: [n, t, d] -> same."""

    def __init__(self, width: int, hidden: int, experts: int, top: int) -> None:
        super().__init__()
        self.top, self.route = top, nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.route(x)
        best = scores.topk(self.top, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
        hidden = F.gelu(torch.einsum("ntd,edh->neth", x, self.up))
        return x + torch.einsum("neth,ehd,nte->ntd", hidden, self.down, weights)


class CausalBlock(Block):
    """Transformer block with causal attention and rotary positions: [n, t, d] -> same."""

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        half = q.shape[-1] // 2
        steps = torch.arange(q.shape[-2], device=x.device)[:, None]
        angles = steps * 10000.0 ** (-torch.arange(half, device=x.device) / half)
        q, k = (
            torch.cat((u * angles.cos() - w * angles.sin(), u * angles.sin() + w * angles.cos()), -1)
            for u, w in (y.chunk(2, dim=-1) for y in (q, k))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    """The sequence of states of `nn.LSTM` or `nn.GRU`: [n, t, d] -> [n, t, h]."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x)[0]
        return states


class Patches(nn.Module):
    """An image as tokens: [n, 3, h, w] -> [n, h / p * w / p, d]."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x).flatten(2).mT


class GatedConvolution(nn.Module):
    """Van den Oord et al., "WaveNet" (2016): tanh times sigmoid of a dilated convolution, with residual; [n, c, t] -> same."""

    def __init__(self, channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.wide = nn.Conv1d(channels, 2 * channels, kernel, padding=padding, dilation=dilation)
        self.merge = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.wide(x).chunk(2, dim=1)
        return x + self.merge(torch.tanh(value) * torch.sigmoid(gate))


class Pool(nn.Module):
    """The mean over the given dimensions."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=self.dims)


class Autoencoder(nn.Module):
    """Kingma and Welling, "Auto-Encoding Variational Bayes" (2013), at the mean: [n, ...] -> decoded, means, log variances."""

    def __init__(self, encode: nn.Module, decode: nn.Module) -> None:
        super().__init__()
        self.encode, self.decode = encode, decode

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = self.encode(x).chunk(2, dim=1)
        return self.decode(mean * torch.exp(0.5 * variance)), mean, variance
