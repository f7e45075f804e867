"""The fuzzer itself: it is deterministic, its bounds are tight, it finds planted mistakes, and it reduces failures."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node
from compiler.ir.graph.structure import Reduction
from compiler.ir.interpret.graph import interpret_in_float64
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.torch_types import as_array
from compiler.ir.verify.graph import verify_graph
from compiler.lowering.kernel import KernelLowering
from compiler.passes.graph import fold
from compiler.pipeline import lower_and_schedule
from compiler.testing.fuzz import (
    Failure,
    FuzzCase,
    check_graph,
    expectations,
    inputs_for,
    parse_case,
    random_graph,
    read_case,
)
from compiler.testing.fuzz.check import CONFIGURATIONS, configuration_for_seed
from compiler.testing.fuzz.graph_builder import GraphBuilder, ops_by_structure
from compiler.testing.fuzz.idioms import IDIOMS, attention, image_network, mixed_product, quantized_layer, random_scan
from compiler.testing.fuzz.malformed_inputs import check_malformed
from compiler.testing.fuzz.op_calls import divisors
from compiler.testing.fuzz.reduce import reduce, simplifications
from compiler.testing.fuzz.rounding_oracle import Reference
from compiler.testing.fuzz.workers import map_in_processes
from compiler.tools.cli import main

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.ir"))
FUSED = (CONFIGURATIONS["fused"],)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda p: p.stem)
def test_regressions(path: Path) -> None:
    """Graphs that the fuzzer once found to fail."""
    failure = read_case(path).check().failure
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int) -> None:
    failure = check_graph(random_graph(seed), seed, FUSED).failure
    assert failure is None, str(failure)


# graphs


def test_a_seed_always_gives_the_same_graph_and_inputs() -> None:
    for seed in range(20):
        first, second = random_graph(seed), random_graph(seed)
        assert print_graph(first, full=True) == print_graph(second, full=True)
        if not first.symbols:
            pairs = zip(inputs_for(first, seed), inputs_for(second, seed), strict=True)
            assert all(a.tobytes() == b.tobytes() for a, b in pairs)


def test_what_is_written_back_has_the_type_of_its_input_when_a_size_is_dynamic() -> None:
    """`x` is as high as the convolution makes it for 2, but not for any number."""
    verify_graph(random_graph(201557))


def test_graphs_are_valid_and_of_every_sort() -> None:
    seen: set[str] = set()
    graphs = [random_graph(seed) for seed in range(300)]
    for graph in graphs:
        verify_graph(graph)
        seen |= {n.op.name for n in graph.nodes}
    wanted = {o.name for declared in ops_by_structure().values() for o in declared}
    assert len(wanted - seen) < 0.1 * len(wanted), sorted(wanted - seen)
    assert any(g.symbols for g in graphs)
    assert any(g.output_aliases for g in graphs)
    assert any(0 in n.shape for g in graphs for n in g.inputs)
    assert {n.dtype.name for g in graphs for n in g.inputs} >= {
        "f32",
        "f64",
        "f16",
        "bf16",
        "i8",
        "i16",
        "i32",
        "i64",
        "u8",
        "f8e4m3fn",
        "f8e5m2",
        "bool",
    }


def test_every_op_with_samples_can_be_drawn() -> None:
    drawn = {o.name for declared in ops_by_structure().values() for o in declared}
    assert {o.name for o in OPS.values()} - drawn == {
        "input",
        "constant",
        "fused",
        "tuple_get",
        "eager",
        "effect",
        "sized_arange",
        "counting_sort",
        "recurrence",
        "cond",
        "while_loop",
    }


def grown(idiom: Callable[[GraphBuilder], Node], seed: int) -> Graph:
    """An idiom after a few ops."""
    growth = GraphBuilder(random.Random(seed), np.random.default_rng(seed))
    for _ in range(seed % 3):
        growth.add_random_call()
    growth.add(idiom(growth))
    return growth.build_graph(idiom.__name__)


@pytest.mark.parametrize("idiom", dict.fromkeys(IDIOMS), ids=lambda f: f.__name__)
def test_idioms_are_valid(idiom: Callable[[GraphBuilder], Node]) -> None:
    for seed in range(40):
        verify_graph(grown(idiom, seed))


@pytest.mark.parametrize(
    ("idiom", "passes"),
    [
        (attention, {"online-softmax", "fuse-loops"}),
        (image_network, {"winograd", "fold-scale", "tighten-reductions"}),
        (random_scan, {"two-level-scan", "unroll-and-jam"}),
        (quantized_layer, {"integer-contraction", "hoist-quantize", "narrow-constants", "sink-scale", "fold-casts"}),
        (mixed_product, {"widen-operands", "integer-contraction"}),
    ],
)
def test_aggressive_passes_find_work_in_idioms(idiom: Callable[[GraphBuilder], Node], passes: set[str]) -> None:
    done: set[str] = set()
    for seed in range(100):
        stages = lower_and_schedule(grown(idiom, seed), CONFIGURATIONS["aggressive"].options)
        done |= {r.pass_ for r in stages.context.remarks.select(kind="applied")}
        if passes <= done:
            return
    raise AssertionError(f"nothing to do for {passes - done}")


# expectations


def expected(text: str, *inputs: Any) -> Any:
    return expectations(parse_graph(text), [np.asarray(x) for x in inputs], runs=16)[0]


def test_what_an_infinity_leads_to_is_exact() -> None:
    """A share of exp(-inf) is none at all, so that a row of attention may see nothing; exp(-40) may be off by what float64 rounds away."""
    e = expected("graph(%x: f64[2]) { %y = exp %x  return %y }", [-np.inf, -40.0])
    assert e.value[0] == 0
    assert e.error[0] < 1e-300
    assert e.error[1] > 1e-17


def test_rounding_is_forgiven_and_nothing_more() -> None:
    x = np.array([0.1, 0.7, 3.0], np.float32)
    hoped = expected("graph(%x: f32[3]) { %y = exp %x  return %y }", x)
    assert hoped.checked_elements == 3
    assert not hoped.describe_mismatch(np.exp(x))
    assert "element [0]" in hoped.describe_mismatch(np.exp(x) * np.float32(1.0001))


def test_a_floor_next_to_an_integer_may_go_either_way() -> None:
    x = np.array([0.1, 0.5], np.float32)  # ten times 0.1 is rounded to 1 exactly
    hoped = expected("graph(%x: f32[2]) { %e = exp %x  %l = log %e  %s = mul %l, 10.0  %y = floor %s  return %y }", x)
    assert not hoped.describe_mismatch(np.array([0.0, 5.0], np.float32))
    assert not hoped.describe_mismatch(np.array([1.0, 4.0], np.float32))
    assert hoped.describe_mismatch(np.array([9.0, 5.0], np.float32))


@pytest.mark.parametrize(("dtype", "is_rounded"), [("bf16", True), ("f32", False)])
def test_a_factor_may_be_rounded_to_the_dtype_of_the_other_one(dtype: str, is_rounded: bool) -> None:
    """As matrix units multiply probabilities of attention: products of 1 that cancel may be off by that."""
    text = f"graph(%p: f32[1, 2], %v: {dtype}[2, 1]) {{ %y = matmul %p, %v {{dtype=f32}}  return %y }}"
    values = parse_graph(text).inputs[1].dtype.numpy
    hoped = expected(text, np.array([[1.0, 1.0]], np.float32), np.array([[1.0], [-1.0]]).astype(values))
    assert (2.0**-9 < hoped.error.item() < 2.0**-4) == is_rounded


def test_a_sum_that_cancels_may_be_off_by_the_rounding_of_its_terms() -> None:
    x = np.array([1e7, 0.3, -1e7], np.float32)
    hoped = expected("graph(%x: f32[3]) { %y = sum %x {dims=[0]}  return %y }", x)
    assert not hoped.describe_mismatch(np.asarray(np.float32(1.0)))
    assert hoped.describe_mismatch(np.asarray(np.float32(90.0)))


def test_nan_and_infinity_have_their_places() -> None:
    x = np.array([np.nan, np.inf, 0.0, 1.0], np.float32)
    hoped = expected("graph(%x: f32[4]) { %y = reciprocal %x  return %y }", x)
    right = np.array([np.nan, 0.0, np.inf, 1.0], np.float32)
    assert not hoped.describe_mismatch(right)
    for k, wrong in enumerate((0.0, np.nan, 1e30, np.inf)):
        changed = right.copy()
        changed[k] = wrong
        assert f"element [{k}]" in hoped.describe_mismatch(changed)


def test_formulas_on_halves_are_read_in_f32() -> None:
    """A Bessel function whose formula there is for f32 and f64 alone."""
    hoped = expected("graph(%x: f16[2]) { %y = i0 %x  return %y }", np.array([0.0, 1.0], np.float16))
    assert not hoped.describe_mismatch(np.array([1.0, 1.266], np.float16))
    assert "element [1]" in hoped.describe_mismatch(np.array([1.0, 1.3], np.float16))


def test_halves_are_held_to_their_value_until_they_overflow() -> None:
    hoped = expected("graph(%x: f16[3]) { %y = mul %x, 3.3  return %y }", np.array([1.0, 1000.0, 30000.0], np.float16))
    assert hoped.checked_elements == 2
    assert not hoped.describe_mismatch(np.array([3.3, 3300, np.inf], np.float16))
    assert "element [1]" in hoped.describe_mismatch(np.array([3.3, np.inf, np.inf], np.float16))


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_powers_that_flush_are_held_to_their_value_up_to_one(dtype: str) -> None:
    """Of larger arguments, one may be returned as well as the power itself."""
    graph = parse_graph(f"graph(%x: {dtype}[3]) {{ %y = exp_ftz %x  return %y }}")
    hoped = expectations(graph, [np.array([-1.0, 1.0, np.inf], graph.inputs[0].dtype.numpy)], runs=16)[0]
    for above, infinite in ((1.0, 1.0), (2.0, np.inf), (np.e, np.inf)):
        assert not hoped.describe_mismatch(np.array([1 / np.e, above, infinite], graph.inputs[0].dtype.numpy))
    assert "element [0]" in hoped.describe_mismatch(np.array([0.4, 1.0, 1.0], graph.inputs[0].dtype.numpy))


def test_weights_of_a_softmax_may_be_flushed_to_zero() -> None:
    """e^-88 is subnormal: a product may take it for zero, but the exponential alone must return it."""
    small = np.array([[0.0, -88.0]], np.float32)
    text = "graph(%x: f32[1, 2], %v: f32[2, 1]) { %w = softmax %x {dim=1}  %y = matmul %w, %v  return %y }"
    weighted = expected(text, small, np.array([[0.0], [1.0]], np.float32))
    assert not weighted.describe_mismatch(np.array([[0.0]], np.float32))
    alone = expected("graph(%x: f32[1, 2]) { %y = exp %x  return %y }", small)
    assert "element [0, 1]" in alone.describe_mismatch(np.array([[1.0, 0.0]], np.float32))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_sign_of_a_nan_is_kept_in_every_float(sign: float) -> None:
    """Vectors of 16 elements are converted by other instructions than single ones."""
    text = "graph(%x: bf16[40], %s: bf16[40]) { %y = copysign %x, %s  return %y }"
    nans = np.copysign(np.full(40, np.nan, np.float32), np.float32(sign))
    hoped = expected(text, np.ones(40, np.float32), nans)
    assert not hoped.describe_mismatch(np.full(40, sign, np.float32))
    assert hoped.describe_mismatch(np.full(40, -sign, np.float32))


def test_what_is_infinite_may_spoil_a_tile_of_a_convolution() -> None:
    text = """graph(%x: f32[1, 1, 12, 20]) {
      %w = constant f32[1, 1, 3, 3] [[[[1, 2, 1], [0, 1, 0], [3, 1, 1]]]]
      %y = conv %x, %w {stride=[1, 1], dilation=[1, 1]}
      return %y }"""
    x = np.ones((1, 1, 12, 20), np.float32)
    x[0, 0, 5, 0] = np.inf
    hoped, right = expected(text, x), np.full((1, 1, 10, 18), 10, np.float32)
    right[0, 0, :, :4] = np.nan
    assert not hoped.describe_mismatch(right)
    right[0, 0, 5, 8] = np.nan
    assert "1 of 180 elements are wrong; element [0, 0, 5, 8]" in hoped.describe_mismatch(right)


def test_constant_integers_may_be_read_with_an_offset() -> None:
    """An infinity then cancels the offset of another, and a large number the sum of small ones."""
    text = """graph(%x: f32[2, 2]) {
      %q = constant i8[2, 1] [[3], [0]]
      %w = cast %q {dtype=f32}
      %y = matmul %x, %w
      return %y }"""
    hoped = expected(text, np.array([[np.inf, 1], [0.5, 1e9]], np.float32))
    assert not hoped.describe_mismatch(np.array([[np.nan], [0.0]], np.float32))
    assert not hoped.describe_mismatch(np.array([[np.inf], [1.5]], np.float32))
    assert "element [1, 0]" in hoped.describe_mismatch(np.array([[np.inf], [1e6]], np.float32))
    floats = expected(text.replace("constant i8", "constant f32"), np.array([[np.inf, 1], [0.5, 1e9]], np.float32))
    assert "element [0, 0]" in floats.describe_mismatch(np.array([[np.nan], [1.5]], np.float32))


def test_what_is_near_to_the_reference_needs_no_perturbed_runs() -> None:
    """Anything that `Reference` takes, an expectation takes."""
    texts = (
        "%y = exp %x",
        "%y = floor %x",
        "%y = sinh %x",
        "%y = cast %x {dtype=i8}",
    )
    for text in texts:
        x = np.array([0.1, 3.0, -3.5, 1e7, 200.0, np.inf, np.nan], np.float32)
        graph = parse_graph(f"graph(%x: f32[7]) {{ {text}  return %y }}")
        reference = Reference.of(graph, [x])
        (hoped,) = reference.expectations()
        (own,) = (as_array(reference.rounded[n]) for n in graph.outputs)
        dtype = graph.outputs[0].dtype.numpy
        for got in (own, own + 1, own * (1 + 1e-7), own * (1 + 1e-6), np.roll(own, 1)):
            with np.errstate(invalid="ignore"):
                result = got.astype(dtype)
            assert not (reference.meets_every_expectation([result]) and hoped.describe_mismatch(result))
        assert not reference.meets_every_expectation([(own + 1).astype(dtype)])


def test_steps_of_a_loop_round_as_any_ops_do() -> None:
    text = """graph(%x: f32[3]) {
      %y = recurrence %x {num_carried=0, body=graph @step(%x: f32[]) { %e = exp %x  %l = log %e  %s = mul %l, 10.0  %y = floor %s  return %y }}
      return %y }"""
    hoped = expected(text, np.array([0.1, 0.5, 0.25], np.float32))
    assert not hoped.describe_mismatch(np.array([0.0, 5.0, 2.0], np.float32))
    assert not hoped.describe_mismatch(np.array([1.0, 4.0, 2.0], np.float32))
    assert hoped.describe_mismatch(np.array([1.0, 5.0, 3.0], np.float32))


def test_what_is_hidden_from_a_row_may_be_left_out_of_it() -> None:
    text = """graph(%s: f32[2, 2], %v: f32[2, 1]) {
      %p = softmax %s {dim=1}
      %y = matmul %p, %v
      return %y }"""
    hoped = expected(text, np.array([[1, -np.inf], [1, 1]], np.float32), np.array([[3], [np.nan]], np.float32))
    assert not hoped.describe_mismatch(np.array([[3], [np.nan]], np.float32))
    assert not hoped.describe_mismatch(np.array([[np.nan], [np.nan]], np.float32))
    assert "element [1, 0]" in hoped.describe_mismatch(np.array([[3], [1.5]], np.float32))


def test_what_a_row_does_not_see_may_be_left_out_of_all_of_it() -> None:
    """The product of 12 results from 0 * inf is 0 only if the infinities are left out of each."""
    text = """graph(%q: f32[1, 2], %k: f32[2, 2], %v: f32[2, 12], %m: bool[1, 2]) {
      %y = attention %q, %k, %v, %m {scale=1.0}
      %p = prod %y {dims=[1]}
      return %p }"""
    values = np.full((2, 12), np.inf, np.float32)
    args = np.ones((1, 2), np.float32), np.ones((2, 2), np.float32), values
    hidden = expected(text, *args, np.array([[False, False]]))
    assert not hidden.describe_mismatch(np.array([0], np.float32))
    assert not hidden.describe_mismatch(np.array([np.nan], np.float32))
    assert hidden.describe_mismatch(np.array([1], np.float32))
    seen = expected(text, *args, np.array([[True, False]]))
    assert not seen.describe_mismatch(np.array([np.inf], np.float32))
    assert seen.describe_mismatch(np.array([0], np.float32))


def test_a_value_with_two_uses_may_be_computed_twice() -> None:
    x = np.array([1e4, 0.1, -1e4], np.float32)
    hoped = expected("graph(%x: f32[3]) { %s = sum %x {dims=[0]}  %y = div %s, %s  return %y }", x)
    assert not hoped.describe_mismatch(np.asarray(np.float32(0.99)))
    assert hoped.describe_mismatch(np.asarray(np.float32(0.5)))


def test_a_sine_of_what_is_larger_than_its_digits_is_any_number_up_to_one() -> None:
    graph = parse_graph("graph(%x: f32[64]) { %e = i1 %x  %y = sin %e  return %y }")
    (hoped,) = expectations(graph, [np.full(64, -65.63315, np.float32)], runs=64)
    assert all(not hoped.describe_mismatch(np.full(64, wave, np.float32)) for wave in (-1, 0.3, 1))
    assert hoped.describe_mismatch(np.full(64, 5, np.float32))


def test_integers_are_exact() -> None:
    hoped = expected("graph(%x: i32[2]) { %y = mul %x, %x  return %y }", np.array([3, 70000], np.int32))
    assert not hoped.describe_mismatch(np.array([9, 605032704], np.int32))
    assert hoped.describe_mismatch(np.array([9, 605032705], np.int32))


# planted mistakes


def first_failure(count: int = 60) -> Failure | None:
    """Return the first failure of the default configuration."""
    for seed in range(count):
        failure = check_graph(random_graph(seed), seed, FUSED).failure
        if failure:
            return failure
    return None


def test_a_lost_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pads, concatenations and insertions whose last guard is forgotten when they are lowered."""
    whole = KernelLowering.guard_condition
    monkeypatch.setattr(KernelLowering, "guard_condition", lambda self, guards: whole(self, guards[:-1]))
    assert first_failure() is not None


