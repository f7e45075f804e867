"""The command `tilewright`: passes over IR text, compiled programs, operator coverage and the fuzzer."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

import compiler
from compiler.errors import TilewrightError
from compiler.options import Options
from compiler.tools.bench_command import add_bench_command
from compiler.tools.bisect_command import add_bisect_command
from compiler.tools.command_line import (
    add_command,
    add_load_argument,
    add_optional_flag,
    add_schedule_argument,
    add_target_arguments,
    err,
    given_schedules,
    out,
    show,
    status_spinner,
)
from compiler.tools.model_commands import add_program_commands

if TYPE_CHECKING:
    from compiler.ir.text.ir_text import AnyIR
    from compiler.passes.base import Pass

DESCRIPTION = "A tensor compiler: PyTorch graphs in, fused and tiled native code out."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 after an error (printed without traceback), 130 if interrupted.

    A reader that stops, such as `head`, ends a command silently.  Wrong usage exits with 2.
    """
    try:
        load_plugins(requested_modules(arguments))
        args = build_parser().parse_args(arguments)
        args.command(args)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left to flush
        return 1
    except (TilewrightError, OSError, IndexError, ValueError, RuntimeError) as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def requested_modules(arguments: Sequence[str] | None) -> list[str]:
    """Return the modules that `--load` names; they are imported first, because the help lists what they declare."""
    parser = argparse.ArgumentParser(add_help=False)
    add_load_argument(parser)
    modules: list[str] = parser.parse_known_args(arguments)[0].load
    return modules


