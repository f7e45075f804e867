"""Tile IR as machine code: whatever tiles, lanes, unrolling and threads a kernel asks for, it computes what it says."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from native import as_scalar_loops, assert_same_bits, check_kernel, kernel_inputs, run_interpreter, run_native

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.kernel_module import NO_STRENGTH_REDUCTION
from compiler.codegen.llvm.object_file import emit_assembly, emit_object
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.types import KERNEL_DTYPES

# reductions

REDUCE = """
kernel @reduce(in %x: {d}[5, 29], out %y: {d}[5]) {{
  for %i in 0..5{i} {{
    %s = reduce {op} %k in 0..29{k} {{ yield %x[%i, %k] }}
    store %s, %y[%i]
  }}
}}"""
FORMS = [
    ("", ""), ("", " unroll 4"), ("", " tile 8 lanes 8"), ("", " tile 16 lanes 4"), ("", " tile 3"), (" tile 2", ""),
    (" tile 2", " tile 8 lanes 4 unroll 2"), (" tile 4 lanes 4", ""), (" tile 8 lanes 4", " tile 5"),
]  # fmt: skip


@pytest.mark.parametrize(("i", "k"), FORMS)
@pytest.mark.parametrize("op", ["add", "mul", "max", "min"])
def test_reductions(op: str, i: str, k: str) -> None:
    check_kernel(REDUCE.format(d="f32", op=op, i=i, k=k))
    if op in ("max", "min"):
        check_kernel(REDUCE.format(d="f32", op=op, i=i, k=k).replace("29", "3"), special=True)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("op", ["add", "mul", "max", "min"])
def test_reductions_of_every_type(op: str, dtype: str, target: str) -> None:
    if dtype == "bool" and op in ("add", "mul"):
        pytest.skip("verify refuses it")
    if op in ("max", "min") or KERNEL_DTYPES[dtype].is_integer:
        check_kernel(REDUCE.format(d=dtype, op=op, i="", k=" tile 8 lanes 8"), target)
        return
    kernel = parse_kernel(REDUCE.format(d=dtype, op=op, i="", k=" tile 8 lanes 4"))
    (x,) = kernel_inputs(kernel)
    truth = getattr(x.astype(float), {"add": "sum", "mul": "prod"}[op])(axis=1)
    tolerance = {"f64": 1e-14, "f32": 1e-5}.get(dtype, 10 * 2.0 ** -KERNEL_DTYPES[dtype].float_format.mantissa_bits)
    np.testing.assert_allclose(run_native(kernel, [x], target)["y"], truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
@pytest.mark.parametrize(
    "element", ["cast<i32>(%x[%k]) * cast<i32>(%y[%k])", "abs(cast<i32>(%y[%k]) - cast<i32>(bitcast<u8>(%x[%k])))"]
)
def test_sums_of_bytes_that_llvm_adds_by_one_instruction(element: str, lanes: int, target: str) -> None:
    text = f"""kernel @k(in %x: i8[64], in %y: u8[64], out %z: i32[]) {{
          %s = reduce add %k in 0..64 tile {lanes} lanes {lanes} {{ yield {element} }}  store %s, %z[]
        }}"""
    check_kernel(text, target)
    check_kernel(text)


def test_reducing_over_several_loops(target: str) -> None:
    check_kernel("""
    kernel @k(in %x: f32[3, 4, 5, 18], out %y: f32[3]) {
      for %i in 0..3 { %s = reduce add %a in 0..4, %b in 1..5 tile 2, %c in 0..18 tile 8 lanes 4 { yield %x[%i, %a, %b, %c] }
        store %s, %y[%i] }
    }""", target)  # fmt: skip


def test_a_value_that_does_not_vary_counts_once_for_each_index(target: str) -> None:
    check_kernel("""
    kernel @k(in %x: f32[6], out %y: f32[6], out %z: i64[6]) {
      for %i in 0..6 {
        %s = reduce add %k in 0..21 tile 16 lanes 8 { yield %x[%i] }
        %n = reduce add %l in 0..21 tile 4 { yield index(%i) + 1 }
        store %s, %y[%i]
        store %n, %z[%i]
      }
    }""", target)  # fmt: skip


def test_nothing_to_reduce_gives_the_identity() -> None:
    check_kernel("""
    kernel @k(in %x: f32[4, 0], out %y: f32[4], out %z: f32[4]) {
      for %i in 0..4 tile 4 lanes 4 {
        %s = reduce add %k in 0..0 { yield %x[%i, %k] }
        %m = reduce max %l in 0..0 tile 8 lanes 0 { yield %x[%i, %l] }
        store %s, %y[%i]
        store %m, %z[%i]
      }
    }""")  # fmt: skip


def test_a_reduction_in_a_reduction(target: str) -> None:
    check_kernel("""
    kernel @k(in %x: f32[4, 6, 19], out %y: f32[4]) {
      for %i in 0..4 {
        %m = reduce max %a in 0..6 tile 2 {
          %s = reduce add %b in 0..19 tile 8 lanes 8 { yield %x[%i, %a, %b] }
          %t = %s * 2.0
          yield %t + 1.0
        }
        store %m, %y[%i]
      }
    }""", target)  # fmt: skip


def test_a_reduction_that_stores_what_it_reduces(target: str) -> None:
    check_kernel("""
    kernel @softmax_like(in %x: f32[5, 27], out %y: f32[5, 27]) {
      for %i in 0..5 tile 2 {
        local %e: f32[27]
        %s = reduce add %k in 0..27 tile 16 lanes 8 {
          %v = %x[%i, %k] * %x[%i, %k]
          store %v, %e[%k]
          yield %v
        }
        for %j in 0..27 tile 4 { store %e[%j] / (%s + 1.0), %y[%i, %j] }
      }
    }""", target)  # fmt: skip


# register tiles

MATMUL = """
kernel @matmul(in %x: f32[7, 11], const %w: f32[21, 11]{layout}, in %b: f32[21], out %y: f32[7, 21]) {{
  {outer} %i in 0..7{i} {{
    {inner} %j in 0..21{j} {{
      %acc = reduce add %k in 0..11{k} {{ yield %x[%i, %k] * %w[%j, %k] }}
      store max(%acc + %b[%j], 0.0), %y[%i, %j]
    }}
  }}
}}"""
TILES = [
    (" tile 4", " tile 16 lanes 8", " unroll 4"), (" tile 3", " tile 32 lanes 16", ""), ("", " tile 24 lanes 8", " tile 4 unroll 2"),
    (" tile 8 lanes 8", " tile 2", ""), (" tile 8 lanes 4", " tile 6", ""), (" tile 2", " tile 2", " tile 8 lanes 8"),
    (" tile 7", " tile 5", " tile 2"),
]  # fmt: skip


@pytest.mark.parametrize(("i", "j", "k"), TILES)
@pytest.mark.parametrize("layout", ["", "{0/16, 1, 0%16}", "{1, 0}"])
def test_contractions(layout: str, i: str, j: str, k: str) -> None:
    check_kernel(MATMUL.format(layout=layout, outer="for", inner="for", i=i, j=j, k=k))


@pytest.mark.parametrize("loops", itertools.product(("for", "parallel"), repeat=2))
def test_contractions_on_threads(loops: tuple[str, str], target: str) -> None:
    if loops == ("for", "parallel"):
        return  # verify refuses it
    check_kernel(
        MATMUL.format(
            layout="{0/24, 1, 0%24}", outer=loops[0], inner=loops[1], i=" tile 4", j=" tile 24 lanes 8", k=""
        ),
        target,
    )


def test_products_are_added_by_the_instruction_that_does_both() -> None:
    """And by two instructions, not by a call, where there is none."""
    text = MATMUL.format(layout="", outer="for", inner="for", i="", j=" tile 21 lanes 4", k="")
    for name, expected in (("x86-64-v3", "vfmadd"), ("x86-64-v4", "vfmadd"), ("x86-64", "mulps"), ("aarch64", "fmla")):
        assembly = emit_assembly(emit_kernel(parse_kernel(text), target_by_name(name)), target_by_name(name))
        assert expected in assembly
        assert "fmaf" not in assembly


@pytest.mark.parametrize(
    "value", ["fma(%x[%i], %x[%i], 1.0)", *(f"{f}(%x[%i])" for f in ("round", "floor", "ceil", "trunc"))]
)
def test_vectors_are_rounded_without_calls(value: str) -> None:
    text = (
        f"kernel @k(in %x: f32[64], out %y: f32[64]) {{ for %i in 0..64 tile 4 lanes 4 {{ store {value}, %y[%i] }} }}"
    )
    target = target_by_name("x86-64")
    assembly = emit_assembly(emit_kernel(parse_kernel(text), target), target)
    assert "ps\t" in assembly
    assert "call" not in assembly
    assert "jmp" not in assembly


def test_accumulators_stay_in_registers() -> None:
    """The pixels of steps that are written out are loaded when their turn comes, so that the sums need not leave registers."""
    text = """
    kernel @conv(size h in 8..1025 hint 500, size w in 8..1025 hint 500, in %x: f32[64, h + 2, w + 2], const %w: f32[64, 64, 3, 3]{0/32, 1, 2, 3, 0%32}, out %y: f32[64, h, w]) {
      parallel %c in 0..64 tile 32 lanes 16 {
        parallel %i in 0..h {
          parallel %j in 0..w//8*8 tile 8 {
            %s = reduce add %k in 0..64, %a in 0..3 unroll 3, %b in 0..3 unroll 3 { yield %x[%k, %i + %a, %j + %b] * %w[%c, %k, %a, %b] }
            store %s, %y[%c, %i, %j]
          }
        }
      }
    }"""
    target = target_by_name("x86-64-v4")
    assembly = emit_assembly(emit_kernel(parse_kernel(text), target), target)
    assert assembly.count("vfmadd") == 8 * 2 * 9
    assert not [line for line in assembly.splitlines() if "zmm" in line and "(%rsp)" in line]


def test_the_innermost_loop_of_a_contraction_adds_no_invariant_parts_of_addresses() -> None:
    text = """
