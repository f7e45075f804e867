"""The command `tilewright`: IR in and out, compiled programs, and the demonstration."""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from compiler.errors import TilewrightError
from compiler.options import Options

if TYPE_CHECKING:
    import torch

    from compiler.ir.graph.graph import Graph
    from compiler.ir.tile.kernel import Kernel
    from compiler.ir.tile.program import Program

out, err = Console(soft_wrap=True), Console(stderr=True)

DESCRIPTION = "A tensor compiler: PyTorch graphs in, fused and tiled native code out."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 after an error (told in a line or two), or 2 for wrong usage."""
    given = build_parser().parse_args(arguments)
    try:
        given.command(given)
    except (TilewrightError, OSError, IndexError, ValueError, RuntimeError) as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser("tilewright", description=DESCRIPTION)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add_ir_commands(commands)
    add_program_commands(commands)
    add_command(commands, "demo", demo, "compile a sentence-embedding model and embed sentences with it")
    add_command(commands, "passes", list_passes, "list the passes and their options")
    add_command(commands, "ops", list_ops, "list the ops by kind of structure")
    add_coverage_command(commands)
    add_fuzz_commands(commands)
    return top


def add_ir_commands(commands: Any) -> None:
    """The command about IR text."""
    c = add_command(
        commands,
        "opt",
        run_opt,
        "run passes over IR text: a graph, a kernel or a program, told apart by the first word",
    )
    c.add_argument("file", help="a file with IR, or - for standard input")
    c.add_argument("-p", "--pipeline", default="", help='passes, as in "canonicalize,fuse{max-nodes=8}"')
    add_optional_flag(c, "--lower", "PIPELINE", "", "then lower the graph, and run tile passes over its kernels")
    add_optional_flag(c, "--print-ir-before", "PASS", "all", "print the IR before PASS, or before every one")
    add_optional_flag(c, "--print-ir-after", "PASS", "all", "print the IR after PASS, or after every one")
    c.add_argument("--print-ir-after-change", action="store_true", help="print the IR after each pass that changed it")
    c.add_argument("--verify", action="store_true", help="verify the IR after each pass")
    c.add_argument("--check", action="store_true", help="interpret the IR before and after each pass, and compare")
    c.add_argument("--stats", action="store_true", help="print the time and statistics of each pass")
    c.add_argument("--remarks", action="store_true", help="print what the passes did and left alone, and why")
    c.add_argument("--target", default="host", help="the machine that tile passes choose for (host)")


def add_program_commands(commands: Any) -> None:
    """The commands about exported programs."""
    c = add_command(commands, "compile", compile_model, "compile an exported program and say what came of it")
    add_model_arguments(c)
    c.add_argument("-o", "--output", metavar="REPORT.html", help="write the whole report as one HTML page")
    c.add_argument("--print-ir", metavar="STAGE", help="print imported, fused, lowered, scheduled, llvm or assembly")

    c = add_command(
        commands, "run", run_model, "run an exported program on inputs from a file, or on those it was exported with"
    )
    add_model_arguments(c)
    c.add_argument("-i", "--inputs", metavar="FILE.pt", help="a tuple of arguments saved by torch.save")
    c.add_argument("-o", "--output", metavar="FILE.pt", help="save the result with torch.save")

    c = add_command(commands, "compare", compare_model, "measure two ways to compile a program, beside PyTorch")
    add_model_arguments(c)
    c.add_argument("-a", default="unfused", help='"fused", "unfused" or a pipeline of graph passes (unfused)')
    c.add_argument("-b", default="fused", help="the other way (fused)")

    c = add_command(commands, "profile", profile_model, "time every kernel of a program")
    add_model_arguments(c)


def add_coverage_command(commands: Any) -> None:
    """The command about PyTorch's operators."""
    c = add_command(commands, "coverage", show_coverage, "say how PyTorch's operators are taken, or try its samples")
    c.add_argument("operators", nargs="*", metavar="OP", help="only these: cumsum, nn.functional.pad (all)")
    which = c.add_mutually_exclusive_group()
    which.add_argument("--core", action="store_true", help="the operators that others reduce to (default)")
    which.add_argument("--all", action="store_true", help="every operator of ATen")
    c.add_argument("--samples", action="store_true", help="compile and run what PyTorch tests its operators with")
    c.add_argument("--gradients", action="store_true", help="their gradients too")
    c.add_argument("--dynamic-shapes", action="store_true", help="with every size left open")
    c.add_argument("--dtype", default="f32", metavar="NAMES", help="element types of the samples, as in f32,i64 (f32)")
    c.add_argument("--fraction", type=float, default=1.0, metavar="P", help="how many of the samples to draw (1.0)")
    c.add_argument("--seed", type=int, default=0, metavar="N", help="which ones to draw (0)")
    c.add_argument("--log", type=Path, metavar="FILE", help="keep what is done here, to go on from there next time")


