"""Pipelines: text to passes, passes to text, and running them.

pipeline ::= pass ("," pass)*
pass     ::= name ["{" option ("," option)* "}"]
option   ::= name "=" value            a word, a number, true, false, none or "[" value ("," value)* "]"
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import pkgutil
import re
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from functools import cache, partial
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from compiler.errors import DynamicShapeError, PassError, TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program, map_kernels
from compiler.passes.base import IR, PASSES, Context, Pass

Pipeline: TypeAlias = tuple[Pass[Any], ...]


KernelSink: TypeAlias = Callable[[Kernel, Program], None]
"""Receiver of each kernel after its last pass, so that its code is generated while passes run on the next kernel."""


class PassInstrument:
    """An observer of passes; does nothing itself.  It never changes what is compiled."""

    def before_pass(self, pass_: Pass[Any], ir: Any, context: Context) -> None:
        """Observe the input of a pass."""

    def after_pass(self, pass_: Pass[Any], old: Any, new: Any, seconds: float, context: Context) -> None:
        """Observe the input and the output of a pass, and the time it took."""


def run_pipeline(
    ir: IR,
    passes: str | Iterable[Pass[Any]],
    context: Context | None = None,
    instruments: Sequence[PassInstrument] = (),
    finished: KernelSink | None = None,
) -> IR:
    """Run every pass in order; passes over kernels run on each kernel of a program.

    `finished` receives each kernel after its last pass.  PassError if a pass fails, or takes another kind of IR.
    """
    context = context or Context()
    passes = parse_pipeline(passes) if isinstance(passes, str) else tuple(passes)
    if isinstance(ir, Program):
        return run_program_pipeline(ir, passes, context, instruments, finished)  # type: ignore[return-value]  # IR is Program
    return run_passes(ir, passes, context, instruments)


def run_program_pipeline(
    ir: Program,
    passes: Pipeline,
    context: Context,
    instruments: Sequence[PassInstrument],
    finished: KernelSink | None = None,
) -> Program:
    """Run passes over programs and passes over kernels, in order."""
    groups = [(ir_type, tuple(group)) for ir_type, group in itertools.groupby(passes, key=lambda p: p.ir_type)]
    for position, (ir_type, group) in enumerate(groups, 1):
        if ir_type is not Kernel:
            ir = run_passes(ir, group, context, instruments)
            continue
        context.repeated_kernels = ir.looped_kernels
        sink = finished if position == len(groups) else None
        ir = map_kernels(ir, partial(schedule_kernel, ir, group, context, instruments, sink))
    return ir


def schedule_kernel(
    program: Program,
    passes: Pipeline,
    context: Context,
    instruments: Sequence[PassInstrument],
    finished: KernelSink | None,
    kernel: Kernel,
) -> Kernel:
    """Run passes over one kernel of `program`, and give the result to `finished`."""
    scheduled = run_passes(kernel, passes, context, instruments)
    if finished:
        finished(scheduled, program)
    return scheduled


def run_passes(ir: IR, passes: Pipeline, context: Context, instruments: Sequence[PassInstrument] = ()) -> IR:
    """Run passes that take the kind of `ir`, in order."""
    for position, pass_ in enumerate(passes):
        where = f"pass {print_pass(pass_)} (number {position + 1} of {len(passes)}) on @{ir.name}"
        if not isinstance(ir, pass_.ir_type):
            raise PassError(f"{where}: takes a {pass_.ir_type.__name__}, not a {type(ir).__name__}")
        for instrument in instruments:
            instrument.before_pass(pass_, ir, context)
        start, context.kernel = time.perf_counter(), ir.name if isinstance(ir, Kernel) else ""
        try:
            new = run_on_nested_graphs(pass_, ir, context)
        except DynamicShapeError:
            raise  # the driver continues with static sizes
        except TilewrightError as error:
            raise PassError(f"{where}: {error}") from error
        except Exception as error:
            raise PassError(f"{where} failed: {type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - start
        for instrument in instruments:
            instrument.after_pass(pass_, ir, new, seconds, context)
        ir = new
    return ir


def run_on_nested_graphs(pass_: Pass[Any], ir: IR, context: Context) -> IR:
    """Run `pass_` on `ir`; on a graph, run it on loop bodies first, innermost first."""
    current = ir.map_bodies(lambda body: run_on_nested_graphs(pass_, body, context)) if isinstance(ir, Graph) else ir
    context.running = pass_
    return pass_.for_machine(context.machine).run(current, context)  # type: ignore[no-any-return]


def available_passes() -> Mapping[str, Callable[..., Pass[Any]]]:
    """Return every pass by name: those of compiler/passes/{graph,program,tile,gpu}, and registered ones of users."""
    _import_passes()
    return PASSES


@cache
def _import_passes() -> None:
    """Import the modules of all passes, which registers them."""
    for package in ("compiler.passes.graph", "compiler.passes.program", "compiler.passes.tile", "compiler.passes.gpu"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")


def require_passes(names: Iterable[str]) -> None:
    """Raise PassError for the first of `names` that no pass has, with those it may stand for."""
    available = available_passes()
    for name in names:
        if name not in available:
            raise PassError(f"no pass is called {name}; {_suggestion(name, available)}")


def parse_pipeline(text: str) -> Pipeline:
    """Parse text such as "canonicalize,fuse{max-nodes=8},layout"; PassError points at a mistake."""
    return _PipelineParser(text).pipeline()


def print_pipeline(passes: Iterable[Pass[Any]]) -> str:
    """Print text that `parse_pipeline` reads back as `passes`; options at their defaults are omitted."""
    return ",".join(map(print_pass, passes))


def print_pass(pass_: Pass[Any]) -> str:
    """Print the name of a pass and the options that differ from their defaults."""
    values = [(f, getattr(pass_, f.name)) for f in pass_options(pass_)]
    options = [f"{_dashed(f.name)}={_print_value(value)}" for f, value in values if value != f.default]
    return pass_.name + ("{" + ", ".join(options) + "}" if options else "")


def pass_options(pass_: Callable[..., Pass[Any]] | Pass[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of a pass that text can set."""
    return tuple(f for f in fields(pass_) if f.init) if hasattr(pass_, "__dataclass_fields__") else ()  # type: ignore[arg-type]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _print_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_print_value, value)) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _suggestion(word: str, valid: Iterable[str]) -> str:
    names = sorted(valid)
    near = difflib.get_close_matches(word, names, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"


_TOKEN = re.compile(r"\s*([A-Za-z0-9_.+\-]+|[{}\[\]=,])")


class _PipelineParser:
    """Recursive descent parser of one pipeline text; `at` is the offset of the next token."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def error(self, why: str) -> PassError:
        return PassError(f"pipeline, column {self.at + 1}: {why}\n  {self.text}\n  {' ' * self.at}^")

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match[1] if match else ""

    def next(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if not match:
            raise self.error("unexpected character" if self.text[self.at :].strip() else "unexpected end of text")
        self.at = match.end()
        return match[1]

    def word(self, what: str) -> str:
        if self.peek() in ("", *"{}[]=,"):
            raise self.error(f"expected {what}")
        return self.next()

    def accept(self, token: str) -> bool:
        return self.peek() == token and bool(self.next())

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected '{token}'")

    def pipeline(self) -> Pipeline:
        passes: list[Pass[Any]] = []
        while self.text[self.at :].strip():
            if passes:
                self.expect(",")
            passes.append(self.parse_pass())
        return tuple(passes)

    def parse_pass(self) -> Pass[Any]:
        start = self.at
        name, available = self.word("the name of a pass"), available_passes()
        if name not in available:
            self.at = start
            raise self.error(f"no pass is called {name}; {_suggestion(name, available)}")
        make = available[name]
        options: dict[str, Any] = {}
        if self.accept("{"):
            kinds = get_type_hints(make) if isinstance(make, type) else {}
            fields_by_name = {_dashed(f.name): f.name for f in pass_options(make)}
            while not self.accept("}"):
                if options:
                    self.expect(",")
                start, option = self.at, self.word("the name of an option")
                if option not in fields_by_name:
                    self.at = start
                    raise self.error(f"{name} has no option {option}; {_suggestion(option, fields_by_name)}")
                self.expect("=")
                options[fields_by_name[option]] = self.parse_value(f"{name}{{{option}}}", kinds[fields_by_name[option]])
        return make(**options)

    def parse_value(self, what: str, kind: Any) -> Any:
        """Parse an option value of the field's type `kind`."""
        if get_origin(kind) in (Union, types.UnionType):
            if self.peek() == "none":
                self.next()
                return None
            kind = next(k for k in get_args(kind) if k is not type(None))
        if get_origin(kind) is tuple:
            item, *_ = get_args(kind)
            items: list[Any] = []
            self.expect("[")
            while not self.accept("]"):
                if items:
                    self.expect(",")
                items.append(self.parse_value(what, item))
            return tuple(items)
        start, word = self.at, self.word(f"a value for {what}")
        try:
            return {"true": True, "false": False}[word] if kind is bool else kind(word)
        except (KeyError, ValueError):
            self.at = start
            names = {int: "an integer", float: "a number", bool: "true or false"}
            raise self.error(f"{what} takes {names.get(kind, kind)}, not {word}") from None
