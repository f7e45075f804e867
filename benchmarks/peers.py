"""The same model in other systems: PyTorch eager, Inductor (as it comes, and tuned), ONNX Runtime and OpenVINO."""

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
from pathlib import Path

import torch
from torch import nn

PeerCall = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """A system ready to run: its name, the call, and the seconds it took until the first result."""

    name: str
    call: PeerCall
    first_result_seconds: float


def eager(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    def call() -> object:
        with torch.no_grad():
            return model(*args)

    return call


def inductor(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    compiled = torch.compile(model)

    def call() -> object:
        with torch.no_grad():
            return compiled(*args)

    return call


def inductor_tuned(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    """With the fastest of several kernels, and weights folded and packed ahead: compiled here, while the settings hold."""
    compiled = torch.compile(model, mode="max-autotune")

    def call() -> object:
        with torch.no_grad():
            return compiled(*args)

    with torch._inductor.config.patch(freezing=True):
        call()
    return call


def onnxruntime(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, tuple(args), path, dynamo=True, external_data=False, verbose=False)
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, feed)


def openvino(model: nn.Module, args: Sequence[torch.Tensor]) -> PeerCall:
    import openvino as ov

    converted = ov.convert_model(torch.export.export(model, tuple(args)))
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = ov.Core().compile_model(converted, "CPU", settings).create_infer_request()
    feed = [a.numpy() for a in args]
    return lambda: request.infer(feed)


PEERS: dict[str, Callable[[nn.Module, Sequence[torch.Tensor]], PeerCall]] = {
    "eager": eager,
    "Inductor": inductor,
    "Inductor tuned": inductor_tuned,
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
}


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Nothing is printed, warned or logged within."""
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def fresh_cache(cold: bool) -> AbstractContextManager[object]:
    """Inductor's cache is empty within, if `cold`."""
    from torch._inductor.utils import fresh_cache as empty

    return empty() if cold else contextlib.nullcontext()


def prepare_peers(
    model: nn.Module, args: Sequence[torch.Tensor], names: Sequence[str] = tuple(PEERS), cold: bool = False
) -> list[Peer]:
    """The peers that are installed and take this model, each after its first call; others are named with the reason.

    With `cold`, Inductor does not find what earlier runs have compiled.
    """
    torch._dynamo.reset()
    found = []
    for name in names:
        start = time.perf_counter()
        try:
            with silenced(), fresh_cache(cold):
                call = PEERS[name](model, args)
                call()
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0][:120]
            print(f"{name} is left out: {type(error).__name__}: {reason}", file=sys.stderr)
            continue
        found.append(Peer(name, call, time.perf_counter() - start))
    return found
