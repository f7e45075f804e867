"""Scalar primitives as LLVM instructions, on scalars and vectors.

Transcendental primitives have no instruction: the expand-math pass expands them first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compiler.codegen.llvm.builder import IRBuilder, intrinsic_suffix, literal, llvm_type
from compiler.codegen.llvm.packing import emit_pack
from compiler.codegen.llvm.scaling import emit_scale
from compiler.codegen.llvm.targets import CPUTarget, DotInstruction
from compiler.errors import TargetError
from compiler.ir.scalar import OPTIONAL_PRIMITIVES, Const, Expr, PrimitiveCall, Ref
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel
from compiler.ir.types import DType, boolean, f32, i32, i64
from compiler.math.emulation import EMULATIONS
from compiler.math.float_conversion import narrowed, widened

FCMP_PREDICATES = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
"""Predicates of fcmp: ordered, so false on NaN, except for `ne`."""

FLOAT_OPCODES = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
INTEGER_OPCODES = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
NON_ARITHMETIC = ("where", "cast", "bitcast", "pack")
"""Primitives that reduced floats need not be widened for."""

FLOAT_INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "abs": "fabs",
                    "copysign": "copysign", "fma": "fma"}  # fmt: skip


def splat_constant(text: str, dtype: DType, lanes: int) -> str:
    """Return scalar constant `text` as a constant of the scalar or vector type."""
    return f"splat ({llvm_type(dtype)} {text})" if lanes else text


def require_primitives(kernel: Kernel, target: CPUTarget) -> None:
    """Raise TargetError if `kernel` has a primitive that only other targets have an instruction for."""
    used = {e.primitive for s in tile.walk(kernel.body) for value in tile.stmt_exprs(s) for e in value.calls}
    if missing := sorted((used & OPTIONAL_PRIMITIVES) - set(target.native_primitives)):
        raise TargetError(f"@{kernel.name}: {target.name} has no instruction for {', '.join(missing)}")


def emit_primitive(b: IRBuilder, e: PrimitiveCall, args: list[str], lanes: int) -> str:
    """Emit primitive `e` on `args`, vectors of `lanes` elements (0: scalars)."""
    dtype = e.operands[-1].dtype
    ty = llvm_type(dtype, lanes)
    name = e.primitive
    if dtype.is_reduced_float and name not in NON_ARITHMETIC:
        return _compute_in_f32(b, e, args, lanes)
    if name in FCMP_PREDICATES:
        return emit_compare(b, name, dtype, args, lanes)
    if name == "where":
        return b.emit(f"select {llvm_type(boolean, lanes)} {args[0]}, {ty} {args[1]}, {ty} {args[2]}")
    if name == "cast":
        return emit_cast(b, dtype, e.dtype, args[0], lanes)
    if name == "dot":
        return emit_dot(b, e, args, lanes)
    if name == "pack":
        return emit_pack(b, e.dtype, args, lanes)
    if name == "bitcast":
        source, target = llvm_type(dtype, lanes), llvm_type(e.dtype, lanes)
        return args[0] if source == target else b.emit(f"bitcast {source} {args[0]} to {target}")
    if dtype.is_float and name in FLOAT_OPCODES:
        return b.emit(f"{FLOAT_OPCODES[name]} {ty} {args[0]}, {args[1]}")
    if dtype.is_float and name in b.emulated and (emulation := EMULATIONS[name](dtype)) is not None:
        return _emit_expr(b, emulation, dict(zip("xyz", args, strict=False)), lanes)
    if dtype.is_float and name in FLOAT_INTRINSICS:
        intrinsic = f"llvm.{FLOAT_INTRINSICS[name]}.{intrinsic_suffix(dtype, lanes)}"
        return b.intrinsic(ty, intrinsic, *((ty, a) for a in args))
    if not dtype.is_float and name in INTEGER_OPCODES:
        return b.emit(f"{INTEGER_OPCODES[name]} {ty} {args[0]}, {args[1]}")
    rule = EXPANSIONS.get(name)
    if rule is None:
        raise NotImplementedError(f"primitive {name} on {dtype} has no instruction; run expand-math first")
    return rule(b, dtype, args, lanes)


def emit_binary(b: IRBuilder, name: str, dtype: DType, x: str, y: str, lanes: int) -> str:
    """Emit primitive `name` on two values of `dtype`."""
    return emit_primitive(b, PrimitiveCall(dtype, name, (Ref(dtype, ""),) * 2), [x, y], lanes)


def _compute_in_f32(b: IRBuilder, e: PrimitiveCall, args: list[str], lanes: int) -> str:
    """Compute a primitive on a reduced float in f32 and round the result once."""
    dtype = e.operands[0].dtype
    widened = [emit_cast(b, dtype, f32, a, lanes) for a in args]
    result = boolean if e.dtype == boolean else f32
    value = emit_primitive(b, PrimitiveCall(result, e.primitive, (Ref(f32, ""),) * len(args)), widened, lanes)
    return value if result == boolean else emit_cast(b, f32, dtype, value, lanes)


def emit_dot(b: IRBuilder, e: PrimitiveCall, args: list[str], lanes: int) -> str:
    """Multiply the values of packed elements one by one, in the result's dtype."""
    total = ""
    for k in range(e.operands[0].dtype.count):
        x, y = (_packed_value(b, a.dtype, e.dtype, v, k, lanes) for a, v in zip(e.operands, args, strict=True))
        term = emit_binary(b, "mul", e.dtype, x, y, lanes)
        total = emit_binary(b, "add", e.dtype, total, term, lanes) if total else term
    return total


