"""PyTorch's own samples of its operators, run through the compiler and compared with PyTorch.

`torch.testing` describes each operator with inputs that its authors found worth testing.  A sample takes the way of
`torch.compile(backend="tilewright")` from AOTAutograd on; only Dynamo, which sees a single call, is left out.
"""

from __future__ import annotations

import json
import math
import random
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from functorch.compile import aot_function
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from compiler.driver.partitioned_graph import compile_graph
from compiler.errors import TilewrightError
from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.dynamo import import_functional
from compiler.frontend.opaque_ops import RANDOM_REASON, opaque_reason
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Opaque
from compiler.ir.ops.graph_ops import lookup_operator
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.options import Options
from compiler.torch_backend import as_boxed_function

SAMPLE_TIMEOUT = 120.0
"""Seconds of CPU time that one sample may take: a machine that is busy, or a process that is paused, is no hang."""

OUTCOMES = ("passed", "opaque", "outside", "failed")
"""All of it compiled; right, but partly run in PyTorch; not ours to trace (see `Sampled.reason`); wrong or refused."""

TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative to the answer in float64, besides `OWN` times the error that PyTorch makes itself."""

EAGER_ERROR_FACTOR = 4
"""Where a sample is ill-conditioned, two ways to round are two draws from one distribution: neither's error bounds the other's
closely."""


@dataclass
class Tally:
    """What became of one operator's samples: how many of each outcome, and why, by cause."""

    op: str
    label: str
    counts: dict[str, int] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: str) -> int:
        return self.counts.get(outcome, 0)


@dataclass(frozen=True)
class SampleOutcome:
    """The outcome of one sample: one of `OUTCOMES`, and the cause of any but the first."""

    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class SamplingOptions:
    """Which samples are tried, and how: of one element type, with their `gradients`, and with every size left open.

    A `fraction` of the samples of an operator (at least one) is drawn with `seed`.
    """

    dtype: torch.dtype
    options: Options
    gradients: bool = False
    dynamic_shapes: bool = False
    fraction: float = 1.0
    seed: int = 0

    @property
    def label(self) -> str:
        """What tells its tallies from those of others."""
        return str(self.dtype) + " with gradients" * self.gradients + " of open sizes" * self.dynamic_shapes


def operators(names: Sequence[str] = (), dtype: torch.dtype = torch.float32) -> list[Any]:
    """The descriptions (`OpInfo`) of the operators called `names`, or of all, that take `dtype`."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ModuleNotFoundError as missing:
        raise TilewrightError(f"torch's samples need the package {missing.name}: pip install {missing.name}") from None
    known = {o.name for o in op_db}
    if unknown := sorted(set(names) - known):
        raise TilewrightError(f"torch has no samples for {', '.join(unknown)}")
    return [o for o in op_db if (not names or o.name in names) and _supports_dtype(o, dtype)]


def _supports_dtype(info: Any, dtype: torch.dtype) -> bool:
    return dtype in info.supported_dtypes("cpu")


def full_name(info: Any) -> str:
    """An operator's name with its variant, as in "var.unbiased"."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def run_samples(infos: Iterable[Any], sampling: SamplingOptions, log: Path | None = None) -> Iterator[Tally]:
    """One tally for each operator, in a process of its own so that a crash ends nothing else.

    Operators that are in `log`, a file with a line of JSON for each, are taken from there; the others are added to it.
    """
    done = _read_log(log, sampling) if log else {}
    _warm_up(sampling)
    for info in infos:
        tally = done.get(full_name(info))
        if tally is None:
            tally = _run_in_subprocess(info, sampling)
            if log:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(tally)) + "\n")
        yield tally


def _warm_up(sampling: SamplingOptions) -> None:
    """Load what every forked process would otherwise load for itself; with one thread, as others would not survive a fork."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_sample(torch.neg, SimpleNamespace(input=torch.ones(2), args=(), kwargs={}), sampling)
    torch.set_num_threads(threads)


def _read_log(log: Path, sampling: SamplingOptions) -> dict[str, Tally]:
    """The operators that an earlier run has seen to."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    tallies = [Tally(**json.loads(line)) for line in lines]
    return {t.op: t for t in tallies if t.label == sampling.label}


def _run_in_subprocess(info: Any, sampling: SamplingOptions) -> Tally:
    """The tally of `info`, from a forked process; samples it did not come to count as failed."""
    there, here = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_send_outcomes, args=(here, info, sampling))
    process.start()
    here.close()
    outcomes: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    try:
        while sampled := there.recv():
            outcomes[sampled.outcome] += 1
            causes[f"{sampled.outcome}: {sampled.reason}"] += bool(sampled.reason)
    except EOFError:
        process.join()
        hung = process.exitcode == -signal.SIGPROF
        outcomes["failed"] += 1
        causes["failed: " + (f"no answer in {SAMPLE_TIMEOUT} s" if hung else "the process died")] += 1
    process.join()
    return Tally(full_name(info), sampling.label, dict(outcomes), {c: n for c, n in causes.items() if n})


