"""Calls into PyTorch eager for opaque ops, as Python code.

An operator on a small tensor takes a microsecond or two, so what can be decided when the code is written is decided then:

    t5 = e0_call(t4, e0_0, e0_1, e0_2)
    if t5.dtype is not e0_dtype0 or t5.shape != e0_shape0 or not t5.is_contiguous() or t5 is t4:
        t5 = e0_copy(t5, e0_type0, e0_name)

Only operators that may return views have their results' storages looked up.  The caller disables gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.errors import VerifyError
from compiler.ir import ops
from compiler.ir.graph.node import OPS, Node
from compiler.ir.ops.graph_ops import fill_template, lookup_operator, operand_reference
from compiler.ir.tile.program import OpaqueCall
from compiler.ir.torch_types import TORCH_DTYPES, strides
from compiler.ir.types import TensorType

EagerFunction: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]

BINDING_MODULES = ("_VariableFunctions", "_nn", "_linalg", "_fft", "_special")
"""Modules of `torch._C` with Python bindings of operators; to call one costs a microsecond less than an OpOverload."""


class EagerCallEmitter:
    """Emitter of the code that calls the reference of an op, for dense results of `result_types`; None is for one that nobody reads.

    No result shares memory with another, or with an argument whose position is in `shared`.  The code raises VerifyError if
    PyTorch returns a shape that differs from the graph's static one; data may decide the size of a symbolic dimension.
    `bindings` are its globals, whose names begin with `prefix`.
    """

    def __init__(
        self,
        step: OpaqueCall,
        argument_types: Sequence[TensorType],
        result_types: Sequence[TensorType | None],
        shared: Collection[int],
        prefix: str = "e",
    ) -> None:
        self.step, self.result_types, self.shared, self.prefix = step, tuple(result_types), shared, prefix
        self.name, op, attrs = step.node or step.op, OPS[step.op], dict(step.attrs)
        if op.reference is None:
            raise VerifyError(f"{self.name}: op {step.op} is opaque and has no reference to call")
        self.bindings: dict[str, Any] = {}
        overload = lookup_operator(attrs["overload"]) if op is ops.eager else op.reference
        returns = [str(r.type) for r in overload._schema.returns] if isinstance(overload, torch._ops.OpOverload) else []
        self._operator: Any = overload if returns == ["Tensor"] * len(self.result_types) else None
        function = partial(op.reference, **attrs)
        if self._operator is not None:
            self._template = attrs if op is ops.eager else call_template(self._operator, len(argument_types), attrs)
            function = fastest_binding(self._operator, self._template, argument_types)
        self._function = self._bind("call", function)

    def lines(self, arguments: Sequence[str], results: Sequence[str]) -> list[str]:
        """Return the code for variables of these names."""
        given, kept = list(arguments), [arguments[k] for k in self.shared]
        if self._operator is not None:
            given = [self._argument(a, arguments) for a in self._template["args"]]
            given += [f"{k}={self._argument(a, arguments)}" for k, a in self._template["kwargs"]]
        call = f"{', '.join(results)} = {self._function}({', '.join(given)})"
        read = [(k, results[k], t) for k, t in enumerate(self.result_types) if t]
        if self._operator is not None and not may_return_view(self._operator):
            return [call, *(self._copy_if(k, r, t, [f"{r} is {a}" for a in kept]) for k, r, t in read)]
        address, used = self._bind("address", _storage_address), f"{self.prefix}_used"
        lines = [call, f"{used} = {{0, {', '.join(f'{address}({a})' for a in kept)}}}"]
        for k, r, t in read:
            is_lazy = f"{r}.is_conj()" if TORCH_DTYPES[t.dtype].is_complex else f"{r}.is_neg()"
            lines += [self._copy_if(k, r, t, [is_lazy, f"{address}({r}) in {used}"]), f"{used}.add({address}({r}))"]
        return lines[:-1]

    def function(self) -> EagerFunction:
        """Return a function of the arguments that runs the code and returns the results."""
        arguments, results = (
            [f"{v}{k}" for k in range(n)] for v, n in (("a", len(self.step.arguments)), ("r", len(self.result_types)))
        )
        body = [*self.lines(arguments, results), f"return {', '.join(results)},"]
        namespace = dict(self.bindings)
        exec(f"def call({', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in body), namespace)
        function: EagerFunction = namespace["call"]
        return function

    def _bind(self, name: str, value: Any) -> str:
        """Bind a global and return its name."""
        self.bindings[f"{self.prefix}_{name}"] = value
        return f"{self.prefix}_{name}"

    def _argument(self, template: Any, arguments: Sequence[str]) -> str:
        """Return an argument of the operator as Python text; for the syntax of templates see `fill_template`."""
        if isinstance(template, tuple):
            return f"({''.join(f'{self._argument(t, arguments)}, ' for t in template)})"
        if isinstance(template, str) and template[0] in "%#":
            number, permutation = operand_reference(template)
            permuted = f".permute({permutation})" if permutation else ""
            return f"{arguments[number]}{permuted}{'.item()' * (template[0] == '#')}"
        return self._bind(f"{len(self.bindings)}", fill_template(template, ()))

    def _copy_if(self, k: int, result: str, t: TensorType, conditions: Sequence[str]) -> str:
        """Return the statement that copies result `k` if it has another type than `t`, or on `conditions`."""
        tests = [f"{result}.dtype is not {self._bind(f'dtype{k}', TORCH_DTYPES[t.dtype])}"]
        if t.is_static:
            tests.append(f"{result}.shape != {self._bind(f'shape{k}', t.static_shape())}")
        is_dense = (
            f"{result}.stride() == {self._bind(f'stride{k}', strides(t))}" if t.layout else f"{result}.is_contiguous()"
        )
        copy, expected, name = self._bind("copy", _dense_copy), self._bind(f"type{k}", t), self._bind("name", self.name)
        condition = " or ".join([*tests, f"not {is_dense}", *conditions])
        return f"if {condition}: {result} = {copy}({result}, {expected}, {name})"


def eager_function(node: Node, attrs: Mapping[str, Any], users: Collection[Node]) -> EagerFunction:
    """Return the call of an op outside a program as a function of its operands, which share no memory with its results.

    PyTorch may give a result that none of `users` reads another shape than it infers.
    """
    results: tuple[TensorType | None, ...] = node.result_types
    if len(results) > 1:
        read = {u.attrs["index"] for u in users}
        results = tuple(t if k in read else None for k, t in enumerate(results))
    operands = tuple(f"a{k}" for k in range(len(node.operands)))
    step = OpaqueCall(node.op.name, tuple(attrs.items()), operands, (), node.name)
    return EagerCallEmitter(step, [o.type for o in node.operands], results, range(len(operands))).function()


def call_template(operator: Any, operands: int, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of `operator`, the reference of an op with `attrs`, as `ops.eager` has them.

    They go by position where the schema allows that, which is faster.  What the op has no attribute for is the schema's default.
    """
    named = operator._schema.arguments[operands:]
    values = {p.name: attrs.get(p.name, p.default_value) for p in named}
    positional = tuple(values[p.name] for p in named if not p.kwarg_only)
    keywords = tuple((p.name, values[p.name]) for p in named if p.kwarg_only)
    return {"args": (*(f"%{k}" for k in range(operands)), *positional), "kwargs": keywords}


