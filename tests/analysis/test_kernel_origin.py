"""Origins of kernels: the ops, lines and modules that each step of a fused graph stands for, and how they merge."""

from __future__ import annotations

import pytest

from compiler.analysis.kernel_origin import (
    KernelOrigin,
    kernel_origins,
    merge_module_paths,
    merge_origins,
    module_form,
)
from compiler.errors import Loc
from compiler.ir.text.graph_parser import parse_graph


def line(number: int, module: str = "") -> Loc:
    return Loc("m.py", number, "", module)


FUSED = """graph(%x: f32[3, 4], %w: f32[3, 4, 5]) {
  %y = fused %x, %w {body=graph @k(%x0: f32[3, 4], %x1: f32[3, 4, 5]) {
    %v = reshape %x0 {shape=[3, 1, 4]} loc("m.py":1, "", "net.0")
    %m = matmul %v, %x1 loc("m.py":2, "", "net.0.fc")
    %r = relu %m loc("m.py":3, "", "net.act")
    %n = neg %r
    return %n }}
  return %y }"""


def test_a_fused_kernel_stands_for_its_ops_without_views() -> None:
    origin = kernel_origins(parse_graph(FUSED))["y"]
    assert origin == KernelOrigin(
        ops=("matmul", "relu", "neg"),
        loc=line(3, "net.act"),
        modules=("net.0.fc", "net.act"),
        values=frozenset({("v", line(1, "net.0")), ("m", line(2, "net.0.fc")), ("r", line(3, "net.act")), ("n", None)}),
    )
    assert origin.place == line(3, "net.0.fc, net.act")


def test_the_line_of_a_fused_node_itself_comes_first() -> None:
    text = FUSED.replace("return %n }}", 'return %n }} loc("m.py":9)')
    assert kernel_origins(parse_graph(text))["y"].loc == line(9)


def test_a_kernel_of_views_stands_for_the_last_one() -> None:
    text = """graph(%x: f32[3, 4]) { %y = fused %x {body=graph @k(%x0: f32[3, 4]) {
      %a = reshape %x0 {shape=[12]} loc("m.py":1)  %b = reshape %a {shape=[2, 6]}  %c = permute %b {dims=[1, 0]}
      return %c }}  return %y }"""
    assert kernel_origins(parse_graph(text))["y"] == KernelOrigin(
        ("permute",), line(1), (), frozenset({("a", line(1)), ("b", None), ("c", None)})
    )


def test_nodes_outside_kernels_stand_for_themselves() -> None:
    origins = kernel_origins(
        parse_graph('graph(%x: f32[3, 4]) { %y = reshape %x {shape=[12]} loc("m.py":4)  return %y }')
    )
    assert origins == {
        "x": KernelOrigin(("input",), None, (), frozenset({("x", None)})),
        "y": KernelOrigin(("reshape",), line(4), (), frozenset({("y", line(4))})),
    }
    assert origins["x"].place is None


def test_steps_of_a_recurrence_have_its_name_in_front() -> None:
    origins = kernel_origins(
        parse_graph("""graph(%x: f32[5, 3], %h: f32[3]) {
          %r = recurrence %x, %h {body=graph @step(%x: f32[3], %h: f32[3]) {
            %s = add %x, %h loc("m.py":2)  return %s, %s }}
          %y = tuple_get %r {index=0}  return %y }""")
    )
    assert sorted(origins) == ["h", "r.h", "r.s", "r.x", "x", "y"]
    assert origins["r.s"] == KernelOrigin(("add",), line(2), (), frozenset({("s", line(2))}))


def test_place_is_known_if_the_line_or_a_module_is() -> None:
    assert KernelOrigin().place is None
    assert KernelOrigin(modules=("a.0", "a.1")).place == Loc(module="a.0-1")
    assert KernelOrigin(loc=line(2, "a.0")).place == line(2)


def test_merged_origins_are_the_first_with_all_modules_and_values() -> None:
    first = KernelOrigin(("relu",), line(1), ("a.0", "b"), frozenset({("u", None)}))
    second = KernelOrigin(("exp",), line(2), ("b", "a.1"), frozenset({("v", line(2))}))
    assert merge_origins([first]) == merge_origins([first, first]) == first
    assert merge_origins([first, second, first]) == KernelOrigin(
        ("relu",), line(1), ("a.0", "b", "a.1"), frozenset({("u", None), ("v", line(2))})
    )


@pytest.mark.parametrize(
    ("paths", "merged"),
    [
        (["a.0", "a.1", "a.2", "a.4", "a.6", "a.7"], "a.0-2,4,6-7"),
        (["a.10.b", "a.9.b", "a.9.b"], "a.9-10.b"),
        (["a.0.b.1", "a.2.b.1"], "a.0,2.b.1"),
        (["a.0.b.0", "a.0.b.1", "a.1.b.0"], "a.0.b.0, a.0.b.1, a.1.b.0"),
        (["a", "a.b", "ab"], "a.b, ab"),
        (["conv1", "conv2"], "conv1, conv2"),
        (["", ""], ""),
    ],
)
def test_module_paths_that_differ_in_one_number_become_a_range(paths: list[str], merged: str) -> None:
    assert merge_module_paths(paths) == merged


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("layers.0.fc", "layers.*.fc"),
        ("12", "*"),
        ("a.0.1", "a.*.*"),
        ("conv1.b2", "conv1.b2"),
        ("2d.x", "2d.x"),
        ("", ""),
    ],
)
def test_the_form_of_a_module_path_has_no_whole_numbers(path: str, form: str) -> None:
    assert module_form(path) == form