def add_fuzz_commands(commands: Any) -> None:
    """The commands about random graphs."""
    c = add_command(
        commands, "fuzz", fuzz, "compile random graphs in many ways, and compare what they give with float64"
    )
    c.add_argument("--count", type=int, default=100, metavar="N", help="how many graphs (100)")
    c.add_argument("--seed", type=int, default=0, metavar="S", help="the number of the first one (0)")
    c.add_argument("--jobs", type=int, default=1, metavar="J", help="processes (1)")
    c.add_argument("--malformed", action="store_true", help="instead of graphs, try bad text, attributes and files")
    c.add_argument("--out", type=Path, metavar="DIR", help="write each graph that fails, shrunk, to a file in DIR")

    c = add_command(commands, "reduce", reduce, "shrink a graph that the fuzzer found to fail")
    c.add_argument("file", type=Path, help="the graph's text, with the seed of its inputs in a comment: # inputs 17")
    c.add_argument("--check", action="store_true", help="only say whether it fails, and how")
    c.add_argument("--limit", type=int, default=400, metavar="N", help="how many graphs to try (400)")


def add_command(
    commands: Any, name: str, handler: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    """A command called `name`."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
    made.set_defaults(command=handler)
    return made


def add_optional_flag(c: argparse.ArgumentParser, flag: str, metavar: str, const: str, text: str) -> None:
    """A flag whose value may be left out: None where it is not given, `alone` where it stands by itself."""
    c.add_argument(flag, nargs="?", const=const, metavar=metavar, help=text)


def add_model_arguments(c: argparse.ArgumentParser) -> None:
    """What every command about an exported program takes."""
    c.add_argument("model", metavar="MODEL.pt2", help="a program saved by torch.export.save")
    c.add_argument("--target", default="host", help="the machine to compile for: host, x86-64-v4, x86-64-v3, x86-64")
    c.add_argument("--unfused", action="store_true", help="one kernel per op")
    c.add_argument("--graph-passes", default="", metavar="PIPELINE", help="instead of the default graph passes")
    c.add_argument("--tile-passes", default="", metavar="PIPELINE", help="instead of the default tile passes")
    c.add_argument("--fallback", choices=("error", "eager"), default="error", help="what becomes of unsupported ops")
    c.add_argument("--threads", type=int, metavar="N", help="threads that kernels share")
    c.add_argument(
        "--tune", action="store_true", help="measure alternatives for the dearest kernels (kept for next time)"
    )


def options_from_args(given: argparse.Namespace) -> Options:
    """The options that a command line asks for."""
    import torch

    if given.threads:
        torch.set_num_threads(given.threads)
    passes = {"graph_passes": given.graph_passes, "tile_passes": given.tile_passes}
    return Options(target=given.target, fuse=not given.unfused, fallback=given.fallback, tune=given.tune, **passes)


def status_spinner(message: str) -> AbstractContextManager[Any]:
    """Shows in a terminal that work is going on."""
    return err.status(message)


# IR text


def run_opt(given: argparse.Namespace) -> None:
    """tilewright opt"""
    from compiler.codegen.target import Target
    from compiler.ir.graph.graph import Graph
    from compiler.lowering.program import lower
    from compiler.passes.base import Context
    from compiler.passes.instrument import PassTiming, instruments_for
    from compiler.passes.manager import run_pipeline
    from compiler.pipeline import machine_for

    options = Options(
        target=given.target,
        verify=given.verify,
        check=given.check,
        print_before=given.print_ir_before or "",
        print_after=given.print_ir_after or "",
        print_after_change=given.print_ir_after_change,
    )
    context, clock = Context(machine=machine_for(Target.by_name(given.target)), options=options), PassTiming()
    watches = [clock, *instruments_for(options)]
    ir = read_ir(given.file)
    ir = run_pipeline(ir, given.pipeline, context, watches)
    if given.lower is not None:
        if not isinstance(ir, Graph):
            raise TilewrightError("--lower takes a graph")
        ir = run_pipeline(lower(ir), given.lower, context, watches)
    print(write_ir(ir))
    if given.stats:
        err.print(str(clock), highlight=False)
        for name, amount in sorted(context.statistics.items()):
            err.print(f"{amount:9}  {name}", highlight=False)
    if given.remarks:
        err.print(str(context.remarks), markup=False, highlight=False)


def read_ir(file: str) -> Graph | Kernel | Program:
    """A graph, kernel or program from a file of text ("-": standard input)."""
    from compiler.ir.text.graph_parser import parse_graph
    from compiler.ir.text.tile_parser import parse_kernel, parse_program

    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    word = (text.split(maxsplit=1) or [""])[0]
    parse = parse_kernel if word.startswith("kernel") else parse_program if word.startswith("program") else parse_graph
    return parse(text)


def write_ir(ir: Graph | Kernel | Program) -> str:
    """IR as text that `read_ir` reads back."""
    from compiler.ir.graph.graph import Graph
    from compiler.ir.text.graph_printer import print_graph
    from compiler.ir.text.tile_printer import print_kernel, print_program
    from compiler.ir.tile.kernel import Kernel

    if isinstance(ir, Graph):
        return print_graph(ir, full=True)
    return print_kernel(ir) if isinstance(ir, Kernel) else print_program(ir, full=True)


# exported programs


def compile_model(given: argparse.Namespace) -> None:
    """tilewright compile"""
    import compiler

    with status_spinner(f"compiling {given.model}"):
        compiled = compiler.compile(given.model, options=options_from_args(given))
    if given.print_ir:
        print(compiled.print_ir(given.print_ir))
        return
    with status_spinner("measuring"):
        report = compiled.report()
    out.print(report)
    if given.output:
        err.print(f"wrote {report.save(given.output)}")


def run_model(given: argparse.Namespace) -> None:
    """tilewright run"""
    import torch
    from torch.utils._pytree import tree_map_only

    import compiler

    with status_spinner(f"compiling {given.model}"):
        compiled = compiler.compile(given.model, options=options_from_args(given))
    args, kwargs = compiled.example_inputs
    if given.inputs:
        args, kwargs = tuple(torch.load(given.inputs, weights_only=True)), {}
    result = compiled(*args, **kwargs)
    if given.output:
        torch.save(result, given.output)
        err.print(f"wrote {given.output}")
    out.print(tree_map_only(torch.Tensor, describe_tensor, result))


def describe_tensor(t: torch.Tensor) -> str:
    """A tensor's type and how its values spread."""
    text = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    if not t.numel():
        return text
    x = t.double()
    return f"{text} mean {float(x.mean()):.4g}, from {float(x.min()):.4g} to {float(x.max()):.4g}"


def compare_model(given: argparse.Namespace) -> None:
    """tilewright compare"""
    import compiler

    with status_spinner(f"comparing {given.a} and {given.b}"):
        result = compiler.compare(given.model, a=given.a, b=given.b, options=options_from_args(given))
    out.print(result)


def profile_model(given: argparse.Namespace) -> None:
    """tilewright profile"""
    import compiler

    with status_spinner(f"compiling {given.model}"):
        compiled = compiler.compile(given.model, options=options_from_args(given))
    args, kwargs = compiled.example_inputs
    with status_spinner("measuring"):
        profile = compiled.profile(*args, **kwargs)
    out.print(profile)


def demo(given: argparse.Namespace) -> None:
    """tilewright demo"""
    from compiler.tools.demo import main as run

    run()


# lists


def list_passes(given: argparse.Namespace) -> None:
    """tilewright passes"""
    from compiler.passes.manager import available_passes, pass_options

    for kind in ("graph", "program", "tile"):
        out.print(f"[bold]{kind} passes[/]\n")
        for name, make in sorted(available_passes().items()):
            if make.__module__.startswith(f"compiler.passes.{kind}."):
                fields = ", ".join(f"{f.name.replace('_', '-')}={f.default}" for f in pass_options(make))
                head = Text(f"{name}", "cyan").append(f"{{{fields}}}" if fields else "", "dim")
                out.print(head)
                out.print(
                    textwrap.indent(inspect.cleandoc(make.__doc__ or ""), "    ") + "\n", markup=False, highlight=False
                )


def list_ops(given: argparse.Namespace) -> None:
    """tilewright ops"""
    import compiler.ir.ops  # noqa: F401  # fills the registry
    from compiler.ir.graph.node import OPS
    from compiler.report.render import table

    for kind in sorted({type(o.structure).__name__ for o in OPS.values()}):
        made = table(f"{kind.lower()} ops", ["op"], last=["operands", "attributes", "ATen"])
        for name, o in sorted(OPS.items()):
            if type(o.structure).__name__ == kind:
                operands = ", ".join(f"{p.name}: {p.kind}" for p in o.operand_specs)
                made.add_row(
                    name,
                    escape(operands),
                    escape(", ".join(o.attr_defaults)),
                    " ".join(a.removeprefix("aten.") for a in o.aten),
                )
        out.print(made)


def show_coverage(given: argparse.Namespace) -> None:
    """tilewright coverage"""
    if given.samples or given.gradients or given.dynamic_shapes:
        run_opinfo_samples(given)
        return
    from collections import Counter

    from compiler.report.render import table
    from compiler.tools.coverage import SUPPORT_KINDS, op_support, overloads

    with status_spinner("asking"):
        found = [op_support(o) for o in overloads(core=not given.all)]
    named = [f"aten.{n}" for n in given.operators]
    found = [c for c in found if not named or any(c.overload.startswith(f"{n}.") for n in named)]
    made = table("operators", ["operator", "way"], last=["by what, or why"])
    for c in found:
        made.add_row(c.overload.removeprefix("aten."), c.kind, escape(c.note))
    out.print(made)
    totals = Counter(c.kind for c in found)
    for way, meaning in SUPPORT_KINDS.items():
        if totals[way]:
            out.print(f"{totals[way]:6} {way:12} {meaning}", highlight=False)
    out.print(f"{len(found):6} in all", highlight=False)


# random graphs


def fuzz(given: argparse.Namespace) -> None:
    """tilewright fuzz"""
    from rich.progress import track

    from compiler.testing.fuzz.session import fuzz as run

    seeds = range(given.seed, given.seed + given.count)
    results = run(seeds, given.jobs, shrink=given.out is not None, malformed=given.malformed)
    elements = certain = failures = 0
    for found in track(results, "fuzzing", given.count, console=err):
        elements, certain = elements + found.outcome.total_elements, certain + found.outcome.checked_elements
        if found.outcome.failure is None:
            continue
        failures += 1
        err.print(f"{found.seed}: {found.outcome.failure}", markup=False, highlight=False)
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{found.seed}.ir").write_text(found.text, encoding="utf-8")
    share = f"; {certain} of {elements} elements of results were certain" if not given.malformed else ""
    out.print(f"{given.count} tried, {failures} failed{share}", highlight=False)
    if failures:
        raise TilewrightError(f"{failures} of {given.count} failed")


def reduce(given: argparse.Namespace) -> None:
    """tilewright reduce"""
    from compiler.testing.fuzz.case_file import read_case
    from compiler.testing.fuzz.reduce import reduce as shrink
    from compiler.testing.fuzz.reduce import run_in_subprocess

    case = read_case(given.file)
    failure = run_in_subprocess(case)
    if failure is None:
        out.print("it passes every check")
        return
    if given.check:
        raise TilewrightError(str(failure))
    with status_spinner("shrinking"):
        smallest = shrink(case, limit=given.limit)
    print(smallest)


def run_opinfo_samples(given: argparse.Namespace) -> None:
    """tilewright coverage --samples"""
    from collections import Counter

    from compiler.ir.torch_types import to_torch
    from compiler.ir.types import DTYPES
    from compiler.tools.opinfo import OUTCOMES, SamplingOptions, operators, run_samples

    total: Counter[str] = Counter()
    for name in given.dtype.split(","):
        if name not in DTYPES:
            raise TilewrightError(f"unknown element type {name} (there are {', '.join(DTYPES)})")
        dtype = to_torch(DTYPES[name])
        sampling = SamplingOptions(
            dtype, Options(fallback="eager"), given.gradients, given.dynamic_shapes, given.fraction, given.seed
        )
        for tally in run_samples(operators(given.operators, dtype), sampling, given.log):
            total.update(tally.counts)
            counts = "  ".join(f"{tally.counts[o]} {o}" for o in OUTCOMES if o in tally.counts)
            out.print(f"{name:5} {tally.op:44} {counts}", highlight=False, markup=False)
            for cause, count in tally.causes.items():
                if not cause.startswith("opaque"):
                    out.print(f"          {count} {cause}", highlight=False, markup=False)
    out.print("total: " + ", ".join(f"{total[o]} {o}" for o in OUTCOMES), highlight=False)
    if total["failed"]:
        raise TilewrightError(f"{total['failed']} samples failed")
