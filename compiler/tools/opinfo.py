"""PyTorch's OpInfo samples, compiled and compared with PyTorch eager.

`torch.testing` has an `OpInfo` with sample inputs for each operator.  A sample is compiled like by
`torch.compile(backend="tilewright")`, from AOTAutograd on; Dynamo is left out, as there is only one call to trace.
Sizes that data decides stay in the graph, as with Dynamo's `capture_dynamic_output_shape_ops` and `capture_scalar_outputs`.
Where AOTAutograd cannot trace an operator because it branches on data, Dynamo breaks the graph, so `torch.compile` itself runs the sample.
Samples lie on the device of the target: a GPU, or the CPU for CPUs and for Triton's interpreter.
"""

from __future__ import annotations

import gc
import json
import random
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from compiler.analysis.opaque_calls import opaque_operators
from compiler.codegen.backend import target_by_name
from compiler.driver.partitioned_graph import compile_graph
from compiler.errors import TargetError, TilewrightError
from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.dynamo import import_functional
from compiler.frontend.opaque_ops import RANDOM_REASON, opaque_reason
from compiler.ir.graph.graph import Graph
from compiler.ir.ops.graph_ops import lookup_operator
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.options import Options
from compiler.tools.aot_tracing import RankError, apply_call, call_as_aot_eager, tensors_of, trace_and_call, trace_key
from compiler.tools.result_difference import result_difference
from compiler.torch_backend import as_boxed_function, tilewright

SAMPLE_TIMEOUT = 120.0
"""Limit for one sample, in seconds of CPU time, so that a busy machine or a paused process causes no timeout."""

OUTCOMES = ("passed", "opaque", "dynamo", "as-aot-eager", "out-of-scope", "refused", "failed")
"""Compiled and right; right, with ops that run in PyTorch; right under `torch.compile`, whose Dynamo breaks or traces what AOTAutograd
alone cannot; as with PyTorch's own backend "aot_eager", which fails too, or differs from eager in the same way; invalid
(`SampleOutcome.reason`); refused by the target, which cannot express a kernel; failed."""


TIED = {"topk": 1, "sort": 0, "argsort": 0}
"""Operators that promise no order of equal elements, with the position of their argument `dim` behind the first one."""


@dataclass
class Tally:
    """Results of one operator's samples: `counts` by outcome and `causes`, the number of samples for each reason."""

    op: str
    label: str
    counts: dict[str, int] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: str) -> int:
        return self.counts.get(outcome, 0)


@dataclass(frozen=True)
class SampleOutcome:
    """Outcome of one sample: one of `OUTCOMES`, and the reason unless it passed."""

    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class CompiledSample:
    """A compiled function of a sample's tensors, and the graphs that were imported for it."""

    run: Callable[..., Any]
    graphs: list[Graph]


CompiledSamples: TypeAlias = dict[Hashable, CompiledSample]
"""Compiled samples of one operator by `trace_key`: those that differ in elements alone share their code."""


@dataclass(frozen=True)
class SamplingOptions:
    """Options of a run over samples of `dtype`: with or without `gradients` and `dynamic_shapes`.

    `seed` deals the samples of an operator out at random to `shards` shards; a `fraction` of those of number `shard`
    is run.  The shards together are all samples.
    """

    dtype: torch.dtype
    options: Options
    gradients: bool = False
    dynamic_shapes: bool = False
    fraction: float = 1.0
    seed: int = 0
    shard: int = 1
    shards: int = 1

    @property
    def label(self) -> str:
        """Key of these options in log files."""
        target = f" on {self.options.target}" if self.options.target != "host" else ""
        shard = f" shard {self.shard}/{self.shards} of seed {self.seed}" if self.shards > 1 else ""
        modes = " with gradients" * self.gradients + " with dynamic shapes" * self.dynamic_shapes
        return f"{self.dtype}{target}{modes}{shard}"

    def selection(self) -> Iterator[bool]:
        """Yield for each sample in turn if it is run; the first one is in every fraction of shard 1."""
        rng, position = random.Random(self.seed), 0.0
        while True:
            shard, remainder = divmod(position * self.shards, 1)
            yield shard == self.shard - 1 and remainder < self.fraction
            position = rng.random()

    @property
    def device(self) -> str:
        """Type of the device that samples lie on."""
        return target_by_name(self.options.target).device_type


