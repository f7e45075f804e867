"""parallelize: which loops threads share."""

from __future__ import annotations

import pytest

from compiler.cost.machine import Machine
from compiler.passes.remark import format_seconds
from compiler.testing.checks import check_pass

MACHINE = Machine(threads=2)
EAGER = "parallelize{min-seconds=0, steps-per-thread=4}"


def nest(*kinds: str, sizes: tuple[int, ...] = (4, 4, 4), tile: str = "") -> str:
    a, b, c = kinds
    i, j, k = sizes
    return f"""kernel @k(in %x: f32[{i}, {j}, {k}], out %y: f32[{i}, {j}, {k}]) {{
      {a} %i in 0..{i}{tile} {{ {b} %j in 0..{j} {{ {c} %k in 0..{k} {{ store %x[%i, %j, %k], %y[%i, %j, %k] }} }} }}
    }}"""


PARALLEL = ("parallel",) * 3


@pytest.mark.parametrize(
    ("sizes", "tile", "kinds"),
    [
        ((8, 4, 4), "", ("parallel", "for", "for")),
        ((4, 4, 4), "", ("parallel", "parallel", "for")),
        ((2, 3, 4), "", ("parallel", "parallel", "parallel")),
        ((8, 4, 4), " tile 2", ("parallel", "parallel", "for")),
    ],
)
def test_outer_loops_are_shared_until_there_are_enough_steps(
    sizes: tuple[int, ...], tile: str, kinds: tuple[str, ...]
) -> None:
    check_pass(
        EAGER,
        before=nest(*PARALLEL, sizes=sizes, tile=tile),
        after=nest(*kinds, sizes=sizes, tile=tile),
        machine=MACHINE,
    )


def test_small_kernels_run_on_the_calling_thread() -> None:
    check_pass(
        "parallelize",
        before=nest(*PARALLEL),
        after=nest("for", "for", "for"),
        remark="ns of work: waking threads takes longer",
    )


def kernel(body: str) -> str:
    return f"kernel @k(in %x: f32[64, 9], inout %y: f32[64, 9]) {{ {body} }}"


SHARED = {
    "peeled parts": "parallel %i in 0..60 tile 4 { store %x[%i, 0], %y[%i, 0] } parallel %i in 60..64 tile 4 { store %x[%i, 0], %y[%i, 0] }",
    "a value": "%a = %x[0, 0] parallel %i in 0..64 { store %x[%i, 0] * %a, %y[%i, 0] }",
    "a buffer that every thread fills": """
      local %t: f32[9] for %j in 0..9 { store %x[0, %j], %t[%j] }
      parallel %i in 0..64 { for %j in 0..9 { store %x[%i, %j] + %t[%j], %y[%i, %j] } }""",
}
SERIAL = {
    "mostly repeated": """
      %s = reduce add %k in 0..64, %l in 0..9 { yield %x[%k, %l] }
      parallel %i in 0..64 { store %x[%i, 0] - %s, %y[%i, 0] }""",
    "a result beside the loop": "store 1.0, %y[0, 0] parallel %i in 1..64 { store %x[%i, 0] + %y[0, 0], %y[%i, 0] }",
    "a buffer of the kernel": """
      local %t: f32[64] parallel %i in 0..64 { store %x[%i, 0] * 2.0, %t[%i] }
      parallel %i in 0..64 { store %t[63 - %i], %y[%i, 0] }""",
}


@pytest.mark.parametrize("case", SHARED)
def test_kernels_that_threads_may_run(case: str) -> None:
    check_pass(EAGER, unchanged=kernel(SHARED[case]), machine=MACHINE)


@pytest.mark.parametrize("case", SERIAL)
def test_kernels_that_one_thread_must_run(case: str) -> None:
    text = kernel(SERIAL[case])
    check_pass(EAGER, before=text, after=text.replace("parallel", "for"), machine=MACHINE)


def test_loops_beside_other_statements_stay_serial_inside_a_share() -> None:
    text = kernel("parallel %i in 0..4 { %a = %x[%i, 0] parallel %j in 0..9 { store %a, %y[%i, %j] } }")
    check_pass(EAGER, before=text, after=text.replace("parallel %j", "for %j"), machine=MACHINE)


