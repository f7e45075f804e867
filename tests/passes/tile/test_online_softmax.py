"""online: long rows of softmax and what is multiplied by them, part by part."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.cost.machine import GPU
from compiler.driver.compiled_graph import CompiledGraph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass, parse_ir

PASS = "online-softmax{max-untiled-length=4, column-block=4, row-block=4}"


def attention(rows: int, row: str) -> str:
    return f"""
        kernel @k(in %s: f32[{rows}, 10], in %v: f32[10, 3], out %y: f32[{rows}, 3]) {{
          parallel %i in 0..{rows} {{ {row} }}
        }}"""


ROW = """
    local %e: f32[10]
    %m = reduce max %r in 0..10 { yield %s[%i, %r] }
    %t = reduce add %r in 0..10 { %p = exp(%s[%i, %r] - %m) store %p, %e[%r] yield %p }
    for %j in 0..3 {
      %a = reduce add %r in 0..10 { yield %e[%r] * %v[%r, %j] }
      store %a / %t, %y[%i, %j]
    }"""


def score_products(dtype: str) -> str:
    """A row whose scores are products of `dtype`."""
    scores = (
        "%c = reduce add %d in 0..8 { yield cast<f32>(%q[%i, %d]) * cast<f32>(%k[%r, %d]) } store %c, %s[%r] yield %c"
    )
    row = ROW.replace("yield %s[%i, %r] }", f"{scores} }}", 1).replace("%s[%i, %r] - %m", "%s[%r] - %m")
    text = attention(64, f"local %s: f32[10] {row}")
    return text.replace("in %s: f32[64, 10]", f"in %q: {dtype}[64, 8], in %k: {dtype}[10, 8]")


@pytest.mark.parametrize(("dtype", "columns"), [("f16", 8), ("f32", 4)])
def test_blocks_are_smaller_where_no_matrix_unit_multiplies_scores(dtype: str, columns: int) -> None:
    gpu = GPU(softmax_untiled_length=8, softmax_columns=8, softmax_rows=64)
    context = Context(machine=gpu)
    run_pipeline(parse_kernel(score_products(dtype)), "online-softmax", context)
    assert f"rows of 10 in blocks of {columns}" in str(context.remarks)


@pytest.mark.parametrize(("multiprocessors", "rows"), [(1, 64), (2, 32), (132, 16)])
def test_blocks_of_rows_are_smaller_where_few_would_run(multiprocessors: int, rows: int) -> None:
    gpu = GPU(softmax_untiled_length=8, softmax_columns=8, softmax_rows=64, multiprocessors=multiprocessors)
    kernel = run_pipeline(parse_kernel(score_products("f16")), "online-softmax", Context(machine=gpu))
    assert f"%max: f32[{rows}]" in print_kernel(kernel)


def applies(source: str) -> None:
    """The pass changes the kernel's text and not its meaning."""
    kernel = parse_kernel(source)
    changed = run_pipeline(kernel, PASS, Context())
    assert changed != kernel
    check_equivalent(kernel, changed, exact=False)


