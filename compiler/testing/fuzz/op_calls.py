"""Random calls of ops: samples of an op, mutated into other calls that its type rule and reference accept."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np
import torch

from compiler.errors import TilewrightError
from compiler.ir import ops
from compiler.ir.graph.node import OPERAND_KINDS, Node, Op, OperandSpec, input_node
from compiler.ir.graph.structure import Elementwise, Reduction
from compiler.ir.ops.gather import IN_BOUNDS
from compiler.ir.torch_types import TORCH_DTYPES
from compiler.ir.types import DTYPES, KERNEL_DTYPES, DType, TensorType

SIZES = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64, 97, 128, 257)
"""Sizes of dimensions to draw from, small ones most often, with neighbours of powers of two."""

MAX_VALUE_ELEMENTS = 4096
"""Limit of elements of a value, so that reference and interpreters are fast; chosen empirically."""

MAX_REDUCTION_TERMS = 1 << 21
"""Limit of terms of a reduction, over all result elements; chosen empirically."""

MAX_DIVISOR = 4096
"""Largest divisor that is searched for in sizes that a mutation made huge."""

Attrs = dict[str, Any]

BUILD_ERRORS = (TilewrightError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError)
"""Errors that type rules and constructors raise for invalid graphs."""


@dataclass(frozen=True)
class OpCall:
    """A call of an op: operand types and attributes; it may be invalid."""

    op: Op
    types: tuple[TensorType, ...]
    attrs: Attrs

    def try_build(self) -> Node | None:
        """Build the call on inputs of these types; None if the op or its reference rejects it, or it is too large."""
        if any(numel(t) > MAX_VALUE_ELEMENTS for t in self.types):
            return None
        try:
            node = self.op(*(input_node(f"x{k}", t) for k, t in enumerate(self.types)), **self.attrs)
        except BUILD_ERRORS:
            return None
        if any(numel(t) > MAX_VALUE_ELEMENTS or any(d < 0 for d in t.static_shape()) for t in node.result_types):
            return None
        if reference_mismatch(node) is not None:
            return None
        reduced = node.structure.domain(node).extents if isinstance(node.structure, Reduction) else ()
        terms = numel(node.type.with_shape((*node.shape, *reduced))) if reduced else 0
        return node if terms <= MAX_REDUCTION_TERMS else None


def reference_mismatch(node: Node) -> str | None:
    """Return the error of the reference on operands of these types, or how its result shapes differ from the type rule's."""
    zeros = [torch.zeros(o.shape, dtype=reference_dtype(o.dtype)) for o in node.operands]
    attrs = {k: DTYPES["f64"] if isinstance(v, DType) and v.is_float else v for k, v in node.attrs.items()}
    if node.op.reference is None or node.op is ops.bitcast:
        return None
    if all(o.dtype.kind in ("int", "uint") for o in node.operands):
        zeros = [z + 1 for z in zeros] if isinstance(node.structure, Elementwise) else zeros  # PyTorch raises for 0
    try:
        result = node.op.reference(*zeros, **attrs)
    except Exception as error:  # PyTorch raises many kinds
        return f"{type(error).__name__}: {error}"
    shapes = [tuple(r.shape) for r in (result if isinstance(result, (tuple, list)) else (result,))]
    expected = [t.static_shape() for t in node.result_types]
    return None if shapes == expected else f"the reference returns shapes {shapes}, the type rule {expected}"


def reference_dtype(dtype: DType) -> torch.dtype:
    """Return the dtype in which a reference is run."""
    return torch.float64 if dtype.is_float else TORCH_DTYPES[dtype]


def numel(t: TensorType) -> int:
    return int(np.prod(t.static_shape(), dtype=object))


