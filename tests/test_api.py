"""The public interface: calls as PyTorch takes them, and what can be asked of a compiled model."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

import compiler
from compiler import ArgumentError, CompiledModule
from compiler.driver.interpreter_settings import compile_time_settings
from compiler.frontend.model_source import as_exported_program
from tests.frontend.frontend_kit import FunctionModule
from tests.python_server import PythonServer


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Nested(nn.Module):
    def forward(self, x: Tensor, rest: dict[str, Any], flag: bool = True, *, shift: Tensor | None = None) -> Any:
        y = x + rest["pair"][0] * rest["pair"][1]
        if shift is not None:
            y = y - shift
        return {"sum": y if flag else -y, "more": (x * 2, None, 7)}


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(self.norm(self.linear(x)))


@pytest.fixture(scope="module")
def gate() -> CompiledModule:
    return compiler.compile(Gate(), (torch.zeros(4, 8),))


@pytest.fixture(scope="module")
def norm() -> CompiledModule:
    torch.manual_seed(0)
    return compiler.compile(Norm(), (torch.randn(4, 16),))


def near(got: Tensor, want: Tensor) -> bool:
    return got.shape == want.shape and got.dtype == want.dtype and torch.allclose(got, want, rtol=1e-5, atol=1e-6)


# calls


def test_positional_and_by_name(gate: CompiledModule) -> None:
    x = torch.randn(4, 8)
    assert near(gate(x), Gate()(x))
    assert near(gate(x=x), Gate()(x))


def test_inputs_that_are_not_contiguous(gate: CompiledModule) -> None:
    x = torch.randn(8, 4).T
    assert near(gate(x), Gate()(x))
    wide = torch.randn(8, 8)[::2]
    assert near(gate(wide), Gate()(wide))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m(torch.zeros(4, 9)), "f32[4, 8]"),
        (lambda m: m(torch.zeros(4, 8, dtype=torch.float64)), "f32[4, 8]"),
        (lambda m: m(torch.zeros(4, 8, device="meta")), "cpu"),
        (lambda m: m(3.0), "must be a dense tensor"),
        (lambda m: m(), "missing a required argument: 'x'"),
        (lambda m: m(torch.zeros(4, 8), torch.zeros(1)), "too many positional arguments"),
        (lambda m: m(y=torch.zeros(4, 8)), "missing a required argument: 'x'"),
        (lambda m: m([torch.zeros(4, 8)]), "must be a dense tensor"),
    ],
)
def test_wrong_arguments(gate: CompiledModule, call: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(says)):
        call(gate)


def test_nested_arguments_and_results() -> None:
    x, a, b, shift = (torch.randn(3, 5) for _ in range(4))
    rest = {"pair": (a, b)}
    compiled = compiler.compile(Nested(), (x, rest), {"shift": shift})
    want = Nested()(x, rest, shift=shift)
    for got in (
        compiled(x, rest, shift=shift),
        compiled(x, rest=rest, shift=shift),
        compiled(shift=shift, rest=rest, x=x),
    ):
        assert near(got["sum"], want["sum"])
        assert near(got["more"][0], want["more"][0])
        assert got["more"][1:] == (None, 7)
    with pytest.raises(ArgumentError, match="flag"):
        compiled(x, rest, False, shift=shift)
    with pytest.raises(ArgumentError, match="nested differently"):
        compiled(x, {"pair": (a,)}, shift=shift)


def test_results_in_any_nesting_take_the_short_way() -> None:
    x = torch.randn(3, 5)
    for function in (
        lambda x: x.sort(),
        lambda x: (x + 1, x * 2),
        lambda x: [x + 1],
        lambda x: {"b": x + 1, "a": x * 2},
        lambda x: {"a": x + 1, "b": (x * 2, [x.exp()])},
    ):
        compiled = compiler.compile(FunctionModule(function), (x,))
        assert compiled._call_function != compiled._call_general
        got, want = compiled(x), function(x)
        assert type(got) is type(want)
        assert all(map(near, tree_leaves(got), tree_leaves(want)))


def test_arguments_that_are_no_tensors() -> None:
    x, rest = torch.randn(3), {"pair": (torch.randn(3), torch.randn(3))}
    compiled = compiler.compile(Nested(), (x, rest, False))
    assert near(compiled(x, rest, flag=False)["sum"], Nested()(x, rest, False)["sum"])
    for wrong in (True, x):
        with pytest.raises(ArgumentError, match="argument flag is specialized to False"):
            compiled(x, rest, wrong)


def test_results_in_a_tuple() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x - y, x * y

    x, y = torch.randn(5), torch.randn(5)
    compiled = compiler.compile(Two(), (x, y))
    for got in (compiled(x, y), compiled(y=y, x=x)):
        assert isinstance(got, tuple)
        assert near(got[0], x - y)
        assert near(got[1], x * y)


def test_results_that_are_inputs_and_constants() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x, torch.ones(2), x]

    x = torch.randn(3)
    got = compiler.compile(Same(), (x,))(x)
    assert isinstance(got, list)
    assert torch.equal(got[0], x)
    assert torch.equal(got[2], x)
    assert torch.equal(got[1], torch.ones(2))


def test_dynamic_sizes() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    model = Norm()
    compiled = compiler.compile(model, (torch.randn(4, 16),), dynamic_shapes=({0: rows},))
    for n in (4, 2, 33):
        x = torch.randn(n, 16)
        assert near(compiled(x), model(x).detach())
    with pytest.raises(ArgumentError, match=r"2\.\.64"):
        compiled(torch.randn(65, 16))
    with pytest.raises(ArgumentError):
        compiled(torch.randn(4, 17))


def test_buffers_are_updated() -> None:
    model, x = Counter(), torch.tensor([1.0, 2.0, 3.0])
    compiled = compiler.compile(model, (x,))
    for k in (1, 2, 3):
        assert torch.equal(compiled(x), 2 * k * x)
    assert torch.equal(model.seen, 3 * x)


def test_exported_programs_and_files(tmp_path: Path) -> None:
    model, x = Norm(), torch.randn(4, 16)
    program = torch.export.export(model, (x,))
    torch.export.save(program, tmp_path / "norm.pt2")
    for source in (program, tmp_path / "norm.pt2", str(tmp_path / "norm.pt2")):
        assert near(compiler.compile(source)(x), model(x).detach())


def test_a_damaged_file(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Gate(), (torch.zeros(4),)), tmp_path / "gate.pt2")
    whole = (tmp_path / "gate.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(compiler.TilewrightError, match=r"cut\.pt2 holds no exported program"):
        compiler.compile(tmp_path / "cut.pt2")


def test_a_module_needs_arguments() -> None:
    with pytest.raises(ArgumentError, match="example arguments"):
        compiler.compile(Gate())


# calls that compiled code cannot serve


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_gradients_and_transforms_are_refused(gate: CompiledModule) -> None:
    x = torch.randn(4, 8)
    calls = {
        "requires gradients": lambda: gate(x.clone().requires_grad_()),
        r"requires gradients.*torch\.compile": lambda: torch.func.grad(lambda x: gate(x).sum())(x),
        r"transformed by torch\.func.*torch\.compile": lambda: torch.vmap(gate)(x.expand(2, 4, 8)),
        "transformed": lambda: torch.vmap(gate, in_dims=-1)(x.expand(2, 4, 8).movedim(0, -1)),
        "FakeTensor without memory": lambda: gate(FakeTensorMode().from_tensor(x)),
    }
    for says, call in calls.items():
        with pytest.raises(ArgumentError, match=says):
            call()
    with torch.no_grad():
        assert near(gate(x.clone().requires_grad_()), Gate()(x))


class Write(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return a + b


@pytest.mark.parametrize(
    ("rows", "refused"), [((0, 2), True), ((1, 3), True), ((2, 4), False)], ids=["same", "partly", "apart"]
)
def test_written_arguments_over_one_memory_are_refused(rows: tuple[int, int], refused: bool) -> None:
    compiled, x = compiler.compile(Write(), (torch.ones(2, 3), torch.ones(2, 3))), torch.ones(4, 3)
    for pair in ((x[:2], x[slice(*rows)]), (x[slice(*rows)], x[:2])):
        if refused:
            with pytest.raises(ArgumentError, match=r"input a is written \(at .*test_api.py.*overlaps .* input b"):
                compiled(*pair)
        else:
            copies = [p.clone() for p in pair]
            assert near(compiled(*pair), Write()(*copies))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        self.seen.add_(x)
        return self.seen * 2


def test_an_argument_that_is_a_written_buffer_is_refused() -> None:
    model = Counter()
    compiled = compiler.compile(model, (torch.ones(3),))
    with pytest.raises(ArgumentError, match="seen is written"):
        compiled(model.seen)


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("part", self.seen[:2])

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x)
        return self.part + 1


@pytest.mark.parametrize("case", ["argument 0 and argument 1", "seen and part"])
def test_examples_and_buffers_over_one_memory_are_refused(case: str) -> None:
    x = torch.ones(3)
    model, args = (Write(), (x, x)) if case.startswith("argument") else (Views(), (x,))
    with pytest.raises(ArgumentError, match=f"{case} are over one memory"):
        compiler.compile(model, args)


# copies


def saved_and_loaded(compiled: CompiledModule) -> Any:
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)), saved_and_loaded])
def test_copies_are_compiled_programs_with_their_own_buffers(duplicate: Any) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    compiled = compiler.compile(Counter(), (x,), options={"fuse": False})
    compiled(x)
    twin = duplicate(compiled)
    assert twin.options == compiled.options
    for module in (compiled, compiled, twin):
        module(x=x)
    assert torch.equal(compiled(x), 8 * x)
    assert torch.equal(twin(x, True), 6 * x)


def test_a_shallow_copy_shares_buffers() -> None:
    x = torch.ones(3)
    compiled = compiler.compile(Counter(), (x,))
    compiled(x)
    assert torch.equal(copy.copy(compiled)(x), 4 * x)


def test_what_pytorch_cannot_save_is_refused(gate: CompiledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise ValueError("unknown operator")

    monkeypatch.setattr(torch.export, "save", refuse)
    with pytest.raises(compiler.TilewrightError, match=r"cannot be copied or saved.*unknown operator"):
        copy.deepcopy(gate)


@pytest.mark.parametrize("name", ["state_dict", "parameters", "half"])
def test_weights_are_frozen(gate: CompiledModule, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name}.*frozen.*torch\.compile"):
        getattr(gate, name)
    assert not hasattr(gate, "no_such_thing")


# threads


def test_several_threads_compile() -> None:
    torch.manual_seed(0)
    models, found = [Norm() for _ in range(6)], {}
    x, interval = torch.randn(4, 16), sys.getswitchinterval()

    def compile_and_call(k: int) -> None:
        found[k] = compiler.compile(models[k], (x,))(x)

    threads = [threading.Thread(target=compile_and_call, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(near(found[k], models[k](x).detach()) for k in range(6))
    assert (gc.isenabled(), sys.getswitchinterval()) == (True, interval)


def test_settings_of_compilations_that_overlap_in_time() -> None:
    before, first, second = sys.getswitchinterval(), compile_time_settings(), compile_time_settings()
    with contextlib.ExitStack() as stack:
        stack.enter_context(first)
        second.__enter__()
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert (gc.isenabled(), sys.getswitchinterval()) == (True, before)


# what can be asked


def test_every_stage_is_printed(norm: CompiledModule) -> None:
    texts = {stage: norm.print_ir(stage) for stage in ("imported", "fused", "lowered", "scheduled", "llvm", "assembly")}
    signs = {
        "imported": "layer_norm",
        "fused": "fused",
        "lowered": "reduce add",
        "scheduled": "lanes",
        "llvm": "define",
        "assembly": ".globl",
    }
    assert all(signs[stage] in text for stage, text in texts.items())
    with pytest.raises(ArgumentError, match="there is no stage 'final'"):
        norm.print_ir("final")


def test_profile_names_kernels_and_lines(norm: CompiledModule) -> None:
    profile = norm.profile(torch.randn(4, 16))
    assert len(profile.steps) == norm.workload.kernels
    assert profile.seconds == pytest.approx(sum(k.seconds for k in profile.kernels))
    assert all(k.seconds > 0 and k.origin.loc.file == __file__ for k in profile.kernels)
    assert "test_api.py" in str(profile)


def test_work_counts_a_matmul(norm: CompiledModule) -> None:
    assert norm.workload.flops > 2 * 4 * 16 * 32
    assert norm.workload.bytes > 4 * (4 * 16 + 32 * 16 + 4 * 32)


def test_remarks_say_why(norm: CompiledModule) -> None:
    assert norm.remarks.select("fuse", "applied")


def test_compile_time_by_part(norm: CompiledModule) -> None:
    parts = norm.compile_seconds
    assert set(parts) == {"export", "import", "passes", "code", "total"}
    assert parts.pop("total") == pytest.approx(sum(parts.values()))


def test_the_report_names_every_kernel(norm: CompiledModule) -> None:
    report = norm.report(repeats=2)
    assert "compiled in" in str(report)
    assert all(kernel.name in str(report) for kernel in report.kernels)


def test_importing_the_package_is_cheap() -> None:
    code = "import compiler, sys; assert not {'torch', 'numpy', 'llvmlite', 'rich'} & set(sys.modules); compiler.Options(target='host')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numbers_can_be_checked_without_another_import(python: PythonServer) -> None:
    code = "import compiler, torch; assert compiler.testing.check(torch.nn.Identity(), (torch.ones(3),))"
    python.run("-c", code).check_returncode()


@pytest.mark.parametrize("given", [(torch.ones(3),), ("no tensor",)], ids=["compiled", "refused"])
def test_python_collects_garbage_and_changes_threads_as_before_afterwards(
    given: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it compiles, but from then on, whatever came of it."""
    seen, before = [], sys.getswitchinterval()
    monkeypatch.setattr(
        "compiler.api.as_exported_program",
        lambda *a: seen.append((gc.isenabled(), sys.getswitchinterval())) or as_exported_program(*a),
    )
    with contextlib.suppress(Exception):
        compiler.compile(torch.nn.ReLU(), given)
    ((collects, interval),) = seen
    assert not collects
    assert interval < before
    assert (gc.isenabled(), sys.getswitchinterval()) == (True, before)