def test_parts_of_a_row() -> None:
    check_pass(
        PASS,
        before=attention(3, ROW),
        after="""kernel @k(in %s: f32[3, 10], in %v: f32[10, 3], out %y: f32[3, 3]) {
  local %max: f32[3]
  local %t.sum: f32[3]
  local %a.sum: f32[3, 3]
  for %init in 0..3 {
    store -inf, %max[%init]
    store 0.0, %t.sum[%init]
  }
  for %init_1 in 0..3 {
    for %j in 0..3 {
      store 0.0, %a.sum[%init_1, %j]
    }
  }
  for %r.block in 0..2 {
    for %i in 0..3 {
      local %e: f32[4]
      %m = reduce max %r in %r.block*4..%r.block*4 + 4 { yield %s[%i, %r] }
      %old = %max[%i]
      %new = max(%old, %m)
      %weight = where(%old == %new, 1.0, exp_ftz(%old - %new))
      %shift = where(%new == -inf, 0.0, %new)
      %t = reduce add %r_1 in %r.block*4..%r.block*4 + 4 {
        %p = exp(%s[%i, %r_1] - %shift)
        store %p, %e[-%r.block*4 + %r_1]
        yield %p
      }
      store fma(%t.sum[%i], %weight, %t), %t.sum[%i]
      for %j_1 in 0..3 {
        %a = reduce add %r_2 in %r.block*4..%r.block*4 + 4 { yield %e[-%r.block*4 + %r_2] * %v[%r_2, %j_1] }
        store fma(%a.sum[%i, %j_1], %weight, %a), %a.sum[%i, %j_1]
      }
      store %new, %max[%i]
    }
  }
  for %r.block_1 in 2..3 {
    for %i_1 in 0..3 {
      local %e_1: f32[2]
      %m_1 = reduce max %r_3 in %r.block_1*4..%r.block_1*4 + 2 { yield %s[%i_1, %r_3] }
      %old_1 = %max[%i_1]
      %new_1 = max(%old_1, %m_1)
      %weight_1 = where(%old_1 == %new_1, 1.0, exp_ftz(%old_1 - %new_1))
      %shift_1 = where(%new_1 == -inf, 0.0, %new_1)
      %t_1 = reduce add %r_4 in %r.block_1*4..%r.block_1*4 + 2 {
        %p_1 = exp(%s[%i_1, %r_4] - %shift_1)
        store %p_1, %e_1[-%r.block_1*4 + %r_4]
        yield %p_1
      }
      store fma(%t.sum[%i_1], %weight_1, %t_1), %t.sum[%i_1]
      for %j_2 in 0..3 {
        %a_1 = reduce add %r_5 in %r.block_1*4..%r.block_1*4 + 2 { yield %e_1[-%r.block_1*4 + %r_5] * %v[%r_5, %j_2] }
        store fma(%a.sum[%i_1, %j_2], %weight_1, %a_1), %a.sum[%i_1, %j_2]
      }
      store %new_1, %max[%i_1]
    }
  }
  for %i_2 in 0..3 {
    %t_2 = %t.sum[%i_2]
    for %j_3 in 0..3 {
      %a_2 = %a.sum[%i_2, %j_3]
      store %a_2 / %t_2, %y[%i_2, %j_3]
    }
  }
}""",
        remark="rows of 10 in blocks of 4",
    )


@pytest.mark.parametrize("rows", [5, 8, 9, 11])
def test_blocks_of_rows(rows: int) -> None:
    """Several blocks, with and without a shorter one behind them, compute what one row at a time does."""
    applies(attention(rows, ROW))


def test_a_division_before_the_product_waits() -> None:
    ratio = "local %p: f32[10] for %k in 0..10 { store %e[%k] / %t, %p[%k] } for %j"
    applies(attention(3, ROW.replace("for %j", ratio).replace("%e[%r] * %v", "%p[%r] * %v").replace("%a / %t", "%a")))


def test_a_divisor_that_changes_along_the_row_cannot_wait() -> None:
    ratio = "local %p: f32[10] for %k in 0..10 { store %e[%k] / (%t * %v[%k, 0]), %p[%k] } for %j"
    check_pass(PASS, unchanged=attention(3, ROW.replace("for %j", ratio).replace("%e[%r] * %v", "%p[%r] * %v")))


def test_rows_that_hide_everything_become_zeros() -> None:
    hidden = ROW.replace("- %m)", "- %z)").replace("%t = ", "%z = where(%m == -inf, 0.0, %m) %t = ", 1)
    guarded = hidden.replace("for %j", "%d = where(%t == 0.0, 1.0, %t) for %j").replace("/ %t", "/ %d")
    applies(attention(3, guarded))