def load_plugins(modules: Sequence[str]) -> None:
    """Import the plugins of installed packages and `modules`, which may lie in the working directory."""
    from compiler.driver.plugins import load_modules
    from compiler.driver.plugins import load_plugins as load_installed

    load_installed()
    if modules:
        sys.path.append(os.getcwd())
    load_modules(modules)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    epilog = (
        "`tilewright COMMAND --help` describes a command.  README.md has examples, and docs/ tutorials and a glossary."
    )
    top = argparse.ArgumentParser("tilewright", description=DESCRIPTION, epilog=epilog)
    top.add_argument("--version", action="version", version=f"tilewright {compiler.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add_ir_commands(commands)
    add_program_commands(commands)
    add_bench_command(commands)
    add_bisect_command(commands)
    add_command(commands, "demo", demo, "compile a sentence-embedding model and embed sentences with it")
    c = add_command(commands, "passes", list_passes, "list the passes, or describe one")
    c.add_argument("name", nargs="?", help="a pass, to be described with its options")
    add_command(commands, "ops", list_ops, "list the ops by structure: how their elements are computed")
    c = add_command(
        commands,
        "calibrate",
        calibrate_machine,
        "measure this machine, and describe it for the cost model (--machine of other commands)",
    )
    c.add_argument("--to", type=Path, metavar="FILE", help="write the description to FILE")
    add_coverage_command(commands)
    add_fuzz_commands(commands)
    return top


def add_ir_commands(commands: Any) -> None:
    """Add the command `opt`."""
    text = "run passes over IR text: a graph, a kernel or a program, recognised by the first word"
    c = add_command(commands, "opt", run_opt, text)
    c.add_argument("file", help="a file with IR, or - for standard input")
    c.add_argument(
        "-p", "--pipeline", default="", help='passes, as in "canonicalize,fuse{max-nodes=8}" or "default,-fuse" (none)'
    )
    add_optional_flag(
        c, "--lower", "PIPELINE", "", "then lower the graph to kernels, and run passes over these, if given"
    )
    add_optional_flag(c, "--print-ir-before", "PASS", "all", "print the IR before PASS, or before every pass")
    add_optional_flag(c, "--print-ir-after", "PASS", "all", "print the IR after PASS, or after every pass")
    c.add_argument("--print-ir-after-change", action="store_true", help="print the IR after each pass that changed it")
    add_optional_flag(
        c,
        "--emit",
        "STAGE",
        "",
        "print code of the kernels instead of IR: llvm or assembly on CPUs, triton on GPUs (the last stage)",
    )
    c.add_argument("--verify", action="store_true", help="verify the IR after each pass")
    c.add_argument("--check", action="store_true", help="interpret the IR before and after each pass, and compare")
    c.add_argument("--stats", action="store_true", help="print the time and statistics of each pass")
    c.add_argument("--remarks", action="store_true", help="print the remarks: what passes changed or did not, and why")
    c.add_argument("--rewrite-limit", type=int, metavar="N", help="make only the first N rewrites (all)")
    add_schedule_argument(c, "schedule kernels as in FILE instead of by passes (may be repeated)")
    c.add_argument(
        "--print-schedule", action="store_true", help="print the schedules that passes gave the kernels, instead of IR"
    )
    add_target_arguments(c)


def add_coverage_command(commands: Any) -> None:
    """Add the command `coverage`."""
    text = "list how ATen operators are supported, or run PyTorch's OpInfo samples"
    c = add_command(commands, "coverage", show_coverage, text)
    c.add_argument("operators", nargs="*", metavar="OP", help="operators, as in cumsum or nn.functional.pad (all)")
    which = c.add_mutually_exclusive_group()
    which.add_argument("--core", action="store_true", help="Core ATen operators (default)")
    which.add_argument("--all", action="store_true", help="all ATen operators")
    c.add_argument("--samples", action="store_true", help="compile and run PyTorch's OpInfo samples")
    c.add_argument(
        "--target", default="host", metavar="T", help="compile the samples for a target that can run here (host)"
    )
    c.add_argument("--gradients", action="store_true", help="check the gradients of the samples too")
    c.add_argument("--dynamic-shapes", action="store_true", help="run the samples with every dimension dynamic")
    c.add_argument("--dtype", default="f32", metavar="NAMES", help="element types of the samples, as in f32,i64 (f32)")
    c.add_argument("--fraction", type=float, default=1.0, metavar="P", help="fraction of the samples to run (1.0)")
    c.add_argument(
        "--shard", type=parse_shard, default=(1, 1), metavar="K/N", help="run the K-th of N disjoint shards (1/1)"
    )
    c.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of these choices (0)")
    c.add_argument("--log", type=Path, metavar="FILE", help="append results here and resume from it")


def parse_shard(text: str) -> tuple[int, int]:
    """Return K and N of "K/N"; ValueError unless 1 <= K <= N."""
    shard, shards = map(int, text.split("/"))
    if not 1 <= shard <= shards:
        raise ValueError(text)
    return shard, shards


def add_fuzz_commands(commands: Any) -> None:
    """Add the commands `fuzz` and `reduce`."""
    c = add_command(
        commands, "fuzz", fuzz, "compile random graphs with many options and targets, and compare with float64"
    )
    c.add_argument("--count", type=int, default=100, metavar="N", help="number of graphs (100)")
    c.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first graph; the others follow (0)")
    c.add_argument("--jobs", type=int, default=1, metavar="J", help="number of processes (1)")
    c.add_argument(
        "--target",
        default="host",
        metavar="T",
        help="target of the graphs: a GPU that can run here, or all CPU targets that can (host)",
    )
    c.add_argument(
        "--malformed",
        action="store_true",
        help="try malformed text, attributes and files instead, which must be refused with an error",
    )
    c.add_argument("--out", type=Path, metavar="DIR", help="write each failing graph, reduced, to a file in DIR")

    c = add_command(commands, "reduce", reduce, "reduce a failing graph to a smaller one that fails alike")
    c.add_argument("file", type=Path, help="a graph's text, with the seed of its inputs in a comment: # inputs 17")
    c.add_argument("--check", action="store_true", help="only check whether the graph fails")
    c.add_argument("--limit", type=int, default=400, metavar="N", help="maximum number of graphs to try (400)")


# IR text


def run_opt(args: argparse.Namespace) -> None:
    """tilewright opt"""
    from compiler.codegen.backend import backend_of, code_text, target_by_name
    from compiler.driver.given_kernels import run_with_schedules
    from compiler.driver.instruments import instruments_for
    from compiler.ir.graph.graph import Graph
    from compiler.ir.text.ir_text import print_ir
    from compiler.ir.tile.kernel import Kernel
    from compiler.ir.tile.program import Program
    from compiler.lowering.program import lower
    from compiler.passes.base import Context
    from compiler.passes.instrument import PassTiming, verify
    from compiler.passes.manager import run_pipeline
    from compiler.passes.pipeline_text import parse_pipeline, print_pipeline, split_at_kernels
    from compiler.passes.schedule.record import ScheduleRecorder
    from compiler.pipeline import pipelines_of

    options = Options(
        target=args.target,
        verify=args.verify,
        check=args.check,
        print_before=args.print_ir_before or "",
        print_after=args.print_ir_after or "",
        print_after_change=args.print_ir_after_change,
    )
    target = target_by_name(args.target, args.machine)
    context, timing = Context.for_target(target, args.rewrite_limit), PassTiming()
    defaults = backend_of(target).pipelines
    recorder = ScheduleRecorder()
    instruments = [timing, *instruments_for(options), *[recorder] * args.print_schedule]
    ir = read_ir(args.file)
    verify(ir)
    tile_passes = print_pipeline(split_at_kernels(parse_pipeline(defaults.program))[1])
    graph_passes = print_pipeline(pipelines_of(options, target)[0])  # without those that no option asks for
    default = {Graph: graph_passes, Program: defaults.program, Kernel: tile_passes}[type(ir)]
    passes = parse_pipeline(args.pipeline, default)
    if args.lower is not None:
        if not isinstance(ir, Graph):
            raise TilewrightError("--lower takes a graph")
        ir = lower(run_pipeline(ir, passes, context, instruments), machine=context.machine)
        passes = parse_pipeline(args.lower, defaults.program)
    ir = run_with_schedules(ir, passes, given_schedules(args.schedule), target, context, instruments)
    kernels = {} if isinstance(ir, Graph) else ir.kernels if isinstance(ir, Program) else {ir.name: ir}
    if args.print_schedule:
        print(*recorder.schedules_of(kernels).values(), sep="\n")
    elif args.emit is not None:
        if isinstance(ir, Graph):
            raise TilewrightError("--emit takes kernels; lower the graph with --lower")
        print(*(code_text(kernel, args.emit, target) for kernel in kernels.values()), sep="\n")
    else:
        print(print_ir(ir, full=True))
    if args.stats:
        err.print(str(timing), highlight=False)
        for name, count in sorted(context.statistics.items()):
            err.print(f"{count:9}  {name}", highlight=False)
    if args.remarks:
        err.print(str(context.remarks), markup=False, highlight=False)


def read_ir(file: str) -> AnyIR:
    """Parse a graph, kernel or program from a text file; "-" is standard input."""
    from compiler.ir.text.ir_text import parse_ir

    return parse_ir(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))


