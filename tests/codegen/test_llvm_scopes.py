"""Tile IR as machine code: local buffers, names, checks, threads and streams mean what they say."""

from __future__ import annotations

import re

import pytest
import torch
from native import assert_same_bits, check_kernel, kernel_inputs, run_interpreter, run_native

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import host_target
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.verify.kernel import verify_kernel

# local buffers


@pytest.mark.parametrize(
    "forms", [("", ""), (" tile 4", " tile 8 lanes 8"), (" tile 8 lanes 8", ""), (" tile 16 lanes 8", " tile 3")]
)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "bool", "i8"])
def test_local_buffers_have_a_copy_per_tiled_index(dtype: str, forms: tuple[str, str]) -> None:
    check_kernel(f"""
    kernel @k(in %x: {dtype}[18, 13], out %y: {dtype}[18, 13]) {{
      for %i in 0..18{forms[0]} {{
        local %row: {dtype}[13]
        for %j in 0..13{forms[1]} {{ store %x[%i, %j], %row[%j] }}
        for %j in 0..13{forms[1]} {{ store %row[12 - %j], %y[%i, %j] }}
      }}
    }}""")


def test_differences_are_computed_where_they_are_squared() -> None:
    """Each lane has a copy of the row: registers do not hold the differences of all four sums."""
    text = """
    kernel @k(in %x: f32[4, 5], in %y: f32[16, 5], out %z: f32[4, 16]) {
      for %j in 0..16 tile 16 lanes 16 {
        local %t: f32[5]
        for %k in 0..5 { store %y[%j, %k], %t[%k] }
        for %i in 0..4 tile 4 {
          %s = reduce add %r in 0..5 { %d = %t[%r] - %x[%i, %r]  yield %d * %d }
          store %s, %z[%i, %j]
        }
      }
    }"""
    check_kernel(text)
    lines = emit_kernel(parse_kernel(text), target_by_name("x86-64-v4")).splitlines()
    order = "".join("-" if "fsub" in t else "+" if "= call" in t and "fmuladd" in t else "" for t in lines)
    assert order == "-+" * 4


def test_locals_in_locals_loops(target: str) -> None:
    check_kernel("""
    kernel @k(in %x: f32[6, 5, 20], out %y: f32[6, 5, 20]) {
      parallel %i in 0..6 tile 2 {
        local %total: f32[1]
        store 0.0, %total[0]
        for %j in 0..5 {
          local %t: f32[20]{0/4, 0%4}
          for %k in 0..20 tile 8 lanes 4 { store %x[%i, %j, %k] * %x[%i, %j, %k], %t[%k] }
          %s = reduce add %k in 0..20 tile 8 lanes 4 { yield %t[19 - %k] }
          store %total[0] + %s, %total[0]
          for %k in 0..20 tile 8 lanes 4 { store %t[%k] / (1.0 + %total[0]), %y[%i, %j, %k] }
        }
      }
    }""", target)  # fmt: skip


def test_a_local_of_the_whole_kernel_holds_what_does_not_vary(target: str) -> None:
    """Stores to a buffer around a tiled loop, of values that do not vary over its lanes."""
    check_kernel("""
    kernel @k(in %x: f32[20], in %t: i64[20], out %y: f32[20]) {
      local %small: f32[4]{0}
      for %a in 0..4 { store %x[%a], %small[%a] }
      for %i in 0..20 tile 16 lanes 8 { %n = %t[%i] store %small[%n] + %small[1], %y[%i] }
    }""", target, high=4)  # fmt: skip


# names


def test_values_from_outside_are_computed_before_the_loop(target: str) -> None:
    check_kernel("""
    kernel @k(in %x: f32[6], inout %y: f32[6, 17]) {
      %two = %x[0] * 2.0
      for %i in 0..6 tile 2 {
        %a = %x[%i] + %two
        %b = %a * %a
        %old = %y[%i, 3]
        for %j in 0..17 tile 8 lanes 8 { store %b + %a * %y[%i, %j], %y[%i, %j] }
        for %j in 0..17 { store %y[%i, %j] + %old, %y[%i, %j] }
      }
    }""", target)  # fmt: skip


