"""split: a kernel for every outermost parallel loop."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def program(kernels: str, steps: str) -> str:
    return f"""program {{ input %a: f32[4]  output %b: f32[4]  output %c: f32[4]
      {kernels}
      {steps} }}"""


FIRST, SECOND = (
    "parallel %i in 0..4 { store %x[%i] + 1.0, %y[%i] }",
    "parallel %j in 0..4 { store -%x[%j], %z[%j] }",
)
WHOLE = f"kernel @k(in %x: f32[4], out %y: f32[4], out %z: f32[4]) {{ {FIRST} {SECOND} }}"


def test_each_loop_has_a_kernel_and_the_buffers_it_uses() -> None:
    check_pass(
        "split-kernels",
        before=program(WHOLE, 'launch @k(%a, %b, %c) for "n"'),
        after=program(
            f"""kernel @k_part0(in %x: f32[4], out %y: f32[4]) {{ {FIRST} }}
                kernel @k_part1(in %x: f32[4], out %z: f32[4]) {{ {SECOND} }}""",
            'launch @k_part0(%a, %b) for "n"  launch @k_part1(%a, %c) for "n"',
        ),
    )


def test_every_launch_is_divided_and_other_steps_stay() -> None:
    check_pass(
        "split-kernels",
        before=f"""program {{ input %a: f32[4]  output %b: f32[4]  output %c: f32[4]  output %d: f32[4]
          {WHOLE} launch @k(%a, %b, %c)  copy %b -> %d  launch @k(%d, %b, %c) }}""",
        after=f"""program {{ input %a: f32[4]  output %b: f32[4]  output %c: f32[4]  output %d: f32[4]
          kernel @k_part0(in %x: f32[4], out %y: f32[4]) {{ {FIRST} }}
          kernel @k_part1(in %x: f32[4], out %z: f32[4]) {{ {SECOND} }}
          launch @k_part0(%a, %b)  launch @k_part1(%a, %c)  copy %b -> %d
          launch @k_part0(%d, %b)  launch @k_part1(%d, %c) }}""",
    )


def test_a_later_loop_may_read_what_an_earlier_one_wrote() -> None:
    check_pass(
        "split-kernels",
        before=program(
            f"kernel @k(in %x: f32[4], out %y: f32[4], out %z: f32[4]) {{ {FIRST} {SECOND.replace('%x', '%y')} }}",
            "launch @k(%a, %b, %c)",
        ),
        after=program(
            f"""kernel @k_part0(in %x: f32[4], out %y: f32[4]) {{ {FIRST} }}
                kernel @k_part1(in %y: f32[4], out %z: f32[4]) {{ {SECOND.replace("%x", "%y")} }}""",
            "launch @k_part0(%a, %b)  launch @k_part1(%b, %c)",
        ),
    )


STAY = {
    "one loop": f"kernel @k(in %x: f32[4], out %y: f32[4], out %z: f32[4]) {{ {FIRST[:-1]} store -%x[%i], %z[%i] }} }}",
    "a value that was written": f"kernel @k(in %x: f32[4], out %y: f32[4], out %z: f32[4]) {{ {FIRST} %v = %y[0] {SECOND.replace('-%x', '%v * %x')} }}",
    "serial loops": WHOLE.replace("parallel", "for"),
    "a shared buffer": f"""kernel @k(in %x: f32[4], out %y: f32[4], out %z: f32[4]) {{
        local %t: f32[1] store %x[0], %t[0] {FIRST} {SECOND} }}""",
}


@pytest.mark.parametrize("case", STAY)
def test_kernels_that_stay_whole(case: str) -> None:
    check_pass("split-kernels", unchanged=program(STAY[case], "launch @k(%a, %b, %c)"))


def test_a_serial_loop_does_not_run_in_every_program_of_a_parallel_one() -> None:
    serial = SECOND.replace("parallel", "for")
    check_pass(
        "split-kernels",
        before=program(WHOLE.replace(SECOND, serial), "launch @k(%a, %b, %c)"),
        after=program(
            f"""kernel @k_part0(in %x: f32[4], out %y: f32[4]) {{ {FIRST} }}
                kernel @k_part1(in %x: f32[4], out %z: f32[4]) {{ {serial} }}""",
            "launch @k_part0(%a, %b)  launch @k_part1(%a, %c)",
        ),
    )


BOUND = """kernel @k(in %x: f32[4], in %n: i64[], out %y: f32[4], out %z: f32[4]) {
  %a = %n[]
  parallel %i in 0..4 { store %x[%i] + 1.0, %y[%i] }
  %c = %a + 1
  check %c in 0..4
  for %j in 0..4 { store %x[%c], %z[%j] }
}"""
STEPS = """program {{ input %a: f32[4]  input %m: i64[]  output %b: f32[4]  output %c: f32[4]
  {kernels} {launches} }}"""


def test_each_kernel_computes_the_values_that_it_uses() -> None:
    check_pass(
        "split-kernels",
        before=STEPS.format(kernels=BOUND, launches="launch @k(%a, %m, %b, %c)"),
        after=STEPS.format(
            kernels="""kernel @k_part0(in %x: f32[4], out %y: f32[4]) { parallel %i in 0..4 { store %x[%i] + 1.0, %y[%i] } }
              kernel @k_part1(in %x: f32[4], in %n: i64[], out %z: f32[4]) {
                %a = %n[]
                %c = %a + 1
                check %c in 0..4
                for %j in 0..4 { store %x[%c], %z[%j] }
              }""",
            launches="launch @k_part0(%a, %b) launch @k_part1(%a, %m, %c)",
        ),
    )


def test_a_store_beside_loops_has_a_kernel_and_reductions_go_with_their_uses() -> None:
    total, end = "%s = reduce add %r in 0..4 { yield %x[%r] }", "store %s, %z[0]"
    check_pass(
        "split-kernels",
        before=program(
            f"kernel @k(in %x: f32[4], out %y: f32[4], out %z: f32[4]) {{ {total} {FIRST} {end} }}",
            "launch @k(%a, %b, %c)",
        ),
        after=program(
            f"""kernel @k_part0(in %x: f32[4], out %y: f32[4]) {{ {FIRST} }}
                kernel @k_part1(in %x: f32[4], out %z: f32[4]) {{ {total} {end} }}""",
            "launch @k_part0(%a, %b)  launch @k_part1(%a, %c)",
        ),
    )
