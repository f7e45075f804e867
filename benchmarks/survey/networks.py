"""Distributions of networks: families of images, sequences, text and sound, with random widths, depths and activations."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.survey.program import Builder, Family

ACTIVATIONS = ("nn.ReLU", "nn.ReLU", "nn.SiLU", "nn.GELU", "nn.Hardswish", "nn.ELU", "nn.LeakyReLU")
PARTS = {
    "benchmarks.networks.dense": ("DenseLayer", "normalized"),
    "benchmarks.networks.layers": ("convolution", "ready"),
    "benchmarks.networks.mobile": ("InvertedResidual",),
    "benchmarks.networks.resnet": ("Residual", "basic", "bottleneck"),
    "benchmarks.networks.squeeze": ("Fire",),
    "benchmarks.networks.unet": ("UNet",),
    "benchmarks.networks.vit": ("Block",),
    "benchmarks.survey.blocks": (
        "Autoencoder", "CausalBlock", "ConvNextBlock", "Experts", "GatedConvolution", "GatedMLP", "MixerBlock", "Patches", "Pool", "Recurrent",
        "ShuffleUnit",
    ),
}  # fmt: skip
"""Classes and functions that sources of networks use, by module."""


def network(b: Builder, layers: Sequence[str], x: str) -> str:
    """Add `layers` in sequence, applied to argument `x`."""
    made = ", ".join(layers)
    for module, names in PARTS.items():
        if used := [n for n in names if n in made or n == "ready"]:
            text = f"from {module} import {', '.join(used)}"
            b.imports.append(text)
            exec(text, b.values)
    return b.value(f"{b.layer(f'ready(nn.Sequential({made}))')}({x})")


def image(b: Builder) -> str:
    size = b.pick(32, 48, 56, 64, 96, 112, b.size(32, 128))
    return b.input(f"torch.randn({b.pick(1, 1, 1, 2, 4)}, 3, {size}, {size})")


def tokens(b: Builder, width: int) -> str:
    return b.input(f"torch.randn({b.pick(1, 1, 1, 2, 4)}, {b.size(8, 256)}, {width})")


def classifier(b: Builder, channels: int) -> list[str]:
    return ["Pool(2, 3)", f"nn.Linear({channels}, {b.pick(10, 100, 1000)})"]


def stages(b: Builder) -> list[tuple[int, int, int]]:
    """Return input channels, output channels and stride of the blocks of an image network."""
    width, blocks = b.size(8, 64) // 4 * 4, []
    inner = width
    for stage in range(b.pick(2, 3, 4)):
        outer = width << stage
        for k in range(b.pick(1, 1, 2, 3)):
            blocks.append((inner, outer, 2 if stage and not k else 1))
            inner = outer
    return blocks


def stem(b: Builder, channels: int) -> str:
    return f"convolution(3, {channels}, {b.pick(3, 3, 5, 7)}, {b.pick(1, 2, 2)}, activation={b.pick(*ACTIVATIONS)})"


def residual(b: Builder) -> str:
    kind, parts = b.pick("basic", "bottleneck"), stages(b)
    blocks = [f"Residual({kind}, {i}, {o}, {s})" for i, o, s in parts]
    return network(b, [stem(b, parts[0][0]), *blocks, *classifier(b, parts[-1][1])], image(b))


def inverted_residual(b: Builder) -> str:
    act, squeeze, parts = b.pick(*ACTIVATIONS), b.pick(True, False), stages(b)
    blocks = [
        f"InvertedResidual({i}, {o}, {b.pick(3, 5)}, {s}, {b.pick(1, 3, 4, 6)}, {act}, {squeeze})" for i, o, s in parts
    ]
    return network(b, [stem(b, parts[0][0]), *blocks, *classifier(b, parts[-1][1])], image(b))


def dense(b: Builder) -> str:
    inner = b.size(16, 64)
    layers = [stem(b, inner)]
    for _ in range(b.pick(1, 2, 3)):
        for _ in range(b.pick(2, 3, 4)):
            layers.append(f"DenseLayer({inner})")
            inner += 32
        layers += [f"normalized({inner}, {inner // 2}, 1)", "nn.AvgPool2d(2)"]
        inner //= 2
    return network(b, [*layers, *classifier(b, inner)], image(b))


def shuffle(b: Builder) -> str:
    inner = 8 * b.size(2, 16)
    layers = [stem(b, inner)]
    for _ in range(b.pick(1, 2, 3)):
        layers += [f"ShuffleUnit({inner}, {b.pick(3, 5)})" for _ in range(b.pick(1, 2, 3))]
        layers.append(f"convolution({inner}, {2 * inner}, 3, 2)")
        inner *= 2
    return network(b, [*layers, *classifier(b, inner)], image(b))


def fire(b: Builder) -> str:
    inner = b.size(16, 64)
    layers = [stem(b, inner)]
    for _ in range(b.pick(2, 3, 4)):
        narrow = b.size(4, 32)
        layers += [f"Fire({inner}, {narrow})", b.pick("nn.Identity()", "nn.MaxPool2d(3, 2, ceil_mode=True)")]
        inner = 8 * narrow
    return network(b, [*layers, *classifier(b, inner)], image(b))


def convnext(b: Builder) -> str:
    inner = b.size(16, 96)
    layers = [f"nn.Conv2d(3, {inner}, 4, 4)"]
    for _ in range(b.pick(1, 2)):
        layers += [f"ConvNextBlock({inner})" for _ in range(b.pick(1, 2, 3))]
        layers.append(f"nn.Conv2d({inner}, {2 * inner}, 2, 2)")
        inner *= 2
    return network(b, [*layers, *classifier(b, inner)], image(b))


def unet(b: Builder) -> str:
    width, levels = b.size(4, 32), b.pick(2, 3, 4)
    size = 16 * b.rng.randint(2, 8)
    x = b.input(f"torch.randn(1, 3, {size}, {b.pick(size, 2 * size)})")
    return network(b, [f"UNet({tuple(width << k for k in range(levels))}, {b.pick(1, 2, 20)})"], x)


def transformer(b: Builder) -> str:
    heads = b.pick(1, 2, 4, 6, 8)
    width, depth, act = heads * b.pick(16, 32, 64), b.pick(1, 2, 3, 4), b.pick("relu", "gelu")
    block = b.pick(
        f"Block({width}, {heads})",
        f'nn.TransformerEncoderLayer({width}, {heads}, {b.size(2 * width, 4 * width)}, 0.0, "{act}", batch_first=True)',
    )
    if b.chance(0.5):
        return network(b, [block] * depth, tokens(b, width))
    patch = b.pick(4, 8, 16)
    x = b.input(f"torch.randn(1, 3, {patch * b.pick(4, 7, 12)}, {patch * b.pick(4, 7, 14)})")
    return network(b, [f"Patches({width}, {patch})", *[block] * depth, "Pool(1)", f"nn.Linear({width}, 100)"], x)


def small_gpt(b: Builder) -> str:
    heads = b.pick(1, 2, 4, 8)
    width, words = heads * b.pick(16, 32, 64), b.size(64, 8000)
    blocks = []
    for _ in range(b.pick(1, 2, 4)):
        blocks.append(f"CausalBlock({width}, {heads})")
        if b.chance(0.3):
            blocks.append(f"GatedMLP({width}, {b.size(width, 4 * width)})")
    x = b.input(f"torch.randint({words}, ({b.pick(1, 1, 2, 8)}, {b.pick(1, b.size(8, 256), 64)}))")
    return network(
        b, [f"nn.Embedding({words}, {width})", *blocks, f"nn.LayerNorm({width})", f"nn.Linear({width}, {words})"], x
    )


def experts(b: Builder) -> str:
    width, count = b.size(32, 256), b.pick(2, 4, 8)
    blocks = [f"Experts({width}, {b.size(width, 3 * width)}, {count}, {b.pick(1, 2)})" for _ in range(b.pick(1, 2, 3))]
    return network(b, [f"nn.LayerNorm({width})", *blocks], tokens(b, width))


def mixer(b: Builder) -> str:
    width, patch, side = b.size(16, 256), b.pick(4, 8, 16), b.pick(4, 7, 8, 14)
    x = b.input(f"torch.randn({b.pick(1, 1, 4)}, 3, {patch * side}, {patch * side})")
    blocks = [f"MixerBlock({side * side}, {width}, {b.pick(1, 2, 4)})"] * b.pick(1, 2, 4)
    return network(b, [f"Patches({width}, {patch})", *blocks, "Pool(1)", f"nn.Linear({width}, 10)"], x)


def recurrent(b: Builder) -> str:
    inner, hidden = b.size(8, 256), b.size(8, 256)
    more = f"num_layers={b.pick(1, 1, 2)}, batch_first=True, bidirectional={b.pick(True, False)}"
    layer = f"Recurrent(nn.{b.pick('LSTM', 'GRU')}({inner}, {hidden}, {more}))"
    outer = hidden * (2 if "bidirectional=True" in more else 1)
    x = b.input(f"torch.randn({b.pick(1, 1, 2, 16)}, {b.size(4, 100)}, {inner})")
    return network(b, [layer, f"nn.Linear({outer}, {b.size(2, 100)})"], x)


def autoencoder(b: Builder) -> str:
    width, latent, act = b.size(4, 32), b.size(2, 32), b.pick(*ACTIVATIONS)
    down = [f"nn.Conv2d({3 if not k else width << k - 1}, {width << k}, 3, 2, 1), {act}()" for k in range(3)]
    up = [f"nn.ConvTranspose2d({width << k}, {3 if not k else width << k - 1}, 4, 2, 1), {act}()" for k in (2, 1, 0)]
    encode = f"nn.Sequential({', '.join(down)}, nn.Conv2d({width << 2}, {2 * latent}, 1))"
    decode = f"nn.Sequential(nn.Conv2d({latent}, {width << 2}, 1), {', '.join(up)}, nn.Sigmoid())"
    size = 8 * b.rng.randint(3, 16)
    return network(
        b, [f"Autoencoder({encode}, {decode})"], b.input(f"torch.randn({b.pick(1, 1, 4)}, 3, {size}, {size})")
    )


def audio(b: Builder) -> str:
    """Return a network of 1-D convolutions on sound: strided ones, gated dilated ones, and transposed ones."""
    width, act = b.size(8, 48), b.pick(*ACTIVATIONS)
    layers = [f"nn.Conv1d(1, {width}, 7, padding=3)"]
    strides = [b.pick(2, 4, 5) for _ in range(b.pick(1, 2, 3))]
    for s in strides:
        layers += [f"{act}(), nn.Conv1d({width}, {2 * width}, {2 * s}, {s}, {s // 2})"]
        width *= 2
    layers += [f"GatedConvolution({width}, 3, {1 << k})" for k in range(b.pick(1, 2, 4))]
    if b.chance(0.6):
        for s in reversed(strides):
            layers += [f"{act}(), nn.ConvTranspose1d({width}, {width // 2}, {2 * s}, {s}, {s // 2})"]
            width //= 2
        layers.append(f"{act}(), nn.Conv1d({width}, 1, 7, padding=3), nn.Tanh()")
    return network(b, layers, b.input(f"torch.randn({b.pick(1, 1, 2)}, 1, {b.size(1000, 32000)})"))


NETWORKS: dict[str, Family] = {
    "residual": residual,
    "inverted residual": inverted_residual,
    "dense": dense,
    "shuffle": shuffle,
    "fire": fire,
    "ConvNeXt": convnext,
    "U-Net": unet,
    "transformer": transformer,
    "small GPT": small_gpt,
    "mixture of experts": experts,
    "mixer": mixer,
    "recurrent": recurrent,
    "autoencoder": autoencoder,
    "audio": audio,
}
"""Families of networks."""
