"""Tile IR as Triton: every op in Triton's interpreter against float64, and kernels compiled for GPUs that are not here.

TRITON_INTERPRET must be decided before Triton is imported, so that both happen in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import _source_directory, compile_offline, load_triton
from compiler.codegen.triton.targets import GPU_TARGETS
from compiler.codegen.triton.triton_names import TritonError
from compiler.ir import ops
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, Op, SampleInput, input_node
from compiler.ir.graph.structure import CountingSort, Opaque
from compiler.ir.interpret.graph import interpret
from compiler.ir.scalar import round_to
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.type_parser import parse_type
from compiler.ir.tile.program import Copy, Launch, Program
from compiler.ir.torch_types import as_array, to_torch
from compiler.ir.types import DTYPES, TensorType, f32
from compiler.ir.verify.kernel import verify_kernel
from compiler.options import Options
from compiler.pipeline import lower_and_schedule
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON

Array: TypeAlias = np.ndarray[Any, Any]
Step: TypeAlias = tuple[str, tuple[str, ...]]
"""A kernel's source, or "copy", and the buffers it is called on."""

REDUCED = [d for d in DTYPES.values() if d.is_reduced_float]
TOLERANCE = {"f64": 1e-12, "f32": 5e-6, **{d.name: 4 * 2.0**-d.float_format.mantissa_bits for d in REDUCED}}


# in the processes


def run_steps(steps: Sequence[Step], buffers: dict[str, tuple[Array, str]], outputs: Sequence[str]) -> list[Array]:
    """Run a program on CPU tensors; bf16 arrays hold float32."""
    tensors = {n: torch.from_numpy(a).to(to_torch(DTYPES[d])).contiguous() for n, (a, d) in buffers.items()}
    for source, names in steps:
        if source == "copy":
            tensors[names[1]].copy_(tensors[names[0]])
        else:
            with np.errstate(all="ignore"):
                load_triton(source)(*(tensors[n] for n in names))
    return [as_array(tensors[n]) for n in outputs]


# here


def scheduled(graph: Graph) -> Program:
    """The graph as kernels for a GPU."""
    program = lower_and_schedule(graph, Options(target="sm90")).scheduled
    for kernel in program.kernels.values():
        verify_kernel(kernel)
    return program


