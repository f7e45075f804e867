"""Support for ATen operators, and the run of PyTorch's OpInfo samples."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor

from compiler.codegen.triton.triton_names import RefusedKernelsError
from compiler.errors import Loc, TilewrightError, UnsupportedOp
from compiler.frontend.conversions.table import conversions
from compiler.ir import ops
from compiler.options import Options
from compiler.tools import cli
from compiler.tools.aot_tracing import trace_key
from compiler.tools.coverage import OpSupport, op_support, overloads, referenced_ops

CORE = overloads()
EAGER = Options(fallback="eager")


def of(name: str) -> OpSupport:
    packet, overload = name.split(".")
    return op_support(getattr(getattr(torch.ops.aten, packet), overload))


def test_all_of_core_aten_is_supported() -> None:
    assert len(CORE) > 150
    assert not [s for s in map(op_support, CORE) if s.kind in ("fallback", "unsupported")]


@pytest.mark.parametrize(
    ("name", "kind", "note"),
    [
        ("add.Tensor", "native", ""),
        ("convolution.default", "native", ""),
        ("sym_size.int", "native", "size arithmetic"),
        ("_assert_scalar.default", "native", "dropped"),
        ("sort.default", "native", "PyTorch where that is faster"),
        ("mode.default", "opaque", "sorting"),
        ("rand.default", "opaque", "random"),
        ("_fft_r2c.default", "opaque", "complex"),
        ("atan2.out", "native", "as aten.atan2.default"),
        ("relu_.default", "native", ""),
        ("native_layer_norm_backward.default", "decomposed", "decompositions.native_layer_norm_backward"),
        ("instance_norm.default", "decomposed", "CompositeImplicitAutograd"),
        ("nonzero.default", "opaque", "data-dependent"),
        ("index.Tensor", "native", "of a mask"),
        ("_local_scalar_dense.default", "native", "a scalar"),
        ("equal.default", "graph-break", "data-dependent Python"),
        ("special_airy_ai.default", "fallback", "no conversion"),
        ("_cudnn_ctc_loss.default", "unsupported", "no CPU kernel in PyTorch"),
        ("_sparse_softmax.default", "unsupported", "only for sparse ones"),
        ("_foreach_lerp_.ScalarList", "decomposed", "foreach"),
    ],
)
def test_support_kinds(name: str, kind: str, note: str) -> None:
    support = of(name)
    assert support.kind == kind
    assert note in support.note


def test_it_follows_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.tools import coverage as module

    others = {name: c for name, c in conversions().items() if name != "aten.exp.default"}
    monkeypatch.setattr(module, "conversions", lambda: others)
    assert of("exp.default").kind == "fallback"


def test_it_sees_ops_through_other_conversions() -> None:
    assert ops.sum_ in referenced_ops(conversions()["aten.searchsorted.Tensor"])
    assert ops.add in referenced_ops(conversions()["aten.sub.Tensor"]) or ops.sub in referenced_ops(
        conversions()["aten.sub.Tensor"]
    )
    assert ops.matmul in referenced_ops(conversions()["aten.addbmm.default"])


def test_the_command_prints_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["coverage", "sort", "exp"]) == 0
    printed = capsys.readouterr().out
    assert "exp.default" in printed
    assert "2 native" in " ".join(printed.split()) or "1 native" in " ".join(printed.split())


# PyTorch's samples

opinfo = pytest.importorskip("compiler.tools.opinfo")
pytest.importorskip("expecttest", reason="torch's samples need it")


def sampling(**options: Any) -> Any:
    return opinfo.SamplingOptions(torch.float32, EAGER, **options)


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    return opinfo.run_sample(function, SimpleNamespace(input=args[0], args=args[1:], kwargs={}), sampling())


@pytest.mark.parametrize(("name", "outcome"), [("clamp", "passed"), ("mode", "opaque"), ("fft.rfft", "opaque")])
def test_samples(name: str, outcome: str) -> None:
    (tally,) = opinfo.run_samples(opinfo.operators([name]), sampling(fraction=0.1))
    assert tally.count(outcome) >= 1
    assert not tally.count("failed"), tally.causes


def test_a_variant_has_a_name_of_its_own() -> None:
    variants = [opinfo.full_name(o) for o in opinfo.operators(["var_mean"])]
    assert set(variants) == {"var_mean", "var_mean.unbiased"}
    assert [opinfo.full_name(o) for o in opinfo.operators(["var_mean.unbiased"])] == ["var_mean.unbiased"]
    with pytest.raises(TilewrightError, match=r"no samples for var_mean\.biased$"):
        opinfo.operators(["var_mean.biased", "var_mean"])


def test_samples_whose_sizes_data_decides() -> None:
    assert attempt(lambda x: x[x > 0].exp(), torch.tensor([-1.0, 2.0, 3.0])).outcome == "opaque"
    assert attempt(torch.equal, torch.ones(3), torch.ones(3)).outcome == "dynamo"
    repeated = attempt(torch.masked_select, torch.ones(4), torch.ones(3, 4, dtype=torch.bool))
    assert repeated.outcome == "dynamo", "PyTorch asserts at most 4 elements in one graph"
    assert re.search(r"Runtime assertion failed for expression u\d+ <= 4", repeated.reason)
    wrong = attempt(lambda x: torch.unique_consecutive(x, dim=-1), torch.ones(3, 2))
    assert (wrong.outcome, wrong.reason.partition(":")[0]) == ("dynamo", "PyTorch infers another type")


def test_a_sample_that_breaks_the_graph_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def branching(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    assert attempt(branching, torch.ones(3)).outcome == "dynamo"
    monkeypatch.setattr(opinfo, "tilewright", lambda module, inputs, options: lambda *args: [args[-1] * 3])
    assert attempt(branching, torch.ones(3)).outcome == "failed"


def test_what_no_backend_runs_is_as_with_aot_eager() -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1 if not isinstance(x, FunctionalTensor) and not torch.compiler.is_compiling() else x[None, :, 9]

    assert attempt(function, torch.ones(3)).outcome == "as-aot-eager"


def test_a_sample_is_traced_again_where_pytorch_specializes_a_number() -> None:
    assert attempt(torch.nn.functional.l1_loss, torch.tensor(1 + 2j), torch.tensor(0.5).double()).outcome == "opaque"


def test_gradients_of_samples() -> None:
    (tally,) = opinfo.run_samples(opinfo.operators(["nn.functional.softsign"]), sampling(gradients=True, fraction=0.1))
    assert tally.count("passed") >= 1
    assert not tally.count("failed"), tally.causes


@pytest.mark.parametrize("name", ["nn.functional.upsample_bilinear", "nn.functional.adaptive_max_pool1d", "diagonal"])
def test_samples_with_dynamic_shapes(name: str) -> None:
    (tally,) = opinfo.run_samples(opinfo.operators([name]), sampling(dynamic_shapes=True, fraction=0.1))
    assert tally.count("passed") >= 1
    assert not tally.count("failed"), tally.causes


def test_what_aot_autograd_traces_only_with_static_shapes_is_left_to_dynamo() -> None:
    def static(x: Tensor) -> Tensor:
        assert isinstance(x.shape[0], int)
        return x + 1

    sample = SimpleNamespace(input=torch.ones(3), args=(), kwargs={})
    assert opinfo.run_sample(static, sample, sampling()).outcome == "passed"
    dynamic = opinfo.run_sample(static, sample, sampling(dynamic_shapes=True))
    assert (dynamic.outcome, dynamic.reason.partition(":")[0]) == ("dynamo", "AssertionError")


def test_what_differs_from_eager_in_every_backend_is_as_with_aot_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def asks_whether_it_is_traced(x: Tensor) -> Tensor:
        return x + isinstance(x, FunctionalTensor)

    found = attempt(asks_whether_it_is_traced, torch.ones(3))
    assert (found.outcome, found.reason) == ("as-aot-eager", "different values, off by about 1e0")
    monkeypatch.setattr(opinfo, "_call_aot_eager", lambda function, call, dynamic_shapes: call[0])
    assert attempt(asks_whether_it_is_traced, torch.ones(3)).outcome == "failed"


@pytest.mark.parametrize(
    ("got", "expected", "problem"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), "different values, off by about 1e-1"),
        (torch.tensor([1.0]), torch.tensor([1]), "different type"),
        (torch.tensor([1]), torch.tensor([2]), "different torch.int64 elements"),
        (torch.tensor([1.0]), torch.tensor([float("nan")]), "NaN or infinity in different positions"),
        (torch.tensor([float("inf")]), torch.tensor([-float("inf")]), "NaN or infinity in different positions"),
        ([torch.tensor([1.0])], [torch.tensor([1.0])] * 2, "1 results instead of 2"),
        (torch.tensor([float("nan"), 3.0]), torch.tensor([float("nan"), 3.000001]), ""),
    ],
)
def test_comparison(got: Any, expected: Any, problem: str) -> None:
    found = opinfo.result_difference(got, expected, lambda: expected)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(("ours", "problem"), [(1003.0, ""), (1006.0, "different values, off by about 1e1")])
def test_errors_are_measured_by_those_of_pytorch(ours: float, problem: str) -> None:
    """PyTorch is wrong by 1."""
    assert (
        opinfo.result_difference(torch.tensor([ours]), torch.tensor([1001.0]), lambda: torch.tensor([1000.0]).double())
        == problem
    )


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> Any:
        return SimpleNamespace(call_with_sizes=lambda inputs: ([torch.sin(x) + 1e-3 for x in inputs], dict))

    assert attempt(torch.sin, torch.ones(3)).outcome == "passed"
    monkeypatch.setattr(opinfo, "compile_graph", wrong)
    assert "1e-3" in attempt(torch.sin, torch.ones(3)).reason


def test_samples_out_of_scope() -> None:
    assert "PyTorch rejects" in attempt(torch.matmul, torch.ones(3), torch.ones(4)).reason
    assert "sparse" in attempt(torch.sin, torch.ones(3).to_sparse()).reason


def described(function: Callable[..., Any]) -> Any:
    """`function` as an operator of one sample."""
    samples = [SimpleNamespace(input=torch.ones(2), args=(), kwargs={})]
    return SimpleNamespace(
        name=function.__name__, variant_test_name="", op=function, sample_inputs=lambda *a, **k: samples
    )


def hanging(x: Tensor) -> Tensor:
    while True:
        x = x + 1


def test_a_timeout_ends_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opinfo, "SAMPLE_TIMEOUT", 0.1)
    (tally,) = opinfo.run_samples([described(hanging)], sampling())
    assert tally.causes == {"failed: timed out after 0.1 s": 1}


def crashing(x: Tensor) -> Tensor:
    os._exit(3)


def test_a_crash_ends_one_operator_and_a_log_remembers(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    (tally,) = opinfo.run_samples([described(crashing)], sampling(), log)
    assert tally.causes == {"failed: the process died": 1}
    written = json.loads(log.read_text())
    assert written["op"] == "crashing"
    log.write_text(json.dumps({**written, "counts": {"passed": 7}}) + "\n")
    assert next(iter(opinfo.run_samples([described(crashing)], sampling(), log))).count("passed") == 7


def test_shards_are_disjoint_and_together_all_samples() -> None:
    chosen = [list(islice(sampling(shard=k, shards=3).selection(), 100)) for k in (1, 2, 3)]
    assert all(sum(column) == 1 for column in zip(*chosen, strict=True))
    assert all(map(any, chosen))
    halves = islice(sampling(shard=2, shards=3, fraction=0.5).selection(), 100)
    assert all(whole or not half for whole, half in zip(chosen[1], halves, strict=True))


def test_shards_have_log_lines_of_their_own(tmp_path: Path) -> None:
    log, counts = tmp_path / "log.jsonl", []
    for k in (1, 2):
        (tally,) = opinfo.run_samples([described(torch.neg)], sampling(shard=k, shards=2), log)
        counts.append(tally.count("passed"))
    (whole,) = opinfo.run_samples([described(torch.neg)], sampling(), log)
    assert sum(counts) == whole.count("passed")
    assert len(log.read_text().splitlines()) == 3


def test_samples_that_differ_in_elements_share_code_and_are_each_compared() -> None:
    factor, compiled = [2.0], {}

    def outcome(x: Tensor) -> str:
        sample = SimpleNamespace(input=x, args=(), kwargs={})
        return opinfo.run_sample(lambda x: x * factor[0], sample, sampling(), compiled=compiled).outcome

    assert outcome(torch.ones(3)) == "passed"
    factor[0] = 3.0
    assert outcome(torch.full((3,), 5.0)) == "failed"
    assert outcome(torch.ones(4)) == "passed"
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "other", [(torch.ones(3), 2.0), (torch.ones(3), True), (torch.ones(6)[::2], 2), (torch.ones(3).double(), 2)]
)
def test_a_trace_depends_on_numbers_strides_and_dtypes(other: tuple[Tensor, Any]) -> None:
    def key(x: Tensor, n: Any) -> Any:
        return trace_key((x, (n,), {}))

    assert key(torch.ones(3), 2) == key(torch.zeros(3), 2) != key(*other)
    assert trace_key((torch.ones(3), (len,), {})) is None


def test_the_command_runs_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["coverage", "--samples", "deg2rad", "--dtype", "f64,i64", "--fraction", "0.1"]) == 0
    assert "0 failed" in capsys.readouterr().out
    assert cli.main(["coverage", "--samples", "deg2rad", "--shard", "2/40"]) == 0
    assert cli.main(["coverage", "--samples", "no_such_op"]) == 1
    assert cli.main(["coverage", "--samples", "--dtype", "f31"]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_samples_for_a_target_need_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["coverage", "--samples", "exp", "--target", "sm90"]) == 1
    assert "samples for sm90 need" in " ".join(capsys.readouterr().err.split())


def test_a_refusal_is_an_outcome_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise RefusedKernelsError([UnsupportedOp("@exp_0 (exp)", "Triton has no exp of f16", Loc("model.py", 3))])

    monkeypatch.setattr(opinfo, "compile_graph", refuse)
    found = attempt(torch.exp, torch.ones(3))
    assert found.outcome == "refused"
    assert found.reason == "  @exp_0 (exp): Triton has no exp of f16\n      at model.py:3"
