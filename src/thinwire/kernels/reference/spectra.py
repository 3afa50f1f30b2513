"""The bins of a real FFT as pairs of an orthonormal spectrum, and back."""

import math

import torch
from torch import Tensor


def pairs_of_bins(bins: Tensor, owed: Tensor | None, out: Tensor) -> None:  # [rows, N/2 + 1] complex -> [rows, N]
    """First (X_0, X_{N/2}) / sqrt(N), which are real, then X_j sqrt(2/N) for 0 < j < N/2; and what is owed."""
    rows, length = out.shape
    parts, pairs = torch.view_as_real(bins), out.view(rows, length // 2, 2)
    torch.mul(parts[:, :-1], math.sqrt(2.0 / length), out=pairs)
    pairs[:, 0, 0] *= math.sqrt(0.5)
    torch.mul(parts[:, -1, 0], math.sqrt(1.0 / length), out=pairs[:, 0, 1])
    if owed is not None:
        out += owed


def bins_of_pairs(spectrum: Tensor, out: Tensor) -> None:  # [rows, N] -> [rows, N/2 + 1] complex
    """The way back: X_0 and X_{N/2} from the first pair, and X_j = sqrt(N/2) times pair j."""
    rows, length = spectrum.shape
    pairs, parts = spectrum.view(rows, length // 2, 2), torch.view_as_real(out)
    torch.mul(pairs, math.sqrt(length / 2.0), out=parts[:, :-1])
    torch.mul(pairs[:, 0], math.sqrt(length), out=parts[:, 0])
    parts[:, -1, 0] = parts[:, 0, 1]
    parts[:, 0, 1] = parts[:, -1, 1] = 0.0
