"""Tile IR read as Triton: a tiled loop is an axis of blocks, a parallel loop a program index."""

GPU_PASSES = "delinearize,tighten-reductions,split-kernels,collapse,gpu-rows,gpu-dot,gpu-blocks"
"""Scalar loops into blocks: a kernel for each grid; join short loops, hold kept rows whole, choose blocks to multiply, then all others."""
