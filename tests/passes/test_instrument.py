"""Pass instruments and the comparison of results."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest

from compiler.errors import PassError, VerifyError
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.ir_text import print_ir
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context, TilePass
from compiler.passes.instrument import PassTiming, PrintIR, Verify, ir_size, verify
from compiler.passes.manager import run_pipeline

GRAPH = parse_graph("graph @g(%x: f32[4]) { %a = add %x, 1.0  %y = exp %a  return %y }")
KERNEL_TEXT = "kernel @k(in %x: f32[4], out %y: f32[4]) { for %i in 0..4 { store %x[%i] + 1.0, %y[%i] } }"
KERNEL = parse_kernel(KERNEL_TEXT)
PROGRAM = parse_program(f"program {{ input %a: f32[4]  output %b: f32[4]  {KERNEL_TEXT}  launch @k(%a, %b) }}")


@dataclass(frozen=True)
class ReplaceKernel(TilePass):
    """Return a given kernel."""

    result: Kernel = KERNEL
    name = "test-replace-kernel"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        return self.result


def test_size_and_text_of_every_kind_of_ir() -> None:
    assert [ir_size(ir) for ir in (GRAPH, KERNEL, PROGRAM)] == [len(GRAPH.nodes), 2, 1]
    assert [print_ir(ir).split("(")[0].split(" {")[0] for ir in (GRAPH, KERNEL, PROGRAM)] == [
        "graph @g",
        "kernel @k",
        "program",
    ]


def test_timing_lists_every_pass_with_sizes() -> None:
    timing = PassTiming()
    run_pipeline(GRAPH, "canonicalize,cse", instruments=[timing])
    assert [line.split()[1:] for line in str(timing).splitlines()[1:]] == [
        ["4", "->", "4", "canonicalize"],
        ["4", "->", "4", "cse"],
    ]


@pytest.mark.parametrize(
    ("printer", "titles"),
    [
        ({"before_passes": ["cse"]}, ["before cse"]),
        ({"after_passes": ["cse"]}, ["after cse"]),
        ({"before_passes": ["all"]}, ["before canonicalize", "before cse", "before fuse"]),
        ({"on_change": True}, ["after fuse"]),
        ({}, []),
    ],
)
def test_prints_ir_around_selected_passes(printer: dict[str, object], titles: list[str]) -> None:
    file = io.StringIO()
    run_pipeline(GRAPH, "canonicalize,cse,fuse", instruments=[PrintIR(**printer, file=file)])  # type: ignore[arg-type]
    comments = [line for line in file.getvalue().splitlines() if line.startswith("//")]
    assert comments == [f"// {title} (@g)" for title in titles]


OUT_OF_RANGE = KERNEL_TEXT.replace("0..4", "0..5")


def test_verify_accepts_every_kind_of_ir_and_names_a_broken_rule() -> None:
    for ir in (GRAPH, KERNEL, PROGRAM):
        verify(ir)
    with pytest.raises(VerifyError):
        verify(parse_kernel(OUT_OF_RANGE))
    with pytest.raises(PassError, match="pass test-replace-kernel produced invalid IR for @k: "):
        run_pipeline(KERNEL, [ReplaceKernel(parse_kernel(OUT_OF_RANGE))], instruments=[Verify()])


def test_verify_blames_no_pass_for_what_was_invalid_before() -> None:
    with pytest.raises(PassError, match=r"@k is invalid before the first pass: (.|\n)*ranges over 0\.\.4"):
        run_pipeline(parse_kernel(OUT_OF_RANGE), "unroll", instruments=[Verify()])


def test_an_unknown_pass_cannot_be_printed() -> None:
    with pytest.raises(PassError, match=r"no pass is called fuze; did you mean fuse"):
        PrintIR(after_passes=["fuze"])
