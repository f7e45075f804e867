"""Programs of GPU kernels as users call them, in Triton's interpreter: launches, sizes, memory plan and all, against float64.

TRITON_INTERPRET must be decided before Triton is imported, so that programs run in a process of their own.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import compiler
from compiler.analysis.kernel_origin import KernelOrigin
from compiler.codegen.triton.program_sources import emit_program
from compiler.codegen.triton.targets import GPU_TARGETS, gpu_name
from compiler.codegen.triton.triton_names import RefusedKernelsError
from compiler.errors import ArgumentError, DynamicShapeError, Loc, TargetError
from compiler.ir.text.tile_parser import parse_program
from compiler.runtime.gpu_executable import GPUExecutable
from compiler.runtime.gpu_timeline import GPUTimelineRecorder
from compiler.torch_backend import target_of_device
from tests.runtime.test_graph_replay import FakeGraphs
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON

OPTIONS: dict[str, Any] = {"target": "sm90", "fallback": "eager"}
Calls: TypeAlias = list[tuple[Tensor, ...]]


class CachedAttention(nn.Module):
    """One step of attention over keys and values that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("keys", torch.randn(1, 2, 6, 8))
        self.register_buffer("values", torch.randn(1, 2, 6, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.project(x).view(1, 1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        keys, values = self.keys.index_copy_(2, position, k), self.values.index_copy_(2, position, v)
        mask = (torch.arange(6) <= position)[None]
        return self.out(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask).transpose(1, 2).flatten(2))


class Added(nn.Module):
    """Rows that are added at places which data decide."""

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x.new_zeros(5, 9).index_add(0, at, x)


class EmbeddingNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.table(tokens))


class SelfAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x @ x.transpose(1, 2), -1) @ x


class Sorted(nn.Module):
    """Kernels around calls into PyTorch."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ordered = (x * 2).sort(1).values
        return ordered.exp().cumsum(1), x.new_zeros(5, 9).index_add(0, x.argmax(1) % 5, x)


class Routed(nn.Module):
    """The largest elements of short rows, which kernels select."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = x.softmax(1).topk(2, 1)
        return weights / weights.sum(1, keepdim=True), chosen


class Positive(nn.Module):
    """A size that data decides."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[x > 0] * 2).exp()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 8), nn.LayerNorm(8), nn.Softmax(1))


def conv_net() -> nn.Module:
    features = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3)
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


def rows(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Calls:
    return [(torch.randn(shape, dtype=dtype),) for shape in shapes]


Case: TypeAlias = tuple[Callable[[], nn.Module], Callable[[], Calls], Any]
STEPS = [(torch.randn(1, 1, 16), torch.tensor([k])) for k in range(3)]
CASES: dict[str, Case] = {
    "mlp": (mlp, lambda: rows((5, 12)), None),
    "float64": (mlp().double, lambda: rows((5, 12), dtype=torch.float64), None),
    "conv_net": (conv_net, lambda: rows((2, 3, 8, 8)), None),
    "attention_with_cache": (CachedAttention, lambda: STEPS, None),
    "lstm_cell": (lambda: nn.LSTMCell(6, 8), lambda: rows((3, 6)), None),
    "lstm": (lambda: nn.LSTM(4, 5, batch_first=True), lambda: rows((2, 5, 4), (3, 7, 4)), ({0: Dim.AUTO, 1: Dim.AUTO},)),
    "embedding_and_norm": (EmbeddingNorm, lambda: [(torch.arange(14).view(2, 7),)], None),
    "dynamic_batch": (mlp, lambda: rows((5, 12), (2, 12), (70, 12)), ({0: Dim.AUTO},)),
    "dynamic_length": (SelfAttention, lambda: rows((2, 5, 4), (2, 9, 4), (2, 70, 4)), ({1: Dim.AUTO},)),
    "eager_calls": (Sorted, lambda: rows((3, 9)), None),
    "selection": (Routed, lambda: rows((5, 12)), None),
    "size_decided_by_data": (Positive, lambda: rows((3, 4), (3, 4)), None),
}  # fmt: skip


# in the process


def in_double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def largest_error(function: Callable[..., Any], truth: nn.Module, calls: Calls) -> float:
    """Return the largest difference from the model in float64; the calls change its state as they do the function's."""
    errors = [0.0]
    for args in calls:
        results, wanted = tree_leaves(function(*args)), tree_leaves(truth(*map(in_double, args)))
        errors += [float((r - w).abs().max()) for r, w in zip(results, wanted, strict=True)]
    return max(errors)


