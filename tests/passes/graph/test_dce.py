"""DCE: fused nodes lose the results and operands nobody needs."""

from __future__ import annotations

from compiler.testing.checks import check_pass


def test_an_unread_result_goes_with_its_operand() -> None:
    check_pass(
        "dce",
        before="""graph(%x: f32[4], %z: f32[4]) {
            %f = fused %x, %z {body=graph(%a: f32[4], %b: f32[4]) { %e = exp %a  %n = neg %b  return %e, %n }}
            %y = tuple_get %f {index=0}
            return %y
        }""",
        after="""graph(%x: f32[4], %z: f32[4]) {
            %y = fused %x {body=graph(%a: f32[4]) { %e = exp %a  return %e }}
            return %y
        }""",
    )


def test_remaining_results_are_numbered_again() -> None:
    check_pass(
        "dce",
        before="""graph(%x: f32[4]) {
            %f = fused %x {body=graph(%a: f32[4]) { %e = exp %a  %n = neg %a  %t = tanh %a  return %e, %n, %t }}
            %y = tuple_get %f {index=1}
            %z = tuple_get %f {index=2}
            return %y, %z
        }""",
        after="""graph(%x: f32[4]) {
            %f = fused %x {body=graph(%a: f32[4]) { %n = neg %a  %t = tanh %a  return %n, %t }}
            %y = tuple_get %f {index=0}
            %z = tuple_get %f {index=1}
            return %y, %z
        }""",
    )


def test_what_is_read_stays() -> None:
    check_pass("dce", unchanged="graph(%x: f32[4], %z: f32[4]) { %y = exp %x  return %y }")


def test_sequences_that_nobody_reads_are_not_made() -> None:
    """The states stay, and a sequence that counts the steps."""
    check_pass(
        "dce",
        before="""graph(%x: f32[5, 4], %z: f32[5, 4], %h: f32[4], %w: f32[4]) {
            %r = recurrence %x, %z, %h, %w {num_scanned=2, body=graph(%a: f32[4], %b: f32[4], %s: f32[4], %v: f32[4]) {
                %e = add %s, %a  %n = mul %b, %v  %t = tanh %e  return %e, %n, %t
            }}
            %y = tuple_get %r {index=2}
            return %y
        }""",
        after="""graph(%x: f32[5, 4], %z: f32[5, 4], %h: f32[4], %w: f32[4]) {
            %r = recurrence %x, %h {body=graph(%a: f32[4], %s: f32[4]) { %e = add %s, %a  %t = tanh %e  return %e, %t }}
            %y = tuple_get %r {index=1}
            return %y
        }""",
    )
    check_pass(
        "dce",
        before="""graph(%x: f32[5, 4], %z: f32[5, 4], %h: f32[4]) {
            %r = recurrence %x, %z, %h {num_scanned=2, body=graph(%a: f32[4], %b: f32[4], %s: f32[4]) {
                %e = exp %s  %n = neg %b  return %e, %n
            }}
            %y = tuple_get %r {index=0}
            return %y
        }""",
        after="""graph(%x: f32[5, 4], %z: f32[5, 4], %h: f32[4]) {
            %y = recurrence %x, %h {body=graph(%a: f32[4], %s: f32[4]) { %e = exp %s  return %e }}
            return %y
        }""",
    )