def _packed_value(b: IRBuilder, packed: DType, target: DType, x: str, k: int, lanes: int) -> str:
    """Return value `k` of a packed element in dtype `target`."""
    assert packed.element is not None
    ty, element = llvm_type(packed, lanes), llvm_type(packed.element, lanes)
    shifted = b.emit(f"lshr {ty} {x}, {splat_constant(str(k * packed.element.bits), packed, lanes)}")
    return emit_cast(b, packed.element, target, b.emit(f"trunc {ty} {shifted} to {element}"), lanes)


def emit_dot_instruction(
    b: IRBuilder, dot: DotInstruction, packed: Sequence[DType], args: Sequence[str], total: str, lanes: int
) -> str:
    """Add dot products of vectors `args` of packed elements to `total`; integers are widened to what the instruction takes."""
    ty, wide = llvm_type(dot.accumulator, lanes), f"<{lanes * dot.lhs.count} x {dot.operand}>"
    values = []
    for own, dtype, x in zip((dot.lhs, dot.rhs), packed, args, strict=True):
        assert own.element is not None
        assert dtype.element is not None
        source = wide if own == dtype else llvm_type(dtype.element, lanes * dtype.count)
        x = b.emit(f"bitcast {llvm_type(dtype, lanes)} {x} to {source}")
        values.append(x if own == dtype else emit_cast(b, dtype.element, own.element, x, lanes * dtype.count))
    operands = [(wide, x) for x in values]
    if dot.accumulates:
        return b.intrinsic(ty, dot.intrinsic, (ty, total), *operands)
    return emit_binary(b, "add", dot.accumulator, total, b.intrinsic(ty, dot.intrinsic, *operands), lanes)


def emit_compare(b: IRBuilder, name: str, dtype: DType, args: list[str], lanes: int) -> str:
    """Emit a comparison, signed or unsigned as the dtype is."""
    ty = llvm_type(dtype, lanes)
    if dtype.is_float:
        return b.emit(f"fcmp {FCMP_PREDICATES[name]} {ty} {args[0]}, {args[1]}")
    sign = "s" if dtype.kind == "int" else "u"
    code = name if name in ("eq", "ne") else sign + name
    return b.emit(f"icmp {code} {ty} {args[0]}, {args[1]}")