def error_of_compiled(name: str, target: str = "sm90") -> float:
    """Return the largest error of a case through `compiler.compile`."""
    build, calls, dynamic_shapes = CASES[name]
    torch.manual_seed(0)
    model, inputs = build().eval(), calls()
    truth = copy.deepcopy(model).double()
    options = {**OPTIONS, "target": target}
    compiled = compiler.compile(model, inputs[0], dynamic_shapes=dynamic_shapes, options=options)
    with torch.no_grad():
        return largest_error(compiled, truth, inputs)


def error_of_traced(name: str) -> float:
    """Return the largest error of a case through `torch.compile`."""
    build, calls, _ = CASES[name]
    torch.manual_seed(0)
    model = build().eval()
    truth = copy.deepcopy(model).double()
    with torch.no_grad():
        return largest_error(torch.compile(model, backend="tilewright", options=OPTIONS), truth, calls())


def gradients_differ() -> float:
    """Return the largest difference between gradients of a trained model and those in float64."""
    torch.manual_seed(0)
    model, (x,) = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(1, 5, 6)
    truth = copy.deepcopy(model).double()
    torch.compile(model, backend="tilewright", options=OPTIONS)(x).sum().backward()
    truth(x.double()).sum().backward()
    pairs = zip(model.parameters(), truth.parameters(), strict=True)
    return max(float((p.grad - t.grad).abs().max()) for p, t in pairs)  # type: ignore[operator]  # gradients are there


def compilations_of_dynamic_batch() -> tuple[int, set[int]]:
    """Return how many specializations serve three batches, and the workspaces that were planned for them."""
    compiled = compiler.compile(
        nn.Sequential(nn.Linear(12, 20), nn.Linear(20, 3), nn.Flatten(0), nn.Softmax(0)),
        (torch.randn(5, 12),),
        dynamic_shapes=({0: Dim("n", min=2, max=100)},),
        options={**OPTIONS, "fuse": False},
    )
    sizes = set()
    for n in (5, 2, 70):
        (program,) = compiled.compiled_graph.executed_programs([torch.randn(n, 12)])
        assert program.executable is not None
        sizes.add(program.executable.memory_plan.size)
    return len(compiled.compiled_graph.specializations), sizes  # type: ignore[union-attr]  # not partitioned


def refusals() -> list[tuple[str, str]]:
    """Return the errors of calls that do not fit."""
    compiled = compiler.compile(EmbeddingNorm().eval(), (torch.zeros(2, 7, dtype=torch.long),), options=OPTIONS)
    added = compiler.compile(Added(), (x := torch.zeros(3, 9), torch.tensor([0, 1, 4])), options=OPTIONS)
    calls: list[Callable[[], Any]] = [
        lambda: compiled(torch.full((2, 7), 20)),
        lambda: added(x, torch.tensor([0, 5, 1])),
        lambda: compiled(torch.zeros(2, 8, dtype=torch.long)),
        lambda: compiled(torch.zeros(2, 7, dtype=torch.long, device="meta")),
        lambda: compiled.executable([]),
    ]
    errors = []
    for call in calls:
        try:
            call()
        except Exception as error:
            errors.append((type(error).__name__, str(error)))
    return errors


