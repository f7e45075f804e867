"""Pipelines as text: passes in order, or edits of the default pipeline.

pipeline ::= item ("," item)*
item     ::= pass                                           appended
           | "default"                                      the passes of the default pipeline
           | "+" pass ["@" ("before" | "after") ":" name]   inserted beside a pass before it in the text; else appended
           | "-" name                                       removed
pass     ::= name ["{" option ("," option)* "}"]
option   ::= name "=" value                                 a word, a number, true, false, none or "[" value ("," value)* "]"

    default,+form-silu@before:fuse,-winograd
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from compiler.errors import PassError, did_you_mean
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import PASSES, Pass, option_name, pass_options

Pipeline: TypeAlias = tuple[Pass[Any], ...]


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
    for name in names:
        if name not in available_passes():
            raise PassError(_unknown_pass(name))


def parse_pipeline(text: str, default: str | None = None) -> Pipeline:
    """Parse text such as "canonicalize,fuse{max-nodes=8},layout"; PassError points at a mistake.

    `default` is the pipeline that "default" stands for, where there is one.
    """
    return _PipelineParser(text, default).pipeline()


def split_at_kernels(passes: Pipeline) -> tuple[Pipeline, Pipeline]:
    """Split a pipeline behind its last pass that is none over kernels: the second part takes each kernel by itself."""
    end = max((k + 1 for k, p in enumerate(passes) if p.ir_type is not Kernel), default=0)
    return passes[:end], passes[end:]


def print_pipeline(passes: Iterable[Pass[Any]]) -> str:
    """Print text that `parse_pipeline` reads back as `passes`; options at their defaults are omitted."""
    return ",".join(map(str, passes))


def _unknown_pass(name: str) -> str:
    listed = "; `tilewright passes` lists them, and a pass of your own once its module is imported (--load MODULE)"
    return f"no pass is called {name}{did_you_mean(name, available_passes()) or listed}"


def _suggestion(word: str, valid: Iterable[str]) -> str:
    names = sorted(valid)
    return did_you_mean(word, names) or f"; there are {', '.join(names) or 'none'}"


_TOKEN = re.compile(r"\s*([A-Za-z0-9_.+\-]+|[{}\[\]=,@:])")


class _PipelineParser:
    """Recursive descent parser of one pipeline text; `at` is the offset of the next token."""

    def __init__(self, text: str, default: str | None = None) -> None:
        self.text, self.default, self.at = text, default, 0

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
        if self.peek() in ("", *"{}[]=,@:"):
            raise self.error(f"expected {what}")
        return self.next()

    def accept(self, token: str) -> bool:
        return self.peek() == token and bool(self.next())

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected '{token}'")

    def pipeline(self) -> Pipeline:
        passes: list[Pass[Any]] = []
        first = True
        while self.text[self.at :].strip():
            if not first:
                self.expect(",")
            first = False
            self.parse_item(passes)
        return tuple(passes)

    def parse_item(self, passes: list[Pass[Any]]) -> None:
        """Parse a pass or an edit, and apply it to the passes so far."""
        start, sign = self.at, self.peek()[:1]
        if self.accept("default"):
            if self.default is None:
                self.at = start
                raise self.error("there is no default pipeline here")
            passes += parse_pipeline(self.default)
            return
        if sign in ("+", "-"):
            self.at = self.text.index(sign, self.at) + 1
        if sign == "-":
            named = self.positions(passes)
            passes[:] = [p for k, p in enumerate(passes) if k not in named]
            return
        new = self.parse_pass()
        passes.insert(self.parse_place(passes) if sign == "+" and self.accept("@") else len(passes), new)

    def parse_place(self, passes: list[Pass[Any]]) -> int:
        """Parse `before:name` or `after:name`; return the position."""
        start, side = self.at, self.word("before or after")
        if side not in ("before", "after"):
            self.at = start
            raise self.error(f"expected before or after, not {side}")
        self.expect(":")
        found = self.positions(passes)
        return found[0] if side == "before" else found[-1] + 1

    def positions(self, passes: list[Pass[Any]]) -> list[int]:
        """Parse the name of a pass; return where it is in the pipeline so far."""
        start, name = self.at, self.word("the name of a pass")
        found = [k for k, p in enumerate(passes) if p.name == name]
        if not found:
            self.at = start
            raise self.error(f"the pipeline so far has no pass {name}{did_you_mean(name, (p.name for p in passes))}")
        return found

    def parse_pass(self) -> Pass[Any]:
        start, name = self.at, self.word("the name of a pass")
        make = available_passes().get(name)
        if make is None:
            self.at = start
            raise self.error(_unknown_pass(name))
        options: dict[str, Any] = {}
        if self.accept("{"):
            kinds = get_type_hints(make) if isinstance(make, type) else {}
            fields_by_name = {option_name(f): f.name for f in pass_options(make)}
            while not self.accept("}"):
                if options:
                    self.expect(",")
                start, option = self.at, self.word("the name of an option")
                if option not in fields_by_name:
                    self.at = start
                    raise self.error(f"{name} has no option {option}{_suggestion(option, fields_by_name)}")
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
