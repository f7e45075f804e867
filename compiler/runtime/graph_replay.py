"""CUDA graphs: the launches of a call are recorded once, and a replay costs one launch however many kernels there are.

    first call    runs as it is, which compiles kernels and shows where inputs lie
    second call   records: inputs that lie where they lay are read there, such as weights; the others are copied to static ones
    others        copy inputs, replay, and copy the results, which belong to the caller

A call on another device or stream has a recording of its own.  AMD's GPUs have the same interface in PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")
RunFunction = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


class DeviceGraphs(Protocol):
    """Recording and replay of the work of a device."""

    def stream(self, device: torch.device) -> Hashable:
        """Return the current stream of a device."""

    def is_recording(self) -> bool:
        """Return True if somebody records the current stream."""

    def record(self, function: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Return a function that replays the work of `function`, and the static results that it writes; runs nothing."""


class CUDAGraphs:
    """Graphs of the current CUDA device."""

    def stream(self, device: torch.device) -> Hashable:
        """Return the handle of the current stream."""
        return torch.cuda.current_stream(device).cuda_stream

    def is_recording(self) -> bool:
        """Return True inside `torch.cuda.graph`."""
        return torch.cuda.is_current_stream_capturing()

    def record(self, function: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture the function; other threads may use the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = function()
        return graph.replay, results


@dataclass(frozen=True)
class Recording:
    """A replay, the tensors that it reads, and those that it writes; inputs in `fixed` are the caller's own."""

    replay: Callable[[], None]
    inputs: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]
    fixed: frozenset[int]

    def call(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Replay on `inputs`; a result that is an input was written in place."""
        copied = [k for k in range(len(inputs)) if k not in self.fixed]
        for k in copied:
            self.inputs[k].copy_(inputs[k].detach())
        self.replay()
        written = {id(x): k for k, x in enumerate(self.inputs) if any(x is r for r in self.results)}
        for k in written.values():
            if k in copied:
                inputs[k].detach().copy_(self.inputs[k])
        return [inputs[written[id(r)]] if id(r) in written else r.clone() for r in self.results]


class GraphReplay:
    """A function of tensors, called as `replay(device, inputs)`; inputs must be those that the function takes unchecked."""

    def __init__(self, function: RunFunction, graphs: DeviceGraphs) -> None:
        self.function, self.graphs = function, graphs
        self._addresses: dict[Hashable, list[int]] = {}
        self._recordings: dict[Hashable, Recording] = {}
        self._lock = threading.Lock()

    def __call__(self, device: torch.device, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self.graphs.is_recording():
            return self.function(inputs)
        key, addresses = (device, self.graphs.stream(device)), [x.data_ptr() for x in inputs]
        with self._lock:
            before = self._addresses.setdefault(key, addresses)
            if before is addresses:
                return self.function(inputs)
            stays = frozenset(k for k, (old, new) in enumerate(zip(before, addresses, strict=True)) if old == new)
            recording = self._recordings.get(key)
            if recording is None or not recording.fixed <= stays:  # each input makes a new recording at most once
                fixed = stays & recording.fixed if recording else stays
                recording = self._recordings[key] = self._record(inputs, fixed)
            return recording.call(inputs)

    def _record(self, inputs: Sequence[torch.Tensor], fixed: frozenset[int]) -> Recording:
        static = [
            x if k in fixed else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            for k, x in enumerate(inputs)
        ]
        replay, results = self.graphs.record(lambda: self.function(static))
        return Recording(replay, static, results, fixed)
