"""Kernels for `rank`: contractions, convolutions, normalizations, reductions, transpositions and attention."""

from __future__ import annotations

import re

import numpy as np

from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.types import f32

CONV = "{stride=[1, 1], dilation=[1, 1]}"
STRIDED = "{stride=[2, 2], dilation=[1, 1]}"

GRAPHS = {
    "product 96 x 192 x 320": "%x: f32[96, 192], const %w: f32[192, 320]; %y = matmul %x, %w",
    "product 256 x 512 x 512": "%x: f32[256, 512], const %w: f32[512, 512]; %y = matmul %x, %w",
    "product 64 x 1024 x 1024": "%x: f32[64, 1024], const %w: f32[1024, 1024]; %y = matmul %x, %w",
    "product 1 x 1024 x 768": "%x: f32[1, 1024], const %w: f32[1024, 768]; %y = matmul %x, %w",
    "product 4 x 768 x 768": "%x: f32[4, 768], const %w: f32[768, 768]; %y = matmul %x, %w",
    "product 13 x 300 x 500": "%x: f32[13, 300], const %w: f32[300, 500]; %y = matmul %x, %w",
    "product 256 x 512 x 10": "%x: f32[256, 512], const %w: f32[512, 10]; %y = matmul %x, %w",
    "product 1000 x 16 x 64": "%x: f32[1000, 16], const %w: f32[16, 64]; %y = matmul %x, %w",
    "product 128 x 128 x 128, no constants": "%x: f32[128, 128], %w: f32[128, 128]; %y = matmul %x, %w",
    "linear 64 x 256 x 192, no constants": "%x: f32[64, 256], %w: f32[192, 256]; %y = linear %x, %w",
    "linear 128 x 256 x 256, bias, relu": """%x: f32[128, 256], const %w: f32[256, 256], const %b: f32[256];
        %l = linear %x, %w  %a = add %l, %b  %y = relu %a""",
    "linear 64 x 128 x 512, gelu": """%x: f32[64, 128], const %w: f32[512, 128], const %b: f32[512];
        %l = linear %x, %w  %a = add %l, %b  %y = gelu %a""",
    "batch 8 x 64 x 64 x 64": "%x: f32[8, 64, 64], %w: f32[8, 64, 64]; %y = matmul %x, %w",
    "gradient 2048 x 64 x 96": """%x: f32[2048, 64], %g: f32[2048, 96];
        %t = permute %x {dims=[1, 0]}  %y = matmul %t, %g""",
    "matrix times vector 1000 x 600": "%x: f32[1000, 600], %w: f32[600, 1]; %y = matmul %x, %w",
    "conv 1x1, 64 to 128, 28": f"%x: f32[1, 64, 28, 28], const %w: f32[128, 64, 1, 1]; %y = conv %x, %w {CONV}",
    "conv 1x1 strided, 64 to 128, 28": f"%x: f32[1, 64, 28, 28], const %w: f32[128, 64, 1, 1]; %y = conv %x, %w {STRIDED}",
    "conv 3x3, 32 to 64, 30": f"%x: f32[1, 32, 30, 30], const %w: f32[64, 32, 3, 3]; %y = conv %x, %w {CONV}",
    "conv 3x3, 128 to 128, 16": f"%x: f32[1, 128, 16, 16], const %w: f32[128, 128, 3, 3]; %y = conv %x, %w {CONV}",
    "conv 3x3 strided, 32 to 64, 33": f"%x: f32[1, 32, 33, 33], const %w: f32[64, 32, 3, 3]; %y = conv %x, %w {STRIDED}",
    "conv 7x7 strided, 3 to 32, 69": f"%x: f32[1, 3, 69, 69], const %w: f32[32, 3, 7, 7]; %y = conv %x, %w {STRIDED}",
    "conv 3x3, 16 to 16, 40, no constants": f"%x: f32[1, 16, 40, 40], %w: f32[16, 16, 3, 3]; %y = conv %x, %w {CONV}",
    "conv grouped 4, 64 to 64, 20": """%x: f32[1, 64, 20, 20], const %w: f32[64, 16, 3, 3];
        %y = conv %x, %w {stride=[1, 1], dilation=[1, 1], groups=4}""",
    "conv 1d, 32 to 64, 500": """%x: f32[1, 32, 500], const %w: f32[64, 32, 5];
        %y = conv %x, %w {stride=[1], dilation=[1]}""",
    "depthwise 3x3, 96, 30": """%x: f32[1, 96, 30, 30], const %w: f32[96, 1, 3, 3];
        %y = conv %x, %w {stride=[1, 1], dilation=[1, 1], groups=96}""",
    "depthwise 5x5 strided, 64, 33": """%x: f32[1, 64, 33, 33], const %w: f32[64, 1, 5, 5];
        %y = conv %x, %w {stride=[2, 2], dilation=[1, 1], groups=64}""",
    "softmax 256 x 1000": "%x: f32[256, 1000]; %y = softmax %x {dim=1}",
    "softmax 400 x 49": "%x: f32[400, 49]; %y = softmax %x {dim=1}",
    "softmax down 128 x 600": "%x: f32[128, 600]; %y = softmax %x {dim=0}",
    "layer norm 128 x 768": """%x: f32[128, 768], const %w: f32[768], const %b: f32[768];
        %y = layer_norm %x, %w, %b {dims=1, eps=1e-05}""",
    "layer norm 700 x 48": """%x: f32[700, 48], const %w: f32[48], const %b: f32[48];
        %y = layer_norm %x, %w, %b {dims=1, eps=1e-05}""",
    "sum along 300 x 1000": "%x: f32[300, 1000]; %y = sum %x {dims=[1]}",
    "sum across 1000 x 300": "%x: f32[1000, 300]; %y = sum %x {dims=[0]}",
    "largest across 40 x 50 x 60": "%x: f32[40, 50, 60]; %y = amax %x {dims=[1]}",
    "sum of squares 64 x 17 x 90": "%x: f32[64, 17, 90]; %s = mul %x, %x  %y = sum %s {dims=[0, 2]}",
    "transposed addition 500 x 400": """%x: f32[400, 500], %z: f32[500, 400];
        %t = permute %x {dims=[1, 0]}  %y = add %t, %z""",
    "heads moved 64 x 8 x 40": "%x: f32[4, 64, 8, 40]; %e = exp %x  %y = permute %e {dims=[0, 2, 3, 1]}",
    "gelu 300 x 200": "%x: f32[300, 200]; %y = gelu %x",
    "scaled rows transposed 64 x 1024": """%x: f32[64, 1024], %s: f32[64, 1];
        %m = mul %x, %s  %y = permute %m {dims=[1, 0]}""",
    "attention 4 x 128 x 64": "%q: f32[4, 128, 64], %k: f32[4, 128, 64], %v: f32[4, 128, 64]; %y = attention %q, %k, %v {scale=0.125}",
    "attention 2 x 768 x 32": "%q: f32[2, 768, 32], %k: f32[2, 768, 32], %v: f32[2, 768, 32]; %y = attention %q, %k, %v {scale=0.125}",
    "attention scores 8 x 100 x 32": """%q: f32[8, 100, 32], %k: f32[8, 100, 32];
        %t = permute %k {dims=[0, 2, 1]}  %s = matmul %q, %t  %y = softmax %s {dim=2}""",
}
"""Graphs as "parameters; statements" by name; the result is %y.  Sizes fit the second or third level cache and take below 20 ms."""


def corpus_graph(name: str) -> Graph:
    """Return the graph `name` of `GRAPHS`; its parameters marked `const` are constants with random elements."""
    parameters, statements = GRAPHS[name].split(";", 1)
    constants: dict[str, ConstantData] = {}

    def declare(match: re.Match[str]) -> str:
        shape = tuple(map(int, match[2].split(",")))
        array = np.random.default_rng(0).standard_normal(shape, np.float32)
        constants[match[1]] = ConstantData(f32, array, match[1])
        return ""

    inputs = re.sub(r", const %(\w+): f32\[([\d, ]+)\]", declare, parameters)
    declared = " ".join(f"%{n} = constant f32{list(c.shape)} @{n}" for n, c in constants.items())
    return parse_graph(f"graph @g({inputs}) {{ {declared} {statements} return %y }}", constants)
