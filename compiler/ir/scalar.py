"""Scalar expressions: one element of a result as a function of elements of the operands.

They define elementwise ops (traced from a Python lambda over `Expr`) and are the values of Tile IR, where each
expression is evaluated for every element of a tile.

    expr ::= Const(value) | Ref(name) | Load(buffer, index) | IndexValue(index) | PrimitiveCall(primitive, expr, ...)

A primitive is declared once, in `PRIMITIVES`: name, type rule and NumPy implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import add, mul, sub
from typing import Any, TypeAlias, Union

import numpy as np

from compiler.ir import numpy_primitives
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, variables
from compiler.ir.types import DType, boolean, i64

Number: TypeAlias = Union[int, float, bool]


@dataclass(frozen=True)
class Primitive:
    """One scalar operation.

    `result_rule` is "same" (dtype of the operands), "bool", "branch" (dtype of the second operand; the first is bool)
    or "given" (the caller names the dtype).  `evaluate` implements it on NumPy arrays.  `cost` is its estimated
    cost in multiply-adds on a CPU with wide vectors.  On a GPU its code in f32 `branches` where some
    arguments take another path.  An `arity` of 0 is that of the result: one operand for each value that it packs.
    """

    name: str
    arity: int
    result_rule: str
    evaluate: Callable[..., Any]
    cost: int = 1
    infix: str = ""
    branches: bool = False


@dataclass(frozen=True, eq=False)
class Expr:
    """A scalar expression; Python operators and the functions of this module combine expressions."""

    dtype: DType

    def _fields(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __hash__(self) -> int:
        cached = self.__dict__.get("_hash")
        if cached is None:
            cached = hash((type(self), self.dtype.name, *self._fields()))
            object.__setattr__(self, "_hash", cached)
        return cached

    def is_structurally_equal(self, other: object) -> bool:
        """Return True if both expressions have the same structure; `==` means the same."""
        if self is other:
            return True
        if not isinstance(other, Expr) or type(self) is not type(other) or hash(self) != hash(other):
            return False
        mine, theirs = self._canonical(), other._canonical()
        if mine is theirs:
            return True
        equal = self.dtype == other.dtype and self._fields() == other._fields()
        if equal:
            object.__setattr__(theirs, "_canonical_form", mine)
        return equal

    def _canonical(self) -> Expr:
        """Return the representative of equal expressions (union-find), so that shared parts are compared only once."""
        form = self.__dict__.get("_canonical_form")
        return self if form is None else form._canonical()

    __eq__ = is_structurally_equal

    @property
    def args(self) -> tuple[Expr, ...]:
        """Direct subexpressions."""
        return ()

    @property
    def subexprs(self) -> tuple[Expr, ...]:
        """The expression and its subexpressions in post-order, each object once."""
        return (*self._proper_subexprs, self) if self.args else (self,)  # most expressions are names and loads

    @cached_property
    def _proper_subexprs(self) -> tuple[Expr, ...]:
        """Subexpressions without the expression itself: caching that would be a reference cycle."""
        visited: dict[int, Expr] = {}
        stack = [(a, False) for a in reversed(self.args)]
        while stack:
            node, args_visited = stack.pop()
            args = node.args
            if args_visited or not args:
                visited.setdefault(id(node), node)
            elif id(node) not in visited:
                if (known := node.__dict__.get("_proper_subexprs")) is not None:
                    visited.update(zip(map(id, known), known))
                    visited[id(node)] = node
                    continue
                stack.append((node, True))
                stack += [(a, False) for a in args[::-1]]
        return tuple(visited.values())

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads in the expression, in post-order."""
        return (*self._operand_loads, self) if isinstance(self, Load) else self._operand_loads

    @property
    def calls(self) -> tuple[PrimitiveCall, ...]:
        """The primitive calls in the expression, in post-order."""
        return (*self._operand_calls, self) if isinstance(self, PrimitiveCall) else self._operand_calls

    @cached_property
    def _operand_loads(self) -> tuple[Load, ...]:
        return tuple(x for x in self._proper_subexprs if isinstance(x, Load))

    @cached_property
    def _operand_calls(self) -> tuple[PrimitiveCall, ...]:
        return tuple(x for x in self._proper_subexprs if isinstance(x, PrimitiveCall))

    @cached_property
    def used_names(self) -> frozenset[str]:
        """Names of the loop variables and bound values that the expression reads."""
        return frozenset().union(*(x._own_names() for x in self.subexprs))

    def _own_names(self) -> frozenset[str]:
        return frozenset()

    def __add__(self, other: Expr | Number) -> Expr:
        return call_primitive("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return call_primitive("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return call_primitive("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return call_primitive("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return call_primitive("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return call_primitive("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return call_primitive("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return call_primitive("div", other, self)

    def __neg__(self) -> Expr:
        return call_primitive("neg", self)

    def __and__(self, other: Expr | Number) -> Expr:
        return call_primitive("and", self, other)

    def __or__(self, other: Expr | Number) -> Expr:
        return call_primitive("or", self, other)

    def __xor__(self, other: Expr | Number) -> Expr:
        return call_primitive("xor", self, other)

    def __lshift__(self, other: Expr | Number) -> Expr:
        return call_primitive("shl", self, other)

    def __rshift__(self, other: Expr | Number) -> Expr:
        return call_primitive("shr", self, other)

    def __lt__(self, other: Expr | Number) -> Expr:
        return call_primitive("lt", self, other)

    def __le__(self, other: Expr | Number) -> Expr:
        return call_primitive("le", self, other)

    def __gt__(self, other: Expr | Number) -> Expr:
        return call_primitive("gt", self, other)

    def __ge__(self, other: Expr | Number) -> Expr:
        return call_primitive("ge", self, other)

    def eq(self, other: Expr | Number) -> Expr:
        """Elementwise equality; false if either side is NaN."""
        return call_primitive("eq", self, other)

    def ne(self, other: Expr | Number) -> Expr:
        """Elementwise inequality; true if either side is NaN."""
        return call_primitive("ne", self, other)

    def to(self, dtype: DType) -> Expr:
        """Convert by value: float to integer truncates, float to float rounds to nearest, ties to even."""
        return self if dtype == self.dtype else call_primitive("cast", self, dtype=dtype)

    def bitcast(self, dtype: DType) -> Expr:
        """Reinterpret the bits as another type of the same width."""
        return self if dtype == self.dtype else call_primitive("bitcast", self, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A literal of type `dtype`."""

    value: Number

    def to(self, dtype: DType) -> Expr:
        """Convert by value; between floats at once if `dtype` has every number of this type."""
        if self.dtype.is_float and dtype.is_float and dtype.includes(self.dtype):
            return const(round_to(self.value, self.dtype).item(), dtype)
        return super().to(dtype)

    def _fields(self) -> tuple[Any, ...]:
        return (repr(self.value),)  # distinguishes 0.0 from -0.0; all NaNs are equal


@dataclass(frozen=True, eq=False)
class Ref(Expr):
    """A value bound to `name`, or an operand of an elementwise function."""

    name: str

    def _fields(self) -> tuple[Any, ...]:
        return (self.name,)

    def _own_names(self) -> frozenset[str]:
        return frozenset({self.name})


@dataclass(frozen=True, eq=False)
class IndexValue(Expr):
    """An index expression as an i64 value."""

    index: Dim

    def _fields(self) -> tuple[Any, ...]:
        return (self.index,)

    def _own_names(self) -> frozenset[str]:
        return frozenset(variables(self.index))


@dataclass(frozen=True, eq=False)
class Load(Expr):
    """Element `index` of `buffer`; `other` without a memory access where `mask` is false.

    Variables in `index` are loop variables or integers bound by `Let`.
    """

    buffer: str
    index: tuple[Dim, ...]
    mask: Expr | None = None
    other: Expr | None = None

    def _fields(self) -> tuple[Any, ...]:
        return (self.buffer, self.index, self.mask, self.other)

    def _own_names(self) -> frozenset[str]:
        return frozenset().union(*map(variables, self.index))

    @property
    def args(self) -> tuple[Expr, ...]:
        return tuple(e for e in (self.mask, self.other) if e is not None)


@dataclass(frozen=True, eq=False)
class PrimitiveCall(Expr):
    """A primitive applied to operands."""

    primitive: str
    operands: tuple[Expr, ...]

    def _fields(self) -> tuple[Any, ...]:
        return (self.primitive, self.operands)

    @property
    def args(self) -> tuple[Expr, ...]:
        return self.operands


P = Primitive
_PRIMITIVES = (
    # arithmetic; integer overflow wraps
    P("add", 2, "same", np.add, infix="+"),
    P("sub", 2, "same", np.subtract, infix="-"),
    P("mul", 2, "same", np.multiply, infix="*"),
    P("div", 2, "same", numpy_primitives.divide, 8, infix="/", branches=True),
    P("rem", 2, "same", np.fmod, 8, branches=True),  # sign of the dividend, as C has it
    P("fma", 3, "same", numpy_primitives.fma),  # x * y + z, rounded once
    P("neg", 1, "same", np.negative),
    P("abs", 1, "same", np.abs),
    P("min", 2, "same", np.minimum),  # NaN where either is NaN
    P("max", 2, "same", np.maximum),
    P("sqrt", 1, "same", np.sqrt, 12, branches=True),
    P("floor", 1, "same", np.floor),
    P("ceil", 1, "same", np.ceil),
    P("trunc", 1, "same", np.trunc),
    P("round", 1, "same", np.rint),  # to nearest, ties to even
    P("copysign", 2, "same", np.copysign),
    # comparison and choice
    P("lt", 2, "bool", np.less, infix="<"),
    P("le", 2, "bool", np.less_equal, infix="<="),
    P("gt", 2, "bool", np.greater, infix=">"),
    P("ge", 2, "bool", np.greater_equal, infix=">="),
    P("eq", 2, "bool", np.equal, infix="=="),
    P("ne", 2, "bool", np.not_equal, infix="!="),
    P("where", 3, "branch", np.where),
    P("where_unlikely", 3, "branch", np.where),  # code branches around the second operand where no lane needs it
    # bits; "not" on bool is logical
    P("and", 2, "same", np.bitwise_and, infix="&"),
    P("or", 2, "same", np.bitwise_or, infix="|"),
    P("xor", 2, "same", np.bitwise_xor, infix="^"),
    P("not", 1, "same", np.invert),
    P("shl", 2, "same", np.left_shift, infix="<<"),
    P("shr", 2, "same", np.right_shift, infix=">>"),  # arithmetic for signed types
    P("lshr", 2, "same", numpy_primitives.shift_right_logical),
    # conversions
    P("cast", 1, "given", None),  # type: ignore[arg-type]  # needs the dtype: see `evaluate_call`
    P("bitcast", 1, "given", None),  # type: ignore[arg-type]
    # packed elements: the sum of the products of their values, in the wider dtype given
    P("dot", 2, "given", None),  # type: ignore[arg-type]
    # one element of values side by side
    P("pack", 0, "given", None, 4),  # type: ignore[arg-type]
    # x * 2^n for an integer n, rounded once, NaN * 2^n = 2^n for an infinite n; only expansions for targets that have it make use of it
    P("scale", 2, "same", numpy_primitives.scale),
    # transcendental; a backend that lacks one expands it into the primitives above
    P("exp", 1, "same", np.exp, 12),
    P("exp2", 1, "same", np.exp2, 12),
    # of arguments up to 0 (above, any number from 1 to the power); results below the smallest normal may be flushed to zero
    P("exp_ftz", 1, "same", numpy_primitives.exp_ftz, 10),
    P("exp2_ftz", 1, "same", numpy_primitives.exp2_ftz, 10),
    P("expm1", 1, "same", np.expm1, 16),
    P("log", 1, "same", np.log, 16, branches=True),
    P("log2", 1, "same", np.log2, 16, branches=True),
    P("log1p", 1, "same", np.log1p, 18, branches=True),
    P("tanh", 1, "same", np.tanh, 18),
    P("erf", 1, "same", numpy_primitives.erf, 20, branches=True),
    P("sin", 1, "same", np.sin, 20, branches=True),
    P("cos", 1, "same", np.cos, 20, branches=True),
    P("tan", 1, "same", np.tan, 30, branches=True),
    P("asin", 1, "same", np.arcsin, 30),
    P("acos", 1, "same", np.arccos, 30),
    P("atan", 1, "same", np.arctan, 30, branches=True),
    P("sinh", 1, "same", np.sinh, 20, branches=True),
    P("cosh", 1, "same", np.cosh, 20),
    P("pow", 2, "same", np.power, 40, branches=True),
    P("rsqrt", 1, "same", lambda x: np.reciprocal(np.sqrt(x)), 16),
)
del P

PRIMITIVES: dict[str, Primitive] = {p.name: p for p in _PRIMITIVES}
"""Every scalar primitive by name."""

OPTIONAL_PRIMITIVES = frozenset({"scale"})
"""Names of the primitives that only some targets have, whose expansions of others make use of them."""

FLUSHING = frozenset({"exp_ftz", "exp2_ftz"})
"""Names of the primitives that may flush results below the smallest normal number to zero."""

APPROXIMATED = FLUSHING.union(name for name, p in PRIMITIVES.items() if p.cost >= 12 and name != "sqrt")
"""Names of the primitives whose results are not correctly rounded: the transcendental ones and `rsqrt`."""


def const(value: Number, dtype: DType) -> Const:
    """Return a literal of `dtype`; the value is converted to bool, float or int."""
    if dtype.kind == "bool":
        return Const(dtype, bool(value))
    return Const(dtype, float(value) if dtype.is_float else int(value))


def call_primitive(primitive: str, *args: Expr | Number, dtype: DType | None = None) -> Expr:
    """Apply `primitive`; Python numbers take the dtype of the other operands.  `dtype` is a cast's result type.

    Raises TypeError if the operands' dtypes differ or their number is wrong.
    """
    rule = PRIMITIVES[primitive]
    arity = rule.arity or (dtype.count if dtype else 0)
    if len(args) != arity:
        raise TypeError(f"{primitive} takes {arity} operands, not {len(args)}")
    value_args = args[1:] if rule.result_rule == "branch" else args
    operand_dtype = next((a.dtype for a in value_args if isinstance(a, Expr)), None)
    if operand_dtype is None:
        raise TypeError(f"{primitive} needs at least one typed operand")
    typed = tuple(a if isinstance(a, Expr) else const(a, operand_dtype) for a in value_args)
    counts = {a.dtype.count for a in typed}
    if (len(counts) > 1 or 1 in counts) if primitive == "dot" else any(a.dtype != operand_dtype for a in typed):
        raise TypeError(f"{primitive} has operands of mixed types {', '.join(str(a.dtype) for a in typed)}")
    if rule.result_rule == "branch":
        condition = args[0]
        if not isinstance(condition, Expr) or condition.dtype != boolean:
            raise TypeError(f"the condition of {primitive} must be a bool expression, not {condition}")
        typed = (condition, *typed)
    result = boolean if rule.result_rule == "bool" else dtype if rule.result_rule == "given" else operand_dtype
    if result is None:
        raise TypeError(f"{primitive} needs a target dtype")
    if primitive == "pack" and result.element != operand_dtype:
        raise TypeError(f"{primitive} has operands of {operand_dtype}, not of {result.element or 'a packed dtype'}")
    return PrimitiveCall(result, primitive, typed)


def _primitive_function(name: str) -> Callable[..., Expr]:
    def apply(*args: Expr | Number) -> Expr:
        return call_primitive(name, *args)

    apply.__name__ = name
    apply.__doc__ = f"Apply the primitive `{name}` to scalar expressions."
    return apply


exp, exp2, expm1 = _primitive_function("exp"), _primitive_function("exp2"), _primitive_function("expm1")
exp_ftz, exp2_ftz = _primitive_function("exp_ftz"), _primitive_function("exp2_ftz")
log, log2, log1p = _primitive_function("log"), _primitive_function("log2"), _primitive_function("log1p")
tanh, erf, sin, cos, tan = (_primitive_function(n) for n in ("tanh", "erf", "sin", "cos", "tan"))
asin, acos, atan, sinh, cosh = (_primitive_function(n) for n in ("asin", "acos", "atan", "sinh", "cosh"))
power, sqrt, rsqrt, fma, rem = (_primitive_function(n) for n in ("pow", "sqrt", "rsqrt", "fma", "rem"))
scale = _primitive_function("scale")
floor, ceil, trunc, round_even = (_primitive_function(n) for n in ("floor", "ceil", "trunc", "round"))
absolute, copysign, where = _primitive_function("abs"), _primitive_function("copysign"), _primitive_function("where")
where_unlikely = _primitive_function("where_unlikely")
minimum, maximum, invert = _primitive_function("min"), _primitive_function("max"), _primitive_function("not")


def index_value(index: Dim) -> Expr:
    """Return an index expression as an i64 value."""
    return IndexValue(i64, index) if isinstance(index, IndexExpr) else const(index, i64)


def as_index(e: Expr) -> Dim | None:
    """Return a sum or product of indices and integers, i64, as one index expression; None if `e` is something else."""
    if e.dtype != i64:
        return None
    if isinstance(e, (IndexValue, Const)):
        return e.index if isinstance(e, IndexValue) else int(e.value)
    if not isinstance(e, PrimitiveCall) or e.primitive not in INDEX_ARITHMETIC:
        return None
    x, y = map(as_index, e.args)
    return None if x is None or y is None else INDEX_ARITHMETIC[e.primitive](x, y)


INDEX_ARITHMETIC: Mapping[str, Callable[[Dim, Dim], Dim]] = {"add": add, "sub": sub, "mul": mul}
"""Primitives that index expressions have."""


def with_args(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """Return `e` with its direct subexpressions replaced, in the order of `e.args`."""
    if all(a is b for a, b in zip(args, e.args, strict=True)):
        return e
    if isinstance(e, PrimitiveCall):
        return PrimitiveCall(e.dtype, e.primitive, args)
    if isinstance(e, Load):
        new = iter(args)
        mask = next(new) if e.mask is not None else None
        return Load(e.dtype, e.buffer, e.index, mask, next(new) if e.other is not None else None)
    return e


def transform(e: Expr, rule: Callable[[Expr], Expr], memo: dict[int, Expr] | None = None) -> Expr:
    """Rebuild `e` bottom-up, applying `rule` to each subexpression after its operands; sharing is preserved.

    `memo` maps the ids of rewritten subexpressions to results; pass one to share work between expressions.
    """
    memo = {} if memo is None else memo
    for node in e.subexprs:
        if id(node) not in memo:
            memo[id(node)] = rule(with_args(node, tuple(memo[id(a)] for a in node.args)))
    return memo[id(e)]


def round_to(value: Any, dtype: DType) -> Any:
    """Round a NumPy `value` to `dtype`, as an array of `dtype.numpy`."""
    return dtype.decode(dtype.encode(value))
