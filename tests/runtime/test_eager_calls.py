"""Code of calls into PyTorch: what is called, which results are copied, and that no gradients are recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compiler.errors import VerifyError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import TensorType, i64
from compiler.lowering.program import lower
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.eager_calls import call_template, eager_function, fastest_binding, may_return_view

aten: Any = torch.ops.aten
x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def call(x: Node, overload: str, result: str, *more: Any) -> Node:
    t = parse_type(result)
    return ops.eager(x, overload=overload, args=("%0", *more), dtypes=(t.dtype,), shapes=(t.shape,))


def executable(*outputs: Node) -> CPUExecutable:
    inputs = tuple(n for n in Graph((), outputs).nodes if not n.operands)
    graph = run_pipeline(Graph(inputs, outputs), "fuse", Context())
    return CPUExecutable(lower(graph), options=Options(cache=""))


def source(n: Node) -> str:
    return executable(n).source


def test_an_own_operator_of_pytorch_is_called_by_its_binding() -> None:
    a = input_node("x", parse_type("f32[4, 6]"))
    n = call(a, "aten._fft_r2c.default", "c64[4, 4]", (1,), 0, True)
    assert "address" not in source(n), "its schema rules out views"
    assert torch.equal(executable(n)([x])[0], torch.fft.rfft(x))
    types, attrs = [a.type], {"args": ("%0", (1,), 0, True), "kwargs": ()}
    assert fastest_binding(aten._fft_r2c.default, attrs, types) is torch._fft_r2c
    attrs = {"args": ("%0", "#1"), "kwargs": ()}  # a number that only a run knows
    assert fastest_binding(aten.add.Scalar, attrs, types * 2) is aten.add.Scalar
    attrs = {"args": ("%0", 2), "kwargs": ()}  # the binding takes 2 for a tensor, another overload
    assert fastest_binding(aten.add.Scalar, attrs, types) is aten.add.Scalar


def test_an_op_whose_reference_is_an_operator_of_pytorch_is_called_by_its_binding() -> None:
    a = input_node("x", parse_type("f32[4, 6]"))
    pair = ops.topk(a, k=2, dim=1, largest=False)
    results = ops.result_nodes(pair)
    exe = executable(*results)
    assert "address" not in exe.source, "its schema rules out views"
    for ours, theirs in zip(exe([x]), x.topk(2, 1, largest=False), strict=True):
        assert torch.equal(ours, theirs)
    template = call_template(aten.topk.default, 1, pair.attrs)
    assert template == {"args": ("%0", 2, 1, False, True), "kwargs": ()}
    assert fastest_binding(aten.topk.default, template, [a.type]) is torch.topk
    template = call_template(aten.sort.stable, 1, {"dim": 0, "descending": True, "stable": False})
    assert template["kwargs"] == (("stable", False), ("dim", 0), ("descending", True))


def test_a_view_of_an_input_is_copied_but_one_of_a_temporary_is_not() -> None:
    a = input_node("x", parse_type("f32[4, 6]"))
    (y,) = executable(call(a, "aten.detach.default", "f32[4, 6]"))([x])
    assert torch.equal(y, x)
    assert y.data_ptr() != x.data_ptr()
    temporary = call(a, "aten.cosh.default", "f32[4, 6]")
    view, other = (call(temporary, "aten.view.default", "f32[24]", (24,)) for _ in range(2))
    assert "e1_used = {0, }" in source(view), "there is nothing to compare with"
    assert torch.equal(executable(view)([x])[0], x.cosh().view(24))
    results = executable(view, other, temporary)([x])
    assert len({r.data_ptr() for r in results}) == 3, "outputs share no memory"
    assert may_return_view(aten.view.default)
    assert may_return_view(aten.rand.default)


def test_a_conjugate_is_stored() -> None:
    a = input_node("x", parse_type("c64[4]"))
    n = call(call(a, "aten.exp.default", "c64[4]"), "aten._conj.default", "c64[4]")
    value = torch.complex(x[0, :4], x[1, :4])
    (y,) = executable(n)([value])
    assert not y.is_conj()
    torch.testing.assert_close(y, value.exp().conj_physical())


def test_a_call_whose_result_data_sizes_is_one_to_the_binding() -> None:
    a = input_node("x", parse_type("f32[n, 6]"))
    t = TensorType(i64, (var("u0"), 2))
    n = ops.eager(a, overload="aten.nonzero.default", args=("%0",), dtypes=(t.dtype,), shapes=(t.shape,))
    assert fastest_binding(aten.nonzero.default, n.attrs, [a.type]) is torch.nonzero
    (indices,) = eager_function(n, n.attrs, ())((x > 0).float())
    assert indices.is_contiguous()
    assert torch.equal(indices, (x > 0).nonzero())
    with pytest.raises(VerifyError, match=r"returned shape \[24, 2\], but the graph has \[u0, 3\]"):
        eager_function(ops.eager(a, **{**n.attrs, "shapes": ((var("u0"), 3),)}), n.attrs, ())(torch.ones(4, 6))


def test_gradients_are_off_for_the_call_and_back_on_after_it() -> None:
    a = input_node("x", parse_type("f32[4, 6]"))
    exe = executable(call(a, "aten.cosh.default", "f32[4, 6]"))
    (y,) = exe([x.clone().requires_grad_()])
    assert not y.requires_grad
    assert torch.is_grad_enabled()
    bad = executable(call(a, "aten.cosh.default", "f32[4, 5]"))
    with pytest.raises(VerifyError, match=r"returned shape \[4, 6\], but the graph has \[4, 5\]"):
        bad([x])
    assert torch.is_grad_enabled()
    with torch.no_grad():
        exe([x])
        assert not torch.is_grad_enabled()


def test_a_tensor_is_freed_after_its_last_use() -> None:
    a = input_node("x", parse_type("f32[4, 6]"))
    first = call(a, "aten.cosh.default", "f32[4, 6]")
    second = call(first, "aten.sinh.default", "f32[4, 6]")
    third = call(ops.add(first, second), "aten.cosh.default", "f32[4, 6]")
    exe = executable(third)
    lines = exe.source.splitlines()
    deletions = {line.strip(): k for k, line in enumerate(lines) if line.strip().startswith("del ")}
    names = [f"t{exe.frame_words[b]}" for b in exe.program.steps[0].results + exe.program.steps[1].results]
    (at,) = (k for text, k in deletions.items() if set(names) <= set(text.removeprefix("del ").split(", ")))
    assert "segment2(frame_address)" in lines[at - 1], "the kernel reads both by their addresses"
    torch.testing.assert_close(exe([x])[0], (x.cosh() + x.cosh().sinh()).cosh())
