"""transpose-scans: lanes are rows of a scan."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

CUMSUM = """kernel @k(in %x: f32[64, 40], out %y: f32[64, 40]) {
  parallel %i in 0..64 {
    local %c: f32[]
    store 0.0, %c[]
    for %k in 0..40 {
      %s = %c[] + %x[%i, %k]
      store %s, %c[]
      store %s, %y[%i, %k]
    }
  }
}"""


def block(names: tuple[str, str, str, str, str, str], extent: int, start: str) -> str:
    u, v, s, k, a, b = names
    return f"""local {u}: f32[{extent}]
      for {a} in 0..{extent} {{ store %x[%i, {start.format(a)}], {u}[{a}] }}
      local {v}: f32[{extent}]
      for {k} in 0..{extent} {{
        {s} = %c[] + {u}[{k}]
        store {s}, %c[]
        store {s}, {v}[{k}]
      }}
      for {b} in 0..{extent} {{ store {v}[{b}], %y[%i, {start.format(b)}] }}"""


def test_elements_are_read_and_written_in_blocks() -> None:
    full = block(("%u", "%v", "%s", "%k", "%a", "%b"), 16, "%n*16 + {}")
    last = block(("%u2", "%v2", "%s2", "%k2", "%a2", "%b2"), 8, "{} + 32")
    check_pass(
        "transpose-scans",
        before=CUMSUM,
        after=f"""kernel @k(in %x: f32[64, 40], out %y: f32[64, 40]) {{
          parallel %i in 0..64 {{
            local %c: f32[]
            store 0.0, %c[]
            for %n in 0..2 {{ {full} }}
            {last}
          }}
        }}""",
        remark="%k in blocks of 16 elements of 16 rows",
    )


def test_a_short_row_is_one_block() -> None:
    one = block(("%u", "%v", "%s", "%k", "%a", "%b"), 13, "{}")
    rows = CUMSUM.replace("40", "13")
    after = rows[: rows.index("for %k")] + one + "} }"
    check_pass("transpose-scans", before=rows, after=after)


def test_an_index_in_a_value_counts_from_the_start_of_the_row() -> None:
    check_pass(
        "transpose-scans",
        before=CUMSUM.replace("%c[] + %x[%i, %k]", "%c[] + cast<f32>(index(%k))").replace("40", "32"),
        after="""kernel @k(in %x: f32[64, 32], out %y: f32[64, 32]) {
          parallel %i in 0..64 {
            local %c: f32[]
            store 0.0, %c[]
            for %n in 0..2 {
              local %v: f32[16]
              for %k in 0..16 {
                %s = %c[] + cast<f32>(index(%n*16 + %k))
                store %s, %c[]
                store %s, %v[%k]
              }
              for %b in 0..16 { store %v[%b], %y[%i, %n*16 + %b] }
            }
          }
        }""",
    )


@pytest.mark.parametrize(
    "unchanged",
    [
        pytest.param(CUMSUM.replace("64", "8"), id="fewer rows than lanes"),
        pytest.param(CUMSUM.replace("40", "7"), id="less than half a block"),
        pytest.param(CUMSUM.replace("[%i, %k]", "[%k, %i]").replace("[64, 40]", "[40, 64]"), id="columns"),
        pytest.param(CUMSUM.replace("[%i, %k]", "[%i, 39 - %k]"), id="from the end of a row"),
        pytest.param(CUMSUM.replace("+ %x[%i, %k]", "+ %y[%i, %k]").replace("out", "inout"), id="reads what it stores"),
        pytest.param(CUMSUM.replace("%c[] + %x", "%x").replace("store %s, %c[]", ""), id="independent steps"),
    ],
)
def test_other_loops_are_left_alone(unchanged: str) -> None:
    check_pass("transpose-scans", unchanged=unchanged)
