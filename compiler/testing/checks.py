"""Test kit for passes and models: compare IR before and after a pass, and compiled models with float64.

check_pass("form-silu",
    before="graph(%x: f32[4]) { %s = sigmoid %x   %y = mul %s, %x   return %y }",
    after="graph(%x: f32[4]) { %y = silu %x   return %y }")
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import compiler
import compiler.ir.ops
from compiler.cost.machine import Machine
from compiler.frontend.model_source import Model, as_exported_program, resolve_model
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import Composite, ConstantLinear, Fused, Recurrence, Reduction, Scan
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import (
    random_inputs,
    random_limit_array,
    small_symbol_values,
    special_array,
)
from compiler.ir.interpret.size_sampling import SizeValues, interpreted_statements, sample_sizes
from compiler.ir.text.graph_printer import graph_resources
from compiler.ir.text.ir_text import AnyIR, parse_ir, print_ir
from compiler.ir.text.lexer import VALUE
from compiler.ir.text.tile_printer import program_resources
from compiler.ir.tile.kernel import Kernel, Reduce, walk
from compiler.ir.tile.program import Program
from compiler.ir.torch_types import as_array
from compiler.options import Options, as_options
from compiler.passes.base import Context, Pass
from compiler.passes.instrument import Verify, verify
from compiler.passes.manager import run_pipeline
from compiler.passes.pattern import RulePass
from compiler.passes.pipeline_text import parse_pipeline
from compiler.passes.semantic_check import (
    SemanticCheck,
    describe_difference,
    input_types,
    run_on,
    run_with_valid_range,
    tolerance,
)
from compiler.target import MatrixShape
from compiler.testing.accuracy import OWN, References, float64_references, numerical_errors
from compiler.testing.fuzz.rounding_oracle import float_class

BLESS = False
"""True if `check_pass` writes the IR it got into the test instead of failing (`pytest --bless`)."""


def check_pass(
    pipeline: str | Iterable[Pass[Any]],
    *,
    before: str = "",
    after: str = "",
    unchanged: str = "",
    remark: str = "",
    idempotent: bool = True,
    special: bool = True,
    limits: bool | None = None,
    machine: Machine | None = None,
    matrix_shapes: tuple[MatrixShape, ...] = (),
) -> AnyIR:
    """Run `pipeline` on the text `before`, compare with the text `after` up to names, and return the result.

    `unchanged` is a text that the pipeline must not change; `remark` must occur in a remark.  The result is verified, printed and
    parsed back, and with `idempotent` run through the pipeline again.  If it differs, both are interpreted on random inputs, with symbolic
    sizes 0 and 1 and with dynamic sizes that fill tiles, and with `special` on zeros of both signs, infinities and NaN.  Results
    must be identical if every pass is exact, else equal in float64 within a tolerance.  With `limits`, both sides must overflow alike
    (see `check_limits`); None asks that unless passes other than rules round IR that has sums, whose terms they may regroup.
    `machine` and `matrix_shapes` describe the target.  Raises AssertionError.
    """
    passes = parse_pipeline(pipeline) if isinstance(pipeline, str) else tuple(pipeline)
    context, again_context = (Context(machine or Machine(), matrix_shapes) for _ in range(2))
    source = parse_ir(before or unchanged)
    verify(source)
    result = run_pipeline(source, passes, context, [Verify(), SemanticCheck()])
    _assert_same_text(result, parse_ir(unchanged or after), passes, unchanged or after)
    assert not remark or any(remark in str(r) for r in context.remarks), (
        f"no remark contains {remark!r}:\n{context.remarks}"
    )
    _assert_round_trip(result)
    if idempotent:
        again = run_pipeline(result, passes, again_context)
        assert canonical_text(again) == canonical_text(result), (
            "the pipeline is not idempotent, a second run changes the IR:\n" + _diff(result, again)
        )
    if result == source:
        return result
    is_exact = all(p.exact for p in passes)
    if limits is None:
        limits = is_exact or all(isinstance(p, RulePass) for p in passes) or not any(map(has_sums, (source, result)))
    if limits:
        check_limits(source, result)
    check_equivalent(source, result, exact=is_exact, special=special)
    return result


def canonical_text(ir: AnyIR) -> str:
    """Print `ir` with values renamed in the order in which they appear."""
    names: dict[str, str] = {}
    renamed = VALUE.sub(lambda m: names.setdefault(m[0], f"%v{len(names)}"), print_ir(ir))
    return (
        renamed if isinstance(ir, Graph) else print_ir(_reparse(renamed, ir))
    )  # print again: line breaks depend on the length of names


def check_equivalent(old: AnyIR, new: AnyIR, *, exact: bool = False, special: bool = True) -> None:
    """Interpret `old` and `new` and compare the results; with `exact`, bit for bit.  Raises AssertionError."""
    for sizes in _trial_sizes(old, new):
        a, b = (ir.specialize(sizes) if isinstance(ir, Graph) else ir for ir in (old, new))
        for label, run in _interpreter_runs(a, sizes, special):
            want, got = run(a, exact), run(b, exact)
            for number, (w, g) in enumerate(zip(want, got, strict=True)):
                problem = describe_difference(w, g, 0.0 if exact else tolerance(a))
                at_sizes = f" with sizes {sizes}" if sizes else ""
                assert not problem, f"on {label} inputs{at_sizes}, output {number}: {problem}"


MAX_LIMIT_RUNS, LIMIT_ELEMENTS, LIMIT_STATEMENTS = 32, 512, 20_000
"""Most runs of `check_limits`; elements of an input, and interpreted statements, after which there are enough."""


def check_limits(old: AnyIR, new: AnyIR) -> None:
    """Interpret IR in its own dtypes on magnitudes near the limits of these; raises AssertionError.

    Inputs are huge, tiny and subnormal values, the argument at which exp overflows, zeros of both signs, infinities and NaN.
    What counts is the class of each result: NaN, inf, -inf or finite.  Finite values may differ, as rounding does near the limits.
    """
    sizes = next(_trial_sizes(old, new))
    a, b = (ir.specialize(sizes) if isinstance(ir, Graph) else ir for ir in (old, new))
    types = [n.type for n in a.inputs] if isinstance(a, Graph) else input_types(a, sizes)
    if not all(t.dtype.is_float for t in types):
        return
    fewest = min((int(np.prod(t.static_shape())) for t in types), default=LIMIT_ELEMENTS)
    affordable = LIMIT_STATEMENTS // max(1, sum(interpreted_statements(g, sizes) for g in (a, b)))
    rng = np.random.default_rng(0)
    for _ in range(min(MAX_LIMIT_RUNS, -(-LIMIT_ELEMENTS // max(1, fewest)), max(1, affordable))):
        inputs = [random_limit_array(t, rng) for t in types]
        for number, (want, got) in enumerate(zip(*(_interpret(g, inputs, True) for g in (a, b)), strict=True)):
            differing = np.argwhere(float_class(want) != float_class(got))
            if len(differing):
                at = tuple(map(int, differing[0]))
                raise AssertionError(
                    f"near the limits of its dtype, output {number}: element {list(at)} is {got[at]} instead of {want[at]}"
                )


def has_sums(ir: AnyIR) -> bool:
    """Return True if results depend on the order in which elements are combined, or on how a composite op does that."""
    if isinstance(ir, Graph):
        return any(
            isinstance(n.structure, (Reduction, Scan, ConstantLinear, Composite, Fused, Recurrence)) for n in ir.nodes
        )
    kernels = (ir,) if isinstance(ir, Kernel) else ir.kernels.values()
    return any(isinstance(s, Reduce) for k in kernels for s in walk(k.body))


def _trial_sizes(old: AnyIR, new: AnyIR) -> Iterator[SizeValues]:
    """Yield values to try for the symbolic dimensions."""
    if not isinstance(old, Graph):
        yield from sample_sizes(old, new)
        return
    yield small_symbol_values(old, 3)
    if old.symbols:
        yield dict.fromkeys(old.symbols, 1)
        yield dict.fromkeys(old.symbols, 0)


def _interpreter_runs(
    ir: AnyIR, sizes: SizeValues, special: bool
) -> Iterator[tuple[str, Callable[[AnyIR, bool], list[Array]]]]:
    """Yield labelled functions that interpret IR on one set of inputs; their second argument is `exact`."""
    types = [n.type for n in ir.inputs] if isinstance(ir, Graph) else input_types(ir, sizes)
    yield (
        "random",
        lambda x, exact: run_with_valid_range(lambda *ends: _interpret(x, random_inputs(types, 1, *ends), exact)),
    )
    if special and all(t.dtype.is_float or t.dtype.kind == "bool" for t in types):  # integers may be indices
        for phase in (0, 5):
            inputs = [special_array(t, phase * k) for k, t in enumerate(types)]
            yield "special", lambda x, exact, inputs=inputs: _interpret(x, inputs, exact)  # type: ignore[misc]


def _interpret(ir: AnyIR, inputs: Sequence[Array], exact: bool) -> list[Array]:
    if not isinstance(ir, Graph):
        return run_on(ir, inputs)
    return [as_array(r) for r in interpret(ir, inputs, dtype=None if exact else torch.float64)]


def _assert_round_trip(ir: AnyIR) -> None:
    """Check that the text of `ir` parses to IR with the same text."""
    again = _reparse(print_ir(ir), ir)
    assert print_ir(again) == print_ir(ir), "printing and parsing changes the IR:\n" + _diff(ir, again)


def _reparse(source: str, ir: AnyIR) -> AnyIR:
    """Parse text into IR of the same kind; it may refer to constants of `ir`."""
    resources = (
        graph_resources(ir) if isinstance(ir, Graph) else program_resources(ir) if isinstance(ir, Program) else {}
    )
    return parse_ir(source, resources)


def _diff(want: AnyIR, got: AnyIR) -> str:
    old, new = canonical_text(want).splitlines(), canonical_text(got).splitlines()
    return "\n".join(difflib.unified_diff(old, new, "expected", "got", lineterm="", n=99))


def _assert_same_text(result: AnyIR, expected: AnyIR, passes: Sequence[Pass[Any]], literal: str) -> None:
    if canonical_text(result) == canonical_text(expected):
        return
    if BLESS and (location := _bless(literal, print_ir(result))):
        print(f"blessed {location}")
        return
    rules = "".join(f"\nrule {r.name}: {r.source_location}" for p in passes if isinstance(p, RulePass) for r in p.rules)
    accept = "\nto accept this output: run this test with pytest --bless"
    raise AssertionError(f"the IR differs from the expected one:\n{_diff(expected, result)}{rules}{accept}")


def _bless(old: str, new: str) -> str:
    """Replace the text `old` in the test that called `check_pass` and return its location, or "" unless it occurs once."""
    caller = next(f for f in inspect.stack() if f.filename != __file__)
    path = Path(caller.filename)
    source = path.read_text()
    if source.count(old) != 1:
        return ""
    quoted = new if f'"""{old}' in source else f'""{new}""'  # turn a one-line string into a triple-quoted one
    path.write_text(source.replace(old, quoted))
    return f"{path}:{caller.lineno}"


