"""A pass is a value: a name, options, and IR in, IR out.

    @register
    @dataclass(frozen=True)
    class Unroll(TilePass):
        \"\"\"Repeat short loops instead of counting them.\"\"\"

        name = "unroll"
        max_steps: int = 8

        def run(self, ir: Kernel, context: Context) -> Kernel: ...

The fields are the pass's options in text: `unroll{max-steps=4}`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar

from compiler.analysis.accesses import Accesses
from compiler.cost.machine import Machine
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.passes.remark import Remark, Remarks
from compiler.target import MatrixShape, Target

IR = TypeVar("IR", bound=Graph | Kernel | Program)


@dataclass(frozen=True)
class Alternative:
    """Alternative to a close decision: `replacement` might serve as well as `pass_` did (None: leave the pass out)."""

    pass_: Pass[Any]
    replacement: Pass[Any] | None


@dataclass
class Context:
    """State that the passes of one compilation share: the machine they choose for, and what they report.

    machine, target_name, matrix_shapes, native_primitives: the target's description for the cost model, its name on the command
        line, its matrix multiply-accumulate instructions, and what it has of the primitives that only some targets have.
    kernel_problem, row_problem, reduction_seconds: what the target cannot express in a kernel, the rows that no block of it
        holds ("" if there is no problem), and a lower bound of the time of a kernel's reductions in seconds.
    remarks, statistics: messages and counts for the user.
    kernel: name of the kernel under way; "" for other IR.
    program: the program that launches the kernel under way, if any.
    alternatives: what the autotuner may try.
    wants_small_variant: set by a pass that would decide otherwise for small dynamic sizes, to get a second program for these.
    lowered_kernels: kernels that fusion lowered to compare costs, by the structural key of their body; lowering reuses them.
    group_costs: seconds that fusion estimated for structurally equal groups, by its options and the structural key.
    running: the pass under way, as it stands in its pipeline.
    rewrites: the rewrites made so far, in order.
    rewrite_limit, limited_pass: number of rewrites after which none follows but those that later stages require (None: no
        limit), and the only pass that the limit counts and stops ("": all).
    refuses_required: refuse required rewrites as well, for IR that is interpreted.
    on_state: called with a function that builds the IR after the rewrites made so far, by passes that can do so before they end.
    """

    machine: Machine = field(default_factory=Machine)
    matrix_shapes: tuple[MatrixShape, ...] = ()
    native_primitives: tuple[str, ...] = ()
    kernel_problem: Callable[[Kernel], str] = lambda kernel: ""
    row_problem: Callable[[Kernel], str] = lambda kernel: ""
    reduction_seconds: Callable[[Kernel], float] = lambda kernel: 0.0
    target_name: str = "host"
    remarks: Remarks = field(default_factory=Remarks)
    statistics: Counter[str] = field(default_factory=Counter)
    kernel: str = ""
    program: Program | None = None
    alternatives: list[Alternative] = field(default_factory=list)
    wants_small_variant: bool = False
    lowered_kernels: dict[Hashable, Kernel] = field(default_factory=dict)
    group_costs: dict[Hashable, float | str] = field(default_factory=dict)
    running: Pass[Any] | None = None
    rewrite_limit: int | None = None
    refuses_required: bool = False
    limited_pass: str = ""
    rewrites: list[Remark] = field(default_factory=list)
    on_state: Callable[[Callable[[], Graph | Kernel | Program]], None] | None = None
    _accesses: Accesses | None = None

    @staticmethod
    def for_target(target: Target, rewrite_limit: int | None = None) -> Context:
        """Return a new context of passes that make code for `target`, in at most `rewrite_limit` rewrites."""
        machine = target.machine or Machine()
        shapes = tuple(s for s in target.matrix_shapes if s.k == 1 or machine.multiplies_sooner(s.lhs, s.k))
        questions = target.kernel_problem, target.row_problem, target.reduction_seconds
        return Context(machine, shapes, target.native_primitives, *questions, target.name, rewrite_limit=rewrite_limit)

    def trial(self) -> Context:
        """Return a new context of the same target and program, whose remarks and rewrites count for nothing."""
        return Context(
            self.machine,
            self.matrix_shapes,
            self.native_primitives,
            self.kernel_problem,
            self.row_problem,
            self.reduction_seconds,
            self.target_name,
            program=self.program,
        )

    @property
    def distant_params(self) -> frozenset[str]:
        """Parameters of the current kernel that are inputs or constants of its program, if a call finds none of them in a cache."""
        if not self.program or self.program.external_bytes <= self.machine.l3:
            return frozenset()
        return frozenset() if self.kernel in self.program.looped_kernels else self.program.external_params(self.kernel)

    def accesses(self, kernel: Kernel) -> Accesses:
        """Return the loads and stores of `kernel`, cached until a pass changes it."""
        if self._accesses is None or self._accesses.kernel is not kernel:
            self._accesses = Accesses(kernel)
        return self._accesses

    def may_apply(
        self,
        pass_: Pass[Any],
        message: str,
        about: Node | str = "",
        *,
        required: bool = False,
        remark: bool = True,
    ) -> bool:
        """Count the rewrite that `pass_` is about to make, and return True unless the limit is reached.

        `message` says what changes and why that pays; it becomes a remark if `remark`.  A `required` rewrite is what later stages
        need: it is counted, but made in any case.
        """
        if not (required and not self.refuses_required) and self.is_spent(pass_):
            return False
        self.rewrites.append(self._remark(pass_, "applied", message, about))
        if remark:
            self.remarks.add(self.rewrites[-1])
        return True

    def is_spent(self, pass_: Pass[Any]) -> bool:
        """Return True if the limit is reached and holds for `pass_`."""
        if self.rewrite_limit is None or self.limited_pass not in ("", pass_.name):
            return False
        return sum(self.limited_pass in ("", r.pass_) for r in self.rewrites) >= self.rewrite_limit

    def reached(self, state: Callable[[], Graph | Kernel | Program]) -> None:
        """Give `on_state`, if there is one, the function that builds the IR after the rewrites made so far."""
        if self.on_state:
            self.on_state(state)

    def also_applied(self, pass_: Pass[Any], message: str, about: Node | str = "") -> None:
        """Leave a remark about a further change by the rewrite that `may_apply` has just allowed."""
        self.remarks.add(self._remark(pass_, "applied", message, about))

    def missed(self, pass_: Pass[Any], message: str, about: Node | str = "", lost: float = 0.0) -> None:
        """Leave a remark about a change that `pass_` did not make, with the reason; `lost` estimates the seconds that this costs."""
        self.remarks.add(self._remark(pass_, "missed", message, about, lost))

    def note(self, pass_: Pass[Any], message: str, about: Node | str = "") -> None:
        """Leave a remark that is neither an applied nor a missed change."""
        self.remarks.add(self._remark(pass_, "note", message, about))

    def count(self, pass_: Pass[Any], what: str, amount: int = 1) -> None:
        """Add to the statistic `pass: what`."""
        self.statistics[f"{pass_.name}: {what}"] += amount

    def propose(self, pass_: Pass[Any], *replacements: Pass[Any] | None) -> None:
        """Propose alternatives to the autotuner: the same pass with other options, or None to leave it out."""
        others = (other and other.with_open_options(self.machine) for other in replacements)
        self.alternatives += [Alternative(self.running or pass_, other) for other in others]

    def _remark(self, pass_: Pass[Any], kind: str, message: str, about: Node | str, lost: float = 0.0) -> Remark:
        name, loc = (about, None) if isinstance(about, str) else (about.name or about.op.name, about.loc)
        return Remark(pass_.name, kind, message, loc, name, self.kernel, lost)


class Pass(ABC, Generic[IR]):
    """Base of all passes; derive from `GraphPass`, `ProgramPass` or `TilePass`, as a frozen dataclass.

    An option declared by `from_machine` is what the machine's description says, unless it is given.

    `exact` claims that results keep their bits; other passes may round differently.
    """

    name: str
    exact: bool = False
    ir_type: ClassVar[type]

    @abstractmethod
    def run(self, ir: IR, context: Context) -> IR:
        """Return the transformed IR, or `ir` itself if nothing changes."""

    def __str__(self) -> str:
        """Return the text that a pipeline has for it: the name, and the options that differ from their defaults."""
        values = [(f, getattr(self, f.name)) for f in pass_options(self)]
        options = [f"{option_name(f)}={_print_value(value)}" for f, value in values if value != f.default]
        return self.name + ("{" + ", ".join(options) + "}" if options else "")

    def for_machine(self, machine: Machine) -> Self:
        """Return the pass with the values of its open options."""
        values = machine_options(self, machine)
        return replace(self, **{n: v for n, v in values.items() if getattr(self, n) is None}) if values else self  # type: ignore[type-var]

    def with_open_options(self, machine: Machine) -> Self:
        """Return the pass with the options left open that are as the machine's description has them."""
        values = machine_options(self, machine)
        return replace(self, **{n: None for n, v in values.items() if getattr(self, n) == v}) if values else self  # type: ignore[type-var]


