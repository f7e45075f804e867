"""Benchmarks against peers, measured interleaved in one process: `python -m benchmarks [name ...]`."""
