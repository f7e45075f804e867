"""unpad: which convolutions leave the padding out, in which dimensions, and with what numbers."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import compiler
from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import constant_node, input_node
from compiler.ir.symbolic.index_expr import Dim, dynamic_size
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.types import TensorType, f32
from compiler.passes.base import Context
from compiler.passes.graph.eliminate_padding import EliminatePadding
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass


def padded(
    shape: tuple[Dim, ...], window: tuple[int, ...], amount: int, stride: int = 1, dilation: int = 1, value: float = 0.0,
    weight: float = 1.0, outputs: int = 64, made: bool = False,
) -> Graph:  # fmt: skip
    """A convolution of an image that is padded by `amount`; `made` by a kernel before."""
    x, rank = input_node("x", TensorType(f32, shape)), len(window)
    image = ops.conv(x, constant_node(np.ones((shape[1], shape[1], *(1,) * rank), np.float32)), stride=[1] * rank, dilation=[1] * rank) if made else x  # fmt: skip
    sides = (0, 0, *(amount,) * rank)
    w = constant_node(np.full((outputs, shape[1], *window), weight, np.float32))
    wide = ops.pad(image, before=sides, after=sides, value=value)
    return Graph((x,), (ops.conv(wide, w, stride=[stride] * rank, dilation=[dilation] * rank),))


def left_out(graph: Graph) -> list[bool]:
    """Whether the padding is left out, in each dimension."""
    new = EliminatePadding().run(graph, Context())
    (node,) = new.outputs
    return [b > 0 for b in node.attrs["before"] or (0,) * len(node.attrs["stride"])]


def test_a_wide_dilation_leaves_all_padding_out() -> None:
    new = EliminatePadding().run(padded((1, 64, 28, 28), (3, 3), 12, dilation=12), Context())
    text = print_graph(new)
    assert "pad" not in text
    assert "before=[12, 12], after=[12, 12]" in text


def test_rows_alone_where_columns_would_be_short() -> None:
    new = EliminatePadding().run(padded((1, 256, 7, 7), (3, 3), 1, made=True), Context())
    text = print_graph(new)
    assert "before=[1, 0], after=[1, 0]" in text
    assert "pad %conv_0 {before=[0, 0, 0, 1], after=[0, 0, 0, 1]}" in text


def test_neither_where_few_products_are_saved() -> None:
    assert left_out(padded((1, 64, 56, 56), (3, 3), 1, made=True)) == [False, False]
    assert left_out(padded((1, 64, 4000), (25,), 12, made=True)) == [False]  # 25 parts


def test_images_of_few_channels_that_come_from_memory_are_copied() -> None:
    """Reading them takes longer than the products do."""
    assert left_out(padded((1, 3, 224, 224), (3, 3), 1, stride=2, outputs=32)) == [False, False]


@pytest.mark.parametrize("change", [{"value": 1.0}, {"weight": float("inf")}, {"outputs": 8}])
def test_other_paddings_weights_and_short_rows_stay(change: dict[str, Any]) -> None:
    graph = padded((1, 64, 28, 28), (3, 3), 12, dilation=12, **change)
    assert EliminatePadding().run(graph, Context()) is graph


def test_weights_that_are_no_constants_stay() -> None:
    x, w = (input_node(n, TensorType(f32, s)) for n, s in (("x", (1, 64, 28, 28)), ("w", (64, 64, 3, 3))))
    sides = (0, 0, 12, 12)
    graph = Graph((x, w), (ops.conv(ops.pad(x, before=sides, after=sides), w, stride=[1, 1], dilation=[12, 12]),))
    assert EliminatePadding().run(graph, Context()) is graph


def test_a_padded_image_with_other_users_is_padded_for_them() -> None:
    x = input_node("x", TensorType(f32, (1, 64, 28, 28)))
    w = constant_node(np.ones((64, 64, 3, 3), np.float32))
    wide = ops.pad(x, before=(0, 0, 12, 12), after=(0, 0, 12, 12))
    graph = Graph((x,), (ops.conv(wide, w, stride=[1, 1], dilation=[12, 12]), wide))
    first, second = EliminatePadding().run(graph, Context()).outputs
    assert first.operands[0] is x
    assert second.op is ops.pad


def test_groups_of_channels_stay_one_nest() -> None:
    x = input_node("x", TensorType(f32, (1, 64, 28, 28)))
    w = constant_node(np.ones((64, 32, 3, 3), np.float32))
    wide = ops.pad(x, before=(0, 0, 12, 12), after=(0, 0, 12, 12))
    graph = Graph((x,), (ops.conv(wide, w, stride=[1, 1], dilation=[12, 12], groups=2),))
    assert EliminatePadding().run(graph, Context()) == graph


POOL = """graph(%x: f32[1, {shape}]) {{
  %t = permute %x {{dims=[0, {order}]}}
  %p = pad %t {{before=[0, 0, 1, 1], after=[0, 0, 1, 1], value={value}}}
  %y = {pool} %p {{size=[3, 3], stride=[2, 2], dilation=[1, 1]}}
  return %y }}"""
"""A reduction over windows of an image that a graph is given."""

LAST, FIRST = {"shape": "64, 64, 32", "order": "3, 1, 2"}, {"shape": "32, 64, 64", "order": "1, 2, 3"}
"""Where the channels of the image lie in memory."""


@pytest.mark.parametrize("image", [LAST, FIRST])
@pytest.mark.parametrize(("pool", "value"), [("max_pool", "-inf"), ("sum_pool", "0.0")])
def test_windows_skip_padding_of_an_image_that_would_be_copied(image: dict[str, str], pool: str, value: str) -> None:
    check_pass(
        "eliminate-padding",
        before=POOL.format(**image, pool=pool, value=value),
        after=f"""graph(%x: f32[1, {image["shape"]}]) {{
          %t = permute %x {{dims=[0, {image["order"]}]}}
          %y = {pool} %t {{size=[3, 3], stride=[2, 2], dilation=[1, 1], before=[1, 1], after=[1, 1]}}
          return %y }}""",
        remark="padding skipped, not copied with the image",
    )


PADDED_POOLS = {
    "padding that counts": POOL.format(**LAST, pool="max_pool", value="0.0"),
    "an image in cache whose rows would be cut": POOL.format(shape="32, 14, 14", order="1, 2, 3", pool="max_pool", value="-inf"),
    "windows in two columns, with lanes in a copy alone": POOL.format(shape="64, 60, 3", order="1, 2, 3", pool="max_pool", value="-inf"),
    "an image that a kernel stores inside its padding": POOL.format(**LAST, pool="max_pool", value="-inf").replace("pad %t", "pad %e").replace("%p =", "%e = exp %t  %p ="),
    "a padded image with other users": POOL.format(**LAST, pool="max_pool", value="-inf").replace("return %y", "return %y, %p"),
}  # fmt: skip


@pytest.mark.parametrize("case", PADDED_POOLS)
def test_other_padded_windows_stay(case: str) -> None:
    check_pass("eliminate-padding", unchanged=PADDED_POOLS[case])


@pytest.mark.parametrize("layer", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d((3, 2), 1, (1, 0)), nn.MaxPool2d(5, 1, 2, 2)])
def test_windows_without_padding_are_right(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch has them; a maximum of a window is one of its elements."""
    monkeypatch.setattr(EliminatePadding, "copy_costs_more", lambda *_: True)
    x = torch.randn(2, 5, 9, 11).to(memory_format=torch.channels_last)
    torch.testing.assert_close(compiler.compile(layer, (x,))(x), layer(x))


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "dilated": (nn.Conv2d(16, 32, 3, padding=5, dilation=5), (2, 16, 11, 9)),
    "strided": (nn.Conv2d(16, 48, (5, 3), stride=2, padding=(4, 1)), (1, 16, 9, 14)),
    "same, even window": (nn.Conv2d(16, 16, (4, 2), padding="same"), (1, 16, 5, 6)),
    "beyond the window": (nn.Conv1d(16, 16, 3, padding=6), (1, 16, 5)),
    "1-D": (nn.Conv1d(16, 40, 3, padding=8, dilation=8), (2, 16, 19)),
    "3-D": (nn.Conv3d(16, 16, (3, 3, 1), padding=(1, 1, 0), stride=(1, 2, 1)), (1, 16, 4, 5, 3)),
    "two results": (nn.Sequential(nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.ReLU()), (1, 16, 6, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As float64 has them, whichever dimensions leave their padding out."""
    layer, shape = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    layer = Both(layer) if isinstance(layer, nn.Sequential) else layer
    wanted = layer.double().eval()(x.double())
    layer.float()
    for dims in {(True,) * (len(shape) - 2), (True, *(False,) * (len(shape) - 3))}:
        monkeypatch.setattr(EliminatePadding, "seconds", lambda self, n, w, *rest, dims=dims: 1.0 + (w != dims))
        options = {"graph_passes": "decompose,canonicalize,fold,eliminate-padding,fuse", "verify": True}
        compiled = compiler.compile(layer, (x,), options=options)
        assert compiled.remarks.select("eliminate-padding")
        torch.testing.assert_close(compiled(x).double(), wanted, rtol=0, atol=2e-6)


OPEN = {
    "strided": partial(nn.Conv2d, 16, 48, 3, stride=2, padding=1),
    "two rows beyond": partial(nn.Conv2d, 16, 16, 5, padding=2),
    "dilated": partial(nn.Conv2d, 16, 32, 3, padding=2, dilation=2),
}


@pytest.mark.parametrize("name", OPEN)
def test_numbers_of_open_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As float64 has them at every size: whether the last window reaches beyond the image depends on it."""
    torch.manual_seed(0)
    layer = OPEN[name]()
    sides = {2: torch.export.Dim("h", min=4, max=64), 3: torch.export.Dim("w", min=4, max=64)}
    for dims in ((True, True), (True, False)):
        monkeypatch.setattr(EliminatePadding, "seconds", lambda self, c, w, *rest, dims=dims: 1.0 + (w != dims))
        options = {"graph_passes": "decompose,canonicalize,fold,eliminate-padding,fuse", "verify": True}
        layer.float()
        compiled = compiler.compile(layer, (torch.randn(1, 16, 32, 32),), options=options, dynamic_shapes=(sides,))
        for height, width in ((4, 5), (5, 4), (7, 18), (16, 33), (64, 9)):
            x = torch.randn(1, 16, height, width)
            result = compiled(x)
            wanted = layer.double()(x.double())
            layer.float()
            torch.testing.assert_close(result.double(), wanted, rtol=0, atol=2e-6)
        assert compiled.remarks.select("eliminate-padding", "applied")


def test_an_open_image_of_one_pixel_stays_padded() -> None:
    """It is not known that the first window ends before the last one begins."""
    n = dynamic_size("n", 1, 512, 84)
    graph = padded((1, 64, n), (3,), 1, stride=2)
    assert EliminatePadding().run(graph, Context()) is graph


class Both(nn.Module):
    """What a layer gives before and after the ReLU behind it, added up in the end."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, after = self.layers[0](x), self.layers(x)
        return torch.cat([before, after.sum(1, keepdim=True).cos()], 1)


# IR before and after


def conv_graph(inputs: str, body: str, outputs: int = 32, channels: int = 16, groups: int = 1) -> str:
    """Graph IR with inputs, weights %w of ones for 3 x 3 windows, and a body."""
    shape = (outputs, channels // groups, 3, 3)
    ones = b64encode(np.ones(shape, np.float32).tobytes()).decode()
    return f'graph({inputs}) {{ %w = constant f32{list(shape)} @w  {body} }} resources {{ @w = "{ones}" }}'


SMALL, LARGE = "%x: f32[1, 16, 8, 8]", "%x: f32[1, 16, 56, 56]"
PAD = "%p = pad %x {before=[0, 0, 1, 1], after=[0, 0, 1, 1]}"
PADDED = PAD + "  %y = conv %p, %w {stride=[1, 1], dilation=[1, 1]}"
IMPLICIT = "%y = conv %x, %w {stride=[1, 1], dilation=[1, 1], before=[1, 1], after=[1, 1]}"
ROWS_ONLY = """%p = pad %x {before=[0, 0, 0, 1], after=[0, 0, 0, 1]}
  %y = conv %p, %w {stride=[1, 1], dilation=[1, 1], before=[1, 0], after=[1, 0]}"""

FAST_MEMORY = Machine(l3_bytes_per_cycle=100)
"""Copying an image into its padding costs little here."""


def test_eliminates_padding_in_both_dimensions() -> None:
    check_pass(
        "eliminate-padding",
        before=conv_graph(SMALL, f"{PADDED} return %y"),
        after=conv_graph(SMALL, f"{IMPLICIT} return %y"),
        remark="padding eliminated in dimension 2 and 3",
        special=False,  # infinity times a zero of the padding is NaN
    )


def test_machine_with_fast_memory_pads_columns() -> None:
    check_pass(
        "eliminate-padding",
        before=conv_graph(SMALL, f"{PADDED} return %y"),
        after=conv_graph(SMALL, f"{ROWS_ONLY} return %y"),
        remark="padding eliminated in dimension 2 (",
        machine=FAST_MEMORY,
        special=False,
    )


def test_machine_with_fast_memory_pads_large_images() -> None:
    check_pass(
        "eliminate-padding",
        unchanged=conv_graph(LARGE, f"{PADDED} return %y"),
        remark="splitting the loops costs more",
        machine=FAST_MEMORY,
        special=False,
    )


def test_max_loop_nests_bounds_code_size() -> None:
    """Rows and columns have three ranges each, with different taps: nine loop nests in all."""
    check_pass(
        "eliminate-padding{max-loop-nests=9}",
        before=conv_graph(SMALL, f"{PADDED} return %y"),
        after=conv_graph(SMALL, f"{IMPLICIT} return %y"),
        special=False,
    )
    check_pass(
        "eliminate-padding{max-loop-nests=8}",
        before=conv_graph(SMALL, f"{PADDED} return %y"),
        after=conv_graph(SMALL, f"{ROWS_ONLY} return %y"),
        special=False,
    )


def test_reads_padded_image_that_others_need_anyway() -> None:
    check_pass(
        "eliminate-padding",
        unchanged=conv_graph(SMALL, f"{PADDED}  %z = relu %p  return %y, %z", 16),
        remark="splitting the loops costs more",
        special=False,
    )


def test_padded_image_stays_for_its_other_users() -> None:
    """Most products of a dilated window are with padding, so that the convolution does without it."""
    wide = "%p = pad %x {before=[0, 0, 6, 6], after=[0, 0, 6, 6]}"
    window = "{stride=[1, 1], dilation=[6, 6]}"
    check_pass(
        "eliminate-padding",
        before=conv_graph(SMALL, f"{wide}  %y = conv %p, %w {window}  %z = relu %p  return %y, %z"),
        after=conv_graph(
            SMALL,
            f"""%y = conv %x, %w {window.replace("}", ", before=[6, 6], after=[6, 6]}")}
            {wide}  %z = relu %p  return %y, %z""",
        ),
        special=False,
    )


def test_eliminates_padding_at_dynamic_sizes() -> None:
    image = "size h in 16..512 hint 400, %x: f32[1, 16, h + 1, h + 1]"
    check_pass(
        "eliminate-padding",
        before=conv_graph(image, f"{PADDED} return %y", 16),
        after=conv_graph(image, f"{IMPLICIT} return %y", 16),
        remark="padding eliminated in dimension 2 and 3",
        special=False,
    )


def test_requests_variant_for_small_images() -> None:
    context = Context(Machine(registers=8))
    text = conv_graph("size h in 16..1000 hint 500, %x: f32[1, 16, h, h]", f"{PADDED} return %y", 16)
    graph = parse_graph(text)
    assert run_pipeline(graph, "eliminate-padding", context) is graph
    (note,) = context.remarks.select("eliminate-padding", "note")
    assert "small images choose other dimensions" in note.message
    assert context.wants_small_variant


REFUSED = {
    "padding of ones": conv_graph(SMALL, PADDED.replace("1, 1]}  ", "1, 1], value=1.0}  ") + " return %y"),
    "padded channels": conv_graph("%x: f32[1, 14, 8, 8]", PADDED.replace("[0, 0", "[0, 1") + " return %y"),
    "fewer outputs than lanes": conv_graph(SMALL, f"{PADDED} return %y", outputs=8),
    "grouped": conv_graph(SMALL, PADDED.replace("n=[1, 1]}", "n=[1, 1], groups=2}") + " return %y", groups=2),
    "computed weights": conv_graph(SMALL, "%v = relu %w " + PADDED.replace("%w", "%v") + " return %y"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_keeps_padding(case: str) -> None:
    check_pass("eliminate-padding", unchanged=REFUSED[case], special=False)