def demo(args: argparse.Namespace) -> None:
    """tilewright demo"""
    from compiler.tools.demo import main as run

    run()


def calibrate_machine(args: argparse.Namespace) -> None:
    """tilewright calibrate"""
    from compiler.tools.calibrate import calibrate, measurement_table, write_description

    with status_spinner("measuring"):
        measurements = calibrate()
    out.print(measurement_table(measurements))
    if not all(m.is_reliable for m in measurements):
        err.print("In parentheses: rounds differed too much, the described value stays.")
    if args.to:
        write_description(args.to, measurements)
        err.print(f"wrote {args.to}")


# lists


def list_passes(args: argparse.Namespace) -> None:
    """tilewright passes"""
    from compiler.passes.pipeline_text import available_passes, require_passes

    passes = available_passes()
    if args.name:
        require_passes([args.name])
        print_pass_help(args.name, passes[args.name])
        return
    kinds = {name: make().ir_type.__name__ for name, make in passes.items()}
    for kind, title in (("Graph", "graph passes"), ("Program", "program passes"), ("Kernel", "tile passes")):
        out.print(f"[bold]{title}[/]\n")
        for name in sorted(n for n in passes if kinds[n] == kind):
            print_pass_help(name, passes[name])


def print_pass_help(name: str, make: Callable[..., Pass[Any]]) -> None:
    """Print the options of a pass and its docstring, which shows IR before and after."""
    from compiler.passes.base import option_name, pass_options

    options = ", ".join(f"{option_name(f)}={f.metadata.get('machine', f.default)}" for f in pass_options(make))
    out.print(Text(name, "cyan").append(f"{{{options}}}" if options else "", "dim"))
    text = textwrap.indent(inspect.cleandoc(make.__doc__ or ""), "    ")
    out.print(f"{text}\n", markup=False, highlight=False)


def list_ops(args: argparse.Namespace) -> None:
    """tilewright ops"""
    import compiler.ir.ops  # noqa: F401  # fills the registry
    from compiler.ir.graph.node import OPS
    from compiler.report.render import table

    for kind in sorted({type(o.structure).__name__ for o in OPS.values()}):
        rows = table(f"{kind.lower()} ops", ["op"], last=["operands", "attributes", "ATen"])
        for name, o in sorted(OPS.items()):
            if type(o.structure).__name__ == kind:
                operands = ", ".join(f"{p.name}: {p.kind}" for p in o.operand_specs)
                overloads = " ".join(a.removeprefix("aten.") for a in o.aten)
                rows.add_row(name, escape(operands), escape(", ".join(o.attr_defaults)), overloads)
        show(rows)


