"""Rows of numbers and their orthonormal spectra, there and back; the length of a row is a power of two.

A spectrum is first (X_0, X_{N/2}) / sqrt(N), which are real, then the pairs X_j sqrt(2/N) for 0 < j < N/2.
"""

import math

import torch
from torch import Tensor

from thinwire.kernels.reference.fourier import roots, transform


def pairs_of_rows(rows: Tensor, owed: Tensor | None, out: Tensor) -> None:  # [count, N] all
    """The pairs of the real FFT of each row, and what is owed.

    N numbers are taken for M = N/2 complex ones, whose transform Z has all that is needed: with
    E = Z_k + conj Z_{M-k}, O = (Z_k - conj Z_{M-k}) / i and w = e^(-2 pi i k / N), X_k = (E + w O) / 2 and
    X_{M-k} = conj(E - w O) / 2.
    """
    (count, length), middle = rows.shape, rows.shape[1] // 4
    table, (pair, real, half) = roots(length, rows.device), _scales(length)
    re, im = transform(rows[:, 0::2], rows[:, 1::2], table)
    pairs = torch.empty_like(out).view(count, length // 2, 2)
    pairs[:, 0] = torch.stack([re[:, 0] + im[:, 0], re[:, 0] - im[:, 0]], 1) * real
    if middle:
        pairs[:, middle] = torch.stack([re[:, middle] * pair, -(im[:, middle] * pair)], 1)
        w_re, w_im = table[-2 * middle :].view(2, middle)[:, 1:]
        a, b, c, d = re[:, 1:middle], im[:, 1:middle], re[:, middle + 1 :].flip(1), im[:, middle + 1 :].flip(1)
        e_re, e_im, o_re, o_im = a + c, b - d, b + d, c - a
        t_re, t_im = w_re * o_re - w_im * o_im, w_re * o_im + w_im * o_re
        pairs[:, 1:middle] = torch.stack([e_re + t_re, e_im + t_im], 2) * half
        pairs[:, middle + 1 :] = torch.stack([e_re - t_re, t_im - e_im], 2).flip(1) * half
    spectrum = pairs.view(count, length)
    out.copy_(spectrum if owed is None else spectrum + owed)


def rows_of_pairs(spectrum: Tensor, out: Tensor) -> None:  # [count, N] both
    """The way back: O = conj(w) (X_k - conj X_{M-k}) and Z_k = E + i O.

    The inverse transform is the transform with real and imaginary parts exchanged, before and after.
    """
    (count, length), middle = spectrum.shape, spectrum.shape[1] // 4
    table, (pair, real, half) = roots(length, spectrum.device), _scales(length)
    parts, (re, im) = spectrum.reshape(count, length // 2, 2).unbind(2), spectrum.new_empty(2, count, length // 2)
    re[:, 0], im[:, 0] = (parts[0][:, 0] + parts[1][:, 0]) * real, (parts[0][:, 0] - parts[1][:, 0]) * real
    if middle:
        re[:, middle], im[:, middle] = parts[0][:, middle] * pair, -(parts[1][:, middle] * pair)
        w_re, w_im = table[-2 * middle :].view(2, middle)[:, 1:]
        (a, b), (c, d) = ((p[:, 1:middle] for p in parts), (p[:, middle + 1 :].flip(1) for p in parts))
        e_re, e_im, g_re, g_im = a + c, b - d, a - c, b + d
        o_re, o_im = w_re * g_re + w_im * g_im, w_re * g_im - w_im * g_re
        re[:, 1:middle], im[:, 1:middle] = (e_re - o_im) * half, (e_im + o_re) * half
        re[:, middle + 1 :], im[:, middle + 1 :] = ((e_re + o_im) * half).flip(1), ((o_re - e_im) * half).flip(1)
    im, re = transform(im, re, table)
    out.copy_(torch.stack([re, im], 2).view(count, length))


def _scales(length: int) -> tuple[float, float, float]:
    """Of pairs, of the two real bins, and of what is twice a pair."""
    return math.sqrt(2.0 / length), math.sqrt(1.0 / length), math.sqrt(0.5 / length)
