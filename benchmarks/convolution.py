"""Convolutions of published networks with a ReLU, against every peer and the measured multiply-add peak."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.peak import fma_peak
from benchmarks.peer_comparison import PeerComparison, compare_with_peers, format_milliseconds, summarize
from compiler.report.render import table

Layer = tuple[str, tuple[int, ...], nn.Module]
"""Name, shape of the input, and the layer."""


def with_relu(convolution: nn.Module) -> nn.Module:
    """Append a ReLU to a convolution."""
    return nn.Sequential(convolution, nn.ReLU())


def layers() -> list[Layer]:
    """Return the rows of the table.  Batch norms are folded, so convolutions have a bias; projections have no ReLU."""
    conv1, conv2, conv3 = nn.Conv1d, nn.Conv2d, nn.Conv3d
    same = partial(nn.Conv2d, kernel_size=3, padding=1)
    return [
        ("ResNet stem 7x7 /2", (1, 3, 224, 224), with_relu(conv2(3, 64, 7, 2, 3))),
        ("ResNet 3x3 64, 56", (1, 64, 56, 56), with_relu(same(64, 64))),
        ("ResNet 3x3 128, 28", (1, 128, 28, 28), with_relu(same(128, 128))),
        ("ResNet 3x3 256, 14", (1, 256, 14, 14), with_relu(same(256, 256))),
        ("ResNet 3x3 512, 7", (1, 512, 7, 7), with_relu(same(512, 512))),
        ("ResNet 3x3 /2 64-128, 56", (1, 64, 56, 56), with_relu(same(64, 128, stride=2))),
        ("ResNet 3x3 /2 256, 28", (1, 256, 28, 28), with_relu(same(256, 256, stride=2))),
        ("ResNet 1x1 64-256, 56", (1, 64, 56, 56), conv2(64, 256, 1)),
        ("ResNet 1x1 256-64, 56", (1, 256, 56, 56), with_relu(conv2(256, 64, 1))),
        ("ResNet 1x1 1024-256, 14", (1, 1024, 14, 14), with_relu(conv2(1024, 256, 1))),
        ("ResNet 1x1 512-2048, 7", (1, 512, 7, 7), conv2(512, 2048, 1)),
        ("ResNet 1x1 /2 256-512, 56", (1, 256, 56, 56), conv2(256, 512, 1, 2)),
        ("VGG 3x3 3-64, 224", (1, 3, 224, 224), with_relu(same(3, 64))),
        ("VGG 3x3 128, 112", (1, 128, 112, 112), with_relu(same(128, 128))),
        ("VGG 3x3 512, 28", (1, 512, 28, 28), with_relu(same(512, 512))),
        ("MobileNet stem 3x3 /2", (1, 3, 224, 224), with_relu(same(3, 32, stride=2))),
        ("MobileNet 1x1 16-96, 112", (1, 16, 112, 112), with_relu(conv2(16, 96, 1))),
        ("MobileNet depthwise 3x3 /2 96, 112", (1, 96, 112, 112), with_relu(same(96, 96, stride=2, groups=96))),
        ("MobileNet 1x1 96-24, 56", (1, 96, 56, 56), conv2(96, 24, 1)),
        ("MobileNet depthwise 3x3 144, 56", (1, 144, 56, 56), with_relu(same(144, 144, groups=144))),
        ("MobileNet depthwise 3x3 384, 14", (1, 384, 14, 14), with_relu(same(384, 384, groups=384))),
        ("MobileNet 1x1 384-64, 14", (1, 384, 14, 14), conv2(384, 64, 1)),
        ("MobileNet depthwise 3x3 /2 576, 14", (1, 576, 14, 14), with_relu(same(576, 576, stride=2, groups=576))),
        ("MobileNet depthwise 3x3 960, 7", (1, 960, 7, 7), with_relu(same(960, 960, groups=960))),
        ("EfficientNet depthwise 5x5 240, 28", (1, 240, 28, 28), with_relu(conv2(240, 240, 5, 1, 2, groups=240))),
        ("EfficientNet depthwise 5x5 /2 672, 14", (1, 672, 14, 14), with_relu(conv2(672, 672, 5, 2, 2, groups=672))),
        ("ResNeXt 3x3 32 groups of 4, 56", (1, 128, 56, 56), with_relu(same(128, 128, groups=32))),
        ("ResNeXt 3x3 32 groups of 16, 14", (1, 512, 14, 14), with_relu(same(512, 512, groups=32))),
        ("DeepLab 3x3 dilated 2, 28", (1, 256, 28, 28), with_relu(conv2(256, 256, 3, 1, 2, 2))),
        ("DeepLab 3x3 dilated 12, 28", (1, 512, 28, 28), with_relu(conv2(512, 256, 3, 1, 12, 12))),
        ("U-Net 3x3 64, 256", (1, 64, 256, 256), with_relu(same(64, 64))),
        ("U-Net 3x3 512-256, 64", (1, 512, 64, 64), with_relu(same(512, 256))),
        ("U-Net transposed 2x2 /2 256-128, 64", (1, 256, 64, 64), nn.ConvTranspose2d(256, 128, 2, 2)),
        ("wav2vec k10 /5 1-512", (1, 1, 16000), with_relu(conv1(1, 512, 10, 5))),
        ("wav2vec k3 /2 512", (1, 512, 1599), with_relu(conv1(512, 512, 3, 2))),
        ("audio k25 64", (1, 64, 4000), with_relu(conv1(64, 64, 25, 1, 12))),
        ("audio k3 dilated 8 128", (1, 128, 4000), with_relu(conv1(128, 128, 3, 1, 8, 8))),
        ("HiFi-GAN transposed k4 /2 128-64", (1, 128, 2000), with_relu(nn.ConvTranspose1d(128, 64, 4, 2, 1))),
        ("DCGAN transposed 4x4 /2 256-128, 16", (1, 256, 16, 16), with_relu(nn.ConvTranspose2d(256, 128, 4, 2, 1))),
        ("FCN transposed 3x3 /2 128-64, 56", (1, 128, 56, 56), with_relu(nn.ConvTranspose2d(128, 64, 3, 2, 1, 1))),
        ("video 3x3x3 64, 8x56x56", (1, 64, 8, 56, 56), with_relu(conv3(64, 64, 3, 1, 1))),
        ("video 1x3x3 64, 8x56x56", (1, 64, 8, 56, 56), with_relu(conv3(64, 64, (1, 3, 3), 1, (0, 1, 1)))),
        ("video transposed 2x2x2 /2 64-32, 8x28x28", (1, 64, 8, 28, 28), nn.ConvTranspose3d(64, 32, 2, 2)),
    ]


def count_flops(layer: nn.Module, x: Tensor) -> int:
    """Count multiplications and additions of the convolution, including those with padding."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(x)
    return counter.get_total_flops()


