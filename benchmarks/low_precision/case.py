"""One computation of low precision in ours and in peers: its errors against float64, then its times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import compiler
from benchmarks.peer_comparison import burst_medians, format_milliseconds
from benchmarks.peers import PEERS, Peer, PeerCall, openvino_from_onnx, prepare_peer
from compiler.report.measure import float64_reference, numerical_error

OURS = "ours"

MAX_REASON = 110
"""Characters of a reason that are printed."""


@dataclass(frozen=True)
class Variant:
    """Another way to the same result: of another precision, or of a form that a peer's exporter does not make.

    Its system is a peer, which is measured on request, or one that is always measured.
    """

    name: str
    system: str
    make: Callable[[], PeerCall]


def through_onnx(model: nn.Module, args: tuple[Tensor, ...]) -> Variant:
    """Return OpenVINO's way to a quantized model."""
    return Variant("OpenVINO, ONNX", "OpenVINO", partial(openvino_from_onnx, model, args))


@dataclass(frozen=True)
class Case:
    """A model and the arguments of one call.

    A call does `work`, operations or bytes, of which the machine can do no more than the limit called `limit` in a second.
    """

    model: nn.Module
    args: tuple[Tensor, ...]
    variants: tuple[Variant, ...] = ()
    work: float = 0.0
    limit: str = ""


@dataclass(frozen=True)
class Outcome:
    """Seconds of a call and largest relative error, by system or variant; ours is absent if `refusal` says why.

    `work` and `limit` are those of the case.
    """

    seconds: Mapping[str, float]
    errors: Mapping[str, float]
    refusal: str = ""
    work: float = 0.0
    limit: str = ""

    def format_system(self, name: str) -> str:
        """Format milliseconds, their ratio to ours if ours ran, and the error; "-" if the system did not run."""
        if name not in self.seconds:
            return "-"
        seconds, ours = self.seconds[name], self.seconds.get(OURS)
        ratio = f" ({seconds / ours:.2f})" if ours and name != OURS else ""
        return f"{format_milliseconds(seconds)}{ratio} {self.errors[name]:.0e}"


def measure(name: str, make: Callable[[], Case], peers: Sequence[str], rounds: int = 5, burst: float = 0.2) -> Outcome:
    """Compare each system with float64, then measure them in turns; `rounds` and `burst` are those of `burst_medians`."""
    try:
        case = make()
        truth = float64_reference(torch.export.export(case.model, case.args), case.args)
    except Exception as failure:  # go on with the other cases
        return Outcome({}, {}, f"no reference: {reason_of(failure)}")
    refusal, ready = "", []
    try:
        ready.append(Peer(OURS, partial(compiler.compile(case.model, case.args), *case.args), 0.0))
    except Exception as failure:
        kind = "refused" if isinstance(failure, compiler.TilewrightError) else "failed"
        refusal = f"{kind}: {reason_of(failure)}"
    torch._dynamo.reset()
    copies = {
        p: [a.clone() for a in case.args] for p in peers
    }  # frozen quantized layers of Inductor add into their input
    makers = {p: partial(PEERS[p], case.model, args) for p, args in copies.items()}
    makers |= {v.name: v.make for v in case.variants if v.system in peers or v.system not in PEERS}
    ready += filter(None, (prepare_peer(n, m) for n, m in makers.items()))
    with torch.no_grad():
        errors = {p.name: numerical_error(as_tensors(p.call()), truth).relative for p in ready}
        seconds = burst_medians([p.call for p in ready], rounds, burst)
    by_name = {p.name: s for p, s in zip(ready, seconds, strict=True)}
    outcome = Outcome(by_name, errors, refusal, case.work, case.limit)
    print(f"{name}: {refusal or outcome.format_system(OURS)}", file=sys.stderr)
    return outcome


def as_tensors(result: Any) -> list[Tensor]:
    """Return the tensors of a result of any system: nested tensors, arrays, or a mapping of outputs."""
    leaves = list(result.values()) if hasattr(result, "to_dict") else tree_leaves(result)
    return [torch.as_tensor(x) for x in leaves]


def reason_of(failure: Exception) -> str:
    """Return the first two lines of an error's message in one line, shortened."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    text = " ".join(lines[:2]) or type(failure).__name__
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."
