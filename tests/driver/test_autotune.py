"""The tuner: what it measures, chooses, says and remembers.  Time is made up; what kernels compute is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.backend import TILE_PASSES
from compiler.cost.machine import AVX512, Machine
from compiler.driver import variant
from compiler.driver.autotune import MeasureKernels, Tuner, cold_cache_bytes, hot_kernels
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.tile.kernel import Kernel, stmt_ranges, walk
from compiler.ir.tile.program import Program
from compiler.passes.base import Context
from compiler.passes.instrument import Verify
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import parse_pipeline, print_pipeline
from compiler.passes.semantic_check import describe_difference, outputs_of
from compiler.report.measure import numerical_error
from compiler.runtime.cache import ObjectCache

PASSES = "vectorize,tile,pack,prefetch"

MATMUL = """kernel @matmul(in %x: f32[64, 96], in %w: f32[96, 480], out %y: f32[64, 480]) {
  parallel %j in 0..480 { parallel %i in 0..64 {
    %s = reduce add %k in 0..96 { yield %x[%i, %k] * %w[%k, %j] }
    store %s, %y[%i, %j]
  } }
}"""

PROGRAM = f"""program {{
  input %x: f32[64, 96]
  input %w: f32[96, 480]
  output %y: f32[64, 480]
  {MATMUL}
  launch @matmul(%x, %w, %y)
}}"""


def rows(kernel: Kernel) -> int:
    """The height of the register tile."""
    return next(r.tile for s in walk(kernel.body) for r in stmt_ranges(s) if r.var == "i")


class Clock:
    """A measurement that makes its numbers up, and knows how often it was asked."""

    def __init__(self, seconds: Callable[[Kernel], float]) -> None:
        self.seconds, self.asked = seconds, 0

    def __call__(self, kernels: Sequence[Kernel], spread: int) -> list[float]:
        self.asked += 1
        return [self.seconds(k) for k in kernels]


def by_rows(best: int, gain: float = 0.5) -> Clock:
    """Tiles of `best` rows take 1 - gain of a millisecond, all others a millisecond."""
    return Clock(lambda k: 1e-3 * (1 - gain * (rows(k) == best)))


@pytest.fixture
def store(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path)


def tune(measure: MeasureKernels, store: ObjectCache, passes: str = PASSES) -> tuple[Program, str]:
    """The tuned program and the remarks about it."""
    context = Context(machine=AVX512)
    program = Tuner(target_by_name("x86-64-v4"), store, measure).run(
        parse_program(PROGRAM), passes, context, [Verify()]
    )
    return program, "\n".join(map(str, context.remarks.select("tune")))


def test_the_fastest_is_chosen(store: ObjectCache) -> None:
    usual = rows(run_pipeline(parse_kernel(MATMUL), PASSES, Context(machine=AVX512)))
    assert usual != 6
    program, remarks = tune(by_rows(6), store)
    assert rows(program.kernels["matmul"]) == 6
    assert remarks.startswith("applied tune: tile{rows=6, columns=48}: 500.0 us instead of 1.00 ms; measured: ")
    assert "vectorize{skipped-choices=1} 1.00 ms, tile{rows=" in remarks
    assert remarks.endswith(" (@matmul)")


@pytest.mark.parametrize("gain", [0.0, 0.02, -1.0])
def test_the_model_decides_where_little_is_saved(store: ObjectCache, gain: float) -> None:
    program, remarks = tune(by_rows(6, gain), store)
    assert program == run_pipeline(parse_program(PROGRAM), PASSES, Context(machine=AVX512))
    assert remarks.startswith("missed tune: the cost model's choice stays: 1.00 ms; measured: ")


def test_what_was_measured_is_not_measured_again(store: ObjectCache) -> None:
    first, said = tune(by_rows(6), store)
    never = by_rows(6)
    second, again = tune(never, ObjectCache(store.directory))
    assert never.asked == 0
    assert second == first
    assert again == said.replace(" (@matmul)", " (known) (@matmul)")


def test_a_damaged_entry_is_measured_again(store: ObjectCache) -> None:
    first, _ = tune(by_rows(6), store)
    assert store.directory is not None
    (entry,) = store.directory.glob("*/*")
    entry.write_bytes(entry.read_bytes().replace(b"rows=6", b"rows=7"))
    clock = by_rows(6)
    second, _ = tune(clock, store)
    assert clock.asked > 0
    assert second == first


def test_without_a_store_every_program_is_measured() -> None:
    for _ in range(2):
        clock = by_rows(6)
        tune(clock, ObjectCache(None))
        assert clock.asked > 0


def test_what_is_known_is_known_for_a_machine_and_passes(store: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, passes = parse_kernel(MATMUL), parse_pipeline(PASSES)
    tuner = Tuner(target_by_name("x86-64-v4"), store, by_rows(6))
    keys = [
        tuner.cache_key(kernel, passes, 0),
        tuner.cache_key(kernel, passes, 1 << 26),
        Tuner(target_by_name("x86-64-v3"), store, by_rows(6)).cache_key(kernel, passes, 0),
        tuner.cache_key(kernel, parse_pipeline("vectorize,tile"), 0),
        tuner.cache_key(parse_kernel(MATMUL.replace("96", "95")), passes, 0),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    keys.append(tuner.cache_key(kernel, passes, 0))
    assert len(set(keys)) == len(keys)
    assert tuner.cache_key(parse_kernel(MATMUL.replace("matmul", "other")), passes, 0) == keys[-1]


def test_a_way_that_gives_the_same_kernel_is_not_measured() -> None:
    seen: list[str] = []

    def measure(kernels: Sequence[Kernel], spread: int) -> list[float]:
        assert len(kernels) == len(set(map(str, kernels))) or kernels[0] == kernels[1]  # the last asks about the winner
        seen.extend(str(k.body) for k in kernels)
        return [1.0] * len(kernels)

    tune(measure, ObjectCache(None))
    assert seen


def test_only_what_takes_long_is_tuned() -> None:
    small = "kernel @small(in %x: f32[64], out %y: f32[64]) { parallel %i in 0..64 { store -%x[%i], %y[%i] } }"
    text = PROGRAM.replace("  kernel", f"  input %z: f32[64]\n  buffer %u: f32[64]\n  {small}\n  kernel", 1)
    program = parse_program(text.replace("  launch", "  launch @small(%z, %u)\n  launch"))
    assert [k.name for k in hot_kernels(program, Machine())] == ["matmul"]
    assert [k.name for k in hot_kernels(parse_program(PROGRAM), Machine())] == ["matmul"]


def test_constants_are_met_in_the_caches_that_a_whole_call_leaves_them_in() -> None:
    program = parse_program(PROGRAM)
    program = replace(program, inputs=("x",), constants={"w": np.zeros((96, 480), np.float32)})
    assert cold_cache_bytes(program, Machine()) == 0
    total = (96 * 480 + 64 * 96) * 4
    assert cold_cache_bytes(program, Machine(l3=total)) == 0
    assert cold_cache_bytes(program, Machine(l3=total - 1)) == 2 * (total - 1)


def test_passes_over_programs_come_first(store: ObjectCache) -> None:
    program, remarks = tune(by_rows(6), store, f"layout,{PASSES}")
    assert rows(program.kernels["matmul"]) == 6
    assert "layout" not in remarks


SOFTMAX = """kernel @softmax(in %x: f32[6, 100], out %y: f32[6, 100]) {
  parallel %i in 0..6 {
    %m = reduce max %r in 0..100 { yield %x[%i, %r] }
    for %j in 0..100 { store exp(%x[%i, %j] - %m), %y[%i, %j] }
  }
}"""

PRODUCT = """kernel @product(in %x: f32[24, 4], const %w: f32[4, 40], out %y: f32[24, 40]) {
  parallel %i in 0..24 { parallel %j in 0..40 {
    %s = reduce add %k in 0..4 { yield %x[%i, %k] * %w[%k, %j] }
    store %s, %y[%i, %j]
  } }
}"""

CONVOLUTION = """kernel @conv(in %x: f32[2, 10, 18], const %w: f32[2, 3], out %y: f32[10, 16]) {
  parallel %i in 0..10 { parallel %j in 0..16 {
    %s = reduce add %c in 0..2, %v in 0..3 { yield %x[%c, %i, %j + %v] * %w[%c, %v] }
    store max(%s, 0.0), %y[%i, %j]
  } }
}"""

TURNED = """kernel @turned(in %q: f32[16, 4], in %k: f32[20, 4], out %y: f32[16, 20]) {
  parallel %i in 0..16 { parallel %j in 0..20 {
    %s = reduce add %r in 0..4 { yield %q[%i, %r] * %k[%j, %r] }
    store %s, %y[%i, %j]
  } }
}"""

SMALL = Machine(vector_bits=128, l1=1 << 7, l2=1 << 10, l3=1 << 11)
"""A machine with caches in which panels and results do not stay, and no more than two rows."""


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        (SOFTMAX, {"vectorize", "tile", "prefetch", "nontemporal-stores", "parallelize"}),
        (PRODUCT, {"cache-blocking", "vectorize", "tile", "parallelize"}),
        (CONVOLUTION, {"vectorize", "unroll"}),
        (TURNED, {"cache-operand", "vectorize", "tile"}),
    ],
    ids=["softmax", "product", "convolution", "turned"],
)
def test_whatever_is_offered_computes_the_same(text: str, offered: set[str]) -> None:
    passes = parse_pipeline(TILE_PASSES.replace("parallelize", "parallelize{min-seconds=2.98e-8}"))
    kernel, context = parse_kernel(text), Context(machine=SMALL)
    run_pipeline(kernel, passes, context)
    assert {o.pass_.name for o in context.alternatives} >= offered
    (expected,) = outputs_of(kernel)
    for offer in context.alternatives:
        way = [offer.replacement if p is offer.pass_ else p for p in passes]
        others = tuple(p for p in way if p is not None)
        assert parse_pipeline(print_pipeline(others)) == others
        (result,) = outputs_of(run_pipeline(kernel, others, Context(machine=SMALL), [Verify()]))
        assert not describe_difference(expected, result, 1e-5), offer


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(96, 480)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def test_a_model_is_tuned_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says, and the less it makes sense, the answer is right."""
    torch.manual_seed(0)
    model, x = Layer().eval(), torch.randn(64, 96)
    clock = Clock(lambda k: 1 / (1 + len(str(k)) % 7))
    monkeypatch.setattr(variant, "KernelTimer", lambda target: clock)
    plain = compiler.compile(model, (x,), options={"cache": str(tmp_path)})
    assert clock.asked == 0
    assert not plain.remarks.select("tune")
    for asked in (True, False):
        before = clock.asked
        tuned = compiler.compile(model, (x,), options={"cache": str(tmp_path), "effort": "tune"})
        assert (clock.asked > before) == asked
        assert len(tuned.remarks.select("tune")) == 1
        assert numerical_error([tuned(x)], [model.double()(x.double())]).relative < 1e-5
        model.float()


@pytest.mark.parametrize("target", ["sm90", "aarch64"])
def test_a_target_that_is_not_measured_is_not_tuned(target: str) -> None:
    compiled = compiler.compile(Layer().eval(), (torch.randn(64, 96),), options={"target": target, "effort": "tune"})
    (remark,) = compiled.remarks.select("tune")
    assert str(remark).startswith(f"missed tune: kernels for {target} are not measured here")
