"""Listings of code: the text is what is compiled, and each line knows the statement of Tile IR that it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch

import compiler
from compiler.codegen.backend import backend_of, target_by_name
from compiler.codegen.listing import Listing
from compiler.codegen.llvm.debug_info import DebugInfo, split_assembly
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.triton.emit import emit_triton
from compiler.ir.text.statement_lines import StatementLines
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import For, Kernel

MATMUL = """\
kernel @matmul(in %x: f32[64, 64], in %w: f32[64, 64], out %y: f32[64, 64]) {
  parallel %i in 0..64 tile 4 {
    for %j in 0..64 tile 16 lanes 8 {
      %s = reduce add %k in 0..64 { yield %x[%i, %k] * %w[%k, %j] }
      %b = %s * 2.0
      store max(%b, 0.0), %y[%i, %j]
    }
  }
}"""

SOFTMAX = """\
kernel @softmax(in %x: f32[128, 256], out %y: f32[128, 256]) {
  for %i in 0..128 {
    local %e: f32[256]
    %m = reduce max %k in 0..256 tile 8 lanes 8 { yield %x[%i, %k] }
    for %k in 0..256 tile 8 lanes 8 {
      %d = %x[%i, %k] - %m
      store %d * %d, %e[%k]
    }
    %s = reduce add %k in 0..256 tile 8 lanes 8 { yield %e[%k] }
    for %k in 0..256 tile 8 lanes 8 {
      store %e[%k] / %s, %y[%i, %k]
    }
  }
}"""


def listing(text: str, stage: str, target: str = "x86-64-v3") -> Listing:
    machine = target_by_name(target)
    return backend_of(machine).listings[stage](parse_kernel(text), machine)


def found(code: Listing, instruction: str) -> set[int]:
    """The lines of Tile IR of the instructions that match a pattern."""
    return {n for n, text in zip(code.lines, code.text.splitlines(), strict=True) if re.search(instruction, text)}


def line_of(text: str, part: str) -> int:
    """The number of the line of a text that has a part."""
    (number,) = (k for k, line in enumerate(text.splitlines(), 1) if part in line)
    return number


def innermost_loop(code: Listing) -> Sequence[tuple[int, str]]:
    """Return the lines of the first loop of assembly that has no other inside."""
    rows = list(zip(code.lines, code.text.splitlines(), strict=True))
    labels = {row[:-1]: k for k, (_, row) in enumerate(rows) if row.endswith(":")}
    jumps = ((k, re.fullmatch(r"\s+j\w+\s+(\.LBB\w+)", row)) for k, (_, row) in enumerate(rows))
    first, last = next((labels[m[1]], k) for k, m in jumps if m and labels[m[1]] < k)
    return rows[first + 1 : last + 1]


def test_the_hot_loop_of_a_matmul_is_its_reduction() -> None:
    code = listing(MATMUL, "assembly")
    hot = innermost_loop(code)
    assert sum("vfmadd" in text for _, text in hot) == 8
    assert {n for n, _ in hot} == {line_of(MATMUL, "reduce add")}
    assert found(code, r"vaddps.*%ymm(\d+), %ymm\1,") == {line_of(MATMUL, "%s * 2.0")}
    assert found(code, r"vmovups\s+%ymm\d+, .*\(") == {line_of(MATMUL, "store")}
    assert found(code, "tilewright_next_chunk") == {line_of(MATMUL, "parallel")}


def test_statements_of_a_softmax() -> None:
    code = listing(SOFTMAX, "assembly")
    assert {n for n, _ in innermost_loop(code)} == {line_of(SOFTMAX, "reduce max")}
    assert found(code, r"\tvsubps") == {line_of(SOFTMAX, "%d = ")}
    assert found(code, r"\tvmulps") == {line_of(SOFTMAX, "store %d")}
    assert found(code, r"\tvdivps") == {line_of(SOFTMAX, "/ %s")}
    assert found(code, r"\tvaddps.*\(") == {line_of(SOFTMAX, "reduce add")}
    assert found(code, r"\t(?:push|ret)") == {1}


@pytest.mark.parametrize("text", [MATMUL, SOFTMAX])
def test_llvm_instructions_know_their_statements(text: str) -> None:
    code = listing(text, "llvm")
    assert found(code, "= f(?:mul|div)|llvm.fmuladd|  store <") - {0} <= {
        k for k, line in enumerate(text.splitlines(), 1) if "yield" in line or "*" in line or "store" in line
    }
    assert 0 not in found(code, r"^  %[vci]\d+ = |^  (?:store|br|call|ret) ") or "alloca" not in text
    assert found(code, r"^(?:define|declare|attributes|\}|\w+:)") == {0}


def test_triton_lines_know_their_statements() -> None:
    """A matrix product in blocks: header, load, product and store."""
    text = (
        MATMUL.replace("tile 4", "tile 16").replace("tile 16 lanes 8", "tile 16").replace("0..64 {", "0..64 tile 16 {")
    )
    code = listing(text, "triton", "sm90")
    assert found(code, r"tl\.dot|tl\.load|for k") == {line_of(text, "reduce")}
    assert found(code, r"tl\.store") == {line_of(text, "store")}
    assert found(code, r"pid = ") == {line_of(text, "parallel")}
    assert found(code, r"^import|^kernel|^def|^\s*$") == {0}


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ k


@pytest.mark.parametrize("target", ["aarch64", "x86-64-v4", "sm90"])
def test_locations_change_no_code(target: str) -> None:
    """Text of listings is that of the code without debug information, also of a row count that peels and of dynamic sizes."""
    rows = {0: torch.export.Dim("rows", min=2, max=4096)}
    for sizes, shapes in (((37, 24), None), ((64, 32), {"q": rows, "k": None})):
        arguments = torch.randn(sizes), torch.randn(50, sizes[1])
        compiled = compiler.compile(Attention(), arguments, options={"target": target}, dynamic_shapes=shapes)
        machine = compiled.stages.target
        for kernel in compiled.stages.scheduled.kernels.values():
            for stage, make in backend_of(machine).listings.items():
                code = make(kernel, machine)
                assert code.text == plain_code(kernel, stage, machine)
                if stage == "assembly" and machine.triple.startswith("x86"):
                    located = emit_kernel(kernel, machine, DebugInfo(StatementLines.of(kernel)))
                    assert split_assembly(emit_assembly(located, machine)) == (code.text, code.lines)
                assert len(code.lines) == len(code.text.splitlines())
                assert max(code.lines) <= len(StatementLines.of(kernel).text.splitlines())
                assert sum(map(bool, code.lines)) > len(code.lines) / 4


def plain_code(kernel: Kernel, stage: str, target: object) -> str:
    if stage == "triton":
        return emit_triton(kernel)
    module = emit_kernel(kernel, target)  # type: ignore[arg-type]  # a CPU target
    assert "!dbg" not in module
    return module if stage == "llvm" else emit_assembly(module, target)  # type: ignore[arg-type]  # a CPU target


def test_an_object_in_two_places_is_two_statements() -> None:
    """Passes may repeat a block without a copy: its lines differ by where it stands."""
    kernel = parse_kernel(SOFTMAX)
    (outer,) = kernel.body
    assert isinstance(outer, For)
    twice = Kernel(kernel.name, kernel.params, (For(outer.range, outer.body), For(outer.range, outer.body)))
    lines = StatementLines.of(twice)
    first, second = (line for _, line in lines.in_block(twice.body, 0))
    inner = [[line for _, line in lines.in_block(outer.body, at)] for at in (first, second)]
    assert inner[1] == [line + second - first for line in inner[0]]
    text = lines.text.splitlines()
    assert [text[k - 1] for k in inner[0]] == [text[k - 1] for k in inner[1]]
    assert lines.statement_of_line(twice)[first - 1 : second - 1] == [
        k - second + first for k in lines.statement_of_line(twice)[second - 1 : -1]
    ]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_clamp_to_constants_is_two_instructions(target: str) -> None:
    text = """kernel @clamp(in %x: f32[64], out %y: f32[64]) {
      for %i in 0..64 tile 8 lanes 8 { store round(min(max(%x[%i], 0.0), 6.0) * 42.5), %y[%i] }
    }"""
    code = listing(text, "assembly", target).text
    assert "vmaxps" in code
    assert "vminps" in code
    assert not re.search(r"vcmp|vblend|vmovaps.*\{%k", code)
