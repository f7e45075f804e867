"""The same model in other systems: PyTorch eager, Inductor, ONNX Runtime and OpenVINO."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

Call = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """A system ready to run: its name, the call, and the seconds it took until the first result."""

    name: str
    call: Call
    seconds: float


def eager(model: nn.Module, args: Sequence[torch.Tensor]) -> Call:
    def call() -> object:
        with torch.no_grad():
            return model(*args)

    return call


def inductor(model: nn.Module, args: Sequence[torch.Tensor]) -> Call:
    torch._dynamo.reset()
    compiled = torch.compile(model)

    def call() -> object:
        with torch.no_grad():
            return compiled(*args)

    return call


def onnxruntime(model: nn.Module, args: Sequence[torch.Tensor]) -> Call:
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, tuple(args), path, dynamo=True, external_data=False, verbose=False)
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, feed)


def openvino(model: nn.Module, args: Sequence[torch.Tensor]) -> Call:
    import openvino as ov

    converted = ov.convert_model(torch.export.export(model, tuple(args)))
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = ov.Core().compile_model(converted, "CPU", settings).create_infer_request()
    feed = [a.numpy() for a in args]
    return lambda: request.infer(feed)


PEERS: dict[str, Callable[[nn.Module, Sequence[torch.Tensor]], Call]] = {
    "eager": eager,
    "Inductor": inductor,
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
}


def ready(model: nn.Module, args: Sequence[torch.Tensor], names: Sequence[str] = tuple(PEERS)) -> list[Peer]:
    """The peers that are installed and take this model, each after its first call; others are named with the reason."""
    found = []
    for name in names:
        start = time.perf_counter()
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                logging.disable(logging.WARNING)
                call = PEERS[name](model, args)
                call()
        except Exception as error:
            print(
                f"{name} is left out: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
            )
            continue
        finally:
            logging.disable(logging.NOTSET)
        found.append(Peer(name, call, time.perf_counter() - start))
    return found
