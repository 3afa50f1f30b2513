"""The bytes of every wire format, kept for ever: what was once sent can still be read, and is still written alike."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contract.rows import ROWS
from thinwire import Codec

FILE = Path(__file__).parent / "messages.json"
DECODABLE = [str(Codec.parse(r)) for r in ROWS if Codec.parse(r).self_contained]
GOLDEN: dict[str, str] = json.loads(FILE.read_text()) if FILE.exists() else {}
NUMEL = 77


def numbers() -> Tensor:
    """Some numbers that need no generator: multiples of 1/64 between -8 and 8, zeros and a tiny one among them."""
    x = torch.tensor([((i * 7919) % 1024 - 512) / 64 for i in range(NUMEL)])
    x[10:14] = 0
    x[20] = 1e-30
    return x


@pytest.mark.parametrize("text", DECODABLE)
def test_bytes_stay_the_same(text: str) -> None:
    assert text in GOLDEN, f"no golden bytes for {text}: run python -m tests.golden.test_golden to add new formats"
    codec = Codec.parse(text)
    message = codec.encode(numbers(), seed=1, step=2, rank=3)
    assert bytes(message.tolist()).hex() == GOLDEN[text]
    kept = torch.tensor(list(bytes.fromhex(GOLDEN[text])), dtype=torch.uint8)
    assert torch.equal(codec.decode(kept, NUMEL), codec.decode(message, NUMEL))


if __name__ == "__main__":  # adds formats that have no bytes yet; never changes one
    for text in DECODABLE:
        GOLDEN.setdefault(text, bytes(Codec.parse(text).encode(numbers(), seed=1, step=2, rank=3).tolist()).hex())
    FILE.write_text(json.dumps(GOLDEN, indent=1) + "\n")
