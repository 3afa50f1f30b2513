"""Recorded profiles: figures of the kind that measurements give, as constants, so that decisions are exact."""

from dataclasses import replace

from thinwire.planner.profile import Figures, Layer, Link, Machine, Model, Profile

SHAPES = ((64, 1, 3, 3), (128, 64, 3, 3), (256, 128, 3, 3), (512, 256), (512,), (10, 512))
# seconds for each million elements before, inside and behind the sum; error, bias and growth of the residual
CODECS = {
    "bf16": (0.0010, 0.0, 0.0010, 0.002, 0.0, 0.0),
    "integers(bits=8)": (0.0020, 0.0, 0.0015, 0.03, 0.0, 0.0),
    "qsgd(bits=8)": (0.0010, 0.0020, 0.0005, 0.02, 0.0, 0.0),
    "qsgd(bits=4)": (0.0008, 0.0015, 0.0005, 0.35, 0.0, 0.0),
    "qsgd(bits=2)": (0.0008, 0.0015, 0.0005, 2.0, 0.0, 0.0),
    "powersgd(rank=4)": (0.0080, 0.0, 0.0040, 0.6, 0.4, 2.3),
    "sign": (0.0010, 0.0020, 0.0005, 0.75, 0.55, 2.1),
}


def layers(shapes: tuple[tuple[int, ...], ...] = SHAPES) -> tuple[Layer, ...]:
    """The last layers first, as their gradients come, in two buckets."""
    ordered = list(enumerate(shapes))[::-1]
    return tuple(Layer(f"layer{i}.weight", shape, min(at // 3, 1)) for at, (i, shape) in enumerate(ordered))


def figures(codec: str, layer: Layer) -> Figures:
    before, inside, after, error, bias, growth = CODECS[codec]
    if len(layer.shape) < 2 or layer.numel < 1024:
        return Figures(0.0, 0.0, 0.0)
    millions = layer.numel / 1e6
    memory = 4 * layer.numel if growth else 0
    return Figures(before * millions, inside * millions, after * millions, error, bias, growth, memory)


def profile(link: Link, machine: Machine | None = None, compute: float = 0.05, ranks: int = 4) -> Profile:
    """A small VGG on machines with a core for each activity."""
    found = layers()
    model = Model(found, (0.8 * compute, 0.9 * compute), compute)
    codecs = {codec: {layer.name: figures(codec, layer) for layer in found} for codec in CODECS}
    return Profile(link, machine or Machine(8), model, codecs, ranks, 10)


def thin(ranks: int = 4) -> Profile:
    """100 Mbit/s."""
    return profile(Link.described(1e8, 1e-4, ranks), ranks=ranks)


def fast(ranks: int = 4) -> Profile:
    """100 Gbit/s."""
    return profile(Link.described(1e11, 5e-6, ranks), ranks=ranks)


def with_error(given: Profile, codec: str, layer: str, error: float) -> Profile:
    """The same profile where a codec loses more or less of one layer."""
    of_layers = dict(given.codecs[codec])
    of_layers[layer] = replace(of_layers[layer], error=error)
    return replace(given, codecs={**given.codecs, codec: of_layers})