kernel @mm(in %x: f32[64, 768], in %w: f32[768, 96], out %y: f32[64, 96]) {
  for %i in 0..64 tile 8 {
    for %j in 0..96 tile 16 lanes 16 {
      %s = reduce add %k in 0..768 { yield %x[%i, %k] * %w[%k, %j] }
      store %s, %y[%i, %j]
    }
  }
}"""
    blocks = re.split(r"\n(?=\w+:)", emit_kernel(parse_kernel(text), target_by_name("x86-64-v4")))
    (loop,) = (b for b in blocks if b.count("llvm.fmuladd") == 8)
    counter = re.findall(r"(%i\d+) = phi", loop)[0]
    assert {re.findall(r"%\w+", line)[1] for line in loop.splitlines() if " = mul" in line} == {counter}
    assert not re.search(r"add nsw i64 (?!%i)", loop)


def test_two_registers_are_computed_side_by_side() -> None:
    """Also where what is stored has a name."""
    text = """
    kernel @roots(in %x: f32[64], out %y: f32[64]) {
      for %i in 0..64 tile 64 lanes 16 {
        %r = sqrt(%x[%i])
        store sqrt(%r + 1.0), %y[%i]
      }
    }"""
    lines = emit_kernel(parse_kernel(text), target_by_name("x86-64-v4")).splitlines()
    order = "".join({"load": "l", "call": "c", "fadd": "+", "store": "s"}.get(w, "") for t in lines for w in t.split())
    assert order == "llcc++ccss" * 2


def test_names_that_are_used_twice_are_computed_once() -> None:
    """Each in terms of the one before: looked at anew for every use, forty of them would take for ever."""
    steps = "".join(f"%v{k + 1} = %v{k} * %v{k} + %v{k}\n" for k in range(40))
    text = f"""
    kernel @steps(in %x: f32[64], out %y: f32[64]) {{
      for %i in 0..64 tile 64 lanes 16 {{
        %v0 = %x[%i]
        {steps}
        store %v40, %y[%i]
      }}
    }}"""
    assert emit_kernel(parse_kernel(text), target_by_name("x86-64-v4")).count("fmul") <= 4 * 40


def test_a_windowed_contraction(target: str) -> None:
    """A convolution with a border: masked loads, strides, floor division."""
    check_kernel("""
    kernel @conv(in %x: f32[3, 10, 10], const %w: f32[10, 3, 3, 3]{0/8, 1, 2, 3, 0%8}, out %y: f32[10, 25]) {
      parallel %o in 0..10 tile 8 lanes 8 {
        parallel %p in 0..25 tile 2 {
          %acc = reduce add %c in 0..3, %u in 0..3, %v in 0..3 {
            %inside = (index(%p//5*2 + %u - 1) >= 0) & (index(%p%5*2 + %v - 1) >= 0)
            yield load(%x[%c, %p//5*2 + %u - 1, %p%5*2 + %v - 1], %inside, 0.0) * %w[%o, %c, %u, %v]
          }
          store %acc, %y[%o, %p]
        }
      }
    }""", target)  # fmt: skip


# memory

LOADS = {
    "reversed": "%x[36 - %i]",
    "strided": "%x[2*%i]",
    "repeated": "%x[%i//4]",
    "cyclic": "%x[%i%5]",
    "broadcast": "%x[3]",
    "both digits": "%x[%i//6*6 + %i%6]",
    "by table": "%x[%n]",
    "by table and index": "%x[%n + %i]",
    "by narrow table": "%x[%m]",
    "shifted under a mask": "load(%x[%i - 3], index(%i) >= 3, -1.0)",
    "a mask from memory": "load(%x[%i], %c[%i])",
    "one element under a mask": "load(%x[80], %c[%i], 5.0)",
    "far away under a mask": "load(%x[1000000000*%i], index(%i) < 1, 2.0)",
    "one element far away under a mask": "load(%x[1000000000000], index(%i) < 0, 2.0)",
    "a table under a mask": "load(%x[%n - 2], %n >= 2, 0.5)",
    "the masked operand of a mask": "load(%x[%i], load(%c[%i - 1], index(%i) > 0, true), %x[%n])",
}


def test_lanes_under_one_mask_load_from_an_address_that_exists() -> None:
    """Processors take hundreds of cycles for a vector outside of all memory, even if its mask is empty."""
    text = """kernel @k(in %x: f32[4, 16], out %y: f32[6, 16]) { for %i in 0..6 { for %j in 0..16 tile 16 lanes 16 {
      store load(%x[%i - 1, %j], (index(%i) >= 1) & (index(%i) < 5), 2.0), %y[%i, %j] } } }"""
    code = emit_kernel(parse_kernel(text), target_by_name("x86-64-v4"))
    (address,) = re.findall(r"(%\w+) = select i1 %\w+, ptr %\w+, ptr %\w+", code)
    assert re.search(rf"llvm.masked.load.v16f32.p0\(ptr align 4 {address}, ", code)
    check_kernel(text)


@pytest.mark.parametrize("form", ["", " tile 16 lanes 8", " tile 8", " tile 32 lanes 16 unroll 2"])
@pytest.mark.parametrize("case", LOADS)
def test_loads(case: str, form: str) -> None:
    check_kernel(f"""
    kernel @k(in %x: f32[81], in %t: i64[37], in %u: u8[37], in %c: bool[37], out %y: f32[37]) {{
      for %i in 0..37{form} {{ %n = %t[%i] %m = %u[%i] store {LOADS[case]} + 1.0, %y[%i] }}
    }}""")


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_masked_and_gathered_loads_of_every_type(dtype: str, target: str) -> None:
    check_kernel(f"""
    kernel @k(in %x: {dtype}[40], in %t: i64[37], in %c: bool[37], out %y: {dtype}[37], out %z: {dtype}[37], out %w: {dtype}[74]) {{
      for %i in 0..37 tile 16 lanes 8 {{
        store load(%x[%i], %c[%i], %x[39]), %y[%i]
        store %x[%t[0:i64] + 0], %z[%i]
        store %x[%i], %w[2*%i + 1]
        store %x[%i], %w[2*%i]
      }}
    }}""".replace("%x[%t[0:i64] + 0]", "%x[%n]").replace("store load(", "%n = %t[%i] store load(", 1), target)  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "f16", "i8", "bool"])
@pytest.mark.parametrize("count", range(9, 17))
def test_a_partial_register_of_narrow_elements_is_stored_alone(count: int, dtype: str) -> None:
    check_kernel(f"""
    kernel @k(in %x: {dtype}[{count}], out %y: {dtype}[{count}]) {{
      for %i in 0..{count} tile {count} lanes 8 {{ %v = %x[%i] store max(%v, %v), %y[%i] }}
    }}""")


STORES = {
    "contiguous": ("%y[%i]", 37),
    "reversed": ("%y[36 - %i]", 37),
    "strided": ("%y[3*%i + 1]", 111),
    "by table": ("%y[%n]", 37),
    "digits": ("%y[%i%37]", 37),
}


@pytest.mark.parametrize("form", ["", " tile 16 lanes 8", " tile 8"])
@pytest.mark.parametrize("case", STORES)
def test_stores(case: str, form: str) -> None:
    place, size = STORES[case]
    kernel = parse_kernel(f"""
    kernel @k(in %x: f32[37], in %t: i64[37], inout %y: f32[{size}]) {{
      for %i in 0..37{form} {{ %n = %t[%i] store %x[%i] * 2.0, {place} }}
    }}""")
    inputs = kernel_inputs(kernel)
    inputs[1][...] = np.random.default_rng(0).permutation(37)
    assert_same_bits(run_interpreter(kernel, inputs)["y"], run_native(kernel, inputs)["y"])


LAYOUTS = ["{1, 0}", "{0/8, 1, 0%8}", "{1, 0/4, 0%4}", "{1/16, 0, 1%16}", "{0/4, 1/8, 0%4, 1%8}"]


@pytest.mark.parametrize("forms", [("", " tile 8 lanes 8"), (" tile 8 lanes 8", " tile 3"), (" tile 4", " tile 5")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_operands_and_results(layout: str, forms: tuple[str, str]) -> None:
    check_kernel(f"""
    kernel @k(in %x: f32[11, 21]{layout}, in %z: i8[11, 21], out %y: f32[11, 21]{layout}, out %w: i8[11, 21]{layout}) {{
      for %i in 0..11{forms[0]} {{ for %j in 0..21{forms[1]} {{
        store %x[%i, %j] + 1.0, %y[%i, %j]
        store %z[%i, %j], %w[%i, %j]
      }} }}
    }}""")


def test_transposing_lanes_are_not_the_innermost_axis(target: str) -> None:
    check_kernel("""
    kernel @k(in %x: f32[19, 22], out %y: f32[22, 19], out %s: f32[19]) {
      for %i in 0..19 tile 8 lanes 8 {
        for %j in 0..22 tile 3 { store %x[%i, %j] + index_of, %y[%j, %i] }
        store %x[%i, 0], %s[%i]
      }
    }""".replace("index_of", "cast<f32>(index(%i*100 + %j))"), target)  # fmt: skip


# the same everywhere


def test_other_targets_compile() -> None:
    text = MATMUL.format(
        layout="{0/16, 1, 0%16}", outer="parallel", inner="for", i=" tile 1", j=" tile 21 lanes 4", k=" unroll 2"
    )
    for target in CPU_TARGETS.values():
        assert emit_object(emit_kernel(parse_kernel(text), target), target)


def test_a_partial_tile_must_be_peeled() -> None:
    with pytest.raises(Exception, match="peel"):
        emit_kernel(
            parse_kernel("kernel @k(out %y: f32[7]) { for %i in 0..7 tile 4 { store 1.0, %y[%i] } }"), host_target()
        )


def test_a_plain_kernel_means_the_same() -> None:
    """The stripped kernel that tests compare with is the kernel itself to the interpreter."""
    kernel = parse_kernel(
        MATMUL.format(layout="", outer="for", inner="for", i=" tile 4", j=" tile 16 lanes 8", k=" tile 2")
    )
    given = dict(zip("xwb", kernel_inputs(kernel), strict=True))
    results = []
    for k in (kernel, as_scalar_loops(kernel)):
        results.append(np.zeros((7, 21), "f"))
        run_kernel(k, {**given, "y": results[-1]})
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


# lines ahead


@pytest.mark.parametrize(
    ("dtype", "tile", "lanes", "lines"),
    [("f32", 16, 8, 1), ("f32", 32, 16, 2), ("f32", 8, 4, 1), ("f64", 16, 4, 2), ("bf16", 64, 16, 2)],
)
def test_each_line_is_asked_for_once(dtype: str, tile: int, lanes: int, lines: int) -> None:
    """However many vectors it holds."""
    kernel = parse_kernel(f"""kernel @k(in %x: {dtype}[100, {tile}], out %y: {dtype}[{tile}]) {{
      for %j in 0..{tile} tile {tile} lanes {lanes} {{
        %s = reduce add %i in 0..100 {{ prefetch %x[%i + 9, %j]  yield %x[%i, %j] }}
        store %s, %y[%j]
      }} }}""")
    assert emit_kernel(kernel, target_by_name("x86-64-v3")).count("call void @llvm.prefetch") == lines


def test_unrolled_steps_prefetch_a_line_once() -> None:
    kernel = parse_kernel("""kernel @k(in %x: f32[64, 16], out %y: f32[16]) {
      for %j in 0..16 tile 16 lanes 16 {
        %s = reduce add %i in 0..32 unroll 4 { prefetch %x[%i//2 + 9, %j]  yield %x[%i, %j] }
        store %s, %y[%j]
      } }""")
    assert emit_kernel(kernel, target_by_name("x86-64-v4")).count("call void @llvm.prefetch") == 2


@pytest.mark.parametrize(("level", "instruction"), [(1, "prefetcht0"), (2, "prefetcht1"), (3, "prefetcht2")])
def test_a_line_waits_in_the_cache_of_its_level(level: int, instruction: str) -> None:
    kernel = parse_kernel(f"""kernel @k(in %x: f32[100], out %y: f32[100]) {{
      for %i in 0..92 {{ prefetch %x[%i + 8] level {level}  store %x[%i], %y[%i] }} }}""")
    target = target_by_name("x86-64-v3")
    assert instruction in emit_assembly(emit_kernel(kernel, target), target)


# local buffers

PADDED = """
kernel @padded(in %x: f32[6, 40], out %y: f32[6, 40]) {{
  for %i in 0..6{i} {{
    local %t: f32[40]
    for %j in 0..40 tile 40 lanes 16 {{ store %x[%i, %j] + 1.0, %t[%j] }}
    for %j in {first} {{ store %x[%i, %j] * 2.0, %t[%j] }}
    for %j in 0..40 tile 40 lanes 16 {{ store %t[%j], %y[%i, %j] }}
  }}
}}"""


@pytest.mark.parametrize("i", ["", " tile 3"])
@pytest.mark.parametrize("first", ["0..20 tile 20 lanes 16", "3..23 tile 20 lanes 16", "20..40 tile 20 lanes 16"])
def test_only_padding_is_stored_without_a_mask(i: str, first: str) -> None:
    check_kernel(PADDED.format(i=i, first=first))


def test_rows_of_local_buffers_are_stored_and_loaded_whole() -> None:
    """Copies for rows begin at multiples of a register; nothing waits for a masked store."""
    target = CPU_TARGETS["x86-64-v4"]
    code = emit_kernel(parse_kernel(PADDED.format(i=" tile 3", first="0..16 tile 16 lanes 16")), target)
    masked = [line for line in code.splitlines() if "call" in line and "masked" in line]
    local = re.search(r"(%\w+) = alloca \[144 x float\]", code)
    assert local
    assert all("%p0" not in line or local[1] not in line for line in masked)
    assert sum("masked.store" in line for line in masked) == 3  # the rows of the result
    assert sum("masked.load" in line for line in masked) == 3  # and of the argument


def test_copies_of_lanes_are_whole_registers() -> None:
    """A running sum of 14 columns stays in a register, which a masked store would not."""
    columns = """kernel @k(in %x: f32[9, 14], out %y: f32[9, 14]) {
      parallel %j in 0..14 tile 14 lanes 16 { local %carry: f32[] store 0.0, %carry[]
        for %i in 0..9 { %s = %carry[] + %x[%i, %j] store %s, %carry[] store %s, %y[%i, %j] } } }"""
    code = emit_kernel(parse_kernel(columns), CPU_TARGETS["x86-64-v4"])
    assert "alloca [16 x float]" in code
    masked = [line for line in code.splitlines() if "call" in line and "masked" in line]
    assert [sum(f"masked.{kind}" in line for line in masked) for kind in ("load", "store")] == [1, 1]


@pytest.mark.parametrize(
    ("loops", "is_scalar"),
    [("%i in 0..64", True), ("%i in 0..64 tile 16 lanes 16", False), ("%r in 0..1 { for %i in 0..64 tile 16 lanes 16", False)],
)  # fmt: skip
@pytest.mark.parametrize("value", ["%x[%i]", "%s"])
def test_strength_reduction_is_for_loops_without_lanes(loops: str, is_scalar: bool, value: str) -> None:
    total = "%s = reduce add %k in 0..64 { yield %x[%k] * %x[%i] }" if value == "%s" else ""
    text = f"kernel @k(in %x: f32[64], out %y: f32[64]) {{ for {loops} {{ {total} store {value}, %y[%i] }} }}"
    code = emit_kernel(parse_kernel(text + " }" * ("%r" in loops)), host_target())
    assert (NO_STRENGTH_REDUCTION not in code) == is_scalar
