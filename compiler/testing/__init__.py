"""Test kit for passes and models."""

from compiler.ir.text.ir_text import parse_ir
from compiler.testing.bisection.session import Bisection, bisect
from compiler.testing.checks import check, check_accuracy, check_equivalent, check_pass

__all__ = ["Bisection", "bisect", "check", "check_accuracy", "check_equivalent", "check_pass", "parse_ir"]
