"""Data of pages that explore compilations: it is complete, consistent with the compilation, and all in one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import compiler
from compiler.api import explore
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.text.tile_printer import print_kernel
from compiler.passes.base import PASSES, Context, GraphPass, register
from compiler.report.explore.origins import OriginTable, origin_name
from compiler.report.explore.page import FOLDER, bundled_script
from tests.report.explore.pages import Net, apply_delta, final_text, page_data

X = torch.randn(8, 32)


@pytest.fixture(scope="module")
def compiled() -> compiler.CompiledModule:
    torch.manual_seed(0)
    return compiler.compile(Net().eval(), (X,))


@pytest.fixture(scope="module")
def file(compiled: compiler.CompiledModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.explore(tmp_path_factory.mktemp("page") / "page.html", repeats=2)


@pytest.fixture(scope="module")
def page(file: Path) -> dict[str, Any]:
    return page_data(file)


def test_the_page_is_self_contained(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # the name of a namespace
    assert not re.search(r"https?:|\bsrc=|@import|url\(|\bimport\b.*\bfrom\b", text)
    assert set(re.findall(r"<link[^>]*>", text)) == {'<link rel="icon" href="data:,">'}
    assert len(text) < 300_000


def test_scripts_share_one_scope() -> None:
    """Modules are concatenated, so that no two may declare the same name."""
    script = bundled_script()
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.M)
    assert len(names) == len(set(names))
    assert not re.search(r"^(import|export) ", script, re.M)
    for module in FOLDER.iterdir():
        if module.name.endswith(".js"):
            assert module.read_text().splitlines()[0] in script


def test_steps_lead_to_what_was_compiled(page: dict[str, Any], compiled: compiler.CompiledModule) -> None:
    (way,), scheduled = page["ways"], compiled.stages.scheduled
    assert {k["name"] for k in way["kernels"]} == set(scheduled.kernels)
    for k in way["kernels"]:
        assert final_text(k["tile"]) == print_kernel(scheduled.kernels[k["name"]])
        assert k["code"]["llvm"]["text"] in compiled.print_ir("llvm")
    text = final_text(way["graph"])
    assert text.count("= fused ") == sum(n.op.name == "fused" for n in compiled.stages.fused.nodes)
    assert "fuse" in [s["name"] for s in way["graph"]["steps"]]


def test_rewrites_add_up_to_their_pass(page: dict[str, Any]) -> None:
    """The text after the last rewrite is the text after the pass, for every pass over graphs, the program and kernels."""
    (way,) = page["ways"]
    rewrites = 0
    for steps in (way["graph"], way["program"], *(k["tile"] for k in way["kernels"])):
        text = steps["text"]
        for step in steps["steps"]:
            assert step["omitted"] == ""
            inner = text
            for rewrite in step["rewrites"]:
                inner = apply_delta(inner, rewrite["delta"])
            text = apply_delta(text, step["delta"])
            assert not step["rewrites"] or inner == text, step["text"]
            assert step["rewrites"] or not step["delta"], step["text"]
            rewrites += len(step["rewrites"])
    fused = next(s for s in way["graph"]["steps"] if s["name"] == "fuse")
    assert "%softmax_0.exp" in {r["about"] for r in fused["rewrites"]}
    assert rewrites > 20


def test_a_step_of_a_large_graph_makes_several_rewrites(
    compiled: compiler.CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is left out: the last step leads to the text after the pass, and the list says how many a step makes."""
    monkeypatch.setattr("compiler.report.explore.rewrites.MAX_OFFERED", 200)
    (way,) = page_data(compiled.explore(tmp_path / "page.html", repeats=1))["ways"]
    text, graph = way["graph"]["text"], way["graph"]["steps"]
    for step in graph:
        inner = text
        for rewrite in step["rewrites"]:
            inner = apply_delta(inner, rewrite["delta"])
        text = apply_delta(text, step["delta"])
        assert not step["rewrites"] or inner == text, step["text"]
    fused = next(s for s in graph if s["name"] == "fuse")
    assert re.fullmatch(r"each step makes up to \d+ rewrites of this large graph", fused["omitted"])
    assert 1 < len(fused["rewrites"]) < 10
    assert any(re.search(r", %.* and \d+ more$", r["about"]) for r in fused["rewrites"])


def test_every_kernel_comes_from_lines_of_the_user(page: dict[str, Any]) -> None:
    (way,), (source,) = page["ways"], page["sources"]
    assert source["name"] == "pages.py"
    for k in way["kernels"]:
        assert k["origins"]
        for o in k["origins"]:
            origin = page["origins"][o]
            assert origin["file"] == 0
            assert source["lines"][origin["line"] - source["first"]].strip().startswith(("y =", "return"))
    covered = {o for k in way["kernels"] for o in k["origins"]}
    assert covered == set(range(len(page["origins"])))


def test_drawings_hold_each_node_once(page: dict[str, Any]) -> None:
    (way,) = page["ways"]

    def members(box: dict[str, Any]) -> Iterator[int]:
        assert sorted(e for layer in box["layers"] for e in layer if e >= 0) == list(range(len(box["children"])))
        for child in box["children"]:
            if isinstance(child, int):
                yield child
            else:
                yield from [child["node"]] if child["node"] is not None else []
                yield from members(child)

    for drawing in way["drawings"]:
        assert sorted(members(drawing["root"])) == list(range(len(drawing["nodes"])))
    last = [way["nodes"][n] for n in way["drawings"][-1]["nodes"]]
    assert {n["kernel"] for n in last if n["op"] == "fused"} == {k["name"] for k in way["kernels"]}
    ids = {n["id"] for n in last}
    assert all(i in ids for n in last for i in n["inputs"])


