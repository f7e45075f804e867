"""Windows of reductions: of which nodes they are, which padding they can skip, and which dimension is contiguous."""

from __future__ import annotations

import pytest

from compiler.analysis.windows import (
    PaddedWindows,
    Window,
    contiguous_dim,
    match_padded_windows,
    match_windows,
    unfolded,
)
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.type_parser import parse_type
from compiler.testing.checks import canonical_text, check_equivalent


def graph(statements: str, dtype: str = "f32") -> Graph:
    return parse_graph(
        f"graph(size s in 1..9 hint 4, %x: {dtype}[2, 9, 7], %d: f32[2, s, 7]) {{ {statements}  return %y }}"
    )


def node(statements: str, dtype: str = "f32") -> Node:
    (y,) = graph(statements, dtype).outputs
    return y


@pytest.mark.parametrize("op", ["max_pool", "sum_pool"])
@pytest.mark.parametrize(
    ("attrs", "windows"),
    [
        ("size=[3], stride=[1], dilation=[1]", (Window(2, 3, 1, 1),)),
        ("size=[2], stride=[3], dilation=[2]", (Window(2, 2, 3, 2),)),
        ("size=[7], stride=[1], dilation=[1]", (Window(2, 7, 1, 1),)),
        ("size=[3, 2], stride=[2, 1], dilation=[1, 5]", (Window(1, 3, 2, 1), Window(2, 2, 1, 5))),
        ("size=[2, 2, 2], stride=[1, 1, 2], dilation=[1, 3, 1]",
         (Window(0, 2, 1, 1), Window(1, 2, 1, 3), Window(2, 2, 2, 1))),
    ],
)  # fmt: skip
def test_pooling_has_windows(op: str, attrs: str, windows: tuple[Window, ...]) -> None:
    assert match_windows(node(f"%y = {op} %x {{{attrs}}}")) == windows


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("%y = exp %x", id="elementwise"),
        pytest.param("%y = sum %x {dims=[2]}", id="a dimension less"),
        pytest.param("%y = sum %x {dims=[2], keepdim=true}", id="a whole dimension"),
        pytest.param("%y = sum %x {dims=[]}", id="nothing reduced"),
        pytest.param("%y = max_pool %x {size=[1], stride=[1], dilation=[1]}", id="each element alone"),
        pytest.param("%y = max_pool %x {size=[2, 1], stride=[1, 2], dilation=[1, 1]}", id="elements left out"),
        pytest.param("%y = max_pool %x {size=[2], stride=[1], dilation=[1], before=[1], after=[0]}", id="implicit padding"),
        pytest.param("%w = permute %x {dims=[0, 2, 1]}  %y = matmul %x, %w", id="products"),
    ],
)  # fmt: skip
def test_other_nodes_have_no_windows(statements: str) -> None:
    assert match_windows(node(statements)) == ()


@pytest.mark.parametrize("w", [Window(2, 3, 2, 2), Window(2, 2, 3, 1), Window(2, 7, 1, 1)], ids=str)
def test_reducing_the_last_dimension_of_the_unfolded_view_is_pooling(w: Window) -> None:
    pooled = graph(f"%y = max_pool %x {{size=[{w.size}], stride=[{w.stride}], dilation=[{w.dilation}]}}")
    view = unfolded(pooled.inputs[0], w)
    assert match_windows(pooled.outputs[0]) == (w,)
    assert view.shape == (*pooled.outputs[0].shape, w.size)
    check_equivalent(pooled, Graph(pooled.inputs, (ops.amax(view, dims=[3]),)), exact=True)


