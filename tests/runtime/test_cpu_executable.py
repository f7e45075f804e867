"""Compiled programs: their answers, their refusals, and that calls do not disturb each other."""

import threading

import numpy as np
import pytest
import torch

import compiler
from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.errors import ArgumentError, TilewrightError, VerifyError
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.node import OPS, Op
from compiler.ir.graph.structure import Opaque
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.tile.program import Program
from compiler.ir.types import f32
from compiler.options import Options
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.native_call_stub import POOL_THRESHOLD
from compiler.runtime.pool import GLOBAL_POOL, size_class

MATMUL = """
program {
  input %x: f32[6, 40]
  constant %w: f32[40, 32] @w
  output %y: f32[6, 32]
  output %z: f32[6, 32]
  buffer %t: f32[6, 32]
  kernel @matmul(in %x: f32[6, 40], in %w: f32[40, 32], out %y: f32[6, 32]) {
    for %i in 0..6 tile 3 {
      for %j in 0..32 tile 32 lanes 16 {
        %s = reduce add %k in 0..40 { yield %x[%i, %k] * %w[%k, %j] }
        store %s, %y[%i, %j]
      }
    }
  }
  kernel @relu(in %s: f32[6, 32], out %t: f32[6, 32]) {
    for %i in 0..6 { for %j in 0..32 tile 32 lanes 16 { store max(%s[%i, %j], 0.0), %t[%i, %j] } }
  }
  launch @matmul(%x, %w, %t)
  launch @relu(%t, %y)
  copy %y -> %z
}
"""

ADD = """
program {{
  input %a: {t}
  input %b: {t}
  output %y: {t}
  kernel @add(in %a: {t}, in %b: {t}, out %y: {t}) {{ {loop} }}
  launch @add(%a, %b, %y)
}}
"""


def build(text: str, **arrays: np.ndarray) -> CPUExecutable:
    program = parse_program(text, {name: ConstantData(f32, array) for name, array in arrays.items()})
    return CPUExecutable(program, options=Options(cache=""))


def adding(n: int, parallel: bool = False) -> CPUExecutable:
    loop = f"{'parallel' if parallel else 'for'} %i in 0..{n} tile 16 lanes 16 {{ store %a[%i] + %b[%i], %y[%i] }}"
    return build(ADD.format(t=f"f32[{n}]", loop=loop))


@pytest.fixture(scope="module")
def small() -> CPUExecutable:
    return adding(64)


def test_a_program_of_several_steps():
    w = torch.randn(40, 32)
    exe = build(MATMUL, w=w.numpy())
    x = torch.randn(6, 40)
    exact = (x.double() @ w.double()).relu()
    y, z = exe([x])
    assert torch.allclose(y.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(y, z)
    assert y.data_ptr() != z.data_ptr()


def test_intermediates_alive_together():
    exe = build("""
program {
  input %x: f32[32]
  output %y: f32[32]
  buffer %t: f32[32]
  buffer %u: f32[32]
  kernel @inc(in %s: f32[32], out %d: f32[32]) { for %i in 0..32 { store %s[%i] + 1.0, %d[%i] } }
  kernel @mul(in %a: f32[32], in %b: f32[32], out %d: f32[32]) { for %i in 0..32 { store %a[%i] * %b[%i], %d[%i] } }
  launch @inc(%x, %t)
  launch @inc(%t, %u)
  launch @mul(%t, %u, %y)
}
""")
    x = torch.randn(32)
    assert torch.allclose(exe([x])[0].double(), (x.double() + 1) * (x.double() + 2), rtol=1e-5, atol=1e-6)


def test_outputs_are_new_each_time(small):
    a, b = torch.randn(64), torch.randn(64)
    (first,) = small([a, b])
    kept = first.clone()
    (second,) = small([b, b])
    assert torch.equal(first, kept)
    assert torch.equal(second, b + b)


def test_strided_and_differentiable_inputs(small):
    a = torch.randn(64, 2)[:, 1]
    b = torch.randn(64, requires_grad=True)
    with torch.no_grad():
        (y,) = small([a, b])
    assert torch.equal(y, (a + b).detach())
    assert not y.requires_grad


@pytest.mark.parametrize("count", [1, 3])
def test_lazily_negated_inputs(count: int) -> None:
    x = torch.randn(count, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    made = compiler.compile(torch.nn.ReLU(), (torch.randn(count),), options={"cache": ""})
    assert torch.equal(made(x), x.relu())
    assert torch.equal(made(-x), (-x).relu())


def test_an_input_need_not_be_aligned(small):
    a = torch.randn(65)[1:]
    assert torch.equal(small([a, a])[0], a + a)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(64, dtype=torch.float64), r"input 1 \(%b\) must be f32\[64\] on cpu, but is float64\[64\] on cpu"),
        (torch.zeros(63), r"but is float32\[63\]"),
        (torch.zeros(1, 64), r"but is float32\[1, 64\]"),
        (torch.zeros(64, device="meta"), "on meta"),
        (3.0, r"must be a dense tensor of type f32\[64\], not a float"),
    ],
    ids=["dtype", "shape", "rank", "device", "number"],
)
def test_what_does_not_fit_is_refused(small, bad, message):
    with pytest.raises(ArgumentError, match=message):
        small([torch.zeros(64), bad])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_wrong_number_of_inputs_is_refused(small, count):
    with pytest.raises(ArgumentError, match=rf"takes 2 inputs \(%a: f32\[64\], %b: f32\[64\]\), not {count}"):
        small([torch.zeros(64)] * count)


