"""nontemporal-stores: large results written past the cache."""

from __future__ import annotations

import re

import pytest

from compiler.cost.machine import Machine
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.text.tile_printer import print_kernel
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass

TEXT = """kernel @k(in %x: f32[8, 8], out %y: f32[8, 8], out %z: f32[8], inout %u: f32[8, 8], out %t: f32[8, 8]) {
  for %i in 0..8 {
    for %j in 0..8 { store %x[%i, %j], %y[%i, %j] store %x[%i, %j], %u[%i, %j] store %x[%i, %j], %t[%i, %j] }
    store %t[%i, 0], %z[%i]
  }
}"""


def test_only_large_results_that_nothing_reads() -> None:
    small = Machine(l3=4 * 255)
    check_pass(
        "nontemporal-stores",
        before=TEXT,
        after=TEXT.replace("%y[%i, %j]", "%y[%i, %j] nontemporal"),
        machine=small,
        remark="%y stored non-temporally",
    )
    check_pass("nontemporal-stores", unchanged=TEXT, machine=Machine(l3=4 * 256))


@pytest.mark.parametrize(
    ("sizes", "nontemporal"),
    [
        ("1..4097 hint 600", " nontemporal if n*4 >= 2000"),  # each call knows
        ("501..4097 hint 600", " nontemporal"),  # always
        ("1..4097 hint 499", ""),  # seldom
    ],
)
def test_results_of_open_size(sizes: str, nontemporal: str) -> None:
    text = """kernel @k(size n in SIZES, in %x: f32[n], out %y: f32[n]) {
      for %i in 0..n { store %x[%i], %y[%i]STREAM }
    }""".replace("SIZES", sizes)
    before, after = text.replace("STREAM", ""), text.replace("STREAM", nontemporal)
    small = Machine(l3=8000)
    if nontemporal:
        check_pass("nontemporal-stores", before=before, after=after, machine=small)
    else:
        check_pass("nontemporal-stores", unchanged=before, machine=small)


def columns(count: int, step: int, dtype: str = "f32") -> str:
    """Return a kernel that stores `count` columns, `step` elements of each in an iteration."""
    stores = "\n".join(f"store %x[%i], %y[%i, {k}]" for k in range(count))
    return f"""kernel @k(in %x: {dtype}[1024], out %y: {dtype}[1024, {count}]{{1, 0}}) {{
      for %i in 0..1024 tile {step} lanes 8 {{ {stores} }}
    }}"""


@pytest.mark.parametrize(
    ("text", "nontemporal"),
    [
        (columns(4, 8), True),  # four buffers combine the halves of four lines
        (columns(5, 8), False),
        (columns(5, 16), True),  # whole lines
        (columns(5, 16, "bf16"), False),
        (columns(5, 32, "bf16"), True),
    ],
)
def test_only_few_lines_filled_part_by_part(text: str, nontemporal: bool) -> None:
    small = Machine(l3=4000)
    if nontemporal:
        after = re.sub(r"(%y\[%i, \d\])", r"\1 nontemporal", text)
        check_pass("nontemporal-stores", before=text, after=after, machine=small)
    else:
        check_pass("nontemporal-stores", unchanged=text, machine=small, remark="more than 4 lines")


def test_lines_of_a_tile_and_between_iterations() -> None:
    rows = """kernel @k(in %x: f32[64, 64], out %y: f32[64, 64]) {
      for %i in 0..64 tile 6 { for %j in 0..64 tile 8 lanes 8 { store %x[%i, %j], %y[%i, %j] } }
    }"""
    check_pass("nontemporal-stores", unchanged=rows, machine=Machine(l3=4000))  # six rows of half a line

    planes = """kernel @k(in %x: f32[64, 8, 8], out %y: f32[64, 8, 8]LAYOUT) {
      for %i in 0..64 { for %j in 0..8 { for %c in 0..8 tile 8 lanes 8 { store %x[%i, %j, %c], %y[%i, %j, %c] } } }
    }"""
    dense, strided = planes.replace("LAYOUT", ""), planes.replace("LAYOUT", "{1, 0, 2}")
    after = dense.replace("%y[%i, %j, %c]", "%y[%i, %j, %c] nontemporal")
    check_pass("nontemporal-stores", before=dense, after=after, machine=Machine(l3=4000))
    check_pass("nontemporal-stores", unchanged=strided, machine=Machine(l3=4000))  # eight until %i goes on