def check(
    model: Model,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    reference: Model | None = None,
    options: Options | dict[str, Any] | None = None,
    factor: float = 4.0,
) -> str:
    """Compile `model` and return a table of its error and PyTorch's against float64, for each output.

    Float64 arithmetic on the same numbers shows what rounding does, and `reference`, the model before it was quantized, what
    quantization does.  Errors are relative to the largest reference value.  Raises AssertionError if an error exceeds `factor`
    times PyTorch's and 16 times the epsilon of its dtype, or of the one that matrix products round to.
    """
    chosen = as_options(options)
    source = resolve_model(model)
    program, inputs, named = as_exported_program(source, args, kwargs)
    references = float64_references(program, inputs, named, reference)
    eager = source if isinstance(source, torch.nn.Module) else program.module()
    compiled = compiler.compile(program, inputs, named, options=chosen)
    with torch.no_grad():
        theirs, ours = (tree_leaves(m(*inputs, **named)) for m in (eager, compiled))
    epsilon = {"f32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7}[chosen.matmul_precision]
    return _compare_accuracy(ours, theirs, references, factor, epsilon)


def check_accuracy(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], truth: Sequence[torch.Tensor], *, factor: float = 4.0
) -> str:
    """Compare given results as `check` does: those of compiled code, of PyTorch eager, and of float64."""
    return _compare_accuracy(ours, theirs, {OWN: truth}, factor)


def _compare_accuracy(
    ours: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    references: References,
    factor: float,
    epsilon: float = 0.0,
) -> str:
    """Compare results with each reference; `epsilon` is that of rounding inside the program."""
    heads = "".join(f"{('our ' if h == OWN else '') + h:>14}{'PyTorch':>12}" for h in references)
    rows, worse = [f"{'output':<8}{'shape':<18}{heads}"], []
    for k, (mine, their) in enumerate(zip(ours, theirs, strict=True)):
        of_output = {heading: [truth[k]] for heading, truth in references.items()}
        a, b = (numerical_errors([x], of_output) for x in (mine, their))
        cells = "".join(f"{a[h].relative:14.2e}{b[h].relative:12.2e}" for h in references)
        rows.append(f"{k:<8}{list(mine.shape)!s:<18}{cells}")
        tiny = 16 * max(epsilon, torch.finfo(mine.dtype).eps) if mine.dtype.is_floating_point else 0.0
        if any(not a[h].relative <= max(factor * b[h].relative, tiny) for h in references):
            worse.append(k)
    table = "\n".join(rows)
    assert not worse, f"outputs {worse} are less accurate than PyTorch's:\n{table}"
    return table
