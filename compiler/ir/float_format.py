"""Encodings of floats that NumPy or LLVM may lack, and conversion of arrays from and to their codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
"""NumPy array of any shape and element type."""


@dataclass(frozen=True)
class FloatFormat:
    """Encoding of floats as codes: a sign, a biased exponent and a mantissa without its leading 1, as in IEEE 754.

    The largest exponent encodes infinities and NaN.  Without infinities ("fn") it encodes numbers, and only the code of all
    ones is NaN.
    """

    exponent_bits: int
    mantissa_bits: int
    has_infinities: bool = True

    @property
    def precision(self) -> int:
        """Number of significant binary digits."""
        return self.mantissa_bits + 1

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def tiny(self) -> float:
        """The smallest positive number that is not subnormal."""
        return 2.0 ** (1 - self.bias)

    def power_code(self, exponent: int) -> int:
        """Return the code of 2^exponent."""
        return (exponent + self.bias) << self.mantissa_bits

    @property
    def sign(self) -> int:
        """Code of -0, the sign bit."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def nonfinite(self) -> int:
        """The smallest code that is no number: infinity, or NaN if there is none."""
        return self.sign - (1 << self.mantissa_bits) if self.has_infinities else self.sign - 1

    @property
    def overflow(self) -> int:
        """Code of results that are too large: infinity, or the largest number if there is none, as in PyTorch."""
        return self.nonfinite - (not self.has_infinities)

    @property
    def is_upper_half(self) -> bool:
        """True if codes are the upper bits of f32: the format has the same exponents and infinities."""
        return self.exponent_bits == 8 and self.has_infinities

    def includes(self, other: FloatFormat) -> bool:
        """Return True if every value of `other` is a value of this format."""
        return (
            self.precision >= other.precision
            and self.bias + (not self.has_infinities) >= other.bias + (not other.has_infinities)
            and self.bias >= other.bias
            and self.has_infinities >= other.has_infinities
        )

    def decode(self, codes: Array) -> Array:
        """Return the values of codes of at most 32 bits as f32."""
        bits = np.asarray(codes).astype(np.uint32)
        magnitude, shift = bits & np.uint32(self.sign - 1), np.uint32(23 - self.mantissa_bits)
        shifted = magnitude << shift
        with np.errstate(invalid="ignore"):
            value = (shifted.view(np.float32) * np.float32(2.0 ** (127 - self.bias))).view(np.uint32)
        value = np.where(magnitude >= self.nonfinite, shifted | np.uint32(0x7F800000), value)
        return np.asarray(value | (bits & np.uint32(self.sign)) << np.uint32(8 - self.exponent_bits) << shift).view(
            np.float32
        )

    def encode(self, values: Array) -> Array:
        """Round f32 `values` to nearest even; return their codes in an unsigned type.  NaN stays NaN."""
        bits, m = np.ascontiguousarray(values, np.float32).reshape(np.shape(values)).view(np.uint32), self.mantissa_bits
        magnitude, shift = bits & np.uint32(0x7FFFFFFF), np.uint32(23 - m)
        with np.errstate(over="ignore", invalid="ignore"):
            odd = (magnitude >> shift) & np.uint32(1)
            rounded = (magnitude + odd + np.uint32((1 << int(shift) >> 1) - 1)) >> shift
            normal = np.minimum(rounded - np.uint32(127 - self.bias << m), np.uint32(self.overflow))
            unit = np.float32(2.0 ** (24 - self.bias - m))  # its last place is the smallest subnormal
            subnormal = (magnitude.view(np.float32) + unit).view(np.uint32) - unit.view(np.uint32)
        code = np.where(magnitude < 128 - self.bias << 23, subnormal, normal)
        payload = (magnitude >> shift) & np.uint32((1 << m) - 1)
        nan = np.uint32(self.nonfinite) | payload | np.where(payload == 0, np.uint32(1 << m >> 1), payload)
        code = np.where(magnitude > 0x7F800000, nan, code) | (bits >> np.uint32(31)) * np.uint32(self.sign)
        return np.asarray(code).astype(f"u{(self.exponent_bits + m + 8) // 8}")