def open_rows(*kinds: str, like: int, most: int = 4097, more: str = "") -> str:
    """Rows of 64 elements, of 192 operations each."""
    i, j = kinds
    return f"""kernel @k(size n in 2..{most} hint {like}, in %x: f32[n, 64], out %y: f32[n, 64]){more} {{
      {i} %i in 0..n tile 4 {{ {j} %j in 0..64 {{ store %x[%i, %j] + 1.0, %y[%i, %j] }} }}
    }}"""


@pytest.mark.parametrize("like", [8, 400])
def test_threads_share_a_kernel_where_open_sizes_make_it_worthwhile(like: int) -> None:
    check_pass(
        "parallelize{steps-per-thread=1}",
        before=open_rows("parallel", "parallel", like=like),
        after=open_rows(
            "parallel",
            "for",
            like=like,
            more=f" max_chunks n*192//{MACHINE.operations_in(MACHINE.parallel_seconds) // 2}",
        ),
        machine=MACHINE,
        remark=f"parallel from {format_seconds(MACHINE.parallel_seconds)} of work on",
    )


def test_no_size_may_be_large_enough() -> None:
    check_pass(
        "parallelize",
        before=open_rows("parallel", "parallel", like=8, most=300),
        after=open_rows("for", "for", like=8, most=300),
        machine=MACHINE,
    )


def test_or_every_size() -> None:
    check_pass(
        f"parallelize{{min-seconds={MACHINE.operation_seconds(384)}, steps-per-thread=1}}",
        before=open_rows("parallel", "parallel", like=8),
        after=open_rows("parallel", "parallel", like=8, more=" max_chunks n"),
        machine=MACHINE,
    )


def test_inner_loops_are_shared_too_where_few_rows_are_work_enough() -> None:
    """Of 800 rows there are 200 steps, of a grain of 8 rows two."""
    check_pass(
        f"parallelize{{min-seconds={MACHINE.operation_seconds(1536)}}}",
        unchanged=open_rows("parallel", "parallel", like=800, more=" max_chunks n//4"),
        machine=MACHINE,
    )


TILES_AND_REST = """kernel @k(in %x: f32[16, 14], out %y: f32[16, 14]) {{
  {open} {kind} %i in 0..12 tile 4 {{ store %x[%i, %j], %y[%i, %j] }}
  {between} {kind} %i in 12..16 {{ store %x[%i, %j], %y[%i, %j] }} }}
}}"""


@pytest.mark.parametrize(("tile", "is_distributed"), [(" tile 14", True), (" tile 7", False), ("", False)])
def test_one_step_around_tiles_and_a_rest_is_distributed_over_both(tile: str, is_distributed: bool) -> None:
    outer = f"parallel %j in 0..14{tile} {{"
    check_pass(
        EAGER,
        before=TILES_AND_REST.format(open=outer, kind="parallel", between=""),
        after=TILES_AND_REST.format(open=outer, kind="parallel", between=f"}} {outer}")
        if is_distributed
        else TILES_AND_REST.format(open=outer, kind="for", between=""),
        machine=MACHINE,
    )


def test_loops_beside_a_value_of_the_step_stay_in_it() -> None:
    text = """kernel @k(in %x: f32[2, 14], out %y: f32[2, 14]) {{
      parallel %i in 0..2 {{
        %a = %x[%i, 0]
        {kind} %j in 0..12 tile 4 {{ store %a, %y[%i, %j] }}
        {kind} %j in 12..14 {{ store %a, %y[%i, %j] }}
      }} }}"""
    check_pass(EAGER, before=text.format(kind="parallel"), after=text.format(kind="for"), machine=MACHINE)


def test_loops_that_exchange_values_stay_in_one_step() -> None:
    """The buffer holds the slice of one step of a thread."""
    text = """kernel @k(in %x: f32[2, 14], scratch %s: f32[2, 14], out %y: f32[2, 14]) {{
      parallel %i in 0..2 {{
        {kind} %j in 0..14 {{ store %x[%i, %j], %s[%i, %j] }}
        {kind} %j in 0..14 {{ store %s[%i, %j], %y[%i, %j] }}
      }} }}"""
    check_pass(EAGER, before=text.format(kind="parallel"), after=text.format(kind="for"), machine=MACHINE)