def emit_cast(b: IRBuilder, source: DType, target: DType, value: str, lanes: int) -> str:
    """Convert by value; conversions between a reduced float and another type go through f32."""
    if source == target:
        return value
    if source.is_reduced_float and target != f32:
        return emit_cast(b, f32, target, emit_cast(b, source, f32, value, lanes), lanes)
    if target.is_reduced_float and source != f32:
        return emit_cast(b, f32, target, emit_cast(b, source, f32, value, lanes), lanes)
    if source.is_encoded:
        if source.float_format.is_upper_half:
            return _widen_upper_half(b, source, value, lanes)
        return _emit_expr(b, widened(source), {"x": value}, lanes)
    if target.is_encoded:
        if target.float_format.is_upper_half:
            return _narrow_upper_half(b, target, value, lanes)
        return _emit_expr(b, narrowed(target), {"x": value}, lanes)
    s, t = llvm_type(source, lanes), llvm_type(target, lanes)
    if target.kind == "bool":
        zero = splat_constant("0", source, lanes) if not source.is_float else "zeroinitializer" if lanes else "0.0"
        return b.emit(f"{'fcmp une' if source.is_float else 'icmp ne'} {s} {value}, {zero}")
    if source.is_float and target.is_float:
        return b.emit(f"{'fpext' if target.bits > source.bits else 'fptrunc'} {s} {value} to {t}")
    if source.is_float:
        return _float_to_integer(b, source, target, value, lanes)
    if target.is_float:
        return b.emit(f"{'sitofp' if source.kind == 'int' else 'uitofp'} {s} {value} to {t}")
    if target.bits == source.bits:
        return value
    widen = "sext" if source.kind == "int" else "zext"
    return b.emit(f"{widen if target.bits > source.bits else 'trunc'} {s} {value} to {t}")


def _emit_expr(b: IRBuilder, e: Expr, args: Mapping[str, str], lanes: int) -> str:
    """Emit an expression of named values."""
    values: dict[int, str] = {}
    for sub in e.subexprs:
        if isinstance(sub, PrimitiveCall):
            values[id(sub)] = emit_primitive(b, sub, [values[id(a)] for a in sub.operands], lanes)
        elif isinstance(sub, Const):
            values[id(sub)] = splat_constant(literal(sub.value, sub.dtype), sub.dtype, lanes)
        else:
            assert isinstance(sub, Ref)
            values[id(sub)] = args[sub.name]
    return values[id(e)]


def _float_to_integer(b: IRBuilder, source: DType, target: DType, value: str, lanes: int) -> str:
    """Truncate toward zero.  Narrow types go through i32 or i64 and wrap, as in PyTorch on x86."""
    wide = i64 if target.bits == 64 or source.bits == 64 else i32
    converted = b.emit(f"fptosi {llvm_type(source, lanes)} {value} to {llvm_type(wide, lanes)}")
    return _wrap(b, wide, target, converted, lanes)


def _wrap(b: IRBuilder, wide: DType, target: DType, converted: str, lanes: int) -> str:
    """Return the low bits of what a conversion from a float gave, which may be undefined."""
    frozen = b.emit(f"freeze {llvm_type(wide, lanes)} {converted}")
    return emit_cast(b, wide, target, frozen, lanes)


def is_rounded_conversion(e: PrimitiveCall) -> bool:
    """Return True for `cast<integer>(round(x))` that one instruction computes from x."""
    inner = e.operands[0]
    return (
        e.primitive == "cast"
        and e.dtype.is_integer
        and e.dtype.bits <= 32
        and isinstance(inner, PrimitiveCall)
        and (inner.primitive, inner.dtype) == ("round", f32)
    )


def emit_rounded_conversion(b: IRBuilder, target: DType, x: str, lanes: int) -> str:
    """Round f32 to the nearest integer, ties to even; what does not fit becomes what truncation makes of it."""
    ty, source = llvm_type(i32, lanes), llvm_type(f32, lanes)
    suffixes = f"{intrinsic_suffix(i32, lanes)}.{intrinsic_suffix(f32, lanes)}"
    return _wrap(b, i32, target, b.intrinsic(ty, f"llvm.lrint.{suffixes}", (source, x)), lanes)


