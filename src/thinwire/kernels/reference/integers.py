"""Numbers as signed digits of int32 lanes: the specification of `thinwire.kernels.integers`.

A lane holds 32 // bits digits; digit f of lane j is number f * lanes + j. Digits are added to base 2^bits as signed
numbers, so that sums of lanes are lanes of the sums as long as every sum fits its digit.
"""

import torch
from torch import Tensor

from thinwire.kernels.reference.hashing import hash32, uniform24

_LANE = 32


def lane_count(numel: int, bits: int) -> int:
    return -(-numel // (_LANE // bits))


def integers_encode(x: Tensor, bits: int, levels: int, lift: float, factor: float, key: int, base: int) -> Tensor:
    """floor((x * lift) * factor + u) within +-levels, u uniform in [0, 1), as lanes."""
    drawn = uniform24(hash32(key, base, x.numel(), x.device))
    codes = torch.floor((x * lift) * factor + drawn).clamp_(-levels, levels).to(torch.int32)
    fields = _LANE // bits
    digits = torch.nn.functional.pad(codes, (0, -codes.numel() % fields)).view(fields, -1)
    lanes = digits[0].clone()
    for field in range(1, fields):
        lanes += digits[field] << (field * bits)
    return lanes


def integers_decode(lanes: Tensor, bits: int, unit: float, scale: float, out: Tensor, add: bool) -> None:
    """(digit * unit) * scale for every digit, written to `out` or added to it."""
    digits = []
    for _ in range(_LANE // bits):
        digit = (lanes << (_LANE - bits)) >> (_LANE - bits)
        digits.append(digit)
        lanes = (lanes - digit) >> bits
    values = (torch.cat(digits)[: out.numel()].float() * unit) * scale
    out.add_(values) if add else out.copy_(values)