def test_a_fold_that_rounds_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known values that lose what comes behind the point."""
    monkeypatch.setattr(fold, "interpret_in_float64", lambda graph: [r.floor() for r in interpret_in_float64(graph)])
    found = first_failure()
    assert found is not None
    assert found.kind == "mismatch"


# shrinking


def test_a_failure_shrinks_to_the_op_that_causes_it() -> None:
    """A "failure" that any sum over more than one element shows."""

    def fails(case: FuzzCase) -> bool:
        sums = [n for n in case.graph.nodes if isinstance(n.structure, Reduction) and n.structure.combine == "add"]
        return any(n.operands[0].shape and max(n.operands[0].shape) > 1 for n in sums)

    seed = next(s for s in range(200) if len(random_graph(s).nodes) > 12 and fails(FuzzCase(random_graph(s), s)))
    smallest = reduce(FuzzCase(random_graph(seed), seed), fails, limit=2000)
    assert fails(smallest)
    computed = [n for n in smallest.graph.nodes if n.operands]
    assert len(computed) == 1
    assert len(smallest.graph.outputs) == 1
    assert all(d <= 3 for n in smallest.graph.inputs for d in n.shape)


def test_simpler_graphs_are_valid() -> None:
    for seed in range(12):
        for simpler in simplifications(random_graph(seed)):
            verify_graph(simpler)


def test_a_case_reads_back() -> None:
    case = FuzzCase(random_graph(8), 8, ("unfused threads",), "mismatch (unfused threads): output 0")
    again = parse_case(str(case))
    assert str(again) == str(case)
    assert (again.seed, again.configurations) == (8, ("unfused threads",))


# processes


def act(seed: int) -> int:
    """Work that ends its process, if asked to."""
    if seed == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return seed * seed


def test_a_process_that_dies_is_a_failure_and_the_others_go_on() -> None:
    found = dict(map_in_processes(act, range(4)))
    assert isinstance(found[1], Failure)
    assert found[1].kind == "crash"
    assert "SIGSEGV" in found[1].message
    assert [found[k] for k in (0, 2, 3)] == [0, 4, 9]


# the commands


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--count", "3", "--seed", "5", "--out", str(tmp_path)]) == 0
    assert "3 tried, 0 failed" in capsys.readouterr().out
    assert main(["reduce", str(REGRESSIONS[0]), "--check"]) == 0
    assert "passes every check" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_target_that_cannot_run_here_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--target", "sm90"]) == 1
    assert "random graphs for sm90 need" in " ".join(capsys.readouterr().err.split())
    assert main(["fuzz", "--target", "sm91"]) == 1
    names = [configuration_for_seed(seed, "sm90").name for seed in range(4)]
    assert names == ["fused sm90", "unfused sm90", "aggressive sm90", "fused sm90"]


# malformed input


@pytest.mark.parametrize("seed", range(60))
def test_malformed_input_gets_an_error_of_ours(seed: int) -> None:
    failure = check_malformed(seed).failure
    assert failure is None, str(failure)


def test_sizes_of_any_magnitude_have_divisors() -> None:
    assert [divisors(n) for n in (2, 12, 13, 36)] == [[2], [2, 3, 4, 6, 12], [13], [2, 3, 4, 6, 9, 12, 18, 36]]
    assert {2, 4096, 1 << 48, 1 << 60} <= set(divisors(1 << 60))
