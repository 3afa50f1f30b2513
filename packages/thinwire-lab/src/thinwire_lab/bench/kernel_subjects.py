"""What the benchmark of kernels times: thinwire's own encoders, and what others offer for the same purpose."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire import Codec, Context, Importance, Integers, Spec
from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.source import Source

EAGER = "QSGD in eager torch (int8)"
MASK = "iwp: importance mask (density=1/64)"
INTEGERS = "integers(bits=8)"
PEERS = (EAGER, "torch.quantize_per_tensor", "torch.fake_quantize", "PowerSGD rank 2", "PowerSGD rank 4")
RANKS = 4  # that share the fields of `integers`


@dataclass(frozen=True)
class Subject:
    """Two functions to time, and the bits of a number between them; decoding adds to a tensor."""

    encode: Callable[[], Any]
    decode: Callable[[], Any] | None
    bits: float


def subject(name: str, x: Tensor, out: Tensor) -> Subject:
    """The subject of this name on the numbers x, decoding into `out`; any other name is a codec."""
    if name == MASK:
        return _mask(x)
    if name == INTEGERS:
        return _integers(x, out)
    if name == EAGER:
        return _eager_qsgd(x, out)
    if name == "torch.quantize_per_tensor":
        return _torch_quantised(x, out)
    if name == "torch.fake_quantize":
        return _torch_fake(x)
    if name in PEERS:
        return _powersgd(x, out, int(name[-1]))
    return _codec(name, x, out)


def _codec(text: str, x: Tensor, out: Tensor) -> Subject:
    """Messages of fixed size go into kept memory, as they do in an average; others into memory of their own."""
    codec = Codec.parse(text)
    message = codec.encode(x)
    kept = message if codec.message_bytes(x.numel()).exact else None
    return Subject(
        lambda: codec.encode(x, out=kept),
        lambda: codec.decode(message, x.numel(), out=out, add=True),
        8 * message.numel() / x.numel(),
    )


def _mask(x: Tensor) -> Subject:
    """The positions of the most important numbers, given weights."""
    stage, kept = Importance(density=1 / 64), math.ceil(x.numel() / 64)
    ctx = Context(Spec(x.numel()), {}, ranks=RANKS)
    ctx.weights = torch.randn(x.numel(), generator=torch.Generator().manual_seed(1))

    def encode() -> Any:
        ctx.buffers.reset()  # as before every step
        return stage.important(x, kept, ctx)

    return Subject(encode, None, 32 / 64)


def _integers(x: Tensor, out: Tensor) -> Subject:
    """With the round in which ranks agree on a scale, but without its network."""
    stage, ctx = Integers(bits=8), Context(Spec(x.numel()), {}, ranks=RANKS)

    def encode() -> Any:
        ctx.buffers.reset()  # as before every step
        ctx.shared = _alone(stage.agree(Source(x), ctx))
        return stage.encode(x, ctx)

    encoded = encode()
    return Subject(
        encode,
        lambda: stage.decode(encoded, ctx, out, "add"),
        8 * encoded.values.numel() * encoded.values.element_size() / x.numel(),
    )


def _alone(rounds: Rounds[Any]) -> Any:
    """The result of rounds of all-reduces among one rank."""
    reply: Any = None
    try:
        while True:
            op = rounds.send(reply)
            assert isinstance(op, AllReduce)
            reply = list(op.items)
    except StopIteration as end:
        return end.value


def _eager_qsgd(x: Tensor, out: Tensor) -> Subject:
    """QSGD as one writes it with tensor operations, one pass over memory for each of them (Alistarh et al. 2017).

    Levels l of |x| s / norm are rounded up with the probability of their fraction, and travel with the sign as int8.
    """
    levels = 127

    def encode() -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(x)
        scaled = x.abs() * (levels / norm)
        below = scaled.floor()
        level = below + torch.bernoulli(scaled - below)
        return (level * x.sign()).to(torch.int8), norm

    codes, norm = encode()
    return Subject(encode, lambda: out.add_(codes.to(torch.float32) * (norm / levels)), 8.0)


def _torch_quantised(x: Tensor, out: Tensor) -> Subject:
    """PyTorch's own affine quantisation to int8; rounds to nearest, hence biased."""
    scale = float(x.abs().max()) / 127

    def encode() -> Tensor:
        return torch.quantize_per_tensor(x, scale, 0, torch.qint8)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, but still what people compare with; warns once
        codes = encode()
    return Subject(encode, lambda: out.add_(codes.dequantize()), 8.0)


def _torch_fake(x: Tensor) -> Subject:
    """Quantise and dequantise in one operation, without a message."""
    scale = float(x.abs().max()) / 127
    return Subject(lambda: torch.fake_quantize_per_tensor_affine(x, scale, 0, -128, 127), None, 8.0)


def _powersgd(x: Tensor, out: Tensor, rank: int) -> Subject:
    """The arithmetic of PowerSGD (Vogels et al. 2019) on a square matrix: P = orth(M Q), Q = Mᵀ P; then P Qᵀ."""
    side = math.isqrt(x.numel())
    matrix, target = x[: side * side].view(side, side), out[: side * side].view(side, side)
    start = torch.randn(side, rank, generator=torch.Generator().manual_seed(2))

    def encode() -> tuple[Tensor, Tensor]:
        p, _ = torch.linalg.qr(matrix @ start)
        return p, matrix.T @ p

    p, q = encode()
    return Subject(encode, lambda: target.addmm_(p, q.T), 32 * 2 * side * rank / x.numel())
