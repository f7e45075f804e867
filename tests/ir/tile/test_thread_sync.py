"""Which kernels threads may run together, and where they must wait for each other."""

from __future__ import annotations

import pytest

from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.thread_sync import barrier_points, is_parallelizable, parallel_phases


def kernel(body: str) -> Kernel:
    return parse_kernel(f"kernel @k(in %x: f32[96], inout %y: f32[96], inout %z: f32[96]) {{ {body} }}")


FIRST = "parallel %i in 0..96 { store %x[%i], %y[%i] }"
SHARED = {
    "one loop": FIRST,
    "two loops": f"{FIRST} parallel %j in 0..96 {{ store %x[%j], %z[%j] }}",
    "a buffer filled by every thread": f"local %t: f32[4] for %k in 0..4 {{ store %x[%k], %t[%k] }} {FIRST}",
    "a reduction by every thread": f"%s = reduce add %k in 0..96 {{ yield %x[%k] }} {FIRST}",
    "a check": f"%n = 3:i64 check %n in 0..4 {FIRST}",
}
ALONE = {
    "no parallel loop": FIRST.replace("parallel", "for"),
    "a parallel loop inside a serial one": "for %i in 0..1 { parallel %j in 0..96 { store %x[%j], %y[%j] } }",
    "a store beside it": f"store 1.0, %z[0] {FIRST}",
    "a serial loop beside it": f"for %j in 0..96 {{ store %x[%j], %z[%j] }} {FIRST}",
    "a value that is overwritten": f"%a = %y[3] {FIRST}",
    "a check at the end": f"{FIRST} %n = 3:i64 check %n in 0..4",
    "a shared loop that fills the buffer": "local %t: f32[96] parallel %i in 0..96 { store %x[%i], %t[%i] }",
}


@pytest.mark.parametrize("case", SHARED)
def test_kernels_for_a_team(case: str) -> None:
    assert is_parallelizable(kernel(SHARED[case]))


@pytest.mark.parametrize("case", ALONE)
def test_kernels_for_one_thread(case: str) -> None:
    assert not is_parallelizable(kernel(ALONE[case]))


MEETINGS = {
    "nothing in common": (f"{FIRST} parallel %j in 0..96 {{ store %x[%j], %z[%j] }}", set()),
    "read after write": (f"{FIRST} parallel %j in 0..96 {{ store %y[95 - %j], %z[%j] }}", {1}),
    "write after read": (
        "parallel %i in 0..96 { store %z[%i], %y[%i] } parallel %j in 0..96 { store %x[%j], %z[95 - %j] }",
        {1},
    ),
    "write after write": (f"{FIRST} parallel %j in 0..96 {{ store 1.0, %y[95 - %j] }}", {1}),
    "peeled parts": (
        "parallel %i in 0..80 tile 8 { store %x[%i], %y[%i] } parallel %i in 80..96 tile 16 { store %y[%i], %y[%i] }",
        set(),
    ),
    "parts of blocks": (
        """parallel %b in 0..2 { for %i in %b*40..%b*40 + 40 { store %x[%i], %y[%i] } }
           parallel %i in 80..96 { store %x[%i], %y[%i] }""",
        set(),
    ),
    "a copy under way across a barrier": (
        f"""local %t: f32[8] copy_async %z[0] -> %t[0] size 8
            {FIRST} parallel %j in 0..96 {{ store %y[95 - %j], %y[%j] }} parallel %l in 90..96 {{ store 1.0, %z[%l] }}""",
        {3, 4},
    ),
    "parts that touch": (
        """parallel %b in 0..2 { for %i in %b*41..%b*41 + 41 { store %x[%i], %y[%i] } }
           parallel %i in 81..96 { store %x[%i], %y[%i] }""",
        {1},
    ),
    "a value that is overwritten": (f"%a = %y[3] {FIRST}", {1}),
    "each pair once": (
        f"{FIRST} {FIRST.replace('i', 'j').replace('jn', 'in')} parallel %k in 0..96 {{ store %y[%k], %z[%k] }}",
        {1, 2},
    ),
    "only the last": (
        f"{FIRST} parallel %j in 0..96 {{ store %x[%j], %z[%j] }} parallel %k in 0..96 {{ store %y[95 - %k], %z[%k] }}",
        {2},
    ),
}


@pytest.mark.parametrize("case", MEETINGS)
def test_threads_meet_where_the_order_matters(case: str) -> None:
    body, expected = MEETINGS[case]
    assert barrier_points(kernel(body)) == expected


def loop(name: str, load: str, store: str) -> str:
    return f"parallel %{name} in 0..96 {{ store {load}, {store} }}"


TABLE = "local %t: f32[4] for %k in 0..4 { store %x[%k], %t[%k] }"
PHASES = {
    "one phase": (f"{loop('i', '%x[%i]', '%y[%i]')} {loop('j', '%x[%j]', '%z[%j]')}", ["parallel parallel"]),
    "a phase for each step": (
        f"{loop('i', '%x[%i]', '%y[%i]')} {loop('j', '%y[95 - %j]', '%z[%j]')}",
        ["parallel", "parallel"],
    ),
    "a table that both phases read": (
        f"{TABLE} {loop('i', '%x[%i] + %t[0]', '%y[%i]')} {loop('j', '%y[95 - %j] + %t[1]', '%z[%j]')}",
        ["local for parallel", "local for parallel"],
    ),
    "a value that only the second phase reads": (
        f"%a = %x[3] {loop('i', '%x[%i]', '%y[%i]')} {loop('j', '%y[95 - %j] + %a', '%z[%j]')}",
        ["parallel", "let parallel"],
    ),
    "a sum of what the first phase stored": (
        f"{loop('i', '%x[%i]', '%y[%i]')} %s = reduce add %k in 0..96 {{ yield %y[%k] }} {loop('j', '%s', '%z[%j]')}",
        ["parallel", "reduce parallel"],
    ),
    "a check runs once": (
        f"%n = 3:i64 check %n in 0..4 {loop('i', '%x[%i]', '%y[%i]')} {loop('j', '%y[95 - %j]', '%z[%j]')}",
        ["let boundscheck parallel", "parallel"],
    ),
}


@pytest.mark.parametrize("case", PHASES)
def test_phases_hold_the_statements_that_they_need(case: str) -> None:
    body, expected = PHASES[case]
    phases = parallel_phases(kernel(body))
    kinds = [["parallel" if getattr(s, "parallel", False) else type(s).__name__.lower() for s in p] for p in phases]
    assert [" ".join(k) for k in kinds] == expected