def _widen_upper_half(b: IRBuilder, source: DType, value: str, lanes: int) -> str:
    """Convert codes that are the upper bits of f32 to f32."""
    v = f"<{lanes} x %s>" if lanes else "%s"
    wide = b.emit(f"zext {v % f'i{source.bits}'} {value} to {v % 'i32'}")
    high = b.emit(f"shl {v % 'i32'} {wide}, {splat_constant(str(32 - source.bits), i32, lanes)}")
    return b.emit(f"bitcast {v % 'i32'} {high} to {v % 'float'}")


def _narrow_upper_half(b: IRBuilder, target: DType, value: str, lanes: int) -> str:
    """Convert f32 to codes that are its upper bits: round them to nearest even; a NaN becomes quiet."""
    v, shift = f"<{lanes} x %s>" if lanes else "%s", 32 - target.bits

    def c(n: int) -> str:
        return splat_constant(str(n), i32, lanes)

    bits = b.emit(f"bitcast {v % 'float'} {value} to {v % 'i32'}")
    upper = b.emit(f"lshr {v % 'i32'} {bits}, {c(shift)}")
    odd = b.emit(f"and {v % 'i32'} {upper}, {c(1)}")
    bias = b.emit(f"add {v % 'i32'} {odd}, {c((1 << shift >> 1) - 1)}")
    rounded = b.emit(f"add {v % 'i32'} {bits}, {bias}")
    high = b.emit(f"lshr {v % 'i32'} {rounded}, {c(shift)}")
    nan = b.emit(f"fcmp uno {v % 'float'} {value}, {value}")
    quiet = b.emit(f"or {v % 'i32'} {upper}, {c(1 << target.float_format.mantissa_bits >> 1)}")
    chosen = b.emit(f"select {v % 'i1'} {nan}, {v % 'i32'} {quiet}, {v % 'i32'} {high}")
    return b.emit(f"trunc {v % 'i32'} {chosen} to {v % f'i{target.bits}'}")


