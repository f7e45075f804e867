"""Bisection: from a wrong, failing or slow program to the rewrite that makes it so.

Subject     IR, passes, inputs and expected results                   subject
Search      the first bad rewrite, by binary search                   search
reduce_ir   a smaller example of the same fault, and its files        reduction
bisect      all of these, for a model or IR                           session
"""

from compiler.testing.bisection.session import Bisection, bisect

__all__ = ["Bisection", "bisect"]
