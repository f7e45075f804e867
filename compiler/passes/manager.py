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
from typing import Any, Protocol, TypeAlias, Union, get_args, get_origin, get_type_hints

from compiler.errors import DynamicShapeError, PassError, TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program, map_kernels
from compiler.passes.base import IR, PASSES, Context, Pass

Pipeline: TypeAlias = tuple[Pass[Any], ...]


class Instrument(Protocol):
    """Something that watches a pipeline."""

    def before_pass(self, pass_: Pass[Any], ir: Any, context: Context) -> None:
        """Called with what `pass_` is given."""

    def after_pass(self, pass_: Pass[Any], old: Any, new: Any, seconds: float, context: Context) -> None:
        """Called with what `pass_` was given and what it made of it."""

    def kernel_finished(self, kernel: Kernel, program: Program, context: Context) -> None:
        """Called with each kernel of `program` as no pass will change it any more, before the passes run on the next."""


def run_pipeline(
    ir: IR, passes: str | Iterable[Pass[Any]], context: Context | None = None, instruments: Sequence[Instrument] = ()
) -> IR:
    """`ir` after every pass in order; passes over kernels run on each kernel of a program.

    PassError where a pass fails or is for another kind of IR; it names the pass and its place in the pipeline.
    """
    context = context or Context()
    passes = parse_pipeline(passes) if isinstance(passes, str) else tuple(passes)
    if isinstance(ir, Program):
        return run_program_pipeline(ir, passes, context, instruments)  # type: ignore[return-value]  # IR is Program here
    return run_passes(ir, passes, context, instruments)


def run_program_pipeline(ir: Program, passes: Pipeline, context: Context, instruments: Sequence[Instrument]) -> Program:
    """The program after passes over programs and passes over kernels, in order."""
    left = len(passes)
    for takes, group in itertools.groupby(passes, key=lambda p: p.ir_type):
        some = tuple(group)
        left -= len(some)
        if takes is Kernel:
            context.repeated_kernels = ir.looped_kernels
            run = partial(
                run_passes if left else partial(run_final_kernel_passes, ir), context=context, instruments=instruments
            )
            ir = map_kernels(ir, partial(run, passes=some))
        else:
            ir = run_passes(ir, some, context, instruments)
    return ir


def run_final_kernel_passes(
    program: Program, kernel: Kernel, passes: Pipeline, context: Context, instruments: Sequence[Instrument]
) -> Kernel:
    """A kernel of `program` after its last passes."""
    made = run_passes(kernel, passes, context, instruments)
    for instrument in instruments:
        instrument.kernel_finished(made, program, context)
    return made


def run_passes(ir: IR, passes: Pipeline, context: Context, instruments: Sequence[Instrument] = ()) -> IR:
    """`ir` after passes that all take its kind."""
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
            raise  # the driver goes on without open sizes
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
    """What `pass_` makes of the bodies of loops in a graph, the innermost first, and then of the graph around them."""
    given = ir.map_bodies(lambda body: run_on_nested_graphs(pass_, body, context)) if isinstance(ir, Graph) else ir
    return pass_.run(given, context)  # type: ignore[no-any-return]


def available_passes() -> Mapping[str, Callable[..., Pass[Any]]]:
    """Every pass by name: one per file of compiler/passes/{graph,program,tile}, and those the user registered."""
    _import_passes()
    return PASSES


@cache
def _import_passes() -> None:
    """Let every pass that comes with the compiler register itself."""
    for package in ("compiler.passes.graph", "compiler.passes.program", "compiler.passes.tile", "compiler.passes.gpu"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")


def parse_pipeline(text: str) -> Pipeline:
    """Passes from text such as "canonicalize,fuse{max-inputs=8},layout"; PassError says what is wrong and where."""
    return _PipelineParser(text).pipeline()


def print_pipeline(passes: Iterable[Pass[Any]]) -> str:
    """The text that `parse_pipeline` reads back as `passes`; options at their defaults are left out."""
    return ",".join(map(print_pass, passes))


def print_pass(pass_: Pass[Any]) -> str:
    """The name of a pass and the options that differ from their defaults."""
    given = [(f, getattr(pass_, f.name)) for f in pass_options(pass_)]
    shown = [f"{_dashed(f.name)}={_print_value(value)}" for f, value in given if value != f.default]
    return pass_.name + ("{" + ", ".join(shown) + "}" if shown else "")


def pass_options(pass_: Callable[..., Pass[Any]] | Pass[Any]) -> tuple[Field[Any], ...]:
    """The fields of a pass that text can set."""
    return tuple(f for f in fields(pass_) if f.init) if hasattr(pass_, "__dataclass_fields__") else ()  # type: ignore[arg-type]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _print_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_print_value, value)) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _suggestion(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(word, names, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"


_TOKEN = re.compile(r"\s*([A-Za-z0-9_.+\-]+|[{}\[\]=,])")


class _PipelineParser:
    """One pipeline text being read."""

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
            raise self.error(
                "the text ends too early" if not self.text[self.at :].strip() else "this is not understood"
            )
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
        name, known = self.word("the name of a pass"), available_passes()
        if name not in known:
            self.at = start
            raise self.error(f"no pass is called {name}; {_suggestion(name, known)}")
        make = known[name]
        given: dict[str, Any] = {}
        if self.accept("{"):
            kinds = get_type_hints(make) if isinstance(make, type) else {}
            fields_by_name = {_dashed(f.name): f.name for f in pass_options(make)}
            while not self.accept("}"):
                if given:
                    self.expect(",")
                start, option = self.at, self.word("the name of an option")
                if option not in fields_by_name:
                    self.at = start
                    raise self.error(f"{name} has no option {option}; {_suggestion(option, fields_by_name)}")
                self.expect("=")
                given[fields_by_name[option]] = self.parse_value(f"{name}{{{option}}}", kinds[fields_by_name[option]])
        return make(**given)

    def parse_value(self, what: str, kind: Any) -> Any:
        """A value of the field's type `kind`."""
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