def _neg(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
    ty = llvm_type(dtype, lanes)
    if dtype.is_float:
        return b.emit(f"fneg {ty} {args[0]}")
    return b.emit(f"sub {ty} {splat_constant('0', dtype, lanes)}, {args[0]}")


def _abs(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
    if dtype.kind != "int":
        return args[0]
    ty = llvm_type(dtype, lanes)
    return b.intrinsic(ty, f"llvm.abs.{intrinsic_suffix(dtype, lanes)}", (ty, args[0]), ("i1", "false"))


def _not(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
    ones = "true" if dtype.kind == "bool" else "-1"
    return b.emit(f"xor {llvm_type(dtype, lanes)} {args[0]}, {splat_constant(ones, dtype, lanes)}")


def _shift(opcode: str) -> Callable[[IRBuilder, DType, list[str], int], str]:
    """Return the rule of a shift.  A shift by the bit width or more, or by a negative number, gives 0 or the sign."""

    def emit(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
        x, amount = args
        ty, flag = llvm_type(dtype, lanes), llvm_type(boolean, lanes)
        in_range = b.emit(f"icmp ult {ty} {amount}, {splat_constant(str(dtype.bits), dtype, lanes)}")
        if opcode == "shr" and dtype.kind == "int":
            max_shift = splat_constant(str(dtype.bits - 1), dtype, lanes)
            return b.emit(f"ashr {ty} {x}, {b.emit(f'select {flag} {in_range}, {ty} {amount}, {ty} {max_shift}')}")
        shifted = b.emit(f"{'shl' if opcode == 'shl' else 'lshr'} {ty} {x}, {amount}")
        return b.emit(f"select {flag} {in_range}, {ty} {shifted}, {ty} {splat_constant('0', dtype, lanes)}")

    return emit


def _min_or_max(name: str) -> Callable[[IRBuilder, DType, list[str], int], str]:
    """Return the rule of min or max: NaN where either is NaN, either zero of two.

    Comparisons and selects would become a mask of both conditions, on which a chain of maxima waits several times longer.
    """

    def emit(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
        x, y = args
        ty, flag = llvm_type(dtype, lanes), llvm_type(boolean, lanes)
        if dtype.is_float:
            intrinsic = f"llvm.{name}imum.{intrinsic_suffix(dtype, lanes)}"
            return b.intrinsic(ty, intrinsic, (ty, x), (ty, y), flags="nsz")
        if dtype.kind == "bool":
            return b.emit(f"{'or' if name == 'max' else 'and'} {ty} {x}, {y}")
        better = b.emit(f"icmp {'s' if dtype.kind == 'int' else 'u'}{'gt' if name == 'max' else 'lt'} {ty} {x}, {y}")
        return b.emit(f"select {flag} {better}, {ty} {x}, {ty} {y}")

    return emit


def _integer_division(opcode: str) -> Callable[[IRBuilder, DType, list[str], int], str]:
    """Return the rule of truncating division or remainder, which must not trap.

    Division by 0 gives x and by -1 gives -x (the lowest value wraps); the remainder of both is 0.
    """

    def emit(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
        x, y = args
        ty, flag = llvm_type(dtype, lanes), llvm_type(boolean, lanes)

        def c(n: int) -> str:
            return splat_constant(str(n), dtype, lanes)

        zero = b.emit(f"icmp eq {ty} {y}, {c(0)}")
        if dtype.kind != "int":
            safe = b.emit(f"select {flag} {zero}, {ty} {c(1)}, {ty} {y}")
            return b.emit(f"u{opcode} {ty} {x}, {safe}")
        minus_one = b.emit(f"icmp eq {ty} {y}, {c(-1)}")
        may_trap = b.emit(f"or {flag} {zero}, {minus_one}")
        safe = b.emit(f"select {flag} {may_trap}, {ty} {c(1)}, {ty} {y}")
        result = b.emit(f"s{opcode} {ty} {x}, {safe}")
        if opcode == "rem":
            return result
        negated = b.emit(f"sub {ty} {c(0)}, {x}")
        return b.emit(f"select {flag} {minus_one}, {ty} {negated}, {ty} {result}")

    return emit


def _integer_fma(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
    ty = llvm_type(dtype, lanes)
    return b.emit(f"add {ty} {b.emit(f'mul {ty} {args[0]}, {args[1]}')}, {args[2]}")


EXPANSIONS: dict[str, Callable[[IRBuilder, DType, list[str], int], str]] = {
    "neg": _neg,
    "abs": _abs,
    "not": _not,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "lshr": _shift("lshr"),
    "min": _min_or_max("min"),
    "max": _min_or_max("max"),
    "div": _integer_division("div"),
    "rem": _integer_division("rem"),
    "fma": _integer_fma,
    "scale": emit_scale,
}
"""Primitives that take several instructions, or an instruction that depends on the dtype."""


def combine_pairwise(b: IRBuilder, op: str, dtype: DType, parts: Sequence[str], lanes: int) -> str:
    """Combine values in pairs: a dependency chain of log2(n) operations instead of n."""
    while len(parts) > 1:
        pairs = [emit_binary(b, op, dtype, x, y, lanes) for x, y in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *(parts[-1:] if len(parts) % 2 else ())]
    return parts[0]


def reduce_lanes(b: IRBuilder, op: str, dtype: DType, vector: str, lanes: int) -> str:
    """Combine the lanes of one register: its lower half with its upper half until one element is left.

    Sums of integers are left to LLVM.  LLVM 22 adds products of bytes by `vpdpbusd`, differences by `psadbw`, and takes the
    number of sums that these leave from the last vector that is added, so narrowing halves would lose some.
    """
    if op == "add" and dtype.is_integer and lanes > 1:
        element = llvm_type(dtype)
        return b.intrinsic(element, f"llvm.vector.reduce.add.v{lanes}{element}", (llvm_type(dtype, lanes), vector))
    half = lanes
    while half > 1:
        ty = llvm_type(dtype, half)
        half //= 2
        masks = (", ".join(f"i32 {start + k}" for k in range(half)) for start in (0, half))
        low, high = (b.emit(f"shufflevector {ty} {vector}, {ty} poison, <{half} x i32> <{mask}>") for mask in masks)
        vector = emit_binary(b, op, dtype, low, high, half)
    return b.emit(f"extractelement {llvm_type(dtype, 1)} {vector}, i64 0")