def test_values_from_outside_are_computed_in_the_order_they_were_bound() -> None:
    """The same code in every process: no order of a set, which is right one time in 12!."""
    names = range(1, 13)
    kernel = parse_kernel(f"""
    kernel @k(in %x: f32[13], out %y: f32[9]) {{
      {" ".join(f"%v{k} = %x[{k}]" for k in names)}
      for %j in 0..9 {{ store {" + ".join(f"%v{k}" for k in reversed(names))}, %y[%j] }}
    }}""")
    places = re.findall(r"ptr %p0, i64 (\d+)", emit_kernel(kernel, target_by_name("x86-64-v3")))
    assert [int(p) for p in places] == list(names)


def test_siblings_may_use_the_same_names(target: str) -> None:
    check_kernel("""
    kernel @k(in %x: f32[16], in %t: i64[16], out %y: f32[16], out %z: f32[16]) {
      for %i in 0..16 tile 4 { %v = %x[%i] %n = %t[%i] store %x[%n] + %v, %y[%i] }
      for %i in 0..16 tile 8 lanes 8 { %v = 2.0:f32 %n = %t[15 - %i] store %x[%n] * %v, %z[%i] }
    }""", target)  # fmt: skip


def test_a_value_is_read_when_it_is_bound(target: str) -> None:
    """Not when it is used: the buffer may have changed by then."""
    check_kernel("""
    kernel @swap(inout %y: f32[32], inout %z: f32[32]) {
      for %i in 0..32 tile 16 lanes 8 {
        %a = %y[%i]
        %b = %z[%i]
        store %b, %y[%i]
        store %a, %z[%i]
      }
    }""", target)  # fmt: skip


# checks


@pytest.mark.parametrize("form", ["", " tile 4", " tile 8 lanes 8"])
@pytest.mark.parametrize("bad", [None, 0, 11, 12, 20])
def test_checks_report_an_index_out_of_range(bad: int | None, form: str) -> None:
    kernel = parse_kernel(f"""
    kernel @k(in %t: i32[21], in %x: f32[9], out %y: f32[21]) {{
      parallel %i in 0..21{form} {{
        %n = %t[%i]
        check %n in -9..9
        %m = where(%n < 0, %n + 9, %n)
        %safe = max(min(%m, 8), 0)
        store %x[%safe], %y[%i]
      }}
    }}""")
    t, x = kernel_inputs(kernel)
    t[::2] -= 9
    if bad is not None:
        t[bad] = 9 if bad % 2 else -10
    want, got = run_interpreter(kernel, [t, x]), run_native(kernel, [t, x])
    assert want.check_failed == got.check_failed == (bad is not None)
    assert_same_bits(want["y"], got["y"])


def test_the_bounds_of_a_check_may_vary(target: str) -> None:
    check_kernel("""
    kernel @k(in %t: i64[4], out %y: f32[4, 9]) {
      for %i in 0..4 { %n = %t[%i] for %j in 0..9 tile 8 lanes 8 { check %n in -%j..%j + 9 store 1.0, %y[%i, %j] } }
    }""", target)  # fmt: skip


# threads


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("trips", [1, 2, 7, 31])
def test_threads_share_any_number_of_steps(trips: int, three_threads: None) -> None:
    check_kernel(f"""
    kernel @k(in %x: f32[{trips}, 5, 9], out %y: f32[{trips}, 5, 9]) {{
      parallel %i in 0..{trips} {{ parallel %j in 0..5 tile 2 {{ parallel %k in 0..9 tile 8 lanes 8 {{
        store %x[%i, %j, %k] * 3.0, %y[%i, %j, %k]
      }} }} }}
    }}""")


WORK = """kernel @k(in %x: f32[{n}, 9], scratch %t: f32[{n}, 11], out %y: f32[{n}, 9]) {{
  parallel %i in 0..{n}{tile} {{
    for %j in 0..9 {{ store %x[%i, %j], %t[%i, %j + 1] }}
    store 0.0, %t[%i, 0]
    store 0.0, %t[%i, 10]
    for %j in 0..9 tile 8 lanes 8 {{ store %t[%i, %j] + %t[%i, %j + 2], %y[%i, %j] }} }} }}"""


