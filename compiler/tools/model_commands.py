"""Commands over exported programs: compile, run, compare, explore and profile."""

from __future__ import annotations

import argparse
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import TilewrightError
from compiler.options import Options
from compiler.tools.command_line import (
    add_command,
    add_model_arguments,
    err,
    options_from_args,
    out,
    show,
    status_spinner,
    write_json,
)

if TYPE_CHECKING:
    import torch

    from compiler.api import CompiledModule


def add_program_commands(commands: Any) -> None:
    """Add the commands `compile`, `run`, `compare`, `explore` and `profile`, which take an exported program."""
    c = add_command(commands, "compile", compile_model, "compile an exported program and report")
    add_model_arguments(c)
    c.add_argument("-o", "--output", help="write the page of `explore`; for a GPU, a folder with its kernels")
    c.add_argument(
        "--print-ir",
        metavar="STAGE",
        help="print the IR of a stage instead: imported, fused, lowered, scheduled, schedules, llvm, assembly, triton",
    )

    c = add_command(commands, "run", run_model, "run an exported program on inputs from a file or its example inputs")
    add_model_arguments(c)
    c.add_argument("-i", "--inputs", metavar="FILE.pt", help="a tuple of arguments saved by torch.save")
    c.add_argument("-o", "--output", metavar="FILE.pt", help="save the result with torch.save")

    c = add_command(commands, "compare", compare_model, "compare a program compiled in several ways with PyTorch eager")
    add_model_arguments(c)
    text = """a way to compile, may be repeated: fused, unfused, a pipeline of graph passes, or a name and options, as in
        'wide={effort="tune", tile_passes="vectorize"}' (unfused, fused)"""
    c.add_argument("-w", "--way", dest="ways", action="append", metavar="WAY", help=text)
    c.add_argument(
        "--reference", metavar="FLOAT.pt2", help="the program that MODEL.pt2 was quantized from: its error too"
    )

    text = "write a page to explore a compilation: graph, passes, kernels, code and times"
    c = add_command(commands, "explore", explore_model, text)
    add_model_arguments(c)
    c.add_argument("-o", "--output", default="explore.html", metavar="FILE", help="the page (explore.html)")
    c.add_argument(
        "--against", action="append", default=[], metavar="WAY", help="another way to compile, as compare takes it"
    )
    c.add_argument("--repeats", type=int, default=20, metavar="N", help="number of measured calls (20)")

    c = add_command(commands, "profile", profile_model, "time every kernel of a program")
    add_model_arguments(c)
    c.add_argument("--repeats", type=int, default=20, metavar="N", help="number of calls (20)")
    c.add_argument("--json", action="store_true", help="print the profile as JSON, times in seconds")
    c.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a trace of one call for Perfetto or chrome://tracing"
    )


def compile_model(args: argparse.Namespace) -> None:
    """tilewright compile"""
    import compiler
    from compiler.codegen.triton.targets import GPUTarget

    with status_spinner(f"compiling {args.model}"):
        compiled = compiler.compile(args.model, options=options_from_args(args))
    if args.print_ir:
        print(compiled.print_ir(args.print_ir))
        return
    if args.output and isinstance(compiled.stages.target, GPUTarget):
        save_kernels(compiled, args.output)
        return
    with status_spinner("measuring"):
        report = compiled.report()
    show(report)
    if args.output:
        err.print(f"wrote {compiled.explore(args.output)}")


def save_kernels(compiled: CompiledModule, folder: str) -> None:
    """Write the kernels of a program to a folder, and print what they use."""
    from compiler.codegen.triton.targets import GPUTarget
    from compiler.report.gpu_kernels import gpu_kernel_reports, gpu_kernel_table

    with status_spinner("compiling kernels"):
        kernels = compiled.save_kernels(folder)
    stages = compiled.stages
    assert isinstance(stages.target, GPUTarget)
    show(gpu_kernel_table(gpu_kernel_reports(stages.scheduled, stages.target, kernels), stages.target.name))
    err.print(f"wrote {folder}")


def run_model(args: argparse.Namespace) -> None:
    """tilewright run"""
    import torch
    from torch.utils._pytree import tree_map_only

    import compiler

    with status_spinner(f"compiling {args.model}"):
        compiled = compiler.compile(args.model, options=options_from_args(args))
    inputs, kwargs = compiled.example_inputs
    if args.inputs:
        inputs, kwargs = tuple(torch.load(args.inputs, weights_only=True)), {}
    result = compiled(*inputs, **kwargs)
    if args.output:
        torch.save(result, args.output)
        err.print(f"wrote {args.output}")
    out.print(tree_map_only(torch.Tensor, describe_tensor, result))


def describe_tensor(t: torch.Tensor) -> str:
    """Describe a tensor by its dtype and shape, and the mean and range of its elements."""
    text = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    if not t.numel():
        return text
    x = t.double()
    return f"{text} mean {float(x.mean()):.4g}, from {float(x.min()):.4g} to {float(x.max()):.4g}"


def compare_model(args: argparse.Namespace) -> None:
    """tilewright compare"""
    import compiler

    ways = dict(map(parse_way, args.ways or ("unfused", "fused")))
    with status_spinner(f"comparing {', '.join(ways)}"):
        chosen = options_from_args(args)
        result = compiler.compare(args.model, ways=ways, reference=args.reference, options=chosen)
    show(result)


def parse_way(text: str) -> tuple[str, str | dict[str, Any]]:
    """Return name and settings of a way: `name={option=value, ...}` is read as TOML, other text names itself."""
    if not re.match(r"[\w.-]+\s*=\s*\{", text):
        return text, text
    try:
        ((name, options),) = tomllib.loads(text).items()
    except ValueError as error:
        raise TilewrightError(f"cannot read the way {text!r} as TOML: {error}") from error
    if unknown := set(options) - {f.name for f in fields(Options)}:
        raise TilewrightError(
            f"{name}: there is no option {min(unknown)!r}; options are the fields of compiler.Options"
        )
    return name, options


def explore_model(args: argparse.Namespace) -> None:
    """tilewright explore"""
    from compiler.api import explore

    ways = dict(map(parse_way, args.against))
    with status_spinner(f"compiling {args.model}"):
        file = explore(args.model, args.output, options=options_from_args(args), against=ways, repeats=args.repeats)
    err.print(f"wrote {file}")


def profile_model(args: argparse.Namespace) -> None:
    """tilewright profile"""
    import compiler
    from compiler.report.trace import trace_events

    with status_spinner(f"compiling {args.model}"):
        compiled = compiler.compile(args.model, options=options_from_args(args))
    inputs, kwargs = compiled.example_inputs
    with status_spinner("measuring"):
        profile = compiled.profile(*inputs, repeats=args.repeats, **kwargs)
    if args.trace:
        write_json(trace_events(profile), args.trace)
    if args.json:
        write_json(profile.as_dict(), None)
    else:
        show(profile)