def require_runnable(target: str) -> None:
    """Raise TargetError if code for a target cannot run here."""
    if missing := target_by_name(target).missing_features():
        raise TargetError(f"samples for {target} need {missing}, which this machine lacks")


def operators(names: Sequence[str] = (), dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Any]:
    """Return the `OpInfo` of the operators called `names`, or of all, that support `dtype` on a type of device.

    A name stands for all variants of an operator, `full_name` for one.  Raises TilewrightError for unknown names, or if torch's
    samples need a package that is not installed.
    """
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ModuleNotFoundError as missing:
        raise TilewrightError(f"torch's samples need the package {missing.name}: pip install {missing.name}") from None
    infos: list[Any] = op_db
    if unknown := sorted(set(names).difference(*({o.name, full_name(o)} for o in infos))):
        raise TilewrightError(f"torch has no samples for {', '.join(unknown)}")
    chosen = [o for o in infos if not names or {o.name, full_name(o)} & set(names)]
    return [o for o in chosen if dtype in o.supported_dtypes(device)]


def full_name(info: Any) -> str:
    """Return an operator's name with its variant, as in "var.unbiased"."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def run_samples(infos: Iterable[Any], sampling: SamplingOptions, log: Path | None = None) -> Iterator[Tally]:
    """Yield a tally for each operator, run in a subprocess so that a crash ends only that operator.

    `log` is a file with one line of JSON for each operator: operators in it are not run again, others are appended.
    """
    logged = _read_log(log, sampling) if log else {}
    _warm_up(sampling)
    for info in infos:
        tally = logged.get(full_name(info))
        if tally is None:
            tally = _tally(info, sampling)
            if log:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(tally)) + "\n")
        yield tally


def _warm_up(sampling: SamplingOptions) -> None:
    """Load modules and libraries before forking, on one thread, as other threads would not survive a fork.

    The garbage collector leaves what exists by then alone; it would touch, and so copy, that memory in each fork.
    """
    if sampling.device != "cpu":
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_sample(torch.neg, SimpleNamespace(input=torch.ones(2), args=(), kwargs={}), sampling)
    torch.set_num_threads(threads)
    gc.freeze()


def _read_log(log: Path, sampling: SamplingOptions) -> dict[str, Tally]:
    """Return the tallies of an earlier run with the same options."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    tallies = [Tally(**json.loads(line)) for line in lines]
    return {t.op: t for t in tallies if t.label == sampling.label}


def _tally(info: Any, sampling: SamplingOptions) -> Tally:
    """Run an operator's samples, in a forked process on CPUs; the state of a GPU would not survive a fork."""
    samples = list((_forked_outcomes if sampling.device == "cpu" else _outcomes)(info, sampling))
    causes = Counter(f"{s.outcome}: {s.reason}" for s in samples if s.reason)
    return Tally(full_name(info), sampling.label, dict(Counter(s.outcome for s in samples)), dict(causes))


