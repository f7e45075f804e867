"""Benchmarks: networks and layers match their papers, and arguments are parsed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks import compile_time, contention, dynamic_shapes, memory, pass_times, tuning
from benchmarks.arguments import BenchmarkArguments, parse_arguments
from benchmarks.convolution import count_flops, layers
from benchmarks.networks import NETWORKS
from benchmarks.networks.swin import SwinTransformer, joined, shifted_mask, windows
from benchmarks.networks.unet import UNet
from benchmarks.peer_comparison import PeerComparison, summarize
from benchmarks.peers import PEERS, attempt_peer

IMAGENET = [(1, 1000)]

KNOWN = {
    "ResNet-18": (11_689_512, IMAGENET),
    "ResNet-50": (25_557_032, IMAGENET),
    "MobileNetV2": (3_504_872, IMAGENET),
    "EfficientNet-B0": (5_288_548, IMAGENET),
    "SqueezeNet 1.1": (1_235_496, IMAGENET),
    "DenseNet-121": (7_978_856, IMAGENET),
    "U-Net": (31_031_810, [(1, 2, 256, 256)]),
    "ViT-S/16": (22_050_664, IMAGENET),
    "Swin-T": (28_288_354, IMAGENET),
    "GPT-2 prefill": (7_087_872, [(1, 512, 768), (1, 12, 512, 64), (1, 12, 512, 64)]),
    "GPT-2 decode": (7_087_872, [(1, 1, 768), (1, 12, 513, 64), (1, 12, 513, 64)]),
}
"""Parameters as published (of U-Net: counted by hand), and the shapes of the results; MiniLM has tests of its own."""


def test_every_network_is_known() -> None:
    assert {*KNOWN, "MiniLM"} == set(NETWORKS)


@pytest.mark.parametrize("name", KNOWN)
def test_networks_have_the_published_size(name: str) -> None:
    parameters, shapes = KNOWN[name]
    with torch.device("meta"), torch.no_grad():
        model, args = NETWORKS[name]()
        results = tree_leaves(model(*args))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert [tuple(r.shape) for r in results] == shapes
    assert not model.training
    assert {r.dtype for r in results} == {torch.float32}


@pytest.mark.parametrize(
    ("model", "x", "shape"),
    [
        (UNet(widths=(2, 4, 8)), torch.randn(1, 3, 8, 8), (1, 2, 8, 8)),
        (SwinTransformer(size=56, width=8, heads=2, depths=(2, 2)), torch.randn(2, 3, 56, 56), (2, 1000)),
    ],
    ids=["U-Net", "Swin"],
)
def test_small_networks_export(model: nn.Module, x: Tensor, shape: tuple[int, ...]) -> None:
    program = torch.export.export(model.eval(), (x,))
    assert program.module()(x).shape == shape


def test_decoding_continues_the_prefill() -> None:
    model, (x,) = NETWORKS["GPT-2 prefill"]()
    with torch.no_grad():
        whole = model(x[:, :9])
        _, keys, values = model(x[:, :8])
        last = model(x[:, 8:9], keys, values)
    torch.testing.assert_close(last[0], whole[0][:, 8:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last[1:], whole[1:], rtol=1e-4, atol=1e-5)


def test_windows_join_to_the_image() -> None:
    x = torch.arange(2.0 * 14 * 14 * 3).view(2, 14, 14, 3)
    assert torch.equal(windows(x)[1, :, 0].view(7, 7), x[0, :7, 7:, 0])
    assert torch.equal(joined(windows(x), 14), x)


def test_shifted_windows_do_not_see_across_the_border() -> None:
    mask = shifted_mask(14, 3)
    assert mask.shape == (4, 1, 49, 49)
    assert not mask[0].any()
    # of the last window, one part of 4 x 4, one of 4 x 3, one of 3 x 4 and one of 3 x 3 see themselves alone
    assert int((mask[3] == 0).sum()) == 16**2 + 12**2 + 12**2 + 9**2


def test_layers_cover_every_kind() -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        table = layers()
        kinds = {type(m) for _, _, layer in table for m in layer.modules()}
        assert all(count_flops(layer.eval(), torch.empty(shape)) > 0 for _, shape, layer in table)
    assert len({name for name, _, _ in table}) == len(table) >= 34
    ranks = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    assert kinds >= set(ranks)


def test_operations_of_a_convolution() -> None:
    """2 * 3 * 5 * 5 outputs x channels x taps, from the formula."""
    assert count_flops(nn.Conv2d(4, 3, 3), torch.randn(2, 4, 7, 7)) == 2 * 2 * 3 * 5 * 5 * 4 * 9


def test_arguments_are_parsed() -> None:
    arguments = parse_arguments("models", ["resnet", "--peers", "openvino, ONNX Runtime", "--threads", "1"])
    assert arguments == BenchmarkArguments(("resnet",), ("OpenVINO", "ONNX Runtime"), (1,))
    assert arguments.select_rows(NETWORKS) == ["ResNet-18", "ResNet-50"]
    assert BenchmarkArguments().peers == tuple(PEERS)
    with pytest.raises(SystemExit):
        parse_arguments("models", ["--peers", "nobody"])
    with pytest.raises(SystemExit, match="no row matches"):
        BenchmarkArguments(("nothing",)).select_rows(NETWORKS)


def test_openvino_is_no_peer_in_f64() -> None:
    x = torch.zeros(3, dtype=torch.float64)
    assert (
        attempt_peer("OpenVINO", lambda: PEERS["OpenVINO"](torch.nn.ReLU(), [x]))
        == "TypeError: OpenVINO computes f64 in f32"
    )


def test_the_summary_takes_the_fastest_peer() -> None:
    def case(name: str, **peers: float) -> PeerComparison:
        return PeerComparison(name, 1.0, peers, 0.0, {}, 0.0, 0)

    text = summarize([case("a", slow=9.0, fast=4.0), case("b", slow=3.0, fast=0.25)])
    assert "geometric mean 1.00, worst 0.25 (b, fast); ours is slower in 1 of 2" in text


def test_passes_are_timed_on_growing_graphs() -> None:
    for build in pass_times.GRAPHS.values():
        small, large = build(40), build(80)
        assert 1.5 < len(large.nodes) / len(small.nodes) < 2.5
        assert {"fuse", "layout", "vectorize"} <= set(pass_times.pass_seconds(small))


def test_first_results_are_timed() -> None:
    seconds = compile_time.first_result_seconds("GPT-2 decode", ["eager"])
    assert list(seconds) == ["export", "ours", "second process", "eager"]
    assert compile_time.cells({"export": 1.0, "ours": 3.0, "second process": 2.0, "Inductor": 8.0}, ["Inductor", "eager"]) == [
        "1.00", "3.00", "2.00", "8.00", "-", "2.0", "-",
    ]  # fmt: skip


def test_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that makes a tensor too large for memory that the allocator holds back, and keeps nothing."""

    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.expand(1 << 24).exp().sum()

    monkeypatch.setitem(NETWORKS, "wide", lambda: (Wide(), (torch.zeros(1),)))
    rise, growth = memory.measure_memory("wide", "eager")
    assert 60 << 20 < rise < 100 << 20
    assert growth < 60 << 20