def interpreted(pool: ProcessPoolExecutor, graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The graph's outputs as Triton's interpreter computes them; what nobody writes holds 77."""
    program = scheduled(graph)
    steps: list[Step] = []
    for step in program.steps:
        assert isinstance(step, (Launch, Copy))
        arguments = step.arguments if isinstance(step, Launch) else (step.source, step.target)
        steps.append((emit_triton(program.kernels[step.kernel]) if isinstance(step, Launch) else "copy", arguments))
    given = {**program.constants, **dict(zip(program.inputs, arrays, strict=True))}
    buffers = {}
    for name, type_ in program.buffers.items():
        value = given.get(name, np.full(type_.static_shape(), 77).astype(type_.dtype.numpy))
        array = value.numpy_values if isinstance(value, ConstantData) else np.asarray(value)
        buffers[name] = (array.reshape(type_.static_shape()), type_.dtype.name)
    return pool.submit(run_steps, steps, buffers, program.outputs).result()


def check(pool: ProcessPoolExecutor, graph: Graph, arrays: Sequence[Array]) -> None:
    """Compare with the ops' references in float64 (bit patterns in their own type)."""
    exact = any(n.op is ops.bitcast for n in graph.nodes)
    truth = interpret(graph, arrays, dtype=None if exact else torch.float64)
    for node, got, wanted in zip(graph.outputs, interpreted(pool, graph, arrays), map(as_array, truth), strict=True):
        if not node.dtype.is_float:
            np.testing.assert_array_equal(got, wanted)
            continue
        floats = [n.dtype.name for n in graph.nodes if n.dtype.is_float]
        tolerance = max(TOLERANCE[name] for name in floats)
        scale = max(1.0, np.nanmax(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        np.testing.assert_allclose(got.astype(float), wanted, rtol=tolerance, atol=tolerance * scale)


def elements(type_: TensorType, s: SampleInput, rng: np.random.Generator) -> Array:
    """Random elements of an operand within a sample's bounds."""
    shape = type_.static_shape()
    if type_.dtype.is_float:
        return np.asarray(round_to(rng.uniform(s.low, s.high, shape), type_.dtype))
    if type_.dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    low = max(int(s.low), 0) if type_.dtype.kind == "uint" else int(s.low)
    return rng.integers(low, max(int(s.high), low + 1), shape).astype(type_.dtype.numpy)


STRUCTURED = [o for o in OPS.values() if o.samples and not isinstance(o.structure, Opaque | CountingSort)]


@pytest.mark.parametrize("op", STRUCTURED, ids=lambda o: o.name)
def test_every_op_in_the_interpreter(interpreter: ProcessPoolExecutor, op: Op) -> None:
    rng = np.random.default_rng(7)
    for s in op.samples:
        types = [parse_type(t) for t in s.types]
        inputs = [input_node(f"x{k}", t) for k, t in enumerate(types)]
        check(interpreter, Graph(tuple(inputs), (op(*inputs, **s.attrs),)), [elements(t, s, rng) for t in types])


# whole kernels


def inputs(**types: str) -> list[Node]:
    return [input_node(name, parse_type(text)) for name, text in types.items()]


def elementwise() -> Graph:
    x, b = inputs(x="f32[37, 70]", b="f32[70]")
    return Graph((x, b), (ops.silu(ops.add(ops.mul(x, 2.0), b)),), "elementwise")


def softmax() -> Graph:
    (x,) = inputs(x="f32[21, 100]")
    return Graph((x,), (ops.softmax(x, dim=1),), "softmax")


def linear_gelu(dtype: str = "f32") -> Graph:
    x, w, b = inputs(x=f"{dtype}[50, 70]", w=f"{dtype}[90, 70]", b=f"{dtype}[90]")
    return Graph((x, w, b), (ops.gelu(ops.linear(x, w, b)),), "linear_gelu")


def layer_norm() -> Graph:
    x, w, b = inputs(x="f32[19, 100]", w="f32[100]", b="f32[100]")
    return Graph((x, w, b), (ops.layer_norm(x, w, b),), "layer_norm")


def attention(dtype: str = "f32") -> Graph:
    q, k, v = inputs(q=f"{dtype}[2, 2, 37, 24]", k=f"{dtype}[2, 2, 70, 24]", v=f"{dtype}[2, 2, 70, 24]")
    return Graph((q, k, v), (ops.permute(ops.attention(q, k, v, scale=0.2), dims=(0, 2, 1, 3)),), "attention")


def long_attention(dtype: str = "f32", causal: bool = False) -> Graph:
    """Longer than a block of scores, and no multiple of it."""
    q, k, v = inputs(q=f"{dtype}[1, 2, 150, 24]", k=f"{dtype}[1, 2, 150, 24]", v=f"{dtype}[1, 2, 150, 24]")
    return Graph((q, k, v), (ops.attention(q, k, v, scale=0.2, causal=causal),), "attention")


def long_causal_attention() -> Graph:
    return long_attention("f16", causal=True)


def split_product() -> Graph:
    """So deep, and of so few results, that parts of its sums have programs of their own."""
    x, w = inputs(x="f32[9, 4096]", w="f32[20, 4096]")
    return Graph((x, w), (ops.relu(ops.linear(x, w)),), "split_product")


def half_linear() -> Graph:
    return linear_gelu("f16")


def bf16_attention() -> Graph:
    return attention("bf16")


def float8_linear(dtype: str = "f8e4m3fn") -> Graph:
    x, w, s = inputs(x="f32[50, 70]", w=f"{dtype}[90, 70]", s="f32[90]")
    y = ops.mul(ops.linear(x, ops.cast(w, dtype=f32)), s)
    small = ops.mul(y, 0.25)  # the interpreter, unlike GPUs and PyTorch, makes what is too large for f8e4m3fn NaN
    return Graph((x, w, s), (y, ops.cast(small, dtype=DTYPES[dtype])), "float8_linear")


def wide_float8_linear() -> Graph:
    return float8_linear("f8e5m2")


def convolution() -> Graph:
    x, w, b = inputs(x="f32[2, 19, 9, 21]", w="f32[20, 19, 3, 3]", b="f32[20]")
    y = ops.convolution(x, w, b, stride=(1, 1), padding=(1, 1), dilation=(1, 1))
    return Graph((x, w, b), (ops.relu(y),), "convolution")


def few_pixels() -> Graph:
    """A layer at the end of a network, whose pixels are the rows of the transposed product."""
    x, w = inputs(x="f16[1, 48, 7, 7]", w="f16[2048, 48, 1, 1]")
    y = ops.convolution(x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1))
    return Graph((x, w), (ops.relu(y),), "few_pixels")


def running_maximum() -> Graph:
    (x,) = inputs(x="f32[37, 70]")
    return Graph((x,), (ops.cummax(ops.exp(x), dim=1),), "running_maximum")


KERNELS = [
    elementwise,
    softmax,
    linear_gelu,
    half_linear,
    layer_norm,
    attention,
    bf16_attention,
    long_attention,
    long_causal_attention,
    split_product,
    float8_linear,
    wide_float8_linear,
    convolution,
    few_pixels,
    running_maximum,
]
one_of = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)


@one_of
def test_kernels_in_the_interpreter(interpreter: ProcessPoolExecutor, build: Callable[[], Graph]) -> None:
    graph, rng = build(), np.random.default_rng(1)
    arrays = [np.asarray(round_to(rng.normal(-2, 1, n.type.static_shape()), n.dtype)) for n in graph.inputs]
    check(interpreter, graph, arrays)


@one_of
@pytest.mark.parametrize("target", ["sm90", "gfx942"])
def test_kernels_compile_without_a_gpu(offline: ProcessPoolExecutor, build: Callable[[], Graph], target: str) -> None:
    for kernel in scheduled(build()).kernels.values():
        compiled = offline.submit(compile_offline, emit_triton(kernel), GPU_TARGETS[target]).result()
        assert set(compiled.artefacts) == ({"ptx", "cubin"} if target == "sm90" else {"amdgcn", "hsaco"})
        assert min(map(len, compiled.artefacts.values())) > 1000


@pytest.mark.parametrize(("build", "products"), [(linear_gelu, 1), (attention, 4), (convolution, 1)])
def test_contractions_are_products_of_blocks(build: Callable[[], Graph], products: int) -> None:
    """Attention has two in the loop over blocks of keys, and two for the last keys, which fill no block."""
    sources = map(emit_triton, scheduled(build()).kernels.values())
    assert sum(source.count("tl.dot(") for source in sources) == products


def test_the_left_factor_of_a_product_has_the_rows() -> None:
    (source,) = map(emit_triton, scheduled(few_pixels()).kernels.values())
    assert "acc0 = tl.dot(x0_block, x1_block" in source
    assert "tl.permute(acc0, (1, 0))" in source  # results are stored along pixels


@pytest.mark.parametrize(("target", "instruction"), [("sm90", b"__assertfail"), ("gfx942", b"s_trap")])
def test_index_checks_are_in_the_code(offline: ProcessPoolExecutor, target: str, instruction: bytes) -> None:
    table, rows = inputs(table="f32[20, 16]", rows="i64[14]")
    (kernel,) = scheduled(Graph((table, rows), (ops.take(table, rows, dim=0),))).kernels.values()
    compiled = offline.submit(compile_offline, emit_triton(kernel), GPU_TARGETS[target]).result()
    assert instruction in min(compiled.artefacts.items())[1] + max(compiled.artefacts.items())[1]


def stages_of_second_compilation(source: str, folder: str) -> list[str]:
    """Return the files that Triton adds to its cache when a kernel is compiled again from another file."""
    from triton import knobs

    with knobs.cache.scope():
        knobs.cache.dir = folder
        compile_offline(source, GPU_TARGETS["sm90"])
        before = {*Path(folder).rglob("*")}
        assert any(p.suffix == ".cubin" for p in before)
        _source_directory.cache_clear()
        compile_offline(source, GPU_TARGETS["sm90"])
    return [p.name for p in {*Path(folder).rglob("*")} - before]


def test_a_kernel_is_compiled_once(offline: ProcessPoolExecutor, tmp_path: Path) -> None:
    """Processes write it to files of different names, and share the cache on disk."""
    (kernel,) = scheduled(elementwise()).kernels.values()
    assert offline.submit(stages_of_second_compilation, emit_triton(kernel), str(tmp_path)).result() == []


def test_numbers_of_f64_keep_their_digits(interpreter: ProcessPoolExecutor) -> None:
    text = """graph(%x: f64[5]) {
      %c = constant f64[1] [0.1]  %e = expand %c {shape=[2]}  %m = mul %x, 0.1  %y = maximum %m, 0.3333333333333333
      return %y, %e }"""
    check(interpreter, parse_graph(text), [np.arange(5.0)])


def test_conversions_in_the_interpreter_round_as_memory_does(interpreter: ProcessPoolExecutor) -> None:
    x, n, s = inputs(x="f32[400]", n="i64[400]", s="f32[]")
    casts = [ops.cast(v, dtype=DTYPES[d]) for v in (x, n) for d in ("bf16", "f16")]
    compared = ops.or_(ops.lt(x, s), ops.isnan(s))  # a comparison of one number, broadcast
    arrays = [np.linspace(-3, 3, 400, dtype=np.float32), np.arange(400) * 7 - 900, np.float32(0.5).reshape(())]
    got = interpreted(interpreter, Graph((x, n, s), (*casts, compared)), arrays)
    for array, source, dtype in zip(got, [0, 0, 1, 1], ["bf16", "f16"] * 2, strict=False):
        np.testing.assert_array_equal(array, round_to(arrays[source], DTYPES[dtype]))
    np.testing.assert_array_equal(got[-1], arrays[0] < 0.5)


def test_nan_survives_maxima(interpreter: ProcessPoolExecutor) -> None:
    (x,) = inputs(x="f32[3, 20]")
    array = np.random.default_rng(2).normal(size=(3, 20)).astype(np.float32)
    array[1, 5] = np.nan
    highest, positive = interpreted(interpreter, Graph((x,), (ops.amax(x, dims=[1]), ops.relu(x))), [array])
    np.testing.assert_array_equal(np.isnan(highest), [False, True, False])
    np.testing.assert_array_equal(np.isnan(positive), np.isnan(array))


def run_text(pool: ProcessPoolExecutor, text: str, *arrays: Array) -> Array:
    """The last parameter of a kernel after it ran."""
    kernel = parse_kernel(text)
    buffers = {p.name: (a, p.type.dtype.name) for p, a in zip(kernel.params, arrays, strict=True)}
    steps = [(emit_triton(kernel), tuple(buffers))]
    (result,) = pool.submit(run_steps, steps, buffers, [kernel.params[-1].name]).result()
    return result


def test_index_division_rounds_down(interpreter: ProcessPoolExecutor) -> None:
    text = """kernel @k(out %y: i64[9]) {
      parallel %i in 0..9 tile 4 { store index((5 - %i) // 3 * 10 + (5 - %i) % 3), %y[%i] }
    }"""
    wanted = [(5 - i) // 3 * 10 + (5 - i) % 3 for i in range(9)]
    assert run_text(interpreter, text, np.zeros(9, np.int64)).tolist() == wanted
    assert "floordiv(" in emit_triton(parse_kernel(text))  # Triton's // rounds toward zero


def test_a_block_is_loaded_again_where_its_ends_must_hold_something_else(interpreter: ProcessPoolExecutor) -> None:
    text = """kernel @k(in %x: f32[5], out %y: f32[]) {
      %top = reduce max %i in 0..5 tile 8 { yield %x[%i] }
      %sum = reduce add %j in 0..5 tile 8 { yield %x[%j] }
      store %top + %sum, %y[]
    }"""
    x = np.array([-4, -2, -3, -5, -1], np.float32)
    assert run_text(interpreter, text, x, np.zeros((), np.float32)) == -16


def test_blocks_of_a_layout(interpreter: ProcessPoolExecutor) -> None:
    text = """kernel @k(in %x: f32[20, 3]{0/16, 1, 0%16}, out %y: f32[20, 3]) {
      parallel %i in 0..20 tile 8 { for %j in 0..3 tile 4 { store %x[%i, %j] + 1.0, %y[%i, %j] } }
    }"""
    x = np.arange(96, dtype=np.float32)
    wanted = x.reshape(2, 3, 16).transpose(0, 2, 1).reshape(32, 3)[:20] + 1
    np.testing.assert_array_equal(run_text(interpreter, text, x, np.zeros((20, 3), np.float32)), wanted)


def test_reads_as_if_written_by_hand() -> None:
    text = """kernel @normalize(in %x: f32[1000, 100], out %y: f32[1000, 100]) {
      parallel %i in 0..1000 tile 16 {
        local %row: f32[100]
        %top = reduce max %r in 0..100 tile 128 { yield %x[%i, %r] }
        for %j in 0..100 tile 128 { store exp(%x[%i, %j] - %top), %row[%j] }
        %total = reduce add %k in 0..100 tile 128 { yield %row[%k] }
        for %j in 0..100 tile 128 { store %row[%j] / %total, %y[%i, %j] }
      }
    }"""
    body = emit_triton(parse_kernel(text)).split("def normalize(x, y):\n")[1].split("\n\n")[0]
    expected = """\
    pid = tl.program_id(0)
    i = pid * 16 + tl.arange(0, 16)
    r = tl.arange(0, 128)
    x_block = tl.load(x + i[:, None]*100 + r[None, :], mask=(i[:, None] < 1000) & (r[None, :] < 100), other=float("-inf"))
    top = tl.reduce(x_block, 1, maximum)
    row = tl.exp(x_block - top[:, None])
    total = tl.sum(tl.where(r[None, :] < 100, row, 0.0), axis=1)
    y_block = tl.div_rn(row, total[:, None])
    tl.store(y + i[:, None]*100 + r[None, :], y_block, mask=(i[:, None] < 1000) & (r[None, :] < 100))"""
    assert body == expected


def test_a_term_that_binds_less_tightly_than_its_sum_has_parentheses() -> None:
    """`acc + x << y` would shift the sum."""
    text = """kernel @k(in %x: i64[2], in %y: i64[2], out %z: i64[]) {
      %s = reduce add %r in 0..2 { yield %x[%r] << %y[%r] }  store %s, %z[] }"""
    assert "s = s + (x_block << y_block)" in emit_triton(parse_kernel(text))


def test_a_carried_value_is_a_variable() -> None:
    text = """kernel @running(in %x: f32[64, 9], out %y: f32[64, 9]) {
      parallel %i in 0..64 tile 16 {
        local %carry: f32[]
        store 0.0, %carry[]
        for %j in 0..9 {
          %before = %carry[]
          store %before + %x[%i, %j], %carry[]
          store %before, %y[%i, %j]
        }
      }
    }"""
    body = emit_triton(parse_kernel(text)).split("def running(x, y):\n")[1].split("\n\n")[0]
    expected = """\
    pid = tl.program_id(0)
    i = pid * 16 + tl.arange(0, 16)
    carry = tl.full((16,), 0.0, tl.float32)
    for j in range(0, 9):
        before = carry
        x_block = tl.load(x + i*9 + j)
        carry = before + x_block
        tl.store(y + i*9 + j, before)"""
    assert body == expected


def test_large_buffers_have_long_indices() -> None:
    text = """kernel @k(in %x: f32[65536, 65536], out %y: f32[65536]) {
      parallel %i in 0..65536 tile 16 { store %x[%i, 0], %y[%i] }
    }"""
    assert "i = tl.cast(pid * 16 + tl.arange(0, 16), tl.int64)" in emit_triton(parse_kernel(text))
    assert "int64" not in emit_triton(parse_kernel(text.replace("65536, 65536", "65536, 32767")))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("parallel %i in 0..48 tile 12 { store %x[%i], %y[%i] }", "%i has tile 12; blocks are powers of two"),
        (
            "parallel %i in 0..4 { store %x[%i], %y[%i] } parallel %j in 4..48 { store %x[%j], %y[%j] }",
            "need two kernels",
        ),
        (
            "parallel %i in 0..4 { store %x[%i], %y[%i] } for %j in 0..48 { store %y[0] + %x[%j], %y[0] }",
            "needs its own kernel",
        ),
        ("store %y[0] + 1.0, %y[0] parallel %i in 1..48 { store %x[%i], %y[%i] }", "needs its own kernel"),
        (
            "local %c: f32[] parallel %i in 0..48 tile 16 { store %x[%i], %c[] }",
            "local %c is rank 0 but is stored once per %i",
        ),
        (
            "local %t: f32[48] for %i in 0..48 { store %x[%i], %t[%i] }",
            "local %t is not written by one block; run gpu-rows",
        ),
        (
            "local %t: f32[48] for %i in 0..48 tile 64 { store %x[%i], %t[%i] } for %j in 0..48 tile 16 { store %t[%j], %y[%j] }",
            "local %t: j does not range over it as %i did when it was stored; run gpu-rows",
        ),
        ("parallel %i in 0..48 tile 16 { store exp(%h[%i]), %z[%i] }", "Triton has no exp of f16"),
    ],
)
def test_refusals(body: str, message: str) -> None:
    kernel = parse_kernel(f"kernel @k(in %x: f32[48], in %h: f16[48], out %y: f32[48], out %z: f16[48]) {{ {body} }}")
    with pytest.raises(TritonError) as caught:
        emit_triton(kernel)
    assert message in str(caught.value)
