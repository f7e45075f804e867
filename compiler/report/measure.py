"""Measurement of numerical errors against float64, and of the workload of PyTorch eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES

NARROW_FLOATS = {to_torch(d): d.bits for d in DTYPES.values() if d.is_float and d.bits < 64}
"""Bits of the dtypes that the float64 reference widens."""

F32_NAMESPACES = ("quantized_decomposed", "torchao")
"""Libraries whose operators quantize from f32 and to f32 alone."""

PACKED_PRODUCTS = ("aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm_for_cpu")
"""Operators that multiply by quantized weights, and take no float64."""


# accuracy


@dataclass(frozen=True)
class NumericalError:
    """Error of results against the float64 reference.

    `relative` is the largest difference divided by the largest magnitude of the reference.  `ulps` is the mean difference of the
    elements, in units in the last place of the reference rounded to the result's dtype.
    """

    relative: float
    ulps: float


def numerical_error(results: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> NumericalError:
    """Return the largest error of any result; infinite if shapes, or the positions of NaN and infinity, differ."""
    errors = [_tensor_error(r, t) for r, t in zip(results, truth, strict=True)]
    return NumericalError(max((e.relative for e in errors), default=0.0), max((e.ulps for e in errors), default=0.0))


def _tensor_error(result: torch.Tensor, truth: torch.Tensor) -> NumericalError:
    got, want = result.detach().double(), truth.detach().double()
    if got.shape != want.shape or not torch.equal(torch.isfinite(got), torch.isfinite(want)):
        return NumericalError(float("inf"), float("inf"))
    finite = torch.isfinite(want)
    got, want = got[finite], want[finite]
    if not want.numel():
        return NumericalError(0.0, 0.0)
    difference = (got - want).abs()
    scale = float(want.abs().max()) or 1.0
    return NumericalError(float(difference.max()) / scale, float((difference / _ulp(want, result.dtype)).mean()))


def _ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance between neighbouring numbers of `dtype` around `value`; 1 for integers."""
    if not dtype.is_floating_point:
        return torch.ones_like(value)
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.abs().clamp_min(info.tiny)).exponent
    return torch.ldexp(torch.full_like(value, info.eps / 2), exponent)


class _Float64Interpreter(torch.fx.Interpreter):
    """Run an exported graph with float64 in place of every narrower float dtype; integers are exact.

    Casts to floats of 8 bits, which quantize, still round.  Operators that quantize take operands rounded to f32, and their results
    are widened.
    """

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, value)  # it may be mutated

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return None if target == "_guards_fn" else super().call_module(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # dtypes are others
        if (name := str(getattr(target, "name", lambda: "")())) in PACKED_PRODUCTS:
            return _multiply_packed(target, *args)
        if name == "aten::_scaled_mm":
            return _multiply_scaled(*args, **kwargs)
        quantizes = getattr(target, "namespace", "") in F32_NAMESPACES or "fake_quantize" in name
        return super().call_function(target, *tree_map(_to_float32 if quantizes else _to_wide_dtype, (args, kwargs)))

    def run_node(self, n: torch.fx.Node) -> Any:
        return tree_map(_to_float64, super().run_node(n))


def _multiply_packed(operator: Any, x: torch.Tensor, *weights: Any) -> torch.Tensor:
    """Multiply by the weights, which are the operator's result for the unit matrix."""
    matrix: torch.Tensor = operator(torch.eye(x.shape[-1]), *map(_to_float32, weights))
    return x @ matrix.double()


def _multiply_scaled(
    x: torch.Tensor, y: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None, *_: Any, **__: Any
) -> torch.Tensor:  # fmt: skip
    """Multiply matrices that have a scale each, or one for each row and column."""
    product = x @ y * scale_a * scale_b
    return product if bias is None else product + bias


def _to_float64(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in NARROW_FLOATS else value


def _to_wide_dtype(value: Any) -> Any:
    """Return float64 for a dtype that it replaces."""
    return torch.float64 if isinstance(value, torch.dtype) and NARROW_FLOATS.get(value, 0) > 8 else value


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value


def float64_reference(
    program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return the flat results of `program` run by PyTorch in float64; `program` and `args` are not modified."""
    module = program.module()
    names = program.call_spec.in_spec.child(1).context or ()
    arguments = (tuple(args), {name: (kwargs or {})[name] for name in names})
    leaves = [x.clone() if isinstance(x, torch.Tensor) else x for x in tree_leaves(arguments)]
    with torch.no_grad():
        return tree_leaves(_Float64Interpreter(module).run(*leaves, enable_io_processing=False))


# PyTorch's eager mode


@dataclass(frozen=True)
class Workload:
    """Totals of one call: kernel launches, arithmetic operations, and bytes that kernels read and write."""

    kernels: int
    flops: int
    bytes: int


GATHER_OPS = frozenset({
    torch.ops.aten.embedding.default, torch.ops.aten.index.Tensor, torch.ops.aten.index_select.default,
    torch.ops.aten.gather.default,
})  # fmt: skip
"""Ops that read no more bytes of their first operand than they write."""


class _TrafficCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count ops that are not views, bytes of their tensors, and result elements of ops without a FLOP formula."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = self.bytes = self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read, written = (_tensors(x) for x in ((args, kwargs), result))
        if not func.is_view and not _shares_storage(read, written, func):
            self.kernels += 1
            self.bytes += _bytes(read) + _bytes(written)
            if func in GATHER_OPS:
                self.bytes -= max(0, _bytes(read[:1]) - _bytes(written))
            if func._overloadpacket not in flop_registry:
                self.elements += sum(t.numel() for t in written)
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _shares_storage(read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], func: Any) -> bool:
    """Return True if results of a non-mutating op alias its inputs, as of `_unsafe_view` or a `_to_copy` that copies nothing."""
    inputs = {t.untyped_storage()._cdata for t in read}  # also tensors without memory have one
    return not func._schema.is_mutable and all(t.untyped_storage()._cdata in inputs for t in written)


def eager_workload(call: Callable[[], object]) -> Workload:
    """Return the workload of PyTorch eager in `call`.

    Contractions are counted by `FlopCounterMode`; any other op counts one operation for each result element.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as flops, _TrafficCounter() as traffic:
        call()
    return Workload(traffic.kernels, flops.get_total_flops() + traffic.elements, traffic.bytes)