@dataclass(frozen=True)
class CallMutator:
    """Random mutations of calls; operand number `fixed_operand` keeps its type (-1: none)."""

    rng: random.Random

    def mutate(self, call: OpCall, fixed_operand: int) -> OpCall:
        """Apply one random mutation; the result may be invalid."""
        mutations = (
            self.replace_size, self.change_dim, self.scale_dim, self.change_attr, self.change_attr, self.change_list_attr,
            self.change_dtype, self.change_operand_count,
        )  # fmt: skip
        return self.rng.choice(mutations)(call, fixed_operand)

    def random_size(self) -> int:
        return 0 if self.rng.random() < 0.015 else self.rng.choice(SIZES)

    def replace_size(self, call: OpCall, fixed_operand: int) -> OpCall:
        """Replace one size by another in all operands, and perhaps in list attributes."""
        sizes = sorted({d for t in call.types for d in t.static_shape()})
        if not sizes:
            return call
        old, new = self.rng.choice(sizes), self.random_size()
        types = [
            t if k == fixed_operand else t.with_shape(substitute_in_list(t.shape, old, new))
            for k, t in enumerate(call.types)
        ]
        attrs = call.attrs
        if self.rng.random() < 0.5:
            attrs = {k: substitute_in_list(v, old, new) for k, v in attrs.items()}
        return replace(call, types=tuple(types), attrs=attrs)

    def change_dim(self, call: OpCall, fixed_operand: int) -> OpCall:
        """Change the size of one dimension of an operand, or add a leading dimension."""
        operands = [k for k in range(len(call.types)) if k != fixed_operand]
        if not operands:
            return call
        k = self.rng.choice(operands)
        shape = list(call.types[k].shape)
        if not shape or self.rng.random() < 0.2:
            shape.insert(0, self.random_size())
        else:
            shape[self.rng.randrange(len(shape))] = self.random_size()
        return self.with_operand_type(call, k, call.types[k].with_shape(shape))

    def scale_dim(self, call: OpCall, fixed_operand: int) -> OpCall:
        """Multiply a dimension and an entry of a list attribute by the same factor."""
        lists = [
            n
            for n, v in call.attrs.items()
            if isinstance(v, (tuple, list)) and v and all(isinstance(d, int) for d in v)
        ]
        dims = [(k, d) for k, t in enumerate(call.types) if k != fixed_operand for d in range(t.rank)]
        if not lists or not dims:
            return call
        (k, d), name, factor = self.rng.choice(dims), self.rng.choice(lists), self.rng.choice((2, 3, 5, 8))
        shape, entries = list(call.types[k].shape), list(call.attrs[name])
        n = self.rng.randrange(len(entries))
        shape[d], entries[n] = shape[d] * factor, entries[n] * factor
        scaled = self.with_operand_type(call, k, call.types[k].with_shape(shape))
        return replace(scaled, attrs={**call.attrs, name: entries})

    def change_attr(self, call: OpCall, _: int) -> OpCall:
        """Set an attribute to a value of another sample, or change its value at random."""
        names = [name for name in call.op.attr_defaults if name not in IN_BOUNDS]  # a promise that random indices break
        if not names:
            return call
        name = self.rng.choice(names)
        sampled = [s.attrs[name] for s in call.op.samples if name in s.attrs]
        value = call.attrs.get(name, call.op.attr_defaults[name])
        if sampled and self.rng.random() < 0.4:
            value = self.rng.choice(sampled)
        return replace(call, attrs={**call.attrs, name: self.mutate_value(value)})

    def mutate_value(self, value: Any) -> Any:
        if isinstance(value, bool):
            return self.rng.random() < 0.5
        if isinstance(value, int):
            return self.rng.choice((value, value + 1, value - 1, 0, 1, 2, 3))
        if isinstance(value, float):
            return self.rng.choice((value, value, 0.5 * value, 1.0, 0.0))
        if isinstance(value, DType):
            return self.random_dtype("any")
        if isinstance(value, (tuple, list)) and value:
            k = self.rng.randrange(len(value))
            return [self.mutate_value(v) if n == k else v for n, v in enumerate(value)]
        return value

    def change_list_attr(self, call: OpCall, _: int) -> OpCall:
        """Set a list attribute to a permutation or subset of the dimensions, a shape, or paddings."""
        flat = {n: v for n, v in call.attrs.items() if isinstance(v, (tuple, list))}
        lists = [n for n, v in flat.items() if not (v and isinstance(v[0], (tuple, list)))]
        if not lists or not call.types:
            return call
        t, order = call.types[0], list(range(call.types[0].rank))
        self.rng.shuffle(order)
        guess = self.rng.choice((
            order, sorted(order[: self.rng.randrange(t.rank + 1)]), self.random_factorization(numel(t)), [self.random_size() if d == 1 else d for d in t.shape],
            [self.random_size(), *t.shape], [self.rng.choice((0, 0, 1, 2)) for _ in order],
        ))  # fmt: skip
        return replace(call, attrs={**call.attrs, self.rng.choice(lists): guess})

    def random_factorization(self, count: int) -> list[int]:
        """Return a random shape of `count` elements."""
        shape: list[int] = [1] if self.rng.random() < 0.1 else []
        while count > 1 and len(shape) < 4:
            shape.append(self.rng.choice(divisors(count)))
            count //= shape[-1]
        return [*shape, count] if count != 1 or not shape else shape

    def change_dtype(self, call: OpCall, fixed_operand: int) -> OpCall:
        """Change the dtype of all operands of one dtype."""
        formal = formal_operands(call.op, len(call.types))
        if not formal:
            return call
        k = self.rng.randrange(len(formal))
        old, new = call.types[k].dtype, self.random_dtype(formal[k].kind)
        types = tuple(
            t.with_dtype(new)
            if t.dtype == old and f.independent_dtype == formal[k].independent_dtype and f.kind != "bool"
            else t
            for f, t in zip(formal, call.types, strict=True)
        )
        keeps_fixed = fixed_operand < 0 or types[fixed_operand] == call.types[fixed_operand]
        return replace(call, types=types) if keeps_fixed else call

    def random_dtype(self, kind: str) -> DType:
        computed = [d for d in KERNEL_DTYPES.values() if d.bits > 8 or not d.is_float]  # PyTorch only converts float8
        fits = [d for d in computed if OPERAND_KINDS[kind](d)] or [DTYPES["bool"]]
        return DTYPES["f32"] if DTYPES["f32"] in fits and self.rng.random() < 0.4 else self.rng.choice(fits)

    def change_operand_count(self, call: OpCall, fixed_operand: int) -> OpCall:
        """Remove the last operand, or repeat it if the op is variadic."""
        formal = call.op.operand_specs
        if formal and formal[-1].variadic and self.rng.random() < 0.5 and call.types:
            return replace(call, types=(*call.types, call.types[-1]))
        required = sum(not (o.optional or o.variadic) for o in formal)
        return replace(call, types=call.types[:-1]) if len(call.types) > max(required, fixed_operand + 1) else call

    def with_operand_type(self, call: OpCall, k: int, t: TensorType) -> OpCall:
        return replace(call, types=(*call.types[:k], t, *call.types[k + 1 :]))


def substitute_in_list(value: Any, old: Any, new: Any) -> Any:
    """Return a list with every `old` replaced by `new`, as a tuple; any other value unchanged."""
    return tuple(new if d == old else d for d in value) if isinstance(value, (tuple, list)) else value


def formal_operands(op: Op, count: int) -> list[OperandSpec]:
    """Return the operand spec of each of `count` operands."""
    return [op.operand_specs[min(k, len(op.operand_specs) - 1)] for k in range(count)]


def divisors(count: int) -> list[int]:
    """Return the divisors of `count` from 2 on, in order; of a huge one those up to `MAX_DIVISOR` and what each leaves."""
    small = [d for d in range(1, min(isqrt(count), MAX_DIVISOR) + 1) if count % d == 0]
    return sorted({e for d in small for e in (d, count // d)} - {1})