def pass_options(pass_: Callable[..., Pass[Any]] | Pass[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of a pass that text can set."""
    return tuple(f for f in fields(pass_) if f.init) if hasattr(pass_, "__dataclass_fields__") else ()  # type: ignore[arg-type]


def option_name(f: Field[Any]) -> str:
    """Return the name that text has for an option."""
    return f.name.replace("_", "-")


def _print_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_print_value, value)) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def from_machine(name: str) -> Any:
    """Declare an option of a pass that is `name` in the machine's description unless it is given."""
    return field(default=None, metadata={"machine": name})


def machine_options(pass_: Pass[Any], machine: Machine) -> dict[str, Any]:
    """Return the values that `machine` has for options of a pass."""
    declared = fields(pass_) if hasattr(pass_, "__dataclass_fields__") else ()  # type: ignore[arg-type]
    return {f.name: getattr(machine, f.metadata["machine"]) for f in declared if "machine" in f.metadata}


class GraphPass(Pass[Graph]):
    """A pass from Graph IR to Graph IR."""

    ir_type = Graph


class TilePass(Pass[Kernel]):
    """A pass from one kernel of Tile IR to another."""

    ir_type = Kernel


class ProgramPass(Pass[Program]):
    """A pass over all kernels and buffers of a program together."""

    ir_type = Program


PASSES: dict[str, Callable[..., Pass[Any]]] = {}
"""Every registered pass by name; `compiler.passes.pipeline_text.available_passes` imports those of the compiler first."""

P = TypeVar("P", bound=type[Pass[Any]])


def register(pass_class: P) -> P:
    """Enter a pass in the registry under its name."""
    return register_factory(pass_class.name, pass_class)


F = TypeVar("F", bound=Callable[..., Pass[Any]])


def register_factory(name: str, factory: F) -> F:
    """Enter `factory`, which builds a pass from its options, under `name`; one of the same module and name is replaced."""
    known = PASSES.get(name)
    if known is not None and _origin(known) != _origin(factory):
        raise ValueError(f"pass {name} is declared twice")
    PASSES[name] = factory
    return factory


def declaring_module(function: Callable[..., Any]) -> str:
    """Return the module that defines a function or a class, or what a partial application applies."""
    while isinstance(function, partial):
        function = function.func
    return function.__module__


def _origin(factory: Callable[..., Pass[Any]]) -> tuple[str, str]:
    return getattr(factory, "__module__", ""), getattr(factory, "__qualname__", repr(factory))
