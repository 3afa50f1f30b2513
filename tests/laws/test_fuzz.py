"""Decoders survive any bytes: they answer with WireError or with numbers, never with a crash or a hang."""

import random

import pytest
import torch

from tests.contract.rows import ROWS, gradients
from thinwire import Codec, WireError

DECODABLE = [row for row in ROWS if Codec.parse(row).self_contained]
QUICK = 5000
NIGHTLY = 200_000


def mutated(message: torch.Tensor, dice: random.Random) -> torch.Tensor:
    """Random bytes, a truncation, an extension, or a few flipped bits of a valid message."""
    kind = dice.randrange(5)
    if kind == 0:
        return torch.tensor([dice.randrange(256) for _ in range(dice.randrange(80))], dtype=torch.uint8)
    if kind == 1:
        return message[: dice.randrange(message.numel() + 1)]
    if kind == 2:
        return torch.cat([message, message[: dice.randrange(9)]])
    changed = message.clone()
    for _ in range(dice.randrange(1, 5)):
        if changed.numel():
            changed[dice.randrange(changed.numel())] ^= 1 << dice.randrange(8)
    return changed


def fuzz(messages: int) -> tuple[int, int]:
    dice = random.Random(11)
    refused = accepted = 0
    for round_ in range(-(-messages // len(DECODABLE))):
        for row in DECODABLE:
            codec, numel = Codec.parse(row), dice.choice([0, 1, 7, 64, 300])
            message = mutated(codec.encode(gradients(1, (numel,), seed=round_ % 7)[0], step=round_), dice)
            try:
                decoded = codec.decode(message, numel)
            except WireError:
                refused += 1
            else:
                accepted += 1
                assert decoded.shape == (numel,)
    return refused, accepted


def test_decoders_survive_some_thousand_bad_messages() -> None:
    refused, accepted = fuzz(QUICK)
    assert refused + accepted >= QUICK
    assert refused > QUICK // 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_decoders_survive_two_hundred_thousand_bad_messages() -> None:
    refused, accepted = fuzz(NIGHTLY)
    assert refused + accepted >= NIGHTLY
