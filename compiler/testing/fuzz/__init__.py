"""Fuzzer: compile random graphs, compare with float64, and reduce a failing graph to a few lines of text.

random_graph(17)                a random valid graph                            generate
inputs_for(graph, 17)           random inputs, special values among them        inputs
expectations(graph, inputs)     float64 results and bounds of rounding errors   rounding_oracle
check_graph(graph, 17)          run in every configuration and compare          check
reduce(case)                    a smaller graph that fails alike                reduce
check_malformed(17)             malformed text, attributes and files            malformed_inputs
"""

from compiler.testing.fuzz.case_file import FuzzCase, parse_case, read_case
from compiler.testing.fuzz.check import (
    CONFIGURATIONS,
    CheckOutcome,
    Configuration,
    Failure,
    check_graph,
    configuration_for_seed,
)
from compiler.testing.fuzz.generate import random_graph
from compiler.testing.fuzz.inputs import inputs_for
from compiler.testing.fuzz.reduce import reduce
from compiler.testing.fuzz.rounding_oracle import Expectation, expectations
from compiler.testing.fuzz.session import FuzzResult, check_seed, fuzz

__all__ = [
    "CONFIGURATIONS",
    "CheckOutcome",
    "Configuration",
    "Expectation",
    "Failure",
    "FuzzCase",
    "FuzzResult",
    "check_graph",
    "check_seed",
    "configuration_for_seed",
    "expectations",
    "fuzz",
    "inputs_for",
    "parse_case",
    "random_graph",
    "read_case",
    "reduce",
]  # fmt: skip