def function_of_a_call() -> tuple[str, list[tuple[str, bool]]]:
    """Return the function that a call runs, and the devices of its constants there, with whether they were moved once."""
    exe = compiler.compile(mlp().eval(), (torch.randn(5, 12),), options={**OPTIONS, "fuse": False}).executable
    assert isinstance(exe, GPUExecutable)
    devices = [torch.device(name) for name in ("cpu", "meta")]
    moved = [(exe.constants_on(d), exe.constants_on(d)) for d in devices]
    return exe.source, [(first[0].device.type, first is again) for first, again in moved]


def profile_of_calls() -> tuple[str, list[str], list[str], bool]:
    """Return the warning of a profile, the names of its steps, those in the order of a timeline, and whether its report has the warning."""
    torch.manual_seed(0)
    compiled = compiler.compile(Sorted().eval(), (torch.randn(3, 9),), options=OPTIONS)
    profile = compiled.profile(repeats=2)
    ((timeline,), _) = profile.timelines
    names = [step.name for step, _ in profile.steps]
    page = compiled.report(repeats=1)._repr_html_()
    assert all(run.end >= run.begin for run in timeline.runs)
    assert all(step.predicted >= step.roofline > 0 for step, _ in profile.steps if step.flops)
    return profile.warning, names, [names[run.step] for run in timeline.runs], profile.warning in page


def replayed_calls() -> tuple[int, float, str]:
    """Return how many recordings serve three calls, their largest error, and the error of a call that does not fit."""
    model = mlp().eval()
    exe = compiler.compile(model, (torch.randn(5, 12),), options=OPTIONS).executable
    graphs = FakeGraphs()
    replayed = GPUExecutable(exe.program, GPU_TARGETS["sm90"], emit_program(exe.program), graphs)
    calls = [torch.randn(5, 12) for _ in range(3)]
    results = [replayed([x])[0] for x in calls]
    with torch.no_grad():
        truth = copy.deepcopy(model).double()
        errors = [float((y - truth(x.double())).abs().max()) for x, y in zip(calls, results, strict=True)]
    try:
        replayed([torch.randn(4, 12)])
    except ArgumentError as error:
        return graphs.recorded, max(errors), str(error)
    return graphs.recorded, max(errors), ""


def ranges_of_profiled_call() -> list[str]:
    """Return the ranges that a call shows to `torch.profiler`."""
    model, x = mlp().eval(), torch.randn(5, 12)
    fast = torch.compile(model, backend="tilewright", options=OPTIONS)
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fast(x)
    return [e.key for e in profile.key_averages() if e.key.startswith("tilewright::")]


# here


@pytest.mark.parametrize("name", CASES)
def test_models_against_float64(interpreter: ProcessPoolExecutor, name: str) -> None:
    tolerance = 1e-12 if name == "float64" else 1e-5
    assert interpreter.submit(error_of_compiled, name).result() < tolerance


@pytest.mark.parametrize("name", ["conv_net", "attention_with_cache", "dynamic_length"])
def test_models_for_amd(interpreter: ProcessPoolExecutor, name: str) -> None:
    assert interpreter.submit(error_of_compiled, name, "gfx942").result() < 1e-5


def test_calls_allocate_and_launch_and_never_wait(interpreter: ProcessPoolExecutor) -> None:
    """The workspace and results are PyTorch's, launches go to its current stream; constants are moved to a device once."""
    source, constants = interpreter.submit(function_of_a_call).result()
    forms = {
        "w": r"workspace = torch\.empty\(\d+, dtype=torch\.uint8, device=device\)",
        "v": r"t\d+ = workspace\[\d+:\d+\]\.view\(dtype\d+\)",
        "r": r"t\d+ = torch\.empty_strided\(shape\d+, stride\d+, dtype=dtype\d+, device=device\)",
        "l": r"launch\d+\([t\d, ]+\)",
        "x": r"return \[t\d+\]",
    }
    lines = map(str.strip, source.strip().split(" = constants(device)\n")[1].split("\n"))
    kinds = "".join(next(kind for kind, form in forms.items() if re.fullmatch(form, line)) for line in lines)
    assert re.fullmatch("wv+rl+x", kinds)
    assert constants == [("cpu", True), ("meta", True)]


