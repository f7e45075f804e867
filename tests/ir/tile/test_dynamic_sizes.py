"""Sizes that are told when a program runs: arithmetic, text, rules and meaning."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import ArgumentError, ParseError, VerifyError
from compiler.ir.interpret.size_sampling import sample_sizes, small_sizes
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.symbolic.affine import coefficient, contiguous_width, stride
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.symbolic.bounds import bounds_of_expr, is_provably_less
from compiler.ir.symbolic.index_atoms import DynamicSize, choose_size_hint
from compiler.ir.symbolic.index_expr import (
    dynamic_size,
    evaluate,
    floordiv,
    interval,
    minimum,
    mod,
    size_hint,
    substitute,
    var,
    variables,
)
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Store, dim_hint, walk
from compiler.ir.tile.thread_sync import barrier_points
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent

N = dynamic_size("n", 2, 512, 100)
ROW, J = var("i"), var("j")


def test_a_size_is_no_variable_and_has_a_range() -> None:
    assert variables(N * ROW) == {"i"}
    assert interval(N * 4 + 1, {}) == (9, 2049)
    assert size_hint(N * 4 + 1) == 401
    assert substitute(N * ROW, {"n": 7}) == ROW * 7


@pytest.mark.parametrize(
    ("low", "high", "seen", "likely"),
    [(1, 4096, 1, 500), (1, 4096, 1000, 500), (2, 512, 512, 500), (1, 64, 8, 64), (4097, 32768, 9000, 9000)],
)
def test_what_is_expected_of_a_size_that_may_be_small_is_one_number(
    low: int, high: int, seen: int, likely: int
) -> None:
    assert choose_size_hint(low, high, seen) == likely


def test_programs_are_tried_at_sizes_that_they_admit() -> None:
    tried = [
        small_sizes([DynamicSize("n", low, high, seen)])["n"]
        for low, high, seen in ((2, 512, 8), (2, 4096, 500), (200, 4096, 500))
    ]
    assert tried == [8, 9, 200]
    graph = parse_graph(f"graph({BOTH} %x: f32[n, m]) {{ %y = exp %x  return %y }}")
    assert list(sample_sizes(graph, graph)) == [{"m": 2, "n": 3}, {"m": 13, "n": 14}]


BOTH = "size n in 0..4096 hint 500, size m in 0..4096 hint 500,"


@pytest.mark.parametrize(
    ("loops", "tried"),
    [
        ("for %i in 0..n { store 1.0, %y[%i, 0] }", []),
        ("for %i in 0..n tile 14 { store 1.0, %y[%i, 0] }", [19]),
        ("for %i in 0..n tile 14 { for %j in 0..m tile 32 lanes 16 { store 1.0, %y[%i, %j] } }", [19, 37]),
        ("for %i in 0..n//2 tile 32 { store 1.0, %y[%i, 0] }", [69]),
        (
            """for %i in 0..n//32*32 tile 32 { store 1.0, %y[%i, 0] }
               for %i in n//32*32..n tile 32 { store 1.0, %y[%i, 0] }""",
            [37],
        ),
        ("for %i in 0..n//999 tile 32 { store 1.0, %y[%i, 0] }", []),  # that many would take too long
        ("for %i in 0..n tile 2048 { store 1.0, %y[%i, 0] }", [2053]),
        ("for %i in 0..n tile 2048 { for %k in 0..9999 { store 1.0, %y[%i, 0] } }", []),
    ],
)
def test_programs_are_tried_at_sizes_that_fill_their_tiles(loops: str, tried: list[int]) -> None:
    kernel = parse_kernel(f"kernel @k({BOTH} out %y: f32[n, m]) {{ {loops} }}")
    first, *others = sample_sizes(kernel, kernel)
    assert first == {"m": 9, "n": 10}
    assert [[s["n"], s["m"]][: len(tried)] for s in others] == ([tried] if tried else [])


