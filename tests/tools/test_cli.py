"""The command line: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from compiler.codegen.backend import targets
from compiler.driver import variant
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.tools.cli import main
from tests.python_server import PythonServer

GRAPH = "graph @silu(%x: f32[1000]) { %s = sigmoid %x   %y = mul %s, %x   return %y }"
KERNEL = "kernel @double(in %x: f32[100], out %y: f32[100]) { parallel %i in 0..100 { store %x[%i] * 2.0, %y[%i] } }"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("programs") / "model.pt2"
    torch.export.save(torch.export.export(Model(), (torch.randn(2, 8),)), path)
    return path


@pytest.fixture
def graph(tmp_path: Path) -> str:
    path = tmp_path / "silu.ir"
    path.write_text(GRAPH)
    return str(path)


# opt


def test_opt_on_a_graph(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", graph, "-p", "fuse"]) == 0
    fused = parse_graph(capsys.readouterr().out)
    assert [n.op.name for n in fused.nodes] == ["input", "fused"]


def test_opt_on_a_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "double.ir").write_text(KERNEL)
    flags = ["-p", "vectorize,tile,peel", "--target", "x86-64-v3", "--verify", "--check"]
    assert main(["opt", str(tmp_path / "double.ir"), *flags]) == 0
    text = capsys.readouterr().out
    assert parse_kernel(text)
    assert "lanes 8" in text


def test_opt_lowers(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", graph, "-p", "fuse", "--lower", "vectorize"]) == 0
    program = parse_program(capsys.readouterr().out)
    assert len(program.kernels) == 1
    assert main(["opt", graph, "-p", "fuse", "--lower"]) == 0
    assert "lanes" not in capsys.readouterr().out


def test_opt_reads_programs_from_standard_input(
    graph: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["opt", graph, "-p", "fuse", "--lower"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(capsys.readouterr().out))
    assert main(["opt", "-", "-p", "vectorize"]) == 0
    assert "lanes" in capsys.readouterr().out


def test_opt_prints_what_passes_do(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--print-ir-before", "--print-ir-after=fuse", "--stats", "--remarks"]
    assert main(["opt", graph, "-p", "canonicalize,fuse", *flags]) == 0
    printed = capsys.readouterr().err
    assert printed.count("// before ") == 2
    assert printed.count("// after ") == 1
    assert "fuse: kernels" in printed
    assert "applied fuse" in printed


@pytest.mark.parametrize(("limit", "kernels"), [("0", 3), ("1", 3), ("2", 1), ("9", 1)])
def test_opt_stops_after_some_rewrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, kernels: int
) -> None:
    (tmp_path / "x.ir").write_text(GRAPH.replace("return %y", "%z = exp %y return %z"))
    assert main(["opt", str(tmp_path / "x.ir"), "-p", "fuse", "--rewrite-limit", limit]) == 0
    fused = parse_graph(capsys.readouterr().out)
    assert [n.op.name for n in fused.nodes].count("fused") == kernels  # the first rewrite makes nodes kernels


def test_the_default_pipeline_rounds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds the passes of a compilation without options, so none that an option asks for."""
    (tmp_path / "x.ir").write_text("graph(%x: f32[32, 64], %w: f32[64, 48]) { %y = matmul %x, %w return %y }")
    assert main(["opt", str(tmp_path / "x.ir"), "-p", "default", "--target", "x86-64-v4"]) == 0
    assert "bf16" not in capsys.readouterr().out


def test_opt_prints_changes_only(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", graph, "-p", "cse,fuse", "--print-ir-after-change"]) == 0
    printed = capsys.readouterr().err
    assert "// after fuse" in printed
    assert "// after cse" not in printed


@pytest.mark.parametrize(
    ("text", "pipeline", "says"),
    [
        (GRAPH, "fuze", "did you mean fuse?"),
        (GRAPH, "vectorize", "takes a Kernel, not a Graph"),
        ("graph(%x: f32[4]) { return %z }", "", "line 1"),
        ("", "", "line 1"),
        (KERNEL.replace("%x[%i]", "%x[%q]"), "", "`%q` is not defined here"),
        (KERNEL.replace("0..100", "0..101"), "", "ranges over 0..100"),
        (GRAPH, "default,-fuze", "did you mean fuse?"),
    ],
)
def test_opt_fails_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, pipeline: str, says: str
) -> None:
    (tmp_path / "x.ir").write_text(text)
    assert main(["opt", str(tmp_path / "x.ir"), "-p", pipeline]) == 1
    printed = capsys.readouterr().err
    assert says in printed
    assert "Traceback" not in printed


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "no/such.ir"]) == 1
    assert "no/such.ir" in capsys.readouterr().err


# schedules


def test_opt_prints_and_takes_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "double.ir").write_text(KERNEL)
    command = ["opt", str(tmp_path / "double.ir"), "--target", "x86-64-v3"]
    assert main([*command, "-p", "default", "--print-schedule"]) == 0
    schedule = capsys.readouterr().out
    assert schedule == "schedule @double {\n  vectorize %i by 8\n  tile %i by 32\n  peel\n  serial\n}\n"
    (tmp_path / "double.txt").write_text(schedule)
    assert main([*command, "-p", "default"]) == 0
    scheduled = capsys.readouterr().out
    assert main([*command, "--schedule", str(tmp_path / "double.txt"), "--verify", "--check"]) == 0
    assert capsys.readouterr().out == scheduled


