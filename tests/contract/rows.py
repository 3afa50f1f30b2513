"""The one table of chains that every law of the contract runs over: a new stage is tested by adding its row."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import thinwire
from thinwire.core.buffers import Buffers

# Chains that start up in the first step; each stage stands in at least one of them.
ROWS = [
    "none",
    "fp32",
    "fp16",
    "bf16",
    "float(type=bf16)",
    "float(type=fp16)",
    "topk(density=0.1) | float(type=bf16)",
    "ef21 | topk(density=0.1)",
    "ef21 | topk(density=0.1, chunk=64) | codebook(bits=2)",
    "ef21 | fft(chunk=64) | sharedtopk(density=0.2)",
    "integers(bits=8)",
    "integers(bits=5)",
    "integers(bits=16)",
    "qsgd(bits=4)",
    "qsgd(bits=2, bucket=64)",
    "qsgd(bits=3, norm=l2, bucket=100)",
    "qsgd(bits=8)",
    "nuqsgd(bits=4)",
    "nuqsgd(bits=3, norm=max, bucket=33)",
    "nuqsgd(bits=5, base=0.7)",
    "nuqsgd(bits=8)",
    "ternary",
    "ternary(clip=2.5)",
    "sign",
    "sign(by=row)",
    "rangefloat(bits=8)",
    "rangefloat(bits=4, mantissa=1)",
    "rangefloat(bits=10, mantissa=4, rounding=stochastic)",
    "rangefloat(bits=16, minimum=-4, maximum=4)",
    "topk(density=1/16)",
    "topk(density=1)",
    "threshold(value=0.5)",
    "threshold(value=0.25) | fp16",
    "qsgd(bits=4) | huffman",
    "qsgd(bits=2) | elias",
    "nuqsgd(bits=4) | elias",
    "fp16 | huffman",
    "ternary | huffman",
    "sign | huffman",
    "topk(density=0.1) | qsgd(bits=4)",
    "topk(density=0.1) | rangefloat(bits=8) | huffman",
    "topk(density=0.05) | bf16",
    "rangefloat(bits=12) | huffman",
    "topk(density=1/16, warmup=3)",
    "topk(density=1/16, chunk=64)",
    "topk(density=1/4, chunk=50, warmup=3)",
    "feedback(decay=0.95) | topk(density=1/64, chunk=4096) | codebook(bits=2)",
    "feedback(decay=0.9) | dct(chunk=32) | topk(density=0.1)",
    "fft(chunk=64) | topk(density=1/8, chunk=16) | codebook(bits=4)",
    "codebook(bits=2)",
    "codebook(bits=8, sigmas=12)",
    "codebook(bits=3) | huffman",
    "mx(bits=4)",
    "mx(bits=6)",
    "mx(bits=8)",
    "mx(bits=4) | huffman",
    "topk(density=0.1, chunk=64) | mx(bits=4)",
    "fft(chunk=64)",
    "fft(chunk=64, auto=0.1) | topk(density=0.1) | rangefloat(bits=8)",
    "dct(chunk=4, auto=0.2, dims=2) | topk(density=0.2)",
    "fft(chunk=128) | topk(density=0.15) | rangefloat(bits=8)",
    "dct(chunk=32) | topk(density=0.1) | fp16",
    "dct(chunk=4, dims=2)",
    "feedback(decay=0.999) | dct(chunk=8, dims=2) | topk(density=1/8, chunk=64)",
    "hadamard(chunk=64) | qsgd(bits=4)",
    "sharedtopk(density=0.1)",
    "fft(chunk=64) | sharedtopk(density=0.2) | qsgd(bits=4)",
    "alq(bits=3, bucket=64, start=1)",
    "delay(steps=1) | sign",
    "importance(density=0.1)",
    "importance(density=0.1, mask_nodes=1) | qsgd(bits=4)",
    "momentum(beta=0.9) | topk(density=0.1)",
    "randomk(density=0.1)",
    "powersgd(rank=2)",
    "powersgd(rank=2, alternate=true)",
    "powersgd(rank=1, alternate=true) | qsgd(bits=4)",
    "feedback(keep=off) | ballot | vote",
    "pca(ratio=4, warmup=1, sample=6, reuse=20)",
    "pca(ratio=4, warmup=0, sample=6, reuse=9, travel='qsgd(bits=4)') | qsgd(bits=4)",
    "pca(energy=0.9, warmup=0, sample=6, reuse=20, order=auto)",
    "feedback(keep=off) | topk(density=0.1)",
    "feedback(keep=bf16) | sign",
    "feedback(keep=fp32) | qsgd(bits=4)",
]

WORLDS = [1, 2, 3, 4, 7]


def gradients(ranks: int, shape: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Different, heavy-tailed numbers for each rank, with a common part."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(shape, generator=generator)
    return [common + torch.randn(shape, generator=generator) ** 3 / 2 for _ in range(ranks)]


def weights(shape: tuple[int, ...]) -> Tensor:
    """Current values of the parameter, for the stages that look at them."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def simulate(codec: Any, given: Sequence[Tensor], **options: Any) -> thinwire.Outcome:
    """thinwire.simulate with weights."""
    return thinwire.simulate(codec, given, weights=weights(tuple(given[0].shape)), **options)


class Poisoned(Buffers):
    """Buffers that do not only hand memory out again but spoil what was in it."""

    def reset(self) -> None:
        super().reset()
        for block in (*self.blocks, *(piece for pieces in self._alone.values() for piece in pieces)):
            block.view(torch.uint8).fill_(255)  # NaN in every float type
