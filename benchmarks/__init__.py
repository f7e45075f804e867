"""What the compiler promises, measured side by side with its peers in one run: `python -m benchmarks [name ...]`."""