def main(arguments: BenchmarkArguments) -> None:
    """Print milliseconds per call, peers' times relative to ours, our GFLOP/s and their share of the peak."""
    torch.manual_seed(0)
    rows = {name: (layer.eval(), torch.randn(shape)) for name, shape, layer in layers()}
    names = arguments.select_rows(rows)
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        peak = fma_peak(threads)
        compare = partial(compare_with_peers, peers=arguments.peers, rounds=5, burst=0.1)
        results = {n: compare(n, rows[n][0], rows[n][1:]) for n in names}
        peak = max(peak, fma_peak(threads))
        made = table(
            f"f32 convolutions, {threads} thread(s), peak {peak / 1e9:.0f} GFLOP/s: ms (ratio to ours)",
            ["layer"],
            ["ours", "GFLOP/s", "of peak", *arguments.peers, "error"],
        )
        for name, result in results.items():
            flops = count_flops(*rows[name])
            made.add_row(name, *(cells(result, flops, peak, arguments.peers) if result else ["failed"]))
        print_table(made, summarize([r for r in results.values() if r]))


def cells(result: PeerComparison, flops: int, peak: float, peers: tuple[str, ...]) -> list[str]:
    """Format one row."""
    rate = flops / result.our_seconds
    rates = [f"{rate / 1e9:.0f}", f"{rate / peak:.0%}"]
    return [format_milliseconds(result.our_seconds), *rates, *map(result.format_peer, peers), f"{result.error:.0e}"]