def _forked_outcomes(info: Any, sampling: SamplingOptions) -> Iterator[SampleOutcome]:
    """Yield the outcomes of samples that a forked process runs; a timeout or crash is one failed sample."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_send_outcomes, args=(sender, info, sampling))
    process.start()
    sender.close()
    try:
        while sample := receiver.recv():
            yield sample
    except EOFError:
        process.join()
        timed_out = process.exitcode == -signal.SIGPROF
        yield SampleOutcome("failed", f"timed out after {SAMPLE_TIMEOUT} s" if timed_out else "the process died")
    process.join()


def _send_outcomes(sender: Connection, info: Any, sampling: SamplingOptions) -> None:
    """Send the outcome of each sample, then None."""
    for outcome in _outcomes(info, sampling, SAMPLE_TIMEOUT):
        sender.send(outcome)
    sender.send(None)


def _outcomes(info: Any, sampling: SamplingOptions, limit: float = 0) -> Iterator[SampleOutcome]:
    """Yield the outcome of each sample; one over `limit` seconds, if it is not 0, ends the process by SIGPROF."""
    torch.set_num_threads(1)
    torch.manual_seed(sampling.seed)
    has_values = "empty" not in info.name
    op = without_order_of_equals(info.op, TIED[info.name]) if info.name in TIED else info.op
    function = with_gradients(op) if sampling.gradients else op
    compiled: CompiledSamples = {}
    for sample, is_selected in zip(_samples(info, sampling), sampling.selection(), strict=False):
        if is_selected:
            signal.setitimer(signal.ITIMER_PROF, limit)
            is_outcome = isinstance(sample, SampleOutcome)
            yield sample if is_outcome else run_sample(function, sample, sampling, has_values, compiled)


def _samples(info: Any, sampling: SamplingOptions) -> Iterator[Any]:
    """Yield the samples of `info`, or the outcome that says why there are none."""
    dtype, gradients, device = sampling.dtype, sampling.gradients, sampling.device
    if gradients and not (info.supports_autograd and dtype in info.supported_backward_dtypes(device)):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from info.sample_inputs(device, dtype, requires_grad=gradients)
    except Exception as error:
        yield SampleOutcome("out-of-scope", f"no samples: {_error_summary(error)}")


def run_sample(
    function: Callable[..., Any],
    sample: Any,
    sampling: SamplingOptions,
    values: bool = True,
    compiled: CompiledSamples | None = None,
) -> SampleOutcome:
    """Compile and run `function` on one sample and compare with PyTorch: types, and elements if `values`.

    Code is taken from `compiled`, and added to it.
    """
    call = (sample.input, tuple(sample.args), dict(sample.kwargs))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            expected = apply_call(function, _clone_call(call))
        except Exception as error:
            return SampleOutcome("out-of-scope", f"PyTorch rejects it: {_error_summary(error)}")
        if reason := next(filter(None, map(_unsupported_reason, tree_leaves((call, expected)))), ""):
            return SampleOutcome("out-of-scope", reason)
        try:
            torch.manual_seed(0)
            graphs, got = _compile_and_call(function, _clone_call(call), sampling, {} if compiled is None else compiled)
        except TargetError as error:
            return SampleOutcome("refused", "\n".join(str(error).splitlines()[1:4]) or str(error))
        except Exception as error:
            failed = SampleOutcome("failed", _error_summary(error))
            untraced = _aot_eager_failure(function, call, sampling.dynamic_shapes)
            return _under_dynamo(function, call, sampling, expected, untraced) if untraced else failed
        opaque = sorted({o.operator for g in graphs for o in opaque_operators(g.outputs, expandable=False)})
        is_random = any(opaque_reason(lookup_operator(name)) == RANDOM_REASON for name in opaque if "." in name)
        describe = partial(
            result_difference, wide=partial(_float64_result, function, call), values=values and not is_random
        )
        if difference := describe(got, expected):
            same = not describe(got, _call_aot_eager(function, call, sampling.dynamic_shapes))
            return SampleOutcome("as-aot-eager" if same else "failed", difference)
    return SampleOutcome("opaque", ", ".join(opaque)) if opaque else SampleOutcome("passed")


def _unsupported_reason(value: Any) -> str:
    """Return the reason why the IR has no such tensor, or "" if `value` is supported or not a tensor."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.layout != torch.strided:
        return "a sparse tensor"
    return "" if value.dtype in TORCH_DTYPES.values() else f"elements of dtype {value.dtype}"


def _clone_call(call: Any) -> Any:
    """Copy the tensors of a call, with their strides."""

    def clone(v: Any) -> Any:
        return v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v

    return tree_map(clone, call)