def show_coverage(args: argparse.Namespace) -> None:
    """tilewright coverage"""
    if args.samples or args.gradients or args.dynamic_shapes:
        run_opinfo_samples(args)
        return
    from collections import Counter

    from compiler.report.render import table
    from compiler.tools.coverage import SUPPORT_KINDS, op_support, overloads

    with status_spinner("classifying operators"):
        supports = [op_support(o) for o in overloads(core=not args.all)]
    prefixes = tuple(f"aten.{n}." for n in args.operators)
    supports = [s for s in supports if not prefixes or s.overload.startswith(prefixes)]
    rows = table("operators", ["operator", "support"], last=["mechanism or reason"])
    for s in supports:
        rows.add_row(s.overload.removeprefix("aten."), s.kind, escape(s.note))
    show(rows)
    totals = Counter(s.kind for s in supports)
    for kind, meaning in SUPPORT_KINDS.items():
        if totals[kind]:
            out.print(f"{totals[kind]:6} {kind:12} {meaning}", highlight=False)
    out.print(f"{len(supports):6} total", highlight=False)


# random graphs


def fuzz(args: argparse.Namespace) -> None:
    """tilewright fuzz; an interrupt ends it with the results so far."""
    from rich.progress import track

    from compiler.testing.fuzz.session import fuzz as run

    seeds = range(args.seed, args.seed + args.count)
    results = run(seeds, args.jobs, args.out is not None, args.malformed, args.target)
    total = checked = tried = failures = 0
    with suppress(KeyboardInterrupt):
        for result in track(results, "fuzzing", args.count, console=err):
            total, checked = total + result.outcome.total_elements, checked + result.outcome.checked_elements
            tried += 1
            if result.outcome.failure is None:
                continue
            failures += 1
            err.print(f"{result.seed}: {result.outcome.failure}", markup=False, highlight=False)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / f"{result.seed}.ir").write_text(result.text, encoding="utf-8")
    coverage = "" if args.malformed else f"; {checked} of {total} result elements were checked"
    out.print(f"{tried} tried, {failures} failed{coverage}", highlight=False)
    if failures:
        raise TilewrightError(f"{failures} of {tried} failed")


def reduce(args: argparse.Namespace) -> None:
    """tilewright reduce"""
    from compiler.testing.fuzz.case_file import read_case
    from compiler.testing.fuzz.reduce import reduce as run
    from compiler.testing.fuzz.reduce import run_in_subprocess

    case = read_case(args.file)
    failure = run_in_subprocess(case)
    if failure is None:
        out.print("the graph passes every check")
        return
    if args.check:
        raise TilewrightError(str(failure))
    with status_spinner("reducing"):
        smallest = run(case, limit=args.limit)
    print(smallest)


def run_opinfo_samples(args: argparse.Namespace) -> None:
    """tilewright coverage --samples"""
    from collections import Counter

    from compiler.ir.torch_types import to_torch
    from compiler.ir.types import DTYPES
    from compiler.tools.opinfo import OUTCOMES, SamplingOptions, operators, require_runnable, run_samples

    require_runnable(args.target)
    options = Options(fallback="eager", target=args.target, cache="")  # code of today, and few programs come twice
    total: Counter[str] = Counter()
    for name in args.dtype.split(","):
        if name not in DTYPES:
            raise TilewrightError(f"unknown dtype {name}; available: {', '.join(DTYPES)}")
        dtype = to_torch(DTYPES[name])
        choice = (args.fraction, args.seed, *args.shard)
        sampling = SamplingOptions(dtype, options, args.gradients, args.dynamic_shapes, *choice)
        for tally in run_samples(operators(args.operators, dtype, sampling.device), sampling, args.log):
            total.update(tally.counts)
            counts = "  ".join(f"{tally.counts[o]} {o}" for o in OUTCOMES if o in tally.counts)
            out.print(f"{name:5} {tally.op:44} {counts}", highlight=False, markup=False)
            for cause, count in tally.causes.items():
                if not cause.startswith("opaque"):
                    out.print(f"          {count} {cause}", highlight=False, markup=False)
    out.print("total: " + ", ".join(f"{total[o]} {o}" for o in OUTCOMES), highlight=False)
    if total["failed"]:
        raise TilewrightError(f"{total['failed']} samples failed")
