"""The FFT of powers of two, from operations that IEEE 754 rounds alike on all machines, each written out.

Libraries choose their algorithm by the machine, so that ranks on unlike hosts would end with unlike bits.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

Parts = tuple[Tensor, Tensor]  # real and imaginary


@lru_cache(maxsize=64)
def roots(length: int, device: torch.device) -> Tensor:
    """What a real FFT of N numbers multiplies by, as float32 in one row, real parts before imaginary ones.

    For each pass over n > 4 numbers, beginning with n = N/2: e^(-2 pi i k p / n) for k = 1, 2, 3 and p < n/4; then
    e^(-2 pi i k / N) for k < N/4.
    """
    re, im = _unit_roots(length)
    parts, n = [], length // 2
    while n > 4:
        for k in (1, 2, 3):
            at = torch.arange(n // 4) * (k * (length // n))
            parts += [re[at], im[at]]
        n //= 4
    parts += [re[: length // 4], im[: length // 4]]
    return torch.cat(parts).to(torch.float32).to(device)


@lru_cache(maxsize=64)
def quarter_turns(length: int, device: torch.device) -> Parts:
    """cos and sin of pi k / 2N for 0 < k < N/2, as float32."""
    re, im = (part[1 : length // 2].to(torch.float32).to(device) for part in _unit_roots(4 * length))
    return re, -im


def _unit_roots(length: int) -> Parts:
    """e^(-2 pi i k / N) for k < N, in float64.

    Half angles and products, because sines of libraries differ in their last bits.
    """
    re, im = torch.tensor([[1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    cosine, sine = 0.0, -1.0  # of the angle that halves those there are
    while re.numel() < length:
        between = _times(re, im, cosine, sine)
        re, im = (torch.stack(both, 1).view(-1) for both in zip((re, im), between, strict=True))
        cosine = math.sqrt((1.0 + cosine) / 2.0)
        sine /= 2.0 * cosine
    return re, im


def transform(re: Tensor, im: Tensor, table: Tensor) -> Parts:  # [count, M] each
    """Stockham's passes of radix 4, and one of radix 2 where M is no power of 4.

    A pass makes four of each transform of n numbers that is left, and puts them where s of them already are apart:
    [4, n/4, s] -> [n/4, 4, s].
    """
    count, n = re.shape
    s = 1
    while n > 4:
        shape = (count, 4, n // 4, s)
        w = table[: 6 * (n // 4)].view(3, 2, n // 4, 1)
        first, *others = _butterfly(re.reshape(shape), im.reshape(shape))
        turned = [first, *(_times(a, b, w[k, 0], w[k, 1]) for k, (a, b) in enumerate(others))]
        re, im = (torch.stack(part, 2).flatten(1) for part in zip(*turned, strict=True))
        table, n, s = table[6 * (n // 4) :], n // 4, s * 4
    if n == 4:
        last = _butterfly(re.reshape(count, 4, s), im.reshape(count, 4, s))
    elif n == 2:
        (a, b), (c, d) = re.view(count, 2, s).unbind(1), im.view(count, 2, s).unbind(1)
        last = [(a + b, c + d), (a - b, c - d)]
    else:
        return re, im
    re, im = (torch.cat(part, 1) for part in zip(*last, strict=True))
    return re, im


def _butterfly(re: Tensor, im: Tensor) -> list[Parts]:  # [count, 4, ...] both
    """Sums of four numbers with the powers of 1, -i, -1 and i."""
    a, b, c, d = re.unbind(1)
    e, f, g, h = im.unbind(1)
    sums, odds, gaps, turns = (a + c, e + g), (b + d, f + h), (a - c, e - g), (b - d, f - h)
    return [
        (sums[0] + odds[0], sums[1] + odds[1]),
        (gaps[0] + turns[1], gaps[1] - turns[0]),
        (sums[0] - odds[0], sums[1] - odds[1]),
        (gaps[0] - turns[1], gaps[1] + turns[0]),
    ]


def _times(re: Tensor, im: Tensor, w_re: Tensor | float, w_im: Tensor | float) -> Parts:
    return re * w_re - im * w_im, re * w_im + im * w_re
