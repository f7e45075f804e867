"""Peers that run the same model: PyTorch eager, Inductor (default and tuned), zentorch, ONNX Runtime and OpenVINO."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

PeerCall = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """A peer after its first call, which took `first_result_seconds` with preparation."""

    name: str
    call: PeerCall
    first_result_seconds: float


def eager(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    def call() -> object:
        with torch.no_grad():
            return model(*args)

    return call


def inductor(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    return eager(torch.compile(model), args)


def inductor_tuned(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    """Compile with autotuning and frozen weights; the first call is made here, while freezing is set."""
    call = eager(torch.compile(model, mode="max-autotune"), args)
    with torch._inductor.config.patch(freezing=True):
        call()
    return call


def zentorch(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    """Compile with AMD's plugin of Inductor, which ZenDNN's products run in; its release is that of torch."""
    import zentorch as plugin  # registers the backend

    return eager(torch.compile(model, backend=plugin.__name__), args)


@contextlib.contextmanager
def onnx_file(model: nn.Module, args: Sequence[torch.Tensor]) -> Iterator[str]:
    """Export a model as ONNX, and remove the file at the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, tuple(args), path, dynamo=True, external_data=False, verbose=False)
        yield path


def onnxruntime(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with onnx_file(model, args) as path:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, feed)


def openvino(model: nn.Module, args: Sequence[torch.Tensor], precision: str = "f32") -> PeerCall:
    """Refuse f64, which OpenVINO computes in f32 (errors of 7e-7)."""
    if any(t.dtype == torch.float64 for t in (*args, *model.parameters(), *model.buffers())):
        raise TypeError("OpenVINO computes f64 in f32")
    import openvino as ov

    return _openvino_call(ov.convert_model(torch.export.export(model, tuple(args))), args, precision)


def openvino_from_onnx(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    """Go through ONNX, which has the quantized operators that OpenVINO does not convert from PyTorch."""
    import openvino as ov

    with onnx_file(model, args) as path:
        return _openvino_call(ov.Core().read_model(path), args, "f32")


def _openvino_call(converted: Any, args: Sequence[torch.Tensor], precision: str) -> PeerCall:
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = precision
    request = ov.Core().compile_model(converted, "CPU", settings).create_infer_request()
    feed = [a.numpy() for a in args]
    return lambda: request.infer(feed)


PEERS: dict[str, Callable[[nn.Module, Sequence[torch.Tensor]], PeerCall]] = {
    "eager": eager,
    "Inductor": inductor,
    "Inductor tuned": inductor_tuned,
    "zentorch": zentorch,
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
}


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress output, warnings and logging."""
    logging.disable(logging.WARNING)
    try:
        sink = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def fresh_cache(cold: bool) -> AbstractContextManager[object]:
    """Use an empty Inductor cache if `cold`."""
    from torch._inductor.utils import fresh_cache as empty

    return empty() if cold else contextlib.nullcontext()


def prepare_peers(
    model: nn.Module, args: Sequence[torch.Tensor], names: Sequence[str] = tuple(PEERS), cold: bool = False
) -> list[Peer]:
    """Return the peers that are installed and can run the model, after their first call; print why others cannot.

    With `cold`, the Inductor cache is empty.
    """
    torch._dynamo.reset()
    made = (prepare_peer(name, partial(PEERS[name], model, args), cold) for name in names)
    return [peer for peer in made if peer]


def prepare_peer(name: str, make: Callable[[], PeerCall], cold: bool = False) -> Peer | None:
    """Return a peer after its first call; if it is not installed or cannot run, print why and return None."""
    made = attempt_peer(name, make, cold)
    if isinstance(made, Peer):
        return made
    print(f"{name} is skipped: {made}", file=sys.stderr)
    return None


def attempt_peer(name: str, make: Callable[[], PeerCall], cold: bool = False) -> Peer | str:
    """Return a peer after its first call, or why it is not installed or cannot run."""
    start = time.perf_counter()
    try:
        with silenced(), fresh_cache(cold):
            call = make()
            call()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    return Peer(name, call, time.perf_counter() - start)
