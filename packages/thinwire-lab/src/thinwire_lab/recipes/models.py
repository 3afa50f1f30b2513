"""Small networks with real gradients; their sizes are options, so that communication can be made to matter.

All of them normalise with GroupNorm or LayerNorm. Batch norm would make the result depend on how a batch is cut into
ranks, and would add buffers that have to be kept equal on all of them.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thinwire_lab.recipes.errors import RecipeError

Shape = tuple[int, int, int]  # channels, height, width


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    groups = math.gcd(8, max(1, outputs // 8))  # of at least 8 channels: one alone would lose its brightness
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.GroupNorm(groups if outputs % groups == 0 else 1, outputs),
    )


class VGG(nn.Module):
    """Plain 3x3 convolutions, most of their parameters where the image is small: 5.6 million at width 64.

    Pools round up, so that 28x28 and 32x32 images both arrive as 2x2 and give the same number of parameters.
    """

    def __init__(self, *, shape: Shape = (1, 28, 28), classes: int = 10, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = shape[0]
        for outputs, pool in ((1, True), (2, True), (4, True), (4, False), (8, True), (8, False)):
            layers += [_conv(inputs, outputs * width), nn.ReLU(inplace=True)]
            if pool:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            inputs = outputs * width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        hidden = nn.Sequential(nn.Linear(4 * inputs, inputs, bias=False), nn.LayerNorm(inputs), nn.ReLU(inplace=True))
        self.head = nn.Sequential(hidden, nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:  # [batch, channels, height, width] -> [batch, classes]
        return self.head(self.features(x))  # type: ignore[no-any-return]  # nn.Module calls are untyped


class Residual(nn.Module):
    """relu(shortcut(x) + conv(relu(conv(x)))), the basic block of He et al., 2015."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(inputs, outputs, stride)
        self.second = _conv(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.second(F.relu(self.first(x))))


class ResNet(nn.Module):
    """Three stages of residual blocks, `width`, 2 `width` and 4 `width` channels: 6 `blocks` + 2 layers."""

    def __init__(self, *, shape: Shape = (1, 28, 28), classes: int = 10, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.stem = _conv(shape[0], width)
        stages: list[nn.Module] = []
        inputs = width
        for stage in range(3):
            outputs = width << stage
            for block in range(blocks):
                stages.append(Residual(inputs, outputs, stride=2 if stage and not block else 1))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:  # [batch, channels, height, width] -> [batch, classes]
        x = self.stages(F.relu(self.stem(x)))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """`layers` hidden layers of `width` on the flattened image."""

    def __init__(self, *, shape: Shape = (1, 28, 28), classes: int = 10, width: int = 512, layers: int = 2) -> None:
        super().__init__()
        sizes = [shape[0] * shape[1] * shape[2]] + [width] * layers
        hidden: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            hidden += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """One transformer layer: causal attention, then a feed-forward net of four times the width, both residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.before_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [batch, time, width]
        batch, time, width = x.shape
        queries_keys_values = self.mix(self.before_attention(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = queries_keys_values.permute(2, 0, 3, 1, 4)  # each [batch, head, time, width / heads]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.feed(self.before_feed(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A decoder-only transformer that predicts the next token: 10.8 million parameters by default."""

    def __init__(
        self, *, vocabulary: int = 256, context: int = 128, width: int = 384, layers: int = 6, heads: int = 6
    ) -> None:
        super().__init__()
        if width % heads:
            raise RecipeError(f"a GPT's width must be a multiple of its heads, but {width} is not one of {heads}.")
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for matrix in (m for m in self.modules() if isinstance(m, nn.Linear | nn.Embedding)):
            nn.init.normal_(matrix.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:  # [batch, time] -> [batch, time, vocabulary]
        embedded = self.tokens(x) + self.positions[: x.shape[1]]
        return self.head(self.norm(self.blocks(embedded)))  # type: ignore[no-any-return]


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "vgg": VGG,
    "vgg-tiny": partial(VGG, width=8),
    "resnet": ResNet,
    "resnet-wide": partial(ResNet, width=64, blocks=3),
    "resnet-tiny": partial(ResNet, width=8, blocks=1),
    "mlp": MLP,
    "gpt": GPT,
    "gpt-tiny": partial(GPT, width=64, layers=2, heads=2),
}


def reads_text(name: str) -> bool:
    """Whether the model of this name predicts tokens rather than classes of images."""
    return name.startswith("gpt")


def build_model(name: str, **options: object) -> nn.Module:
    """The model of this name with fresh weights from torch's global generator."""
    if name not in MODELS:
        raise RecipeError(f"there is no model {name!r}; known models: {', '.join(MODELS)}.")
    known = inspect.signature(MODELS[name]).parameters
    if unknown := [option for option in options if option not in known]:
        raise RecipeError(f"model {name} has no option {', '.join(unknown)}; its options: {', '.join(known)}.")
    return MODELS[name](**options)