@pytest.mark.parametrize(
    ("pad", "op", "attrs", "windows", "padding"),
    [
        ("before=[0, 0, 1], after=[0, 0, 2], value=-inf", "max_pool", "size=[3], stride=[2], dilation=[1]",
         (Window(2, 3, 2, 1),), ((1, 2),)),
        ("before=[0, 0, 1], after=[0, 0, 0]", "sum_pool", "size=[2], stride=[1], dilation=[3]", (Window(2, 2, 1, 3),), ((1, 0),)),
        ("before=[0, 2, 0], after=[0, 1, 0]", "sum_pool", "size=[2, 7], stride=[1, 1], dilation=[1, 1]",
         (Window(1, 2, 1, 1), Window(2, 7, 1, 1)), ((2, 1), (0, 0))),
        ("before=[0, 1, 2], after=[0, 3, 0]", "sum_pool", "size=[2, 3], stride=[2, 1], dilation=[1, 2]",
         (Window(1, 2, 2, 1), Window(2, 3, 1, 2)), ((1, 3), (2, 0))),
    ],
)  # fmt: skip
def test_windows_skip_the_identity_around_an_image(
    pad: str, op: str, attrs: str, windows: tuple[Window, ...], padding: tuple[tuple[int, int], ...]
) -> None:
    g = graph(f"%p = pad %x {{{pad}}}  %y = {op} %p {{{attrs}}}")
    (y,) = g.outputs
    found = match_padded_windows(y)
    assert found == PaddedWindows(y, windows, padding)
    assert found.image is g.inputs[0]
    new = found.without_padding()
    before, after = ([p[k] for p in padding] for k in range(2))
    sizes = ", ".join(f"{a}={[getattr(w, a) for w in windows]}" for a in ("size", "stride", "dilation"))
    expected = graph(f"%y = {op} %x {{{sizes}, before={before}, after={after}}}")
    assert canonical_text(Graph(g.inputs, (new,))) == canonical_text(expected)
    check_equivalent(g, Graph(g.inputs, (new,)))


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("%y = max_pool %x {size=[3], stride=[1], dilation=[1]}", id="no padding"),
        pytest.param("%p = pad %x {before=[0, 0, 1], after=[0, 0, 1]}  %y = max_pool %p {size=[3], stride=[1], dilation=[1]}",
                     id="zeros"),
        pytest.param("%p = pad %x {before=[0, 0, 1], after=[0, 0, 1], value=-inf}  %y = sum_pool %p {size=[3], stride=[1], dilation=[1]}",
                     id="the lowest number in sums"),
        pytest.param("%p = pad %x {before=[0, 1, 1], after=[0, 0, 1]}  %y = sum_pool %p {size=[3], stride=[1], dilation=[1]}",
                     id="more rows"),
        pytest.param("%p = pad %d {before=[0, s, 0], after=[0, 0, 0]}  %y = sum_pool %p {size=[2, 2], stride=[1, 1], dilation=[1, 1]}",
                     id="as many as a dynamic size"),
        pytest.param("%p = pad %x {before=[0, 0, 1], after=[0, 0, 1]}  %y = exp %p", id="no windows"),
        pytest.param("%p = pad %x {before=[0, 0, 1], after=[0, 0, 1]}  %y = sum %p {dims=[2]}", id="a whole dimension"),
        pytest.param("%p = slice %x {dim=2, start=1, size=4}  %y = sum_pool %p {size=[3], stride=[1], dilation=[1]}",
                     id="a part of the image"),
    ],
)  # fmt: skip
def test_other_reductions_have_no_padding_to_skip(statements: str) -> None:
    assert match_padded_windows(node(statements)) is None


@pytest.mark.parametrize(
    ("statements", "dim"),
    [
        ("%y = permute %x {dims=[0, 1, 2]}", 2),
        ("%y = permute %x {dims=[0, 2, 1]}", 1),
        ("%p = permute %x {dims=[2, 0, 1]}  %y = permute %p {dims=[1, 0, 2]}", 1),
        ("%y = reshape %x {shape=[18, 7]}", 1),
        ("%y = reshape %x {shape=[126]}", None),
        ("%y = flip %x {dims=[0]}", 2),
        ("%y = flip %x {dims=[2]}", None),
        ("%y = slice %x {dim=0, size=1}", None),
        ("%y = expand %x {shape=[2, 2, 9, 7]}", None),
        ("%p = exp %x  %y = permute %p {dims=[0, 2, 1]}", None),
        ("%y = exp %x", None),
    ],
)
def test_a_permutation_of_an_input_has_a_contiguous_dimension(statements: str, dim: int | None) -> None:
    assert contiguous_dim(node(statements)) == dim


def test_inputs_are_row_major() -> None:
    assert contiguous_dim(input_node("x", parse_type("f32[2, 3]"))) == 1
    assert contiguous_dim(input_node("x", parse_type("f32[]"))) is None
