"""Fuzzing: random graphs through the whole compiler, against float64; what fails is shrunk to a few lines of text.

random_graph(17)                a random valid graph                    generate
inputs_for(graph, 17)           inputs that may do harm                 inputs
expectations(graph, inputs)     the truth, and how far rounding goes    worlds
check(graph, 17)                run it in every way, and compare        check
reduce(case)                    the smallest graph that fails alike     reduce
check_spoilt(17)                bad input of every sort                 spoil
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
