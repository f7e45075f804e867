"""pack: constants in the order in which a kernel reads them."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def matmul(
    layout: str = "",
    role: str = "const",
    loops: str = "tile 8 lanes 4",
    value: str = "%w[%j, %k]",
    shape: str = "20, 3",
) -> str:
    return f"""kernel @k(in %x: f32[10, 3], {role} %w: f32[{shape}]{layout}, out %y: f32[10, 20]) {{
      for %i in 0..10 tile 2 {{ for %j in 0..20 {loops} {{
        %s = reduce add %k in 0..3 {{ yield %x[%i, %k] * {value} }}
        store %s, %y[%i, %j]
      }} }}
    }}"""


def test_weights_become_panels() -> None:
    check_pass("pack", before=matmul(), after=matmul("{0/8, 1, 0%8}"), remark="%w: f32[20, 3] stored as {0/8, 1, 0%8}")


def test_panels_of_a_transposed_operand() -> None:
    before, after = (matmul(layout, value="%w[%k, %j]", shape="3, 20") for layout in ("", "{1/8, 0, 1%8}"))
    check_pass("pack", before=before, after=after)


def test_dimensions_are_walked_from_the_outer_loop_to_the_inner() -> None:
    check_pass(
        "pack",
        before="""kernel @conv(in %x: f32[4, 12], const %w: f32[8, 4, 3], out %y: f32[8, 10]) {
          for %o in 0..8 tile 8 lanes 4 { for %p in 0..10 tile 2 {
            %s = reduce add %u in 0..3, %c in 0..4 { yield %x[%c, %p + %u] * %w[%o, %c, %u] }
            store %s, %y[%o, %p]
          } } }""",
        after="""kernel @conv(in %x: f32[4, 12], const %w: f32[8, 4, 3]{0/8, 2, 1, 0%8}, out %y: f32[8, 10]) {
          for %o in 0..8 tile 8 lanes 4 { for %p in 0..10 tile 2 {
            %s = reduce add %u in 0..3, %c in 0..4 { yield %x[%c, %p + %u] * %w[%o, %c, %u] }
            store %s, %y[%o, %p]
          } } }""",
    )


def grouped(size: int, layout: str = "") -> str:
    """Three groups of `size` results, each a sum of its own."""
    return f"""kernel @k(in %x: f32[3, 5], const %w: f32[{3 * size}, 5]{layout}, out %y: f32[{3 * size}]) {{
      for %g in 0..3 {{ for %j in 0..{size} tile 8 lanes 4 {{
        %s = reduce add %k in 0..5 {{ yield %x[%g, %k] * %w[%g*{size} + %j, %k] }}
        store %s, %y[%g*{size} + %j]
      }} }}
    }}"""


@pytest.mark.parametrize(("size", "panel"), [(16, 8), (8, 8), (12, 4)])
def test_panels_end_where_groups_do(size: int, panel: int) -> None:
    check_pass("pack", before=grouped(size), after=grouped(size, f"{{0/{panel}, 1, 0%{panel}}}"))


def looked_up(columns: int, layout: str = "", loops: str = "tile 8 lanes 4") -> str:
    """Sums of rows of a table."""
    return f"""kernel @k(const %w: f32[50, {columns}]{layout}, in %at: i64[8], out %y: f32[8]) {{
      for %j in 0..8 {{ %v = %at[%j] %row = where((%v >= 0) & (%v < 50), %v, 0)
        %s = reduce add %k in 0..{columns} {loops} {{ yield %w[%row, %k] }}
        store %s, %y[%j]
      }} }}"""


def test_rows_of_parts_of_vectors_are_padded() -> None:
    check_pass("pack", before=looked_up(13), after=looked_up(13, "{0, 1/8, 1%8}"))


def test_dimensions_of_outer_loops_come_before_panels() -> None:
    def batched(layout: str = "") -> str:
        return f"""kernel @k(in %x: f32[5, 3], const %w: f32[5, 20, 3]{layout}, out %y: f32[5, 20]) {{
          for %b in 0..5 {{ for %j in 0..20 tile 8 lanes 4 {{
            %s = reduce add %k in 0..3 {{ yield %x[%b, %k] * %w[%b, %j, %k] }}
            store %s, %y[%b, %j]
          }} }} }}"""

    check_pass("pack", before=batched(), after=batched("{0, 1/8, 2, 1%8}"))


STAY = {
    "rows that are read in order": looked_up(16),
    "groups that end inside vectors": grouped(10),
    "rows that are looked up": """kernel @k(const %w: f32[5, 3], in %at: i64[8], out %y: f32[8]) {
      for %j in 0..8 tile 8 lanes 4 { %v = %at[%j] %row = where((%v >= 0) & (%v < 5), %v, 0) store %w[%row, 0], %y[%j] }
    }""",
    "not known when the program is built": matmul(role="in"),
    "no lanes": matmul(loops="tile 8"),
    "the lane twice": matmul(value="%w[%j, %j//7]"),
    "shifted lanes": matmul(value="%w[%j//2, %k]"),
    "one dimension": matmul(value="%w[%j]", shape="20"),
    "one panel, already in order": matmul(value="%w[%k, %j]", shape="3, 20", loops="tile 20 lanes 4"),
}


@pytest.mark.parametrize("case", STAY)
def test_constants_that_stay(case: str) -> None:
    check_pass("pack", unchanged=STAY[case])


def twice(first: str, second: str, layout: str = "") -> str:
    """A constant that two contractions read."""
    return f"""kernel @k(in %x: f32[10, 3], const %w: f32[20, 20]{layout}, out %y: f32[10, 20], out %z: f32[10, 20]) {{
      for %i in 0..10 tile 2 {{ for %j in 0..20 tile 8 lanes 4 {{
        %s = reduce add %k in 0..3 {{ yield %x[%i, %k] * {first} }}
        store %s, %y[%i, %j]
        %t = reduce max %l in 0..3 {{ yield %x[%i, %l] + {second} }}
        store %t, %z[%i, %j]
      }} }}
    }}"""


def test_reads_that_want_the_same_are_served() -> None:
    reads = "%w[%j, %k]", "%w[%j, %l + 2]"
    check_pass("pack", before=twice(*reads), after=twice(*reads, layout="{0/8, 1, 0%8}"))


def test_reads_that_differ_leave_a_constant_as_it_is() -> None:
    check_pass("pack", unchanged=twice("%w[%j, %k]", "%w[%l, %j]"))


def test_reads_of_one_element_take_what_lanes_prefer() -> None:
    reads = "%w[%j, %k]", "%w[5, %l]"
    check_pass("pack", before=twice(*reads), after=twice(*reads, layout="{0/8, 1, 0%8}"))


def test_panels_of_two_loops_over_one_dimension() -> None:
    """A tile covers the inner loop, but not the rows of the constant."""

    def text(layout: str) -> str:
        return f"""kernel @k(in %x: f32[3], const %w: f32[3, 16]{layout}, out %y: f32[2, 8]) {{
          for %u in 0..2 {{ for %j in 0..8 tile 8 lanes 4 {{
            %s = reduce add %k in 0..3 {{ yield %x[%k] * %w[%k, %u*8 + %j] }}
            store %s, %y[%u, %j]
          }} }}
        }}"""

    check_pass("pack", before=text(""), after=text("{1/8, 0, 1%8}"))


def test_reads_of_one_panel_share_it_whatever_loops_index_the_other_dimensions() -> None:
    """Taps of a transposed convolution, which phases read at constants or in loops around other taps."""
    phases = """kernel @phases(in %x: f32[4, 8], const %w: f32[8, 32, 3]{layout}, out %y: f32[32, 4, 3]) {{
      for %j in 0..32 tile 16 lanes 16 {{
        for %i in 0..4 {{
          %a = reduce add %r in 0..8 {{ yield %x[%i, %r] * %w[%r, %j, 0] }}
          store %a, %y[%j, %i, 0]
        }}
      }}
      for %t in 0..2 {{
        for %k in 0..32 tile 16 lanes 16 {{
          for %l in 0..4 {{
            %b = reduce add %q in 0..8 {{ yield %x[%l, %q] * %w[%q, %k, %t + 1] }}
            store %b, %y[%k, %l, %t + 1]
          }}
        }}
      }}
    }}"""
    check_pass("pack", before=phases.format(layout=""), after=phases.format(layout="{2, 1/16, 0, 1%16}"))
    two = """kernel @two(const %w: f32[32, 3, 5]{layout}, out %y: f32[32, 3, 5], out %z: f32[5, 3, 32]) {{
      for %j in 0..32 tile 16 lanes 16 {{
        for %a in 0..3 {{ for %b in 0..5 {{ store %w[%j, %a, %b], %y[%j, %a, %b] }} }}
      }}
      for %c in 0..5 {{
        for %k in 0..32 tile 16 lanes 16 {{ for %d in 0..3 {{ store %w[%k, %d, %c], %z[%c, %d, %k] }} }}
      }}
    }}"""
    check_pass("pack", before=two.format(layout=""), after=two.format(layout="{0/16, 1, 2, 0%16}"))


def product_with_copy(layout: str = "", loops: str = "tile 8 lanes 4", stored: str = "tile 4") -> str:
    """Rows of a product that reread a copy of one operand."""
    return f"""kernel @k(in %x: f32[10, 3], in %w: f32[20, 3], out %y: f32[10, 20]) {{
      local %t: f32[3, 20]{layout}
      for %r in 0..3 {{ for %c in 0..20 {stored} {{ store %w[%c, %r], %t[%r, %c] }} }}
      for %i in 0..10 tile 2 {{ for %j in 0..20 {loops} {{
        %s = reduce add %k in 0..3 {{ yield %x[%i, %k] * %t[%k, %j] }}
        store %s, %y[%i, %j]
      }} }}
    }}"""


@pytest.mark.parametrize("stored", ["tile 4", "tile 16 lanes 8", ""])
def test_copies_become_panels(stored: str) -> None:
    check_pass("pack", before=product_with_copy(stored=stored), after=product_with_copy("{1/8, 0, 1%8}", stored=stored))


def test_vectors_that_are_stored_stay_together() -> None:
    check_pass("pack", before=(text := product_with_copy(loops="tile 12 lanes 4", stored="tile 8 lanes 8")), after=text)


def test_rows_that_one_tile_reads_stay() -> None:
    check_pass("pack", before=(text := product_with_copy(loops="tile 20 lanes 4")), after=text)