@pytest.mark.parametrize("name", ["conv_net", "dynamic_batch"])
def test_torch_compile(interpreter: ProcessPoolExecutor, name: str) -> None:
    assert interpreter.submit(error_of_traced, name).result() < 1e-5


def test_gradients(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(gradients_differ).result() < 1e-5


def test_one_compilation_serves_several_sizes(interpreter: ProcessPoolExecutor) -> None:
    count, workspaces = interpreter.submit(compilations_of_dynamic_batch).result()
    assert count == 1
    assert len(workspaces) == 3


def test_calls_that_do_not_fit(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(refusals).result() == [
        ("IndexError", "index outside 0..20"),
        ("IndexError", "index outside 0..5"),
        ("ArgumentError", "input 0 (%tokens) must be i64[2, 7] on cpu, but is int64[2, 8] on cpu"),
        ("ArgumentError", "input 0 (%tokens) must be i64[2, 7] on cpu, but is int64[2, 7] on meta"),
        ("ArgumentError", "the program takes 1 inputs (%tokens: i64[2, 7]), not 0"),
    ]


def test_profiles_of_the_interpreter_say_that_they_mean_nothing(interpreter: ProcessPoolExecutor) -> None:
    warning, names, ran, is_on_page = interpreter.submit(profile_of_calls).result()
    assert warning == "times of Triton's interpreter: they say nothing about a GPU"
    assert is_on_page
    assert "sort" in names
    assert ran == names


def test_recorded_launches(interpreter: ProcessPoolExecutor) -> None:
    recorded, error, refusal = interpreter.submit(replayed_calls).result()
    assert recorded == 1
    assert error < 1e-5
    assert refusal == "input 0 (%input) must be f32[5, 12] on cpu, but is float32[4, 12] on cpu"


def test_options_that_do_nothing_are_remarks() -> None:
    options = {**OPTIONS, "cuda_graphs": True, "effort": "tune"}
    remarks = [str(r) for r in compiler.compile(Sorted().eval(), (torch.randn(3, 9),), options=options).remarks]
    assert any("kernels are launched one by one: sort may wait" in r for r in remarks)
    assert any("kernels for sm90 are not measured here" in r for r in remarks)


def test_kernels_cannot_be_given() -> None:
    with pytest.raises(TargetError, match=r"option schedules: kernels for sm90 .* so none can be given; .*tile_passes"):
        compiler.compile(mlp().eval(), (torch.randn(5, 12),), options={**OPTIONS, "schedules": {"mul_1": "mul_1.ir"}})


class Clock:
    """Events whose times are those of a list."""

    def __init__(self, times: list[float]) -> None:
        self.left, self.marked = times, list[float]()

    def mark(self) -> None:
        self.marked.append(self.left.pop(0))

    def seconds(self) -> list[float]:
        return [t - self.marked[0] for t in self.marked]


def timeline_by_marks() -> list[tuple[int, float, float]]:
    """Return steps, begins and ends of a call whose marks are 1 second apart."""
    exe = compiler.compile(Sorted().eval(), (torch.randn(3, 9),), options=OPTIONS).executable
    assert isinstance(exe, GPUExecutable)
    timeline = GPUTimelineRecorder(exe, Clock([float(k) for k in range(99)]))([torch.randn(3, 9)])
    return [(run.step, run.begin, run.end) for run in timeline.runs]


def test_the_marks_around_steps(interpreter: ProcessPoolExecutor) -> None:
    runs = interpreter.submit(timeline_by_marks).result()
    assert [step for step, _, _ in runs] == list(range(len(runs)))
    assert all(end == begin + 1 for _, begin, end in runs)
    assert len([1 for (_, _, end), (_, begin, _) in pairwise(runs) if begin > end]) == 2, "segments begin with a mark"


def test_profiled_calls_are_one_range(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(ranges_of_profiled_call).result() == ["tilewright::compiled"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_the_error_says_what_to_do() -> None:
    compiled = compiler.compile(mlp().eval(), (torch.randn(5, 12),), options=OPTIONS)
    with pytest.raises(TargetError, match=r"sm90 code cannot run here, a GPU \(with TRITON_INTERPRET=1 .* is missing"):
        compiled(torch.randn(5, 12))
    assert "@triton.jit" in compiled.print_ir("triton")


def test_torch_compile_takes_the_target_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class H100:
        major, minor = 9, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H100)
    with FakeTensorMode():
        assert target_of_device([3, torch.empty(2), torch.empty(2, device="cuda")]) == "sm90"
    assert target_of_device([3, torch.empty(2)]) == "host"
    assert gpu_name("gfx942:sramecc+:xnack-") in GPU_TARGETS


TWO_REFUSALS = """
program {{
  input %x: f32[{n}, 48]
  output %y: f32[{n}, 48]
  output %z: f32[{n}, 48]
  kernel @first({size}in %x: f32[{n}, 48], out %y: f32[{n}, 48]) {{
    parallel %i in 0..{n} {{ for %j in 0..48 tile 12 {{ store %x[%i, %j], %y[%i, %j] }} }}
  }}
  kernel @second({size}in %x: f32[{n}, 48], out %z: f32[{n}, 48]) {{
    parallel %i in 0..{n} {{ local %t: f32[48] for %j in 0..48 {{ store %x[%i, %j], %t[%j] }} }}
  }}
  launch @first(%x, %y) for "above"
  launch @second(%x, %z)
}}
"""


def test_all_kernels_that_triton_cannot_express_are_listed() -> None:
    origin = KernelOrigin(("mul", "add"), Loc("model.py", 7, "y = x * 2 + 1", "layer"), ("layer",))
    with pytest.raises(TargetError) as caught:
        emit_program(parse_program(TWO_REFUSALS.format(n=4, size="")), {"above": origin})
    assert isinstance(caught.value, RefusedKernelsError)
    assert [k.target for k in caught.value.refused_kernels] == ["@first (mul, add)", "@second"]
    assert str(caught.value).splitlines()[1:] == [
        "  @first (mul, add): %j has tile 12; blocks are powers of two",
        "      at model.py:7 in layer: y = x * 2 + 1",
        "  @second: local %t is not written by one block; run gpu-rows",
    ]


def test_a_refusal_names_the_users_line() -> None:
    options = {**OPTIONS, "tile_passes": "default,-gpu-rows"}
    with pytest.raises(
        RefusedKernelsError, match=r"@\w+ \(.*softmax|amax.*\).*\n +at .*test_gpu_executable.py:\d+.*: return F.softmax"
    ):
        compiler.compile(SelfAttention().eval(), (torch.randn(2, 5, 4),), options=options)


def test_refusals_of_dynamic_sizes_lead_to_static_ones() -> None:
    with pytest.raises(DynamicShapeError, match="2 kernel"):
        emit_program(parse_program(TWO_REFUSALS.format(n="n", size="size n in 2..9 hint 4, ")))


def test_other_devices_are_refused() -> None:
    from compiler.ir.text.type_parser import parse_type
    from compiler.runtime.arguments import argument_device, check_argument

    with FakeTensorMode():
        first, second = torch.empty(2, device="cuda:1"), torch.empty(2)
    device = argument_device([second, first], "cuda")
    assert device == torch.device("cuda:1")
    check_argument(0, "x", first, parse_type("f32[2]"), device)
    with FakeTensorMode():
        check_argument(2, "scale", torch.empty(()), parse_type("f32[]"), device)  # a number on the CPU
    with pytest.raises(ArgumentError, match=r"must be f32\[2\] on cuda:1, but is float32\[2\] on cpu"):
        check_argument(1, "y", second, parse_type("f32[2]"), device)