def test_times_and_decisions(page: dict[str, Any]) -> None:
    (way,) = page["ways"]
    assert way["seconds"] > 0
    for k in way["kernels"]:
        assert min(k["seconds"], k["predicted"], k["roofline"], k["flops"], k["bytes"]) > 0
    assert any("fused into" in r["message"] for k in way["kernels"] for r in k["remarks"])
    assert all(a["predicted"] > 0 for k in way["kernels"] for a in k["alternatives"] if a["predicted"] is not None)
    assert way["ceilings"]["flops"]["f32"] > way["ceilings"]["flops"]["f64"]
    assert way["memory"]["size"] <= way["memory"]["size_without_reuse"]
    assert {e["name"] for e in way["trace"] if e.get("cat") == "step"} == {k["name"] for k in way["kernels"]}


def test_origins_follow_a_node_through_passes() -> None:
    """The name of a node that a pass built says which node it stands for."""
    graph = compiler.compile(Net().eval(), (X,)).stages.imported
    table = OriginTable()
    traced = table.trace(graph)
    decomposed = PASSES["decompose"]().run(traced, Context())
    assert "layer_norm_0.sum" in unique_names(decomposed.nodes, origin_name).values()
    assert table.nodes[0].name == "layer_norm_0"


def test_ways_share_origins(compared_ways: Path) -> None:
    page = page_data(compared_ways)
    assert [w["name"] for w in page["ways"]] == ["default", "unfused", "gpu"]
    covered = [{o for k in w["kernels"] for o in k["origins"]} for w in page["ways"]]
    assert covered[0] == covered[1] == covered[2] == set(range(len(page["origins"])))
    gpu = page["ways"][2]
    assert all(list(k["code"]) == ["triton"] and "@triton.jit" in k["code"]["triton"]["text"] for k in gpu["kernels"])
    assert gpu["seconds"] is None
    assert gpu["ceilings"]["flops"]["bf16 products"] > gpu["ceilings"]["flops"]["f32"]
    assert all(k["predicted"] >= k["roofline"] > 0 for k in gpu["kernels"])
    if find_spec("triton"):
        assert all(
            int(k["resources"]["registers"]) > 0 and k["resources"]["occupancy"].endswith("%") for k in gpu["kernels"]
        )
    assert all(not k["resources"] for k in page["ways"][0]["kernels"])


@dataclass(frozen=True)
class Failing(GraphPass):
    """Fail on every graph."""

    name = "always-fails"

    def run(self, ir: Graph, context: Context) -> Graph:
        raise LoweringError("this pass never works")


@pytest.fixture
def failing_pass() -> Iterator[str]:
    register(Failing)
    yield Failing.name
    del PASSES[Failing.name]


def test_a_pass_that_fails(tmp_path: Path, failing_pass: str) -> None:
    """The page shows the passes before it, and why it failed."""
    options = {"graph_passes": f"default,+{failing_pass}@before:fuse"}
    (way,) = page_data(explore(Net().eval(), tmp_path / "page.html", (X,), options=options))["ways"]
    assert "this pass never works" in way["error"]
    *before, failed = way["graph"]["steps"]
    assert (failed["name"], failed["failed"]) == (failing_pass, True)
    assert {"decompose", "cse"} <= {s["name"] for s in before}
    assert "layer_norm_0.sum" in final_text(way["graph"])
    assert way["kernels"] == []


class Unsupported(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x)[0]


def test_an_operator_that_is_refused(tmp_path: Path) -> None:
    """The page shows the exported program and the error."""
    options = {"fallback": "strict"}
    (way,) = page_data(explore(Unsupported(), tmp_path / "page.html", (X,), options=options))["ways"]
    assert "linalg_qr" in way["error"]
    assert "linalg_qr" in final_text(way["graph"])


class Sorted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mode(torch.relu(x))[0] + 1.0


def test_calls_into_pytorch_stand_beside_kernels(tmp_path: Path) -> None:
    (way,) = page_data(explore(Sorted(), tmp_path / "page.html", (X,), repeats=1))["ways"]
    (call,) = (k for k in way["kernels"] if not k["tile"]["text"])
    assert "mode" in call["name"]
    assert call["ops"].startswith("runs in PyTorch: ")
    assert call["seconds"] > 0
    assert call["origins"]


def test_dynamic_sizes_are_those_of_the_call(tmp_path: Path) -> None:
    """Work, memory and predictions are for the sizes that were measured, not for the hints of the program."""
    pages = []
    for rows in (8, 256):
        shapes = {"x": {0: torch.export.Dim("rows", min=2, max=512)}}
        compiled = compiler.compile(Net().eval(), (torch.randn(rows, 32),), dynamic_shapes=shapes)
        pages.append(page_data(compiled.explore(tmp_path / "page.html", repeats=1))["ways"][0])
    small, large = ([k["flops"] for k in way["kernels"]] for way in pages)
    assert sum(large) == 32 * sum(small)
    assert 0 < pages[0]["memory"]["size"] < pages[1]["memory"]["size"]
    assert pages[0]["predicted"] < pages[1]["predicted"]