def _send_outcomes(pipe: Connection, info: Any, sampling: SamplingOptions) -> None:
    """Send the outcome of each sample, then None; a sample that takes too long ends the process."""
    torch.set_num_threads(1)
    torch.manual_seed(sampling.seed)
    draw = random.Random(sampling.seed)
    defined = "empty" not in info.name
    function = with_gradients(info.op) if sampling.gradients else info.op
    for k, sample in enumerate(_samples(info, sampling)):
        if k == 0 or draw.random() < sampling.fraction:
            signal.setitimer(signal.ITIMER_PROF, SAMPLE_TIMEOUT)
            pipe.send(
                sample if isinstance(sample, SampleOutcome) else run_sample(function, sample, sampling, values=defined)
            )
    pipe.send(None)


def _samples(info: Any, sampling: SamplingOptions) -> Iterator[Any]:
    """The samples of `info`, or why there are none."""
    dtype, gradients = sampling.dtype, sampling.gradients
    if gradients and not (info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from info.sample_inputs("cpu", dtype, requires_grad=gradients)
    except Exception as problem:
        yield SampleOutcome("outside", f"no samples: {_error_summary(problem)}")


def run_sample(
    function: Callable[..., Any], sample: Any, sampling: SamplingOptions, values: bool = True
) -> SampleOutcome:
    """Compile and run `function` on one sample, and compare with PyTorch: types, and `values` where they are defined."""
    call = (sample.input, tuple(sample.args), dict(sample.kwargs))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            expected = _call(function, _clone_call(call))
        except Exception as problem:
            return SampleOutcome("outside", f"PyTorch refuses it: {_error_summary(problem)}")
        if foreign := next(filter(None, map(_unsupported_reason, tree_leaves((call, expected)))), ""):
            return SampleOutcome("outside", foreign)
        graphs: list[Graph] = []
        try:
            torch.manual_seed(0)
            got = _compile_and_call(function, _clone_call(call), sampling, graphs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return SampleOutcome("outside", "sizes that depend on data, where Dynamo breaks the graph")
        except Exception as problem:
            if sampling.dynamic_shapes and (reason := _tracing_failure(function, call)):
                return SampleOutcome("outside", f"PyTorch does not trace it with open sizes: {reason}")
            return SampleOutcome("failed", _error_summary(problem))
        called = sorted({_opaque_name(n) for g in graphs for n in g if _runs_in_pytorch(n)})
        arbitrary = any(opaque_reason(lookup_operator(name)) == RANDOM_REASON for name in called if "." in name)
        difference = describe_difference(
            got, expected, lambda: _float64_result(function, call), values=values and not arbitrary
        )
    if difference:
        return SampleOutcome("failed", difference)
    return SampleOutcome("opaque", ", ".join(called)) if called else SampleOutcome("passed")


def _runs_in_pytorch(node: Node) -> bool:
    return isinstance(node.structure, Opaque)


def _opaque_name(node: Node) -> str:
    return str(node.attrs.get("overload", node.op.name))


def _unsupported_reason(value: Any) -> str:
    """Why a tensor is not one that the IR has; empty where it is, or no tensor."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.layout != torch.strided:
        return "a sparse tensor"
    return "" if value.dtype in TORCH_DTYPES.values() else f"elements of type {value.dtype}"


def _call(function: Callable[..., Any], call: Any) -> Any:
    first, args, kwargs = call
    return function(first, *args, **kwargs)


def _clone_call(call: Any) -> Any:
    """The same call on tensors of its own, strides kept."""

    def copied(v: Any) -> Any:
        return v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v

    return tree_map(copied, call)


def _float64_result(function: Callable[..., Any], call: Any) -> Any:
    """The answer in float64; None where PyTorch has none."""

    def widened(v: Any) -> Any:
        if isinstance(v, torch.dtype):
            return torch.float64 if v.is_floating_point else v
        floating = isinstance(v, torch.Tensor) and v.is_floating_point()
        return v.detach().double().requires_grad_(v.requires_grad) if floating else v

    wide = tree_map(widened, call)
    try:
        torch.manual_seed(0)
        return _call(function, _clone_call(wide))
    except Exception:
        return None


def _compile_and_call(function: Callable[..., Any], call: Any, sampling: SamplingOptions, graphs: list[Graph]) -> Any:
    """The result of the compiled function; the graphs it was made of are appended to `graphs`."""

    def compile_fx_graph(module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        with _disable_current_modes():  # AOTAutograd's fake tensors, while constants are folded
            imported = import_functional(module, fallback=sampling.options.fallback)
            graphs.append(imported.graph)
            return as_boxed_function(
                imported, compile_graph(imported.graph, sampling.options, imported.bounds, imported.runtime_assertions)
            )

    return _trace_and_call(function, call, compile_fx_graph, sampling.dynamic_shapes)


class RankChecker(torch.fx.Interpreter):
    """Runs a traced graph in PyTorch; ValueError where what an operator gives has not the rank that tracing found."""

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        for made, traced in zip(tree_leaves(result), tree_leaves(n.meta.get("val")), strict=False):
            if isinstance(made, torch.Tensor) and isinstance(traced, torch.Tensor) and made.dim() != traced.dim():
                raise ValueError(f"{n.target} gives {made.dim()} dimensions, not {traced.dim()}")
        return result


def _tracing_failure(function: Callable[..., Any], call: Any) -> str:
    """Why PyTorch cannot trace and run the call with every size open, whatever compiles it; empty where it can."""
    try:
        _trace_and_call(
            function, _clone_call(call), lambda module, arguments: RankChecker(module).run, dynamic_shapes=True
        )
    except Exception as problem:
        return _error_summary(problem)
    return ""


def _trace_and_call(
    function: Callable[..., Any], call: Any, fw_compiler: Callable[..., Any], dynamic_shapes: bool
) -> Any:
    """The result of the call as AOTAutograd traces it and `compiler` compiles it."""
    leaves, spec = tree_flatten(call)
    places = [k for k, v in enumerate(leaves) if isinstance(v, torch.Tensor)]

    def of_tensors(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for k, t in zip(places, tensors, strict=True):
            filled[k] = t
        return _call(function, tree_unflatten(filled, spec))

    traced = aot_function(
        of_tensors, fw_compiler=fw_compiler, decompositions=autograd_decompositions(), dynamic=dynamic_shapes
    )
    return traced(*(leaves[k] for k in places))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, giving besides its results the gradients of their weighted sum for every argument that has one."""

    def both(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            results = [r for r in tree_leaves(function(*args, **kwargs)) if isinstance(r, torch.Tensor)]
            smooth = [r for r in results if r.requires_grad]
            wanted = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor) and a.requires_grad]
            weights = [torch.cos(torch.arange(r.numel(), dtype=r.dtype)).reshape(r.shape) for r in smooth]
            found = torch.autograd.grad(smooth, wanted, weights, allow_unused=True) if smooth else ()
        return [r.detach() for r in results], [g for g in found if g is not None]

    return both


def describe_difference(got: Any, expected: Any, wide: Callable[[], Any], values: bool = True) -> str:
    """How `got` differs from what PyTorch made, measured against float64; empty where it does not.

    Without `values` only their types count: they are random.
    """
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    truth: list[Any] | None = None
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            if a != b and repr(a) != repr(b):  # NaN is NaN
                return "another result that is no tensor"
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"another type: {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        if not values:
            continue
        if not (b.is_floating_point() or b.is_complex()):
            if not torch.equal(a, b):
                return f"other elements of {b.dtype}"
            continue
        if truth is None:
            truth = tree_leaves(wide())
        best = truth[k] if len(truth) == len(theirs) and isinstance(truth[k], torch.Tensor) else b
        if problem := _float_difference(a, b, best if best.shape == b.shape else b):
            return problem
    return ""


def _float_difference(ours: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor) -> str:
    """Specials must lie where PyTorch has them; finite numbers may err by the tolerance and by what PyTorch errs."""
    if theirs.is_complex():
        parts = [torch.view_as_real(t.to(torch.complex128).resolve_conj()) for t in (ours, theirs, truth)]
        tolerance = TOLERANCES[torch.float32 if theirs.dtype == torch.complex64 else torch.float64]
    else:
        parts = [t.double() for t in (ours, theirs, truth)]
        tolerance = TOLERANCES[theirs.dtype]
    a, b, best = parts
    special = ~torch.isfinite(b)
    if not torch.equal(special, ~torch.isfinite(a)) or not torch.equal(
        a[special].nan_to_num(nan=0.5), b[special].nan_to_num(nan=0.5)
    ):
        return "NaN or infinity elsewhere"
    best = torch.where(torch.isfinite(best), best, b)
    error = torch.where(special, 0.0, (a - best).abs())
    own = torch.where(special, 0.0, (b - best).abs())
    worst = float(own.max()) if own.numel() else 0.0
    excess = error - tolerance * (best.abs().nan_to_num() + 1e-1) - EAGER_ERROR_FACTOR * worst
    if not excess.numel() or float(excess.max()) <= 0:
        return ""
    return f"other numbers, by about 1e{round(math.log10(float(error.max())))}"


def _error_summary(problem: BaseException) -> str:
    """The kind of a problem and the line that says what it is, in few words."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if "operation(s) are not supported" in str(problem):
        lines = lines[1:]
    return f"{type(problem).__name__}: {lines[0][:200] if lines else ''}"