def _float64_result(function: Callable[..., Any], call: Any) -> Any:
    """Return the result of PyTorch in float64 or complex128, or None if it raises an error."""

    def widen(v: Any) -> Any:
        if isinstance(v, torch.dtype):
            return _wide_dtype(v)
        if not isinstance(v, torch.Tensor) or _wide_dtype(v.dtype) == v.dtype:
            return v
        return v.detach().to(_wide_dtype(v.dtype)).requires_grad_(v.requires_grad)

    wide = tree_map(widen, call)
    try:
        torch.manual_seed(0)
        return apply_call(function, _clone_call(wide))
    except Exception:
        return None


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def _compile_and_call(
    function: Callable[..., Any], call: Any, sampling: SamplingOptions, compiled_samples: CompiledSamples
) -> tuple[list[Graph], Any]:
    """Return the imported graphs and the result of a call; compile it unless that was done."""
    key = trace_key(call)
    if found := compiled_samples.get(key):
        return found.graphs, found.run(*tensors_of(call))
    graphs: list[Graph] = []

    def compile_fx_graph(module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        with _disable_current_modes():  # AOTAutograd's fake tensors, while constants are folded
            imported = import_functional(module, fallback=sampling.options.fallback)
            graphs.append(imported.graph)
            assertions = imported.runtime_assertions
            compiled = compile_graph(imported.graph, sampling.options, imported.bounds, assertions)
            return as_boxed_function(imported, compiled)

    run, result = trace_and_call(function, call, compile_fx_graph, autograd_decompositions(), sampling.dynamic_shapes)
    if key is not None:
        compiled_samples[key] = CompiledSample(run, graphs)
    return graphs, result


def _call_aot_eager(function: Callable[..., Any], call: Any, dynamic_shapes: bool) -> Any:
    torch.manual_seed(0)
    return call_as_aot_eager(function, _clone_call(call), dynamic_shapes)


def _aot_eager_failure(function: Callable[..., Any], call: Any, dynamic_shapes: bool) -> SampleOutcome | None:
    """Return the outcome that says why PyTorch cannot trace and run the call in any backend, or None."""
    try:
        _call_aot_eager(function, call, dynamic_shapes)
    except RankError as error:
        return SampleOutcome("out-of-scope", f"PyTorch infers another type: {_error_summary(error)}")
    except Exception as error:
        return SampleOutcome("as-aot-eager", _error_summary(error))
    return None


def _under_dynamo(
    function: Callable[..., Any], call: Any, sampling: SamplingOptions, expected: Any, untraced: SampleOutcome
) -> SampleOutcome:
    """Return the outcome under `torch.compile`; `untraced`, which says why AOTAutograd has no graph, if every backend fails there."""

    def call_compiled(backend: Any, options: dict[str, Any] | None = None) -> Any:
        torch._dynamo.reset()
        torch.manual_seed(0)
        wrapped = torch.compile(
            lambda *args, **kwargs: function(*args, **kwargs),
            backend=backend,
            dynamic=sampling.dynamic_shapes,
            options=options,
        )
        return apply_call(wrapped, _clone_call(call))

    try:
        got = call_compiled(tilewright, dict(vars(sampling.options)))
    except Exception as error:
        failed = SampleOutcome("failed", _error_summary(error))
        try:
            call_compiled("aot_eager")
        except Exception:
            return untraced
        return failed
    difference = result_difference(got, expected, partial(_float64_result, function, call))
    return SampleOutcome("failed", difference) if difference else replace(untraced, outcome="dynamo")


def without_order_of_equals(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Wrap `function` to return the elements at the indices in its result; argument number `position` is the dimension."""

    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = function(x, *args, **kwargs)
        if kwargs.get("stable") or not x.ndim:
            return result
        given = args[position] if len(args) > position else -1
        dim = kwargs.get("dim", given)
        tensors = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        return (*tensors[:-1], x.gather(dim, tensors[-1]))

    return call


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to return its results and the gradients of their weighted sum for every argument that has one."""

    def both(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            results = [r for r in tree_leaves(function(*args, **kwargs)) if isinstance(r, torch.Tensor)]
            outputs = [r for r in results if r.requires_grad]
            inputs = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor) and a.requires_grad]
            weights = [torch.cos(torch.arange(r.numel(), dtype=r.dtype)).reshape(r.shape) for r in outputs]
            gradients = torch.autograd.grad(outputs, inputs, weights, allow_unused=True) if outputs else ()
        return [r.detach() for r in results], [g for g in gradients if g is not None]

    return both


def _error_summary(error: BaseException) -> str:
    """Return an error's type and the first line of its message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "operation(s) are not supported" in str(error):
        lines = lines[1:]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