@pytest.mark.parametrize("shape", ["f32[0]", "f32[]"])
def test_empty_and_scalar(shape):
    loop = "for %i in 0..0 { store %a[%i] + %b[%i], %y[%i] }" if "0" in shape else "store %a[] + %b[], %y[]"
    exe = build(ADD.format(t=shape, loop=loop))
    x = torch.ones(0) if "0" in shape else torch.tensor(1.0)
    assert torch.equal(exe([x, x])[0], x + x)


def test_large_outputs_are_recycled():
    n = POOL_THRESHOLD // 4
    exe = adding(n)
    a = torch.randn(n)
    (y,) = exe([a, a])
    assert torch.equal(y, a + a)
    address = y.data_ptr()
    view = y[5:9]
    del y
    assert exe([a, a])[0].data_ptr() != address, "a view is still alive"
    assert torch.equal(view, (a + a)[5:9])


TWICE = """
program {{
  input %a: f32[{n}]
  output %y: f32[{n}]
  buffer %t: f32[{n}]
  kernel @twice(in %s: f32[{n}], out %d: f32[{n}]) {{
    parallel %i in 0..{n} tile 16 lanes 16 {{ store %s[%i] + %s[%i] + (%s[{n} - 1 - %i] - %s[{n} - 1 - %i]), %d[%i] }}
  }}
  launch @twice(%a, %t)
  launch @twice(%t, %y)
}}
"""


@pytest.mark.parametrize("n", [1024, POOL_THRESHOLD], ids=["small workspace", "large workspace"])
def test_threads_do_not_disturb_each_other(n):
    exe, wrong = build(TWICE.format(n=n)), []

    def work(mark: int) -> None:
        x = torch.full((n,), float(mark))
        for _ in range(30):
            if not bool((exe([x])[0] == 4 * mark).all()):
                wrong.append(mark)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    assert exe.memory_plan.size == 4 * n


GATHER = """
program {
  input %table: f32[10]
  input %at: i64[4]
  output %y: f32[4]
  kernel @ok(in %s: f32[10], out %d: f32[10]) { for %i in 0..10 { store %s[%i], %d[%i] } }
  kernel @gather(in %s: f32[10], in %at: i64[4], out %y: f32[4]) {
    for %i in 0..4 {
      %k = %at[%i]
      check %k in 0..10
      %safe = where((%k < 10) & (%k >= 0), %k, 0)
      store %s[%safe], %y[%i]
    }
  }
  buffer %t: f32[10]
  launch @ok(%table, %t)
  launch @gather(%t, %at, %y) for "embedding"
}
"""


def test_an_index_out_of_range_names_the_node():
    exe = build(GATHER)
    table = torch.randn(10)
    with pytest.raises(IndexError, match="out of range in embedding"):
        exe([table, torch.tensor([0, 1, 10, 2])])
    at = torch.tensor([0, 9, 3, 3])
    assert torch.equal(exe([table, at])[0], table[at]), "the next call starts clean"


