"""Test kit for passes and models."""

from compiler.testing.checks import check, check_accuracy, check_equivalent, check_pass, parse_ir

__all__ = ["check", "check_accuracy", "check_equivalent", "check_pass", "parse_ir"]