@pytest.mark.parametrize(
    "change",
    [
        ("exp(%s[%i, %r] - %m)", "%s[%i, %r] - %m"),
        ("exp(%s[%i, %r] - %m)", "exp(%s[%i, %r] - %m * 2.0)"),
        ("%e[%r] * %v[%r, %j]", "%e[%r] * %e[%r]"),
        ("%e[%r] * %v[%r, %j]", "%e[%r] * %v[%r, %j] + 1.0"),
        ("reduce max", "reduce min"),
        ("%e[%r] * %v[%r, %j]", "%m * %v[%r, %j]"),
    ],
)
def test_sums_that_do_not_follow_the_maximum_stay(change: tuple[str, str]) -> None:
    """Nothing is rescaled that is not linear in exp(-maximum)."""
    assert change[0] in ROW
    check_pass(PASS, unchanged=attention(3, ROW.replace(*change)))


def test_short_rows_stay() -> None:
    check_pass("online-softmax", unchanged=attention(3, ROW))


SEEN = ROW.replace("yield %s[%i, %r]", "%x = where(index(%r) <= index(%i) + 1, %s[%i, %r], -inf) yield %x").replace(
    "exp(%s[%i, %r] - %m)", "exp(where(index(%r) <= index(%i) + 1, %s[%i, %r], -inf) - %m)"
)


@pytest.mark.parametrize(
    ("compare", "parts"),
    [
        ("index(%r) <= index(%i)", "0..%i.block + 1"),
        ("index(%i) >= index(%r)", "0..%i.block + 1"),
        ("index(%r) < index(%i)", "0..%i.block + 1"),
        ("index(%r) <= index(%i) - 4", "0..%i.block"),
        ("index(%r) >= index(%i)", "0..2"),
        ("index(%r) <= index(%i) + 4", "0..2"),
        ("index(%r) <= index(%r)", "0..2"),
    ],
)
def test_parts_that_no_row_of_a_block_sees_are_left_out(compare: str, parts: str) -> None:
    """Except where a block might see more parts than there are.  What is hidden counts no more, not even NaN times 0."""
    source = attention(8, SEEN.replace("index(%r) <= index(%i) + 1", compare))
    changed = run_pipeline(
        parse_kernel(source),
        "online-softmax{max-untiled-length=4, column-block=4, row-block=4, causal-block=4}",
        Context(),
    )
    assert f"for %r.block in {parts} {{" in print_kernel(changed)
    check_equivalent(parse_kernel(source), changed, exact=False, special=False)


@pytest.mark.parametrize(("rows", "loops"), [(2, 1), (8, 1), (9, 2), (12, 2)])
def test_what_parts_leave_over_is_left_out_where_no_row_sees_it(rows: int, loops: int) -> None:
    """Rows of 10 in parts of 4: the two places behind them are seen from the eighth row on."""
    source = attention(rows, SEEN.replace("index(%i) + 1", "index(%i)"))
    changed = run_pipeline(
        parse_kernel(source),
        "online-softmax{max-untiled-length=4, column-block=4, row-block=4, causal-block=4}",
        Context(),
    )
    assert len({line for line in print_kernel(changed).splitlines() if "for %r.block" in line}) == loops
    check_equivalent(parse_kernel(source), changed, exact=False, special=False)