OPAQUE = """
program {
  input %x: f32[8, 4]
  constant %c: f32[8, 4] @c
  output %y: f32[8, 4]
  output %z: f32[8, 4]
  buffer %t: f32[8, 4]
  buffer %u: f32[8, 4]
  kernel @inc(in %s: f32[8, 4], out %d: f32[8, 4]) {
    for %i in 0..8 { for %j in 0..4 { store %s[%i, %j] + 1.0, %d[%i, %j] } }
  }
  launch @inc(%x, %t)
  opaque @exp(%t) -> %u
  launch @inc(%u, %y)
  opaque @exp(%c) -> %z
}
"""


def test_calls_into_pytorch_between_kernels():
    c = torch.randn(8, 4)
    exe = build(OPAQUE, c=c.numpy())
    x = torch.randn(8, 4)
    y, z = exe([x])
    assert torch.allclose(y.double(), (x.double() + 1).exp() + 1, rtol=1e-5)
    assert torch.allclose(z.double(), c.double().exp(), rtol=1e-5)


def test_a_view_made_by_pytorch_is_copied(monkeypatch):
    reshape = Op("keep", (), Opaque("for this test"), lambda s: s.types[0], reference=lambda x: x.view(8, 4))
    monkeypatch.setitem(OPS, "keep", reshape)
    exe = build(OPAQUE.replace("@exp", "@keep"), c=np.ones((8, 4), np.float32))
    x = torch.randn(8, 4)
    y, z = exe([x])
    assert torch.equal(y, x + 1 + 1)
    z.zero_()
    assert torch.equal(exe([x])[1], torch.ones(8, 4)), "the constant is untouched"


def test_channels_last_inputs_and_outputs():
    t = "f32[2, 3, 4]{0, 2, 1}"
    loop = (
        "for %i in 0..2 { for %j in 0..3 { for %k in 0..4 { store %a[%i, %j, %k] + %b[%i, %j, %k], %y[%i, %j, %k] } } }"
    )
    exe = build(ADD.format(t=t, loop=loop))
    a = torch.randn(2, 4, 3).transpose(1, 2)
    b = torch.randn(2, 3, 4)
    (y,) = exe([a, b])
    assert torch.equal(y, a + b)
    assert y.stride() == (12, 1, 3)


def test_an_output_that_is_an_input_is_refused():
    program = parse_program("program { input %x: f32[4] output %y: f32[4] copy %x -> %y }")
    bad = Program(program.buffers, program.inputs, ("x",), {}, {}, program.steps)
    with pytest.raises(VerifyError, match="a copy step"):
        CPUExecutable(bad, options=Options(cache=""))


def test_code_for_another_machine_is_refused():
    other = "aarch64" if host_target().triple.startswith("x86") else "x86-64"
    program = parse_program(TWICE.format(n=64))
    with pytest.raises(TilewrightError, match=f"target {other} needs .*, which this machine lacks"):
        CPUExecutable(program, target_by_name(other), Options(cache=""))


@pytest.mark.parametrize("name", [n for n, t in CPU_TARGETS.items() if not t.missing_features()])
def test_every_target_that_runs_here_agrees(name):
    exe = CPUExecutable(parse_program(TWICE.format(n=64)), target_by_name(name), Options(cache=""))
    x = torch.randn(64)
    assert torch.equal(exe([x])[0], 4 * x)


def test_workspaces_come_back():
    exe = build(TWICE.format(n=POOL_THRESHOLD))
    GLOBAL_POOL.clear()
    exe([torch.randn(POOL_THRESHOLD)])
    assert GLOBAL_POOL.idle_bytes == 2 * size_class(4 * POOL_THRESHOLD), "the workspace and the output"


def test_a_cache_serves_the_next_executable(tmp_path):
    program = parse_program(TWICE.format(n=64))
    options = Options(cache=str(tmp_path))
    first, second = (CPUExecutable(program, options=options) for _ in range(2))
    assert (first.build.cache_hits, second.build.cache_hits) == (0, 1)
    x = torch.randn(64)
    assert torch.equal(first([x])[0], second([x])[0])


def test_what_was_begun_with_is_not_done_again(tmp_path):
    program = parse_program(TWICE.format(n=64))
    begun = Build(host_target(), ObjectCache(tmp_path))
    begun.add_kernels(program.kernels.values())
    seconds = dict(begun.seconds)
    exe = CPUExecutable(program, build=begun)
    assert exe.build.seconds == seconds
    x = torch.randn(64)
    assert torch.equal(exe([x])[0], build(TWICE.format(n=64))([x])[0])