def test_lines_of_all_results_are_open_together() -> None:
    text = columns(4, 8).replace("out %y", "out %z: f32[1024], out %y")
    text = text.replace("store %x[%i], %y[%i, 0]", "store %x[%i], %z[%i]  store %x[%i], %y[%i, 0]")
    check_pass("nontemporal-stores", unchanged=text, machine=Machine(l3=4000), remark="%z: more than 4 lines")


def test_another_result_of_whole_lines_bypasses_the_caches() -> None:
    text = (
        columns(5, 16).replace("out %y: f32", "out %z: f32[1024], out %y: bf16").replace("%x[%i]", "cast<bf16>(%x[%i])")
    )
    text = text.replace(", %y[%i, 0]", ", %y[%i, 0]  store %x[%i], %z[%i]")
    after = text.replace("%z[%i]", "%z[%i] nontemporal")
    check_pass("nontemporal-stores", before=text, after=after, machine=Machine(l3=4000), remark="%y: more than 4 lines")


PROGRAM = """program {{ input %x: f32[1024] buffer %t: f32[1024] output %y: f32[1024] output %z: f32[1024]
  kernel @k(in %a: f32[1024], out %b: f32[1024]) {{ for %i in 0..1024 {{ store exp(%a[%i]), %b[%i] }} }}
  kernel @l(in %a: f32[1024], out %b: f32[1024]) {{ for %i in 0..1024 {{ store %a[%i] + 1.0, %b[%i] }} }}
  launch @k(%x, %t)  launch @l(%t, %y)  {rest} }}"""


@pytest.mark.parametrize(
    ("rest", "l3", "streamed"),
    [
        ("launch @k(%x, %z)", 12288, {"k"}),  # one of its launches writes a result
        ("", 8192, {"k"}),  # %x and %t fill the cache; the result overwrites %t
        ("", 12288, set()),
        ("launch @m(%t, %z)", 12288, {"l", "m"}),  # the results cannot overwrite what is read later
    ],
)
def test_what_another_kernel_reads_stays_in_cache(rest: str, l3: int, streamed: set[str]) -> None:
    third = "kernel @m(in %a: f32[1024], out %b: f32[1024]) {{ for %i in 0..1024 {{ store %a[1023 - %i], %b[%i] }} }}"
    text = PROGRAM.replace("launch @k(%x, %t)", f"{third} launch @k(%x, %t)") if "@m" in rest else PROGRAM
    program = parse_program(text.format(rest=rest))
    after = run_pipeline(program, "nontemporal-stores", Context(machine=Machine(l3=l3)))
    assert {n for n, k in after.kernels.items() if "nontemporal" in print_kernel(k)} == streamed


@pytest.mark.parametrize(("l3", "is_streamed"), [(10240, False), (10232, True)])
def test_results_stay_in_cache_with_all_that_a_call_touches(l3: int, is_streamed: bool) -> None:
    """Here 5120 bytes: a copy of a quarter of the cache would touch half of it."""
    program = parse_program("""program { input %x: f32[256] output %y: f32[1024]
      kernel @repeat(in %a: f32[256], out %b: f32[1024]) { for %i in 0..4 { for %j in 0..256 { store %a[%j], %b[%i*256 + %j] } } }
      launch @repeat(%x, %y) }""")
    after = run_pipeline(program, "nontemporal-stores", Context(machine=Machine(l3=l3)))
    assert ("nontemporal" in print_kernel(after.kernels["repeat"])) == is_streamed
