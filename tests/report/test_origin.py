"""Where kernels come from, and how the places of repeated layers are written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compiler
from compiler.analysis.kernel_origin import KernelOrigin, merge_module_paths
from compiler.analysis.structural_key import structural_key
from compiler.codegen.llvm.targets import host_target
from compiler.driver.program_cache import program_key
from compiler.errors import Loc
from compiler.ir.graph.graph import Graph
from compiler.options import Options
from compiler.passes.remark import Remark
from compiler.report.remark_groups import group_remarks


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


@pytest.fixture(scope="module")
def layers() -> compiler.CompiledModule:
    torch.manual_seed(0)
    return compiler.compile(nn.Sequential(*(Layer() for _ in range(3))), (torch.randn(4, 16),))


@pytest.mark.parametrize(
    ("paths", "merged"),
    [
        (["layers.0.fc", "layers.1.fc", "layers.2.fc"], "layers.0-2.fc"),
        (["layers.0.fc", "layers.2.fc", "layers.3.fc"], "layers.0,2-3.fc"),
        (["layers.0", "layers.0.fc", "layers.1", "layers.1.fc"], "layers.0-1.fc"),
        (["a.0.b.0", "a.1.b.1"], "a.0.b.0, a.1.b.1"),
        (["", "conv1", "bn1"], "conv1, bn1"),
        ([], ""),
    ],
)
def test_merged_paths(paths: list[str], merged: str) -> None:
    assert merge_module_paths(paths) == merged


def test_repeated_layers_share_a_row(layers: compiler.CompiledModule) -> None:
    (kernel,) = layers.profile(repeats=2).kernels
    assert kernel.runs == 3
    assert kernel.origin.place.module == "0-2.linear"
    assert kernel.origin.place.file == __file__
    assert "0-2.linear" in str(layers.report(repeats=2))


def test_modules_of_code_in_libraries() -> None:
    """An encoder layer has no line of the user's, but the paths of its modules."""
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    compiled = compiler.compile(encoder.eval(), (torch.randn(2, 4, 16),))
    report = compiled.report(repeats=1)
    assert "layers.0-1.linear1" in {k.origin.place.module for k in report.kernels}
    assert all(group.loc for group in report.remark_groups)
    assert len(report.remark_groups) < len(report.remarks) * 0.6


def test_locations_decide_nothing(layers: compiler.CompiledModule) -> None:
    graph = layers.compiled_graph.graph
    moved: dict[object, object] = {}
    for n in graph.nodes:
        moved[n] = n.with_operands(tuple(moved[o] for o in n.operands)).with_loc(Loc("elsewhere.py", 3, "x", "other"))
    other = Graph(tuple(moved[n] for n in graph.inputs), tuple(moved[n] for n in graph.outputs), graph.name)
    assert {n.loc for n in other.nodes} != {n.loc for n in graph.nodes}
    assert structural_key(other) == structural_key(graph)
    assert program_key(other, Options(), host_target()) == program_key(graph, Options(), host_target())


def test_remarks_are_folded_and_ranked() -> None:
    remarks = [
        Remark("fuse", "applied", "fused", Loc("m.py", 1), "%a"),
        *(Remark("fuse", "missed", f"not %x{k}", Loc("m.py", 2, module=f"layers.{k}"), lost=1e-6) for k in range(4)),
        Remark("fuse", "missed", "slow", Loc("m.py", 3), lost=3e-6),
        Remark("tile", "missed", "cold", kernel="a"),
        Remark("tile", "missed", "hot", kernel="b"),
    ]
    groups = group_remarks(remarks, {"b": KernelOrigin(("add",), None, ("head",))}, {"a": 1e-6, "b": 2e-6})
    assert [(g.first.message, g.count) for g in groups] == [
        ("not %x0", 4),
        ("slow", 1),
        ("hot", 1),
        ("cold", 1),
        ("fused", 1),
    ]
    assert groups[0].lost == pytest.approx(4e-6)
    assert str(groups[0].loc) == "m.py:2 in layers.0-3"
    assert groups[2].loc == Loc(module="head")
    assert "1.0 us lost" in str(remarks[1])