def test_rows_of_open_length() -> None:
    """A part more where parts leave something over; a block of rows ends where the rows do."""
    check_pass(
        PASS,
        before="""kernel @k(size n in 1..101 hint 10, in %s: f32[n, n], in %v: f32[n, 3], out %y: f32[n, 3]) {
  parallel %i in 0..n {
    %m = reduce max %r in 0..n { yield %s[%i, %r] }
    %t = reduce add %r in 0..n { yield exp(%s[%i, %r] - %m) }
    for %j in 0..3 {
      %a = reduce add %r in 0..n { yield exp(%s[%i, %r] - %m) * %v[%r, %j] }
      store %a / %t, %y[%i, %j]
    }
  }
}""",
        after="""kernel @k(size n in 1..101 hint 10, in %s: f32[n, n], in %v: f32[n, 3], out %y: f32[n, 3]) {
  parallel %i.block in 0..(n + 7)//8 {
    local %max: f32[8]
    local %t.sum: f32[8]
    local %a.sum: f32[8, 3]
    for %init in 0..min(-%i.block*8 + n, 8) {
      store -inf, %max[%init]
      store 0.0, %t.sum[%init]
    }
    for %init_1 in 0..min(-%i.block*8 + n, 8) {
      for %j in 0..3 {
        store 0.0, %a.sum[%init_1, %j]
      }
    }
    for %r.block in 0..(n + 3)//4 {
      for %i in %i.block*8..%i.block*8 + min(-%i.block*8 + n, 8) {
        %m = reduce max %r in %r.block*4..min(4, n - %r.block*4) + %r.block*4 { yield %s[%i, %r] }
        %old = %max[%i - %i.block*8]
        %new = max(%old, %m)
        %weight = where(%old == %new, 1.0, exp_ftz(%old - %new))
        %shift = where(%new == -inf, 0.0, %new)
        %t = reduce add %r_1 in %r.block*4..min(4, n - %r.block*4) + %r.block*4 { yield exp(%s[%i, %r_1] - %shift) }
        store fma(%t.sum[%i - %i.block*8], %weight, %t), %t.sum[%i - %i.block*8]
        for %j_1 in 0..3 {
          %a = reduce add %r_2 in %r.block*4..min(4, n - %r.block*4) + %r.block*4 {
            yield exp(%s[%i, %r_2] - %shift) * %v[%r_2, %j_1]
          }
          store fma(%a.sum[%i - %i.block*8, %j_1], %weight, %a), %a.sum[%i - %i.block*8, %j_1]
        }
        store %new, %max[%i - %i.block*8]
      }
    }
    for %i_1 in %i.block*8..%i.block*8 + min(-%i.block*8 + n, 8) {
      %t_1 = %t.sum[-%i.block*8 + %i_1]
      for %j_2 in 0..3 {
        %a_1 = %a.sum[-%i.block*8 + %i_1, %j_2]
        store %a_1 / %t_1, %y[%i_1, %j_2]
      }
    }
  }
}""",
        remark="rows of n in blocks of 4",
    )


class Attention(torch.nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)


