"""Matrix products with constant weights against every peer, and the measured multiply-add peak or memory read rate."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.peak import fma_peak, read_rate
from benchmarks.peer_comparison import PeerComparison, compare_with_peers, format_milliseconds, summarize
from compiler.report.render import table

SHAPES = (
    *((n, n, n) for n in (256, 512, 1024, 2048)),
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (196, 512, 2048),
)  # fmt: skip
SKINNY_SHAPES = ((1, 4096, 4096), (8, 4096, 4096))
"""M, K, N; skinny products (few rows) are bound by reading the weights."""

MatmulShape = tuple[int, int, int]


def main(arguments: BenchmarkArguments) -> None:
    """Print milliseconds per call, peers' times relative to ours, and the share of the machine's limit."""
    torch.manual_seed(0)
    shapes = {" x ".join(map(str, shape)): shape for shape in (*SHAPES, *SKINNY_SHAPES)}
    names = arguments.select_rows(shapes)
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        limits = fma_peak(threads), read_rate(threads)
        results = {name: compare_product(name, shapes[name], arguments.peers) for name in names}
        limits = max(limits[0], fma_peak(threads)), max(limits[1], read_rate(threads))
        made = table(
            f"f32 x[M, K] @ w[K, N], constant w, {threads} thread(s), peak {limits[0] / 1e9:.0f} GFLOP/s, "
            f"reads {limits[1] / 1e9:.1f} GB/s: ms (ratio to ours)",
            ["M x K x N"],
            ["ours", "rate", "of limit", *arguments.peers, "error"],
        )
        for name, result in results.items():
            made.add_row(name, *(cells(result, shapes[name], limits, arguments.peers) if result else ["failed"]))
        print_table(made, summarize([r for r in results.values() if r]))


def compare_product(name: str, shape: MatmulShape, peers: tuple[str, ...]) -> PeerComparison | None:
    """Compare one shape with every peer."""
    m, k, n = shape
    return compare_with_peers(name, nn.Linear(k, n, bias=False).eval(), [torch.randn(m, k)], peers, rounds=5, burst=0.2)


def cells(result: PeerComparison, shape: MatmulShape, limits: tuple[float, float], peers: tuple[str, ...]) -> list[str]:
    """Format one row; `limits` are operations per second and bytes per second, of which skinny shapes use the second."""
    m, k, n = shape
    skinny = shape in SKINNY_SHAPES
    rate = (4 * k * n if skinny else 2 * m * k * n) / result.our_seconds
    rates = [f"{rate / 1e9:.1f} GB/s" if skinny else f"{rate / 1e9:.0f} GFLOP/s", f"{rate / limits[skinny]:.0%}"]
    return [format_milliseconds(result.our_seconds), *rates, *map(result.format_peer, peers), f"{result.error:.0e}"]
