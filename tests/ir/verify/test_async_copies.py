"""Asynchronous copies: what is legal while one is under way, and that a legal program cannot see when it happens."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.manager import run_pipeline

Arrays = dict[str, np.ndarray]


def kernel(body: str) -> Kernel:
    return parse_kernel(
        f"kernel @k(in %x: f32[16, 8], out %y: f32[16, 8], inout %z: f32[16, 8], in %n: i64[4]) {{ {body} }}"
    )


def results(k: Kernel) -> Arrays:
    """What `k` makes of random arrays."""
    values = np.random.default_rng(0)
    arrays = {name: values.random((16, 8), np.float32) for name in "xyz"}
    run_kernel(k, {**arrays, "n": np.arange(4)})
    return arrays


def assert_same(a: Arrays, b: Arrays) -> None:
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


COMPUTE = "for %j in 0..8 { store exp(%s[%k%2, %j]), %y[%k, %j] }"
DOUBLE = f"""
    local %s: f32[2, 8] in shared
    copy_async %x[0, 0] -> %s[0, 0] size 8
    for %k in 0..15 {{
      copy_async %x[%k + 1, 0] -> %s[(%k + 1)%2, 0] size 8
      wait %s pending 1
      {COMPUTE}
    }}
    wait %s
    for %j in 0..8 {{ store exp(%s[1, %j]), %y[15, %j] }}"""
ONE = "local %s: f32[2, 8] copy_async %x[0, 0] -> %s[0, 0] size 2, 8"

LEGAL = {
    "double buffering": DOUBLE,
    "three stages": """
        local %s: f32[3, 8] in shared
        copy_async %x[0, 0] -> %s[0, 0] size 8
        copy_async %x[1, 0] -> %s[1, 0] size 8
        for %k in 0..14 {
          copy_async %x[%k + 2, 0] -> %s[(%k + 2)%3, 0] size 8
          wait %s pending 2
          for %j in 0..8 { store exp(%s[%k%3, %j]), %y[%k, %j] }
        }
        wait %s""",
    "results on their way out": """
        local %s: f32[2, 8]
        for %k in 0..2 { for %j in 0..8 { store %x[%k, %j], %s[%k, %j] } copy_async %s[%k, 0] -> %y[%k, 0] size 8 wait %y }
        for %k in 2..16 {
          for %j in 0..8 { store %x[%k, %j], %s[%k%2, %j] }
          copy_async %s[%k%2, 0] -> %y[%k, 0] size 8
          wait %y
        }""",
    "inside parallel iterations": """
        parallel %k in 0..16 {
          local %s: f32[2, 8]
          copy_async %x[%k, 0] -> %s[1, 0] size 8
          for %j in 0..8 { store %x[%k, %j], %s[0, %j] }
          wait %s
          for %j in 0..8 { store %s[0, %j] + %s[1, %j], %y[%k, %j] }
        }""",
    "blocks of a reduction": """
        local %s: f32[1, 8]
        %t = reduce add %k in 0..16 {
          copy_async %x[%k, 0] -> %s[0, 0] size 8
          wait %s
          %u = reduce add %j in 0..8 { yield %s[0, %j] }
          yield %u
        }
        store %t, %y[0, 0]""",
    "a nested loop that hands on": """
        local %s: f32[2, 8]
        copy_async %x[0, 0] -> %s[0, 0] size 8
        for %a in 0..3 {
          for %k in %a*5..%a*5 + 5 {
            copy_async %x[%k + 1, 0] -> %s[(%k + 1)%2, 0] size 8
            wait %s pending 1
            for %j in 0..8 { store exp(%s[%k%2, %j]), %y[%k, %j] }
          }
        }
        wait %s""",
    "from a table": "%r = %n[2] check %r in 0..16 copy_async %x[%r, 0] -> %z[%r, 0] size 8 wait %z",
    "a copy that other loops pass by": f"{ONE} for %k in 0..16 {{ store %x[%k, 0], %y[%k, 0] }} wait %s",
    "a wait for nothing": "wait %z",
}  # fmt: skip

ILLEGAL = {
    "read before the wait": (f"{ONE} store %s[1, 3], %y[0, 0] wait %s", r"%s\[1, 3\] is read while %x\[0, 0\] -> %s\[0, 0\] is under way"),
    "read in the value of a reduction": (
        f"{ONE} %t = reduce add %j in 0..8 {{ yield %s[0, %j] }} wait %s", r"%s\[0, j\] is read while",
    ),
    "source written under way": ("copy_async %z[0, 0] -> %y[0, 0] size 2, 8 store 1.0, %z[1, 0] wait %y", r"%z\[1, 0\] is written while"),
    "destination written under way": ("copy_async %z[0, 0] -> %y[0, 0] size 2, 8 store 1.0, %y[1, 0] wait %y", r"%y\[1, 0\] is written while"),
    "two copies to one place": (f"{ONE} copy_async %x[2, 0] -> %s[1, 4] size 4 wait %s", r"%s\[1, 4\] is written while"),
    "a copy of what is copied": (f"{ONE} copy_async %s[0, 0] -> %y[0, 0] size 8 wait %s wait %y", r"%s\[0, 0\] is read while"),
    "onto itself": ("copy_async %z[0, 0] -> %z[1, 0] size 2, 8 wait %z", r"%z\[1, 0\] is written while"),
    "no wait in the block of the destination": (ONE, "%s ends while"),
    "no wait in the block of the source": (
        "for %i in 0..1 { local %s: f32[8] store 1.0, %s[0] copy_async %s[0] -> %y[0, 0] size 8 } wait %y", "%s ends while",
    ),
    "no wait at all": ("copy_async %x[0, 0] -> %y[0, 0] size 8", "%y has copies under way at the end of the kernel"),
    "a wait for too few": (f"{ONE} wait %s pending 1", "%s ends while"),
    "iterations that pile up": (DOUBLE.replace("pending 1", "pending 2"), "iterations of %k begin with 1 copies into %s under way and leave 2"),
    "iterations that find another copy": (DOUBLE.replace("[0, 0] size", "[1, 0] size", 1), "under way before %k are not those that its iterations leave"),
    "one slot": (DOUBLE.replace("f32[2, 8]", "f32[3, 8]").replace("(%k + 1)%2", "0"), r"%s\[0, 0\] is written while"),
    "the slot that is under way": (DOUBLE.replace("%s[%k%2", "%s[(%k + 1)%2"), r"is read while %x\[k \+ 1, 0\]"),
    "a slot that may be under way": (
        "local %s: f32[2, 8] for %k in 0..4 { copy_async %x[%k, 0] -> %s[%k%2, 0] size 8 store %s[0, 0], %y[%k, 0] wait %s }",
        r"%s\[0, 0\] is read while",
    ),
    "the last one is not complete": (DOUBLE.replace("wait %s\n", ""), r"%s\[1, j\] is read while"),
    "carried by a value of the body": (
        "copy_async %x[0, 0] -> %y[0, 0] size 8 for %k in 0..2 { %r = %n[%k] copy_async %x[%r, 0] -> %y[%k + 1, 0] size 8 wait %y pending 1 } wait %y",
        "%r ends while a copy into %y that depends on it",
    ),
    "carried into parallel iterations": (
        "copy_async %x[0, 0] -> %y[0, 0] size 8 parallel %k in 1..4 { copy_async %x[%k, 0] -> %y[%k, 0] size 8 wait %y pending 1 } wait %y",
        "%y has copies under way before parallel %k",
    ),
    "parallel copies to one place": ("parallel %k in 0..4 { copy_async %x[%k, 0] -> %y[0, 0] size 8 wait %y }", "must depend on %k"),
    "past the end": ("copy_async %x[0, 0] -> %y[15, 0] size 2, 8 wait %y", r"%y: index 0, 16, ranges over 16..16, but the extent is 16"),
    "past the end in a loop": ("for %k in 0..16 { copy_async %x[%k, 0] -> %y[%k, 0] size 2, 8 wait %y }", "%x: index 0, k [+] 1, ranges over 1..16"),
    "before the start": ("copy_async %x[0, 0] -> %y[0, -1] size 8 wait %y", "ranges over -1..-1"),
    "no elements": ("copy_async %x[0, 0] -> %y[0, 0] size 0 wait %y", "size 0 is not positive"),
    "more sizes than dimensions": ("copy_async %x[0, 0] -> %y[0, 0] size 1, 2, 8 wait %y", "3 sizes for boxes of 2 dimensions"),
    "another rank": ("copy_async %x[0] -> %y[0, 0] size 8 wait %y", r"%x: f32\[16, 8\] is indexed with 1 indices"),
    "another dtype": ("copy_async %n[0] -> %y[0, 0] size 4 wait %y", "%y has dtype f32, but the stored value has i64"),
    "to a parameter that is read": ("copy_async %z[0, 0] -> %x[0, 0] size 8 wait %x", "%x is an in parameter"),
    "to a parameter in a reduction": (
        "%t = reduce add %k in 0..4 { copy_async %x[%k, 0] -> %y[%k, 0] size 8 wait %y yield 1.0:f32 } store %t, %z[0, 0]", "only local buffers",
    ),
    "in a tiled loop": ("for %k in 0..16 tile 4 { copy_async %x[%k, 0] -> %y[%k, 0] size 8 wait %y }", "inside the tiled loop over %k"),
    "at what is no integer": ("%a = %x[0, 0] copy_async %x[%a, 0] -> %y[0, 0] size 8 wait %y", "%a is f32"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEGAL)
def test_legal_programs_do_not_see_when_copies_happen(case: str) -> None:
    k = kernel(LEGAL[case])
    verify_kernel(k)
    assert parse_kernel(print_kernel(k)) == k
    lowered = run_pipeline(k, "lower-async-copies")
    verify_kernel(lowered)
    assert "copy_async" not in print_kernel(lowered)
    assert "wait" not in print_kernel(lowered)
    assert_same(results(k), results(lowered))


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_programs_are_refused(case: str) -> None:
    body, message = ILLEGAL[case]
    with pytest.raises(VerifyError, match=message):
        verify_kernel(kernel(body))


@pytest.mark.parametrize(
    "case", ["read before the wait", "destination written under way", "source written under way", "no wait at all"]
)
def test_the_interpreter_shows_mistakes(case: str) -> None:
    k = kernel(ILLEGAL[case][0])
    late, early = results(k), results(run_pipeline(k, "lower-async-copies"))
    assert any(not np.array_equal(late[name], early[name]) for name in late)


def test_the_interpreter_refuses_what_it_cannot_copy() -> None:
    for body in (
        "%r = %n[3] copy_async %x[%r*6, 0] -> %y[0, 0] size 8",
        "for %k in 0..2 tile 2 { copy_async %x[0, 0] -> %y[0, 0] size 8 }",
    ):
        with pytest.raises(VerifyError, match=r"exceed the extent 16|inside a tiled loop"):
            results(kernel(body))


def random_body(choose: random.Random, loops: tuple[str, ...], depth: int) -> Iterator[str]:
    """Statements that copy, store, load and wait, of which a part is legal."""

    def row() -> str:
        v = choose.choice(loops) if loops else "0"
        return choose.choice(["0", "1", "2", "3", f"{v}%2", f"({v} + 1)%2", f"{v} + 1", f"{v} + 2", v])

    def element() -> str:
        return f"{choose.choice(['%s', '%z', '%y'])}[{row()}, {choose.randrange(8)}]"

    for _ in range(choose.randint(2, 5)):
        kind = choose.randrange(10)
        if kind < 2:
            source, target = choose.choice(["%x", "%z", "%s"]), choose.choice(["%s", "%y", "%z"])
            column, width = choose.choice([(0, 8), (0, 4), (4, 4)])
            yield f"copy_async {source}[{row()}, 0] -> {target}[{row()}, {column}] size {width}"
        elif kind < 5:
            yield f"wait {choose.choice(['%s', '%s', '%y', '%z'])}{choose.choice(['', '', ' pending 1'])}"
        elif kind < 7 or not depth:
            yield f"store {element()} + %x[{row()}, 1], {element()}"
        else:
            v = f"%i{depth}"
            yield f"for {v} in 0..{choose.randint(1, 4)} {{ {' '.join(random_body(choose, (*loops, v), depth - 1))} }}"


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_random_legal_programs_do_not_see_when_copies_happen(first: int) -> None:
    """Whatever the verifier accepts gives the same bits with late copies, which poison their destination, and with loops."""
    accepted = 0
    for seed in range(first, first + 60):
        body = " ".join(random_body(random.Random(seed), (), 2))
        k = kernel(f"local %s: f32[6, 8] {body} wait %s wait %y wait %z")
        try:
            verify_kernel(k)
        except VerifyError:
            continue
        accepted += "copy_async" in body
        assert_same(results(k), results(run_pipeline(k, "lower-async-copies")))
    assert accepted >= 5, accepted


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_pipeline_needs_a_slot_for_each_copy_under_way(stages: int) -> None:
    """With `stages` copies ahead, all other waits and smaller buffers are refused."""
    for slots in (1, 2, 3, 4):
        for pending in (0, 1, 2, 3):
            prologue = " ".join(f"copy_async %x[{k}, 0] -> %s[{k % slots}, 0] size 8" for k in range(stages))
            k = kernel(f"""local %s: f32[{slots}, 8] {prologue} for %k in 0..12 {{
                copy_async %x[%k + {stages}, 0] -> %s[(%k + {stages})%{slots}, 0] size 8
                wait %s pending {pending}
                for %j in 0..8 {{ store -%s[%k%{slots}, %j], %y[%k, %j] }} }} wait %s""")
            if pending == stages < slots:
                verify_kernel(k)
                assert_same(results(k), results(run_pipeline(k, "lower-async-copies")))
            else:
                with pytest.raises(VerifyError):
                    verify_kernel(k)