def test_sizes_that_no_array_tells_are_given() -> None:
    text = f"kernel @k({BOTH} in %x: f32[n//2 + 1], out %y: f32[m]) {{ for %i in 0..n//2 {{ store %x[%i], %y[%i] }} }}"
    x, y = np.arange(4, dtype=np.float32), np.zeros(3, np.float32)
    run_kernel(parse_kernel(text), {"x": x, "y": y}, {"n": 6})
    assert list(y) == [0, 1, 2]
    with pytest.raises(ArgumentError, match="cannot solve for n"):
        run_kernel(parse_kernel(text), {"x": x, "y": y})


def test_a_mistake_in_full_tiles_of_an_open_loop_is_seen() -> None:
    source = f"kernel @k({BOTH} in %x: f32[n], out %y: f32[n]) {{ for %i in 0..n tile 14 {{ store %x[%i], %y[%i] }} }}"
    wrong = source.replace("store %x[%i]", "store %x[%i - %i//15]")
    with pytest.raises(AssertionError, match=r"on random inputs with sizes {.*'n': 19}"):
        check_equivalent(parse_kernel(source), parse_kernel(wrong))


def test_what_a_tile_leaves_over_is_less_than_a_tile() -> None:
    assert interval(N - N // 16 * 16, {}) == (0, 15)
    assert floordiv(N, 512) == N // 512
    assert dynamic_size("m", 2, 15, 8) // 16 == 0


def test_divisions_by_sizes() -> None:
    inside = {"j": (0, N - 1)}
    assert floordiv(ROW * N + J, N, inside) == ROW
    assert mod(ROW * N + J, N, inside) == J
    assert floordiv(ROW * N + J, N) != ROW  # unless `j` is known to be less
    assert floordiv((N // 2 + 1) * 6, N // 2 + 1) == 6
    assert floordiv((N // 2 + 1) * 6 + 1, N // 2 + 1) != 6
    v = var("v")
    assert v // N * N * 3 + v % N * 3 == v * 3


def test_bounds_in_sizes() -> None:
    inside = {"i": (0, N - 1)}
    assert interval(ROW - N, inside) == (-512, -1)
    assert bounds_of_expr(ROW * 4 + 1, inside) == (1, N * 4 - 3)
    assert is_provably_less(N - 1, N)
    assert not is_provably_less(N, N)


def test_the_lesser_of_two() -> None:
    block = {"i": (0, (N + 63) // 64 - 1)}
    rows = minimum(64, N - ROW * 64)
    assert rows == minimum(N - ROW * 64, 64)
    assert (minimum(N, 600), minimum(N - 1, N + ROW, {"i": (0, 3)})) == (N, N - 1)
    assert interval(rows, block) == (1, 64)
    assert bounds_of_expr(ROW * 64 + rows - 1, block) == (minimum(63, N - 1), N - 1)
    assert substitute(rows, {}, {"i": (0, N // 64 - 1)}) == 64
    assert [substitute(rows, {"n": 100, "i": k}) for k in (0, 1)] == [64, 36]
    assert interval(rows - rows // 8 * 8, {}) == (0, 7)
    assert (dim_hint(rows), dim_hint(rows - rows // 8 * 8)) == (64, 8)
    last = minimum(8, 11 - ROW * 8)  # of eleven rows in blocks of eight, whole fours
    assert interval(ROW * 8 + last // 4 * 4, {"i": (0, 1)}) == (5, 11)


def test_steps_by_sizes() -> None:
    assert stride(ROW * N + J, "i") == N
    assert coefficient(ROW * N + J, "i") is None
    assert stride(ROW * ROW, "i") is None


def test_panels() -> None:
    assert (contiguous_width(J, "j", 12), contiguous_width(J, "j", 0)) == (12, 0)
    assert contiguous_width(ROW * 16 + J, "j", 32) == 16
    assert contiguous_width(ROW * 16 + J + 8, "j", 32) == 8
    assert contiguous_width(ROW * N * 6 + J, "j", 4) == 2
    assert contiguous_width(J * 2, "j", 12) is None
    assert contiguous_width(ROW, "j", 12) is None


def test_steps_by_quotients_of_sizes() -> None:
    """As in the images behind a layer of stride 2."""
    half = (N + 1) // 2
    assert stride(ROW * half + J, "i") == half
    assert stride((ROW * half) // 2, "i") is None


def test_a_remainder_that_is_likely_to_be_nothing_counts_as_its_divisor() -> None:
    n = dynamic_size("n", 2, 512, 128)
    assert dim_hint(n) == 128
    assert dim_hint(n - n // 64 * 64) == 64
    assert dim_hint(ROW, 7) == 7


def test_sizes_are_read_off_shapes() -> None:
    assert bind_symbols([(N * 2 + 1, 9)]) == {"n": 4}
    with pytest.raises(ArgumentError, match="does not match n"):
        bind_symbols([(N, 3), (N, 4)])


TEXT = """kernel @k(size n in 2..513 hint 100, in %x: f32[n, 4], out %y: f32[n, 4]) {
  parallel %i in 0..n {
    for %j in 0..4 {
      store %x[-%i + n - 1, %j] + cast<f32>(index(n)), %y[%i, %j]
    }
  }
}"""


def test_text_is_read_back() -> None:
    kernel = parse_kernel(TEXT)
    assert print_kernel(kernel) == TEXT
    assert [(s.name, s.low, s.high, s.hint) for s in kernel.dynamic_sizes] == [("n", 2, 512, 100)]
    assert kernel_digest(kernel) != kernel_digest(parse_kernel(TEXT.replace("513", "514")))
    assert kernel_digest(kernel) == kernel_digest(
        parse_kernel(TEXT.replace("hint 100", "hint 99"))
    )  # the code is the same


def test_a_margin_of_open_size_is_told_to_the_kernel() -> None:
    text = f"""kernel @k({BOTH} out %y: f32[n, 2]{{0, 1+0:m}}) {{
  for %i in 0..n {{
    store 1.0, %y[%i, 1]
  }}
}}"""
    kernel = parse_kernel(text)
    assert print_kernel(kernel) == text.replace("size n in 0..4096 hint 500, size m in 0..4096 hint 500,", BY_NAME)
    assert [s.name for s in kernel.dynamic_sizes] == ["m", "n"]
    assert str(kernel.params[0].type.specialize({"m": 3, "n": 4})) == "f32[4, 2]{0, 1+0:3}"


BY_NAME = "size m in 0..4096 hint 500, size n in 0..4096 hint 500,"

GRAPH = """graph @g(size n in 2..513 hint 100, size rows in 1..9 hint 4, %x: f32[n, 4]) {
  %y: f32[n, 4] = fused %x {body=graph @add(%x0: f32[n, 4]) {
    %half: f32[n - n//2, 4] = slice %x0 {dim=0, start=n//2, size=n - n//2}
    %back: f32[n, 4] = pad %half {before=[n//2, 0], after=[0, 0]}
    return %back
  }}
  %o: i64[rows] = iota {size=rows}
  return %y, %o
}"""


def test_a_graph_declares_its_sizes_and_those_inside_it() -> None:
    graph = parse_graph(GRAPH)
    assert print_graph(graph) == GRAPH
    assert interval(graph.inputs[0].shape[0], {}) == (2, 512)
    assert size_hint(graph.inputs[0].shape[0]) == 100
    with pytest.raises(ParseError, match="declared twice"):
        parse_graph(GRAPH.replace("%x: f32", "size n in 2..8 hint 3, %x: f32", 1))


@pytest.mark.parametrize("n", [2, 5])
def test_a_kernel_is_told_its_sizes_by_its_buffers(n: int) -> None:
    kernel = parse_kernel(TEXT)
    verify_kernel(kernel)
    x, y = np.arange(4 * n, dtype=np.float32).reshape(n, 4), np.zeros((n, 4), np.float32)
    run_kernel(kernel, {"x": x, "y": y})
    np.testing.assert_array_equal(y, x[::-1] + n)


def test_a_dimension_that_nobody_declares_is_refused() -> None:
    with pytest.raises(VerifyError, match="not declared sizes"):
        verify_kernel(parse_kernel(TEXT.replace("size n in 2..513 hint 100, ", "")))


def test_what_is_written_in_place_and_where_threads_meet() -> None:
    text = """kernel @k(size n in 2..513 hint 100, in %x: f32[8, n], out %y: f32[8, n]) {
      parallel %i in 0..8 { parallel %j in 0..n//16*16 { store %x[%i, %j], %y[%i, %j] } }
      parallel %i in 0..8 { parallel %j in n//16*16..n { store %x[%i, %j], %y[%i, %j] } } }"""
    kernel = parse_kernel(text)
    assert aliasable_pairs(kernel) == {("x", "y")}
    assert barrier_points(kernel) == frozenset()
    again = parse_kernel(text.replace("n//16*16..n", "n//16*16 - 1..n"))
    assert aliasable_pairs(again) == frozenset()
    assert barrier_points(again) == {1}


@pytest.mark.parametrize(
    ("fine", "coarse", "low", "high"), [(16, 64, 0, 48), (2, 8, 0, 6), (16, 48, 0, 32), (10, 16, -9, 15)]
)
def test_whole_vectors_reach_no_less_far_than_whole_tiles(fine: int, coarse: int, low: int, high: int) -> None:
    n = dynamic_size("n", 2, 512, 43)
    gap = n // fine * fine - n // coarse * coarse
    assert interval(gap, {}) == (low, high)
    assert all(low <= evaluate(gap, {"n": k}) <= high for k in range(2, 513))


def test_threads_do_not_wait_between_the_parts_of_an_open_loop() -> None:
    whole = "kernel @k(size n in 2..513 hint 43, in %x: f32[n], out %y: f32[n]) { parallel %i in 0..n tile 64 lanes 16 { store %x[%i], %y[%i] } }"
    parts = run_pipeline(parse_kernel(whole), "peel")
    assert len(parts.body) == 2
    assert not barrier_points(parts)


def test_the_number_of_chunks_may_depend_on_sizes() -> None:
    shared = TEXT.replace(") {", ") max_chunks n*8//4000 {", 1)
    kernel = parse_kernel(shared)
    assert kernel.max_chunks == dynamic_size("n", 2, 512, 100) * 8 // 4000
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert kernel_digest(kernel) != kernel_digest(parse_kernel(TEXT))
    with pytest.raises(VerifyError, match="uses names that are not declared sizes"):
        verify_kernel(parse_kernel(shared.replace("max_chunks n", "max_chunks m")))


def test_a_store_says_from_what_size_on_it_goes_past_the_cache() -> None:
    text = "kernel @k(size n in 2..513 hint 100, in %x: f32[n], out %y: f32[n]) { for %i in 0..n { store %x[%i], %y[%i]STREAM } }"
    kernels = {s: parse_kernel(text.replace("STREAM", s)) for s in ("", " nontemporal", " nontemporal if n*4 >= 400")}
    stores = [next(s for s in walk(k.body) if isinstance(s, Store)) for k in kernels.values()]
    assert [s.nontemporal for s in stores] == [None, 0, dynamic_size("n", 2, 512, 100) * 4 - 400]
    assert len({kernel_digest(k) for k in kernels.values()}) == 3
    for way, kernel in kernels.items():
        assert parse_kernel(print_kernel(kernel)) == kernel
        assert f"%y[%i]{way}\n" in print_kernel(kernel)
    with pytest.raises(VerifyError, match=r"nontemporal condition .* uses names that are not declared sizes"):
        verify_kernel(parse_kernel(text.replace("STREAM", " nontemporal if %i*4 >= 400")))