@pytest.mark.parametrize(("n", "tile"), [(1, 1), (7, 1), (32, 1), (32, 4)])
def test_each_thread_works_in_the_part_of_its_first_step(n: int, tile: int, three_threads: None) -> None:
    text = WORK.format(n=n, tile=f" tile {tile}" if tile > 1 else "")
    check_kernel(text)
    kernel = parse_kernel(text)
    given = kernel_inputs(kernel)
    touched = (run_native(kernel, given).scratch["t"] != given[1]).any(axis=1)
    assert touched.sum() in {k * tile for k in range(1, 1 + min(3, n // tile))}  # as many threads as came in time


NESTED = {
    "beside other statements": """
      parallel %i in 0..14 {
        local %t: f32[1]
        store %x[%i, 0], %t[0]
        parallel %j in 0..9 { store %x[%i, %j] + %t[0], %y[%i, %j] }
      }""",
    "two in one": """
      parallel %i in 0..14 tile 4 {
        parallel %j in 0..8 { store %x[%i, %j], %y[%i, %j] }
        parallel %j in 8..9 { store -%x[%i, %j], %y[%i, %j] }
      }""",
    "one after the other, on the same elements": """
      parallel %i in 0..14 { for %j in 0..9 { store %x[%i, %j], %y[%i, %j] } }
      parallel %j in 0..9 { for %i in 0..14 { store %y[13 - %i, %j] * 0.5 + %y[%i, %j], %y[%i, %j] } }""",
    "after a value": """
      %a = %y[0, 0] * 0.0 + %x[3, 3]
      parallel %i in 0..14 { for %j in 0..9 tile 8 lanes 8 { store %x[%i, %j] * %a, %y[%i, %j] } }""",
    "after a buffer that every thread fills": """
      local %t: f32[9]
      for %j in 0..9 { store %x[13, 8 - %j], %t[%j] }
      parallel %i in 0..14 { for %j in 0..9 tile 8 lanes 8 { store %x[%i, %j] + %t[%j], %y[%i, %j] } }""",
    "filling a buffer of the kernel": """
      local %t: f32[14]
      parallel %i in 0..14 { store %x[%i, 0] * 2.0, %t[%i] }
      parallel %i in 0..14 { for %j in 0..9 { store %t[13 - %i] + %x[%i, %j], %y[%i, %j] } }""",
    "beside a store": """
      for %j in 0..9 { store %y[0, %j] + 1.0, %y[0, %j] }
      parallel %i in 1..14 { for %j in 0..9 { store %x[%i, %j] + %y[0, %j], %y[%i, %j] } }""",
}


@pytest.mark.parametrize("case", NESTED)
def test_parallel_loops_beside_other_statements(case: str, three_threads: None) -> None:
    kernel = parse_kernel(f"kernel @k(in %x: f32[14, 9], inout %y: f32[14, 9]) {{ {NESTED[case]} }}")
    verify_kernel(kernel)
    inputs = kernel_inputs(kernel)
    want = run_interpreter(kernel, inputs)["y"]
    for _ in range(20):  # a race would not lose every time
        assert_same_bits(want, run_native(kernel, inputs)["y"], case)


def test_threads_wait_only_where_order_matters() -> None:
    peeled = parse_kernel("""
    kernel @k(in %x: f32[100], inout %y: f32[100]) {
      parallel %i in 0..96 tile 8 lanes 8 { store %y[%i] + %x[%i], %y[%i] }
      parallel %i in 96..100 tile 4 lanes 8 { store %y[%i] + %x[%i], %y[%i] }
    }""")
    assert emit_kernel(peeled, host_target()).count("call void @tilewright_parallel") == 1
    again = parse_kernel("""
    kernel @k(in %x: f32[100], inout %y: f32[100]) {
      parallel %i in 0..100 { store %y[%i] + %x[%i], %y[%i] }
      parallel %i in 0..100 { store %y[99 - %i] + %x[%i], %y[%i] }
    }""")  # the second is wrong by itself, but must come second
    assert emit_kernel(again, host_target()).count("call void @tilewright_parallel") == 2


# streams


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "bool", "bf16"])
def test_streaming_stores(dtype: str, target: str) -> None:
    check_kernel(
        f"""
    kernel @k(in %x: {dtype}[5, 131], out %y: {dtype}[5, 131], out %z: {dtype}[640]) {{
      parallel %i in 0..5 {{ for %j in 0..131 tile 64 lanes 16 {{ store %x[%i, %j], %y[%i, %j] nontemporal }} }}
      parallel %j in 0..640 tile 64 lanes 16 {{ store %x[%j//128, %j%128], %z[%j] nontemporal }}
    }}""",
        target,
    )


def test_aligned_streams_bypass_the_cache_and_are_fenced() -> None:
    text = "kernel @k(in %x: f32[64], {r} %y: f32[64]) {{ for %i in 0..64 tile 16 lanes 16 {{ store %x[%i], %y[%i] nontemporal }} }}"
    code = emit_kernel(parse_kernel(text.format(r="out")), target_by_name("x86-64-v4"))
    assert "!nontemporal" in code
    assert "sfence" in code
    assert "!nontemporal" not in emit_kernel(parse_kernel(text.format(r="inout")), target_by_name("x86-64-v4"))


def test_blocks_that_are_turned_bypass_the_cache_by_whole_lines() -> None:
    """Rows of 64 begin with a line each, rows of 72 do not."""
    text = """
    kernel @turn(in %x: f32[{n}, 32], out %y: f32[32, {n}]) {{
      for %j in 0..32 tile 16 lanes 16 {{ for %i in 0..{n} tile {tile} {{ store %x[%i, %j], %y[%j, %i] nontemporal }} }}
    }}"""
    for n, tile, past in ((64, 16, 16), (64, 8, 0), (64, 32, 32), (72, 24, 0)):
        check_kernel(text.format(n=n, tile=tile))
        code = emit_kernel(parse_kernel(text.format(n=n, tile=tile)), target_by_name("x86-64-v4"))
        assert code.count("!nontemporal") == past


def test_each_call_decides_whether_open_results_bypass_the_cache() -> None:
    """Both stores are there, in the machine code too, whose optimizer might have joined them."""
    text = """kernel @k(size n in 1..100 hint 50, in %x: f32[n, 64], out %y: f32[n, 64]) {
      for %i in 0..n { for %j in 0..64 tile 16 lanes 16 { store %x[%i, %j] + 1.0, %y[%i, %j] nontemporal if n*256 >= 5000 } }
    }"""
    target = target_by_name("x86-64-v4")
    code = emit_kernel(parse_kernel(text), target)
    assert code.count("!nontemporal") == 1
    assert "sfence" in code
    assert {"vmovntps", "vmovups"} <= set(re.findall(r"vmov\w+", emit_assembly(code, target)))
    assert "vmovntps" not in emit_assembly(
        emit_kernel(parse_kernel(text.replace("nontemporal if n*256 >= 5000", "")), target), target
    )


@pytest.mark.parametrize(
    ("index", "past"),
    [
        ("%i*n + %j", 1),  # rows of n, which may be a multiple of 16
        ("(%i*n + %j)*n", 0),  # no vectors
        ("%i*n*16 + %j", 1),  # they always are
        ("%i*n + %j + 1", 0),  # never
    ],
)
def test_sizes_decide_whether_open_rows_are_aligned(index: str, past: int) -> None:
    text = f"""kernel @k(size n in 1..200 hint 50, in %x: f32[200], out %y: f32[900000]) {{
      for %i in 0..3 {{ for %j in 0..16 tile 16 lanes 16 {{ store %x[%j], %y[{index}] nontemporal }} }}
    }}"""
    code = emit_kernel(parse_kernel(text), target_by_name("x86-64-v4"))
    assert code.count("!nontemporal") == past
    assert ("srem" in code or "and i64" in code) == (index == "%i*n + %j")
