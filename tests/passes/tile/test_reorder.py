"""reorder: the loops around a contraction."""

from __future__ import annotations

from compiler.perf.machine import Machine
from compiler.testing import check_pass


def matmul(
    loops: tuple[str, ...], role: str = "const", body: str = "%x[%i, %k] * %w[%j, %k]", kind: str = "parallel"
) -> str:
    heads = " ".join(f"{kind} {loop} {{" for loop in loops)
    return f"""kernel @k(in %x: f32[32, 2], {role} %w: f32[3, 2], out %y: f32[32, 3]) {{
      {heads} %s = reduce add %k in 0..2 {{ yield {body} }} store %s, %y[%i, %j] {"}" * len(loops)}
    }}"""


ROWS, COLUMNS = "%i in 0..32", "%j in 0..3"


def test_rows_that_fit_in_cache_go_inside() -> None:
    check_pass(
        "reorder",
        before=matmul((ROWS, COLUMNS)),
        after=matmul((COLUMNS, ROWS)),
        remark="%w is read once for every block of rows",
    )
    check_pass("reorder", unchanged=matmul((COLUMNS, ROWS)))


def test_more_rows_go_inside_in_blocks() -> None:
    inner = "%i in %i.block*16..%i.block*16 + 16"
    small = Machine(l2=2 * 16 * 2 * 4)
    check_pass(
        "reorder",
        before=matmul((ROWS, COLUMNS)),
        after=matmul(("%i.block in 0..2", COLUMNS, inner)),
        machine=small,
        idempotent=False,
    )


def test_rows_that_fit_in_no_block_go_inside_whole() -> None:
    check_pass("reorder", before=matmul((ROWS, COLUMNS)), after=matmul((COLUMNS, ROWS)), machine=Machine(l2=16))


def test_without_a_constant_the_operand_of_the_inner_loop_counts() -> None:
    check_pass("reorder", before=matmul((ROWS, COLUMNS), "in"), after=matmul((COLUMNS, ROWS), "in"), idempotent=False)


def test_serial_loops_and_other_reductions_stay() -> None:
    check_pass("reorder", unchanged=matmul((ROWS, COLUMNS), kind="for"))
    check_pass("reorder", unchanged=matmul((ROWS, COLUMNS), body="max(%x[%i, %k], %w[%j, %k])"))
