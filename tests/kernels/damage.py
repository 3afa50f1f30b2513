"""Spoiled messages, and what a decoder may do with them: refuse, or return something of the right shape."""

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from thinwire.errors import WireError


def damaged(messages: list[Tensor], tags: int, seed: int, rounds: int) -> Iterator[Tensor]:
    """Random bytes, truncations, extensions and flipped bits, about `rounds` in all."""
    rng = random.Random(seed)
    for _ in range(rounds):
        data = bytearray(rng.choice(messages).tolist())
        kind = rng.randrange(5)
        if kind == 0:
            data = bytearray([rng.randrange(tags)]) + bytearray(rng.randbytes(rng.randrange(200)))
        elif kind == 1:
            data = data[: rng.randrange(len(data))]
        elif kind == 2:
            data += rng.randbytes(rng.randrange(1, 9))
        else:
            for _ in range(1 if kind == 3 else rng.randrange(2, 12)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield torch.tensor(list(data), dtype=torch.uint8)


def attempt(decode: Callable[[Tensor], Tensor], message: Tensor) -> Tensor | None:
    """What the decoder makes of it, None if it refuses."""
    try:
        return decode(message)
    except WireError:
        return None


def agree(decoders: list[Callable[[Tensor], Tensor]], message: Tensor) -> Tensor | None:
    """Runs all decoders, which must all refuse or all return the same."""
    results = [attempt(decode, message) for decode in decoders]
    first = results[0]
    for other in results[1:]:
        assert (first is None) == (other is None), bytes(message.tolist()).hex()
        assert first is None or other is None or torch.equal(first, other)
    return first