def test_dynamic_shapes_are_compared_one_by_one() -> None:
    rows = dynamic_shapes.slowdowns(dynamic_shapes.matrix_case(lambda: nn.Linear(4, 4), 4, (1, 3)))
    assert [sizes for sizes, _, _ in rows] == [(1,), (3,)]
    assert all(seconds > 0 and ratio > 0 for _, seconds, ratio in rows)


@pytest.mark.parametrize("name", dynamic_shapes.CASES)
def test_cases_of_dynamic_shapes_take_their_inputs(name: str) -> None:
    case = dynamic_shapes.CASES[name]
    with torch.device("meta"), torch.no_grad():
        model = case.model().eval()
        assert [model(case.make_input(*sizes)).dim() for sizes in case.tested_sizes]


def test_everything_can_be_tuned() -> None:
    with torch.device("meta"):
        assert {*NETWORKS, "128 x 768 x 768", "ResNet 3x3 64, 56"} <= set(tuning.tuning_cases())


def test_competitors_take_turns_beside_load() -> None:
    """A process that compiled calls for the time that it is given, beside a busy one."""
    with ExitStack() as stack:
        pairs = list(contention.start_competitors(stack, "12 small layers", ("eager",), threads=1))
        busy = contention.Condition("1 busy", partial(contention.busy_processes, 1), copies=2)
        times = contention.measure(busy, pairs, rounds=1, seconds=0.05)
    assert set(times) == {"ours", "eager"}
    assert all(len(t) >= 2 and min(t) > 0 for t in times.values())
