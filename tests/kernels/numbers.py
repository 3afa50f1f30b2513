"""Float32 of every kind, and what it means that two tensors are equal bit for bit."""

import torch
from torch import Tensor

SPECIAL = torch.tensor(
    [
        *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000),  # 0 ... 1 ... inf
        *(0x7FC00000, 0x7F800001, 0x7FFFFFFF),  # quiet, signalling and full NaN
        *(0x33000000, 0x33000001, 0x38800000, 0x387FE000, 0x477FE000, 0x477FEFFF, 0x477FF000),  # ends of float16
        *(0x3F808000, 0x3F818000, 0x7F7F8000),  # ties of bfloat16
    ],
    dtype=torch.int32,
)


def any_bits(numel: int, seed: int) -> Tensor:
    """Random bit patterns: a half of them ordinary magnitudes, many special ones, both signs."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (numel,), generator=generator).to(torch.int32)
    special = SPECIAL[torch.randint(len(SPECIAL), (numel,), generator=generator)]
    plain = torch.randn(numel, generator=generator).view(torch.int32)
    kind = torch.randint(8, (numel,), generator=generator)
    chosen = torch.where(kind < 4, plain, torch.where(kind < 6, bits, special))
    return torch.where(kind == 7, chosen | -(2**31), chosen).view(torch.float32)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits, all NaNs being one."""
    words = torch.int32 if a.dtype == torch.float32 else torch.int16
    equal = a.view(words) == b.view(words)
    return a.dtype == b.dtype and bool((equal | (a.isnan() & b.isnan())).all())
