"""Distributions of single operators: convolutions, products, reductions, normalizations, pooling, scans, gathers, sorts and copies."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.survey.program import Builder, Family


def tensor(b: Builder, shape: Sequence[int], dtype: str = "") -> str:
    """Add an argument of normally distributed elements, in some memory format and sometimes with a dynamic first dimension."""
    dims = ", ".join(map(str, shape))
    kind = f", dtype=torch.{dtype}" if dtype else ""
    plain = f"torch.randn({dims}{kind})"
    rank = len(shape)
    if rank in (4, 5) and b.chance(0.15):
        order = "channels_last" if rank == 4 else "channels_last_3d"
        return b.input(f"{plain}.to(memory_format=torch.{order})")
    if rank >= 2 and b.chance(0.08):
        swapped = ", ".join(map(str, (*shape[:-2], shape[-1], shape[-2])))
        return b.input(f"torch.randn({swapped}{kind}).mT")
    name = b.input(plain)
    if shape[0] > 2 and not b.dynamic and b.chance(0.05):
        b.dynamic[name] = 0
    return name


def dtype(b: Builder) -> str:
    """Return "", which is float32, most of the time, else another float dtype."""
    return b.pick(*[""] * 9, "bfloat16", "float16", "float64")


def indices(b: Builder, shape: Sequence[int], below: int) -> str:
    return b.input(f"torch.randint({below}, ({', '.join(map(str, shape))},))")


def channels(b: Builder) -> int:
    return b.pick(b.size(1, 8), b.size(8, 64), b.size(32, 512))


def listing(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


# contractions


def convolution(b: Builder) -> str:
    rank = b.pick(1, 2, 2, 2, 3)
    groups = b.pick(1, 1, 1, b.pick(2, 4, 8, 32))
    inner, outer = (channels(b) * groups for _ in range(2))
    if b.chance(0.15):
        inner = outer = groups = channels(b)  # depthwise
    kernel = b.pick(1, 3, 3, 5, 7) if rank < 3 else b.pick(1, 3, 3, (3, 1, 1), (1, 3, 3))
    widths = [kernel] * rank if isinstance(kernel, int) else list(kernel)
    stride, dilation = b.pick(1, 1, 1, 2, 3), b.pick(1, 1, 1, 1, 2, 4)
    padding = [dilation * (w // 2) if b.chance(0.8) else 0 for w in widths]
    sizes = [b.size(*{1: (16, 16000), 2: (5, 256), 3: (4, 40)}[rank]) for _ in range(rank)]
    if b.chance(0.5):
        sizes = sizes[:1] * rank
    x = tensor(b, [b.pick(1, 1, 2, b.size(2, 16)), inner, *sizes], dtype(b))
    more = f"stride={stride}, padding={listing(padding)}, dilation={dilation}, groups={groups}"
    constant = b.chance(0.85)
    w = b.weight([outer, inner // groups, *widths], constant)
    bias = b.weight([outer], constant) if b.chance(0.6) else "None"
    like = f".to({x}.dtype)"
    return b.value(f"F.conv{rank}d({x}, {w}{like}, {bias}{like if bias != 'None' else ''}, {more})")


def transposed_convolution(b: Builder) -> str:
    rank = b.pick(1, 2, 2, 3)
    inner, outer, groups = channels(b), channels(b), b.pick(1, 1, 1, 2, 4)
    stride, kernel = b.pick(1, 2, 2, 2, 3, 4), b.pick(2, 3, 3, 4, 5)
    padding = b.pick(0, 1) if kernel > 2 else 0
    sizes = [b.size(*{1: (8, 4000), 2: (4, 96), 3: (3, 20)}[rank]) for _ in range(rank)]
    x = tensor(b, [b.pick(1, 1, 2, 4), inner * groups, *sizes])
    more = f"stride={stride}, padding={padding}, output_padding={b.pick(0, stride // 2)}, groups={groups}"
    return b.value(f"F.conv_transpose{rank}d({x}, {b.weight([inner * groups, outer, *[kernel] * rank], True)}, {more})")


def product(b: Builder) -> str:
    """Return a product of matrices, or of a matrix and a vector, in batches or not; either operand may be transposed."""
    rows, depth, columns = (b.pick(b.size(1, 16), b.size(8, 128), b.size(64, 2048)) for _ in range(3))
    batch = b.pick([], [], [], [b.size(2, 64)], [b.size(1, 8), b.size(2, 16)])
    kind = dtype(b)
    left, right = [rows, depth], [depth, columns]
    texts = []
    for shape in (left, right):
        turned = b.chance(0.35)
        x = tensor(b, [*batch, *(shape[::-1] if turned else shape)], kind)
        texts.append(f"{x}.mT" if turned else x)
    return b.value(" @ ".join(texts))


def linear(b: Builder) -> str:
    lead = b.pick([1], [b.size(1, 64)], [b.size(32, 4096)], [b.size(1, 8), b.size(16, 512)])
    depth, columns = (b.pick(b.size(4, 64), b.size(64, 4096), b.size(128, 1024)) for _ in range(2))
    kind = dtype(b)
    x, constant = tensor(b, [*lead, depth], kind), b.chance(0.75)
    w = b.weight([columns, depth], constant)
    bias = f", {b.weight([columns], constant)}.to({x}.dtype)" if b.chance(0.6) else ""
    return b.value(f"F.linear({x}, {w}.to({x}.dtype){bias})")


def contraction(b: Builder) -> str:
    """Return a contraction of two tensors over dimensions in any place."""
    equation = b.pick(
        "abc,cd->abd", "abc,bd->acd", "abc,adc->abd", "abc,abd->acd", "ab,ac->abc", "abcd,cde->abe", "abc,bc->a", "ab,bc,cd->ad",
        "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "abc,dbc->ad", "bi,oij,bj->bo",
    )  # fmt: skip
    sizes = {letter: b.size(2, 128) for letter in "abcdehijkoq"}
    operands = [tensor(b, [sizes[c] for c in term]) for term in equation.split("->")[0].split(",")]
    return b.value(f'torch.einsum("{equation}", {", ".join(operands)})')


def attention(b: Builder) -> str:
    heads, width = b.size(1, 16), b.pick(16, 32, 64, 128, b.size(8, 96))
    batch, queries, keys = b.pick(1, 1, 2, 8), b.pick(1, b.size(8, 1024)), b.size(8, 1024)
    causal = b.chance(0.4)
    q = tensor(b, [batch, heads, queries, width])
    k, v = (tensor(b, [batch, heads, queries if causal else keys, width]) for _ in range(2))
    return b.value(f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={causal})")


def triangular_product(b: Builder) -> str:
    n, m = b.size(16, 512), b.size(8, 512)
    a, x = tensor(b, [n, n]), tensor(b, [n, m])
    return b.value(f"{a}.{b.pick('tril', 'triu')}() @ {x}")


# reductions and normalizations


def some_tensor(b: Builder, most: int = 1 << 22) -> str:
    """Add an argument of any rank and shape."""
    return tensor(b, b.shape(b.pick(1, 2, 2, 3, 3, 4, 5), b.size(1 << 12, most)), dtype(b))


def some_dims(b: Builder, rank: int) -> list[int]:
    return sorted(b.rng.sample(range(rank), b.rng.randint(1, rank)))


def reduction(b: Builder) -> str:
    x = some_tensor(b)
    name = b.pick("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "linalg.vector_norm")
    dims, keep = listing(some_dims(b, b.of(x).dim())), b.pick("False", "True")
    return b.value(f"torch.{name}({x}, dim={dims}, keepdim={keep})")


def long_rows(b: Builder) -> str:
    """Return a reduction or normalization of few rows with many elements."""
    rows, length = b.pick(1, 1, 2, 4, 8), b.size(10_000, 4_000_000)
    x = tensor(b, [rows, max(1000, length // rows)])
    e = b.pick(
        "{}.sum(1)", "{}.mean()", "{}.amax(1)", "{}.norm(dim=1)", "F.softmax({}, 1)", "F.layer_norm({0}, {0}.shape[1:])", "{}.argmax(1)",
        "F.log_softmax({}, 1)", "{0} / {0}.norm()", "{}.var(1)", "torch.logsumexp({}, 1)", "F.normalize({}, dim=1)",
    )  # fmt: skip
    return b.value(e.format(x))


def selection(b: Builder) -> str:
    x = some_tensor(b)
    return b.value(f"{x}.{b.pick('argmax', 'argmin')}(dim={b.rng.randrange(b.of(x).dim())})")


def softmax(b: Builder) -> str:
    x = some_tensor(b)
    return b.value(f"F.{b.pick('softmax', 'softmax', 'log_softmax')}({x}, dim={b.rng.randrange(b.of(x).dim())})")


def normalization(b: Builder) -> str:
    kind = b.pick("layer", "layer", "rms", "group", "instance", "batch")
    if kind in ("layer", "rms"):
        shape = [*b.shape(b.pick(1, 2), b.size(1, 4096)), b.size(16, 4096)]
        x, w = tensor(b, shape, b.pick("", "", "", "bfloat16")), b.weight(shape[-1:], True)
        bias = f", {b.weight(shape[-1:], True)}.to({x}.dtype)" if kind == "layer" else ""
        return b.value(f"F.{kind}_norm({x}, [{shape[-1]}], {w}.to({x}.dtype){bias})")
    groups = b.pick(1, 2, 8, 32)
    width = groups * b.size(1, 16)
    x = tensor(b, [b.pick(1, 2, 8), width, *(b.size(4, 112) for _ in range(b.pick(1, 2, 2)))])
    dims = b.of(x).dim() - 2
    layer = {"group": f"nn.GroupNorm({groups}, {width})"}.get(kind, f"nn.{kind.title()}Norm{dims}d({width})")
    return b.value(f"{b.layer(layer)}({x})")


def pooling(b: Builder) -> str:
    rank = b.pick(1, 2, 2, 2, 3)
    sizes = [b.size(*{1: (64, 8000), 2: (8, 224), 3: (6, 32)}[rank]) for _ in range(rank)]
    x = tensor(b, [b.pick(1, 1, 4), channels(b), *sizes])
    if b.chance(0.2):
        return b.value(f"F.adaptive_{b.pick('avg', 'max')}_pool{rank}d({x}, {b.pick(1, 2, 5, 7)})")
    kernel = b.pick(2, 2, 3, 3, 5)
    return b.value(f"F.{b.pick('max', 'avg')}_pool{rank}d({x}, {kernel}, {b.pick(1, 2, kernel)}, {kernel // 2})")


def scan(b: Builder) -> str:
    x = some_tensor(b, 1 << 20)
    dim = b.rng.randrange(b.of(x).dim())
    return b.value(
        b.pick("{}.cumsum({})", "torch.logcumsumexp({}, {})", "{}.cummax({})[0]", "{}.cumprod({})").format(x, dim)
    )


# gathers, scatters, sorts


def embedding(b: Builder) -> str:
    rows, width = b.size(100, 50_000), b.size(4, 1024)
    table = b.layer(f"nn.Embedding({rows}, {width})")
    return b.value(f"{table}({indices(b, [b.size(1, 16), b.size(8, 1024)], rows)})")


def embedding_bag(b: Builder) -> str:
    rows, width = b.size(100, 50_000), b.size(4, 256)
    bag = b.layer(f'nn.EmbeddingBag({rows}, {width}, mode="{b.pick("sum", "mean", "max")}")')
    return b.value(f"{bag}({indices(b, [b.size(4, 512), b.size(2, 64)], rows)})")


def gather(b: Builder) -> str:
    x = some_tensor(b, 1 << 20)
    shape = list(b.of(x).shape)
    dim = b.rng.randrange(len(shape))
    if b.chance(0.5):
        return b.value(f"{x}.index_select({dim}, {indices(b, [b.size(1, 2 * shape[dim])], shape[dim])})")
    return b.value(f"{x}.gather({dim}, {indices(b, shape, shape[dim])})")


def scatter(b: Builder) -> str:
    rows, width, count = b.size(16, 20_000), b.size(1, 256), b.size(64, 20_000)
    x, values, index = tensor(b, [rows, width]), tensor(b, [count, width]), indices(b, [count], rows)
    if b.chance(0.5):
        return b.value(f"{x}.index_add(0, {index}, {values})")
    return b.value(f'{x}.scatter_reduce(0, {index}[:, None].expand(-1, {width}), {values}, "{b.pick("sum", "amax")}")')


def sort(b: Builder) -> str:
    x = some_tensor(b, 1 << 17)
    dim = b.rng.randrange(b.of(x).dim())
    few = min(b.of(x).shape[dim], b.pick(1, 5, 50))
    return b.value(b.pick("{}.sort({})[0]", "{}.argsort({}, stable=True)", f"{{}}.topk({few}, {{}})[0]").format(x, dim))


# elementwise and copies

UNARY = (
    "torch.relu({})", "F.gelu({})", "F.silu({})", "torch.tanh({})", "torch.sigmoid({})", "torch.exp({})", "F.elu({})", "F.softplus({})",
    "F.hardswish({})", "F.mish({})", "torch.sin({})", "{}.abs().sqrt()", "torch.erf({})", "{}.clamp(-1, 1)", "{0} * {0}", "torch.log1p({}.abs())",
    "F.leaky_relu({}, 0.1)", "F.gelu({}, approximate='tanh')", "torch.round({})", "torch.rsqrt({}.abs() + 1)",
)  # fmt: skip


def elementwise(b: Builder) -> str:
    x = some_tensor(b)
    result = b.value(b.pick(*UNARY).format(x))
    for _ in range(b.rng.randrange(3)):
        shape = [d if b.chance(0.7) else 1 for d in b.of(result).shape]
        other = b.input(f"torch.randn({', '.join(map(str, shape))})")
        result = b.value(b.pick("{} + {}", "{} * {}", "torch.maximum({}, {})", "{} - {}").format(result, other))
    return result


def copy(b: Builder) -> str:
    x = some_tensor(b)
    rank = b.of(x).dim()
    order = listing(b.rng.sample(range(rank), rank))
    e = b.pick(
        f"{x}.permute({order}).contiguous()", f"torch.flip({x}, {listing(some_dims(b, rank))})", f"torch.cat([{x}, {x}], {rank - 1})",
        f"F.pad({x}, (1, 2))", f"{x}.roll(3, {rank - 1})", f"{x}.repeat_interleave(2, {rank - 1})", f"torch.stack([{x}, {x}], -1)",
        f"{x}.permute({order}).reshape(-1) * 2", f"{x}[..., ::2].contiguous()", f"{x}.tril()" if rank > 1 else f"{x} + 1",
    )  # fmt: skip
    return b.value(e)


def resize(b: Builder) -> str:
    x = tensor(b, [1, channels(b), b.size(7, 128), b.size(7, 128)])
    mode = b.pick('"nearest"', '"bilinear", align_corners=False', '"bicubic", align_corners=False')
    return b.value(f"F.interpolate({x}, scale_factor={b.pick(2, 2, 3, 1.5, 0.5)}, mode={mode})")


def pixels(b: Builder) -> str:
    r = b.pick(2, 3, 4)
    x = tensor(b, [1, b.size(1, 32) * r * r, b.size(8, 64), b.size(8, 64)])
    if b.chance(0.5):
        return b.value(f"F.pixel_shuffle({x}, {r})")
    return b.value(f"F.unfold({x}, {b.pick(2, 3)}, stride={b.pick(1, 2)})")


def distances(b: Builder) -> str:
    width = b.size(2, 128)
    x, y = tensor(b, [b.size(64, 2048), width]), tensor(b, [b.size(64, 2048), width])
    return b.value(f"torch.cdist({x}, {y}, p={b.pick(1.0, 2.0)})")


OPERATORS: dict[str, Family] = {
    "convolution": convolution,
    "transposed convolution": transposed_convolution,
    "product": product,
    "linear": linear,
    "einsum": contraction,
    "attention": attention,
    "triangular product": triangular_product,
    "reduction": reduction,
    "long rows": long_rows,
    "argmax": selection,
    "softmax": softmax,
    "normalization": normalization,
    "pooling": pooling,
    "scan": scan,
    "embedding": embedding,
    "embedding bag": embedding_bag,
    "gather": gather,
    "scatter": scatter,
    "sort": sort,
    "elementwise": elementwise,
    "copy": copy,
    "resize": resize,
    "pixel shuffle or unfold": pixels,
    "distances": distances,
}
"""Families of operators."""
