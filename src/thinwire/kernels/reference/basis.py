"""Slices in a basis of few columns, term by term: the specification of the compiled loops of `thinwire.kernels.basis`.

Products and sums are rounded one by one, in the order of the numbers of a slice or of the columns.
"""

import torch
from torch import Tensor


def project(rows: Tensor, columns: Tensor, offset: Tensor | None, part: float) -> Tensor:
    """x U + offset * part: [count, length] x [length, kept] -> [count, kept]."""
    sums = rows.new_zeros(rows.shape[0], columns.shape[1])
    for k in range(columns.shape[0]):
        sums = sums + rows[:, k : k + 1] * columns[k]
    return sums if offset is None else sums + offset * part


def rebuild(q: Tensor, columns: Tensor, mean: Tensor | None, part: float) -> Tensor:
    """mean * part + q U^T: [count, kept] x [kept, length] -> [count, length]."""
    sums = q.new_zeros(q.shape[0], columns.shape[0]) if mean is None else mean * part
    for j in range(columns.shape[1]):
        sums = sums + q[:, j : j + 1] * columns[:, j]
    return sums


def without(given: Tensor, q: Tensor, columns: Tensor, mean: Tensor | None, part: float) -> Tensor:
    """given - rebuild(q, ...)."""
    return torch.sub(given, rebuild(q, columns, mean, part))