def test_opt_schedules_kernels_of_a_graph(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["opt", graph, "-p", "decompose,fuse", "--lower", "default", "--print-schedule"]
    assert main(command) == 0
    (tmp_path / "s.txt").write_text(edited := capsys.readouterr().out.replace("by 64", "by 32"))
    assert main([*command, "--schedule", str(tmp_path / "s.txt")]) == 0
    assert capsys.readouterr().out == edited


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ("schedule @double { tile %j by 4 }", "schedule of @double, `tile %j by 4`: there is no loop %j; loops are %i"),
        ("schedule @other { }", "there is no kernel @other; kernels are double"),
        ("schedule @double { tilt %i by 4 }", "called tilt; did you mean tile"),
    ],
)
def test_wrong_schedules_fail_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str, says: str
) -> None:
    (tmp_path / "double.ir").write_text(KERNEL)
    (tmp_path / "s.txt").write_text(schedule)
    assert main(["opt", str(tmp_path / "double.ir"), "--schedule", str(tmp_path / "s.txt")]) == 1
    assert says in capsys.readouterr().err


def test_compile_and_run_with_a_schedule(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(program), "--print-ir", "schedules"]) == 0
    name = capsys.readouterr().out.split()[1]
    (tmp_path / "s.txt").write_text(f"schedule {name} {{\n  vectorize %i1 by 4\n  serial\n}}")
    given = ["--schedule", str(tmp_path / "s.txt")]
    assert main(["compile", str(program), "--print-ir", "scheduled", *given]) == 0
    assert "lanes 4" in capsys.readouterr().out
    assert main(["run", str(program), "-o", str(tmp_path / "out.pt"), *given]) == 0
    exported = torch.export.load(program)
    assert torch.allclose(torch.load(tmp_path / "out.pt"), exported.module()(*exported.example_inputs[0]), atol=1e-6)


# programs


def test_compile_reports_and_writes_a_page(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(program), "-o", str(tmp_path / "page.html")]) == 0
    assert "compiled in" in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_explore_writes_a_page(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    ways = ["--against", "unfused", "--against", 'gpu={target="sm90"}']
    assert main(["explore", str(program), "-o", str(page), "--repeats", "1", *ways]) == 0
    assert "wrote" in capsys.readouterr().err
    assert page.read_text().startswith("<!doctype html>")


def test_compile_prints_a_stage(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(program), "--print-ir", "scheduled", "--target", "x86-64-v3"]) == 0
    assert "lanes" in capsys.readouterr().out


def test_run(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(2, 8)
    torch.save((x,), tmp_path / "in.pt")
    assert main(["run", str(program), "-i", str(tmp_path / "in.pt"), "-o", str(tmp_path / "out.pt")]) == 0
    want = torch.export.load(program).module()(x)
    assert torch.allclose(torch.load(tmp_path / "out.pt"), want, atol=1e-6)
    assert "float32[2, 4]" in capsys.readouterr().out


def test_tune(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(
        variant, "KernelTimer", lambda target: lambda kernels, spread: asked.append(target) or [1.0] * len(kernels)
    )
    assert main(["run", str(program)]) == 0
    assert not asked
    assert main(["run", str(program), "--effort", "tune"]) == 0
    assert asked


def test_compare(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = 'wide={tile_passes="vectorize", matmul_precision="bf16"}'
    assert main(["compare", str(program), "-w", "decompose,fuse", "-w", "unfused", "--way", wide]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("PyTorch", "decompose,fuse", "unfused", "wide"))
    assert "spread" in printed


@pytest.mark.parametrize(("way", "says"), [("a={fuze=true}", "no option 'fuze'"), ("a={fuse=}", "as TOML")])
def test_a_way_that_is_none(program: Path, capsys: pytest.CaptureFixture[str], way: str, says: str) -> None:
    assert main(["compare", str(program), "-w", way]) == 1
    assert says in capsys.readouterr().err


def test_profile(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(program), "--trace", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("a call takes", "GFLOP/s", "roofline", "predicted"))
    assert json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert main(["profile", str(program), "--json", "--repeats", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["call"]["runs"] == 3


def test_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pt2").write_bytes(b"nothing")
    assert main(["run", str(tmp_path / "x.pt2")]) == 1
    assert "holds no exported program" in capsys.readouterr().err


def test_code_for_another_cpu_is_printed(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(program), "--print-ir", "assembly", "--target", "aarch64"]) == 0
    assert "fmla" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["opt", "compile", "run", "compare", "profile", "bench"])
def test_help_lists_the_registered_targets(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert {"host", *targets()} <= set(words)


# lists


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes"]) == 0
    printed = capsys.readouterr().out
    assert "fuse" in printed
    assert "vectorize" in printed
    assert "layout" in printed
    assert main(["ops"]) == 0
    assert "softmax" in capsys.readouterr().out


def test_as_a_module(python: PythonServer) -> None:
    done = python.run("-m", "compiler", "opt", "no/such.ir")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_a_reader_may_stop() -> None:
    command = [sys.executable, "-m", "compiler", "ops"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_version_and_help_of_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("tilewright 0")
    assert main(["passes", "unroll"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("unroll{")
    assert "->" in printed
    assert main(["passes", "unrol"]) == 1
    assert "did you mean unroll" in capsys.readouterr().err


def test_piped_tables_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) > 120