class WrittenOut(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


def exact(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    result: torch.Tensor = module(*(a.double() if a.is_floating_point() else a for a in args))
    return result


@pytest.mark.parametrize("keys", [1024, 1500, 4099])
@pytest.mark.parametrize("module", [Attention(), WrittenOut()], ids=["fused", "written out"])
def test_attention_over_long_rows_is_one_kernel_without_scores(module: torch.nn.Module, keys: int) -> None:
    torch.manual_seed(0)
    args = (torch.randn(2, 40, 16), torch.randn(2, keys, 16) * 3, torch.randn(2, keys, 16))
    compiled = compiler.compile(module, args)
    assert compiled.workload.kernels == 1
    assert "%max" in compiled.print_ir("scheduled")
    program = compiled.stages.scheduled
    assert set(program.buffers) == {*program.inputs, *program.outputs}
    assert (compiled(*args) - exact(module, args)).abs().max() < 1e-5


@pytest.mark.parametrize("size", [192, 200, 700])
def test_causal_attention_walks_a_triangle(size: int) -> None:
    class Causal(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.manual_seed(0)
    args = tuple(torch.randn(2, size, 16) for _ in range(3))
    compiled = compiler.compile(Causal(), args)
    assert compiled.workload.kernels == 1
    assert ".block + 1 {" in compiled.print_ir("scheduled")
    assert (compiled(*args) - exact(Causal(), args)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_over_long_rows(kind: str) -> None:
    """Parts and whole rows may be hidden; a row of nothing is zeros."""
    torch.manual_seed(0)
    seen = torch.rand(24, 900) < 0.5
    seen[3], seen[4, :700], seen[5, 300:] = False, False, False
    mask = seen if kind == "bool" else torch.where(seen, torch.randn(24, 900), float("-inf"))
    args = (torch.randn(2, 24, 16), torch.randn(2, 900, 16), torch.randn(2, 900, 16), mask)
    assert (compiler.compile(Attention(), args)(*args) - exact(Attention(), args)).abs().max() < 1e-5


def test_scores_are_kept_whole_where_something_else_reads_them() -> None:
    graph = parse_graph("""
        graph @a(%s: f32[16, 700], %v: f32[700, 8]) {
          %p = softmax %s {dim=1}
          %y = matmul %p, %v
          return %y, %p
        }""")
    torch.manual_seed(0)
    s, v = torch.randn(16, 700), torch.randn(700, 8)
    y, p = CompiledGraph(graph)([s, v])
    assert (p - torch.softmax(s.double(), 1)).abs().max() < 1e-6
    assert (y - torch.softmax(s.double(), 1) @ v.double()).abs().max() < 1e-5


ATTENTION = """graph(%q: f32[2, n, 16], %k: f32[2, n, 16], %v: f32[2, n, 8]) {{
  %y = attention %q, %k, %v {{scale=0.25, causal={causal}}}
  return %y
}}"""


@pytest.mark.parametrize("causal", [False, True])
def test_one_compilation_of_attention_serves_every_length(causal: bool) -> None:
    """One key, primes, a part, one more and one less, blocks of rows that are whole and that are not."""
    torch.manual_seed(0)
    graph = parse_graph(ATTENTION.format(causal=str(causal).lower()))
    compiled = CompiledGraph(graph, bounds={"n": (1, 1200)})
    for n in (1024, 1, 2, 7, 63, 64, 65, 255, 256, 257, 509, 512, 513, 1031):
        q, k, v = torch.randn(2, n, 16), torch.randn(2, n, 16) * 3, torch.randn(2, n, 8)
        (y,) = compiled([q, k, v])
        truth = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal, scale=0.25)
        assert (y - truth).abs().max() < 1e-5
    (once,) = compiled.specializations
    assert once.default_variant.stages.context.remarks.select("online-softmax")[0].kind == "applied"
    assert once.default_variant.executable.size_names == ("n",)


def test_lengths_that_may_be_nothing_stay() -> None:
    """A sum over nothing is divided by nothing where it is taken in parts."""
    graph = parse_graph(ATTENTION.format(causal="false"))
    compiled = CompiledGraph(graph, bounds={"n": (0, 1200)})
    for n in (1024, 0, 3):
        q, k, v = torch.randn(2, n, 16), torch.randn(2, n, 16), torch.randn(2, n, 8)
        assert (compiled([q, k, v])[0] - F.scaled_dot_product_attention(q, k, v, scale=0.25)).abs().sum() < 1e-3
    assert not compiled.specializations[0].default_variant.stages.context.remarks.select("online-softmax")


@pytest.mark.parametrize(("most", "taken"), [(1001, True), (641, False)])
def test_rows_of_open_length_are_long_if_they_may_be(most: int, taken: bool) -> None:
    text = f"""kernel @k(size n in 1..{most} hint 8, in %s: f32[4, n], in %v: f32[n, 3], out %y: f32[4, 3]) {{
      parallel %i in 0..4 {{
        %m = reduce max %r in 0..n {{ yield %s[%i, %r] }}
        %t = reduce add %r in 0..n {{ yield exp(%s[%i, %r] - %m) }}
        for %j in 0..3 {{
          %a = reduce add %r in 0..n {{ yield exp(%s[%i, %r] - %m) * %v[%r, %j] }}
          store %a / %t, %y[%i, %j]
        }}
      }}
    }}"""
    context = Context()
    run_pipeline(parse_ir(text), "online-softmax", context)
    assert [r.message for r in context.remarks.select("online-softmax")] == [
        "online softmax: rows of n in blocks of 256"
    ] * taken