def may_return_view(operator: Any) -> bool:
    """Return True unless the schema rules out views, which PyTorch enforces for its own operators only.

    Without tensors as arguments, an operator might return a zero tensor, which has no storage.
    """
    schema = operator._schema
    takes_tensors = any("Tensor" in str(a.type) for a in schema.arguments)
    return operator.namespace != "aten" or not takes_tensors or any(r.alias_info for r in schema.returns)


def _dense_copy(tensor: torch.Tensor, expected: TensorType, name: str) -> torch.Tensor:
    """Return a copy of `tensor` as a value of type `expected`; VerifyError, for node `name`, if its shape is another."""
    if not expected.fits(tensor.shape):
        shape = ", ".join(map(str, expected.shape))
        raise VerifyError(f"{name}: PyTorch returned shape {list(tensor.shape)}, but the graph has [{shape}]")
    stride = strides(replace(expected, shape=tuple(tensor.shape)))
    new = torch.empty_strided(tensor.shape, stride, dtype=TORCH_DTYPES[expected.dtype], device=tensor.device)
    return new.copy_(tensor)


def _storage_address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 for a zero tensor, which has none."""
    return 0 if tensor._is_zerotensor() else tensor.untyped_storage().data_ptr()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down the first call that PyTorch dispatches, as `call`, and stops there."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.call = func, args, kwargs or {}
        raise RuntimeError("recorded")


def fastest_binding(operator: Any, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> Any:
    """Return a Python binding that calls `operator` with just the arguments in `attrs`, as a trial shows; else `operator`."""
    if not types:  # a factory, whose binding PyTorch's default device would change
        return operator
    tensors = tuple(torch.empty((1,) * t.rank, dtype=TORCH_DTYPES[t.dtype], device="meta") for t in types)
    namespace, _, name = operator._schema.name.partition("::")
    modules = (getattr(torch._C, m) for m in BINDING_MODULES if namespace == "aten")
    bindings = (getattr(m, name) for m in modules if hasattr(m, name))
    return next((b for b in bindings if _reaches(operator, b, attrs, tensors)), operator)


def _reaches(operator: Any, binding: Any, attrs: Mapping[str, Any], tensors: tuple[torch.Tensor, ...]) -> bool:
    """Return True if `binding` calls `operator` with just the arguments that it is given."""
    recorder: Any = _Recorder()  # type: ignore[no-untyped-call]
    try:
        args = fill_template(attrs["args"], tensors)
        kwargs = {k: fill_template(v, tensors) for k, v in attrs["kwargs"]}
        with recorder:
            binding(*args, **kwargs)
    except Exception:  # the binding refuses the arguments, or the recorder has stopped it
        called, *given = getattr(recorder, "call", (None,))
        return called is operator and _same(_bound(operator, *given), _bound(operator, args, kwargs))
    return False


def _bound(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the value of every parameter of `operator` in a call."""
    parameters = operator._schema.arguments
    given = dict(zip((p.name for p in parameters), args, strict=False), **kwargs)
    return [given.get(p.name, p.default_value) for p in parameters]


def _same(a: Any, b: Any) -> bool:
    """Return True for equal arguments; tensors must be identical, lists and tuples are the same."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) else bool(a == b) and type(a) is type(b)
