"""The two networks of the steps, in plain torch: a VGG of 5.6 million parameters, and a GPT of 10.8 million.

They are like those of the recipes, but do not come from there: recipes of two revisions may differ.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCHES = 4
CONTEXT = 64  # tokens
VOCABULARY = 256


def vgg(width: int = 64) -> nn.Sequential:
    """3x3 convolutions on images of 28x28 in ten classes; most parameters are where the image is small."""
    layers: list[nn.Module] = []
    inputs = 1
    for outputs, pool in ((1, True), (2, True), (4, True), (4, False), (8, True), (8, False)):
        convolution = nn.Conv2d(inputs, outputs * width, 3, padding=1, bias=False)
        layers += [convolution, nn.GroupNorm(8, outputs * width), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2, ceil_mode=True)] if pool else []
        inputs = outputs * width
    hidden = [nn.Linear(4 * inputs, inputs, bias=False), nn.LayerNorm(inputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), *hidden, nn.Linear(inputs, 10))


class Block(nn.Module):
    """Causal attention, then a feed-forward net of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.merge = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [batch, time, width]
        batch, time, width = x.shape
        q, k, v = self.mix(self.before_attention(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.feed(self.before_feed(x))  # type: ignore[no-any-return]  # nn.Module calls are untyped


class GPT(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, width: int = 384, layers: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [batch, time] -> [batch, time, vocabulary]
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions)))  # type: ignore[no-any-return]


def build(name: str, rank: int) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """The network with the same weights on all ranks, and batches of this rank: patterns below noise, or bytes."""
    torch.manual_seed(0)
    own = torch.Generator().manual_seed(rank)
    if name == "gpt":
        texts = [torch.randint(VOCABULARY, (1, CONTEXT + 1), generator=own) for _ in range(BATCHES)]
        return GPT(), [(text[:, :-1], text[:, 1:]) for text in texts]
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    labels = [torch.randint(10, (4,), generator=own) for _ in range(BATCHES)]
    return vgg(), [(patterns[y] + torch.randn(len(y), 1, 28, 28, generator=own), y) for y in labels]
