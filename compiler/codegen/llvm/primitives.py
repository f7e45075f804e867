"""Scalar primitives as LLVM instructions, on scalars and vectors.

Transcendental primitives have no instruction: the expand-math pass expands them first.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.codegen.llvm.builder import IRBuilder, llvm_type
from compiler.ir.scalar import PrimitiveCall, Ref
from compiler.ir.types import DType, boolean, f32

FCMP_PREDICATES = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
"""Predicates of fcmp: ordered, so false on NaN, except for `ne`."""

FLOAT_OPCODES = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
INTEGER_OPCODES = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
NON_ARITHMETIC = ("where", "cast", "bitcast")
"""Primitives that half types need not be widened for."""

FLOAT_INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "abs": "fabs",
                    "copysign": "copysign", "fma": "fma"}  # fmt: skip


def intrinsic_suffix(dtype: DType, lanes: int) -> str:
    """Return the type as the name of an intrinsic mangles it: v16f32, i64."""
    base = f"{'f' if dtype.is_float else 'i'}{dtype.bits}"
    return f"v{lanes}{base}" if lanes else base


def splat_constant(text: str, dtype: DType, lanes: int) -> str:
    """Return scalar constant `text` as a constant of the scalar or vector type."""
    return f"splat ({llvm_type(dtype)} {text})" if lanes else text


def emit_primitive(b: IRBuilder, e: PrimitiveCall, args: list[str], lanes: int) -> str:
    """Emit primitive `e` on `args`, vectors of `lanes` elements (0: scalars)."""
    dtype = e.operands[-1].dtype
    ty = llvm_type(dtype, lanes)
    name = e.primitive
    if dtype.is_half and name not in NON_ARITHMETIC:
        return _compute_in_f32(b, e, args, lanes)
    if name in FCMP_PREDICATES:
        return emit_compare(b, name, dtype, args, lanes)
    if name == "where":
        return b.emit(f"select {llvm_type(boolean, lanes)} {args[0]}, {ty} {args[1]}, {ty} {args[2]}")
    if name == "cast":
        return emit_cast(b, dtype, e.dtype, args[0], lanes)
    if name == "bitcast":
        source, target = llvm_type(dtype, lanes), llvm_type(e.dtype, lanes)
        return args[0] if source == target else b.emit(f"bitcast {source} {args[0]} to {target}")
    if dtype.is_float and name in FLOAT_OPCODES:
        return b.emit(f"{FLOAT_OPCODES[name]} {ty} {args[0]}, {args[1]}")
    if dtype.is_float and name in FLOAT_INTRINSICS:
        intrinsic = f"llvm.{FLOAT_INTRINSICS[name]}.{intrinsic_suffix(dtype, lanes)}"
        return b.intrinsic(ty, intrinsic, *((ty, a) for a in args))
    if not dtype.is_float and name in INTEGER_OPCODES:
        return b.emit(f"{INTEGER_OPCODES[name]} {ty} {args[0]}, {args[1]}")
    rule = EXPANSIONS.get(name)
    if rule is None:
        raise NotImplementedError(f"primitive {name} on {dtype} has no instruction; run expand-math first")
    return rule(b, dtype, args, lanes)


def _compute_in_f32(b: IRBuilder, e: PrimitiveCall, args: list[str], lanes: int) -> str:
    """Compute a primitive on a half type in f32 and round the result once."""
    dtype = e.operands[0].dtype
    widened = [emit_cast(b, dtype, f32, a, lanes) for a in args]
    result = boolean if e.dtype == boolean else f32
    value = emit_primitive(b, PrimitiveCall(result, e.primitive, (Ref(f32, ""),) * len(args)), widened, lanes)
    return value if result == boolean else emit_cast(b, f32, dtype, value, lanes)


def emit_compare(b: IRBuilder, name: str, dtype: DType, args: list[str], lanes: int) -> str:
    """Emit a comparison, signed or unsigned as the dtype is."""
    ty = llvm_type(dtype, lanes)
    if dtype.is_float:
        return b.emit(f"fcmp {FCMP_PREDICATES[name]} {ty} {args[0]}, {args[1]}")
    sign = "s" if dtype.kind == "int" else "u"
    code = name if name in ("eq", "ne") else sign + name
    return b.emit(f"icmp {code} {ty} {args[0]}, {args[1]}")


def emit_cast(b: IRBuilder, source: DType, target: DType, value: str, lanes: int) -> str:
    """Convert by value; conversions between a half type and another type go through f32."""
    if source == target:
        return value
    if source.is_half and target != f32:
        return emit_cast(b, f32, target, emit_cast(b, source, f32, value, lanes), lanes)
    if target.is_half and source != f32:
        return emit_cast(b, f32, target, emit_cast(b, source, f32, value, lanes), lanes)
    if source.name == "bf16":
        return _widen_bf16(b, value, lanes)
    if target.name == "bf16":
        return _narrow_bf16(b, value, lanes)
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


def _float_to_integer(b: IRBuilder, source: DType, target: DType, value: str, lanes: int) -> str:
    """Truncate toward zero.  Narrow types go through i32 or i64 and wrap, as in PyTorch on x86."""
    wide = "i64" if target.bits == 64 or source.bits == 64 else "i32"
    s = llvm_type(source, lanes)
    wide_ty = f"<{lanes} x {wide}>" if lanes else wide
    converted = b.emit(f"fptosi {s} {value} to {wide_ty}")
    converted = b.emit(f"freeze {wide_ty} {converted}")
    t = llvm_type(target, lanes)
    return converted if t == wide_ty else b.emit(f"trunc {wide_ty} {converted} to {t}")


def _widen_bf16(b: IRBuilder, value: str, lanes: int) -> str:
    """Convert bf16 to f32: its bits are the upper half."""
    v = f"<{lanes} x %s>" if lanes else "%s"
    wide = b.emit(f"zext {v % 'i16'} {value} to {v % 'i32'}")
    high = b.emit(f"shl {v % 'i32'} {wide}, {'splat (i32 16)' if lanes else '16'}")
    return b.emit(f"bitcast {v % 'i32'} {high} to {v % 'float'}")


def _narrow_bf16(b: IRBuilder, value: str, lanes: int) -> str:
    """Convert f32 to bf16: round its bits to nearest even; a NaN becomes quiet."""
    v = f"<{lanes} x %s>" if lanes else "%s"
    c = (lambda n: f"splat (i32 {n})") if lanes else str
    bits = b.emit(f"bitcast {v % 'float'} {value} to {v % 'i32'}")
    odd = b.emit(f"and {v % 'i32'} {_shr16(b, bits, lanes)}, {c(1)}")
    bias = b.emit(f"add {v % 'i32'} {odd}, {c(0x7FFF)}")
    rounded = b.emit(f"add {v % 'i32'} {bits}, {bias}")
    high = _shr16(b, rounded, lanes)
    nan = b.emit(f"fcmp uno {v % 'float'} {value}, {value}")
    quiet = b.emit(f"or {v % 'i32'} {_shr16(b, bits, lanes)}, {c(0x40)}")
    chosen = b.emit(f"select {v % 'i1'} {nan}, {v % 'i32'} {quiet}, {v % 'i32'} {high}")
    return b.emit(f"trunc {v % 'i32'} {chosen} to {v % 'i16'}")


def _shr16(b: IRBuilder, bits: str, lanes: int) -> str:
    ty = f"<{lanes} x i32>" if lanes else "i32"
    return b.emit(f"lshr {ty} {bits}, {'splat (i32 16)' if lanes else '16'}")


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


def _min_or_max(predicate: str) -> Callable[[IRBuilder, DType, list[str], int], str]:
    """Return the rule of min or max.  One select would drop a NaN in the left operand; a second select restores it."""

    def emit(b: IRBuilder, dtype: DType, args: list[str], lanes: int) -> str:
        x, y = args
        ty, flag = llvm_type(dtype, lanes), llvm_type(boolean, lanes)
        if not dtype.is_float:
            if dtype.kind == "bool":
                return b.emit(f"{'or' if predicate == 'gt' else 'and'} {ty} {x}, {y}")
            better = b.emit(f"icmp {'s' if dtype.kind == 'int' else 'u'}{predicate} {ty} {x}, {y}")
            return b.emit(f"select {flag} {better}, {ty} {x}, {ty} {y}")
        better = b.emit(f"fcmp o{predicate} {ty} {x}, {y}")
        chosen = b.emit(f"select {flag} {better}, {ty} {x}, {ty} {y}")
        is_nan = b.emit(f"fcmp uno {ty} {x}, {x}")
        return b.emit(f"select {flag} {is_nan}, {ty} {x}, {ty} {chosen}")

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
    "min": _min_or_max("lt"),
    "max": _min_or_max("gt"),
    "div": _integer_division("div"),
    "rem": _integer_division("rem"),
    "fma": _integer_fma,
}
"""Primitives that take several instructions, or an instruction that depends on the dtype."""
