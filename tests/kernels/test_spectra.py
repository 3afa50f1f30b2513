"""Spectra: the compiled passes give the bits of torch's products and sums."""

import pytest
import torch
from torch import Tensor

from tests.kernels.numbers import any_bits, same
from thinwire.errors import CodecError
from thinwire.kernels import spectra
from thinwire.kernels.reference import spectra as reference

pytestmark = pytest.mark.usefixtures("variant")

SHAPES = [(1, 2), (3, 4), (2, 6), (5, 30), (4, 64), (3, 1000), (2, 4096)]


def bins_like(rows: int, length: int) -> Tensor:
    return torch.view_as_complex(any_bits(rows * (length + 2), rows + length).view(rows, length // 2 + 1, 2))


@pytest.mark.parametrize("owes", [False, True])
@pytest.mark.parametrize(("rows", "length"), SHAPES)
def test_pairs_are_the_references(rows: int, length: int, owes: bool) -> None:
    bins, owed = bins_like(rows, length), any_bits(rows * length, 1).view(rows, length) if owes else None
    ours, theirs = torch.empty(rows, length), torch.empty(rows, length)
    spectra.pairs_of_bins(bins, owed, ours)
    reference.pairs_of_bins(bins, owed, theirs)
    assert same(ours.view(-1), theirs.view(-1))


@pytest.mark.parametrize(("rows", "length"), SHAPES)
def test_bins_are_the_references(rows: int, length: int) -> None:
    spectrum = any_bits(rows * length, 2).view(rows, length)
    ours, theirs = bins_like(rows, length), bins_like(rows, length)
    spectra.bins_of_pairs(spectrum, ours)
    reference.bins_of_pairs(spectrum, theirs)
    assert same(torch.view_as_real(ours).reshape(-1), torch.view_as_real(theirs).reshape(-1))


def test_what_does_not_fit_is_refused() -> None:
    bins = torch.zeros(2, 5, dtype=torch.complex64)
    with pytest.raises(CodecError, match="one more bin"):
        spectra.bins_of_pairs(torch.zeros(2, 6), bins)
    with pytest.raises(CodecError, match="rows of pairs"):
        spectra.bins_of_pairs(torch.zeros(2, 7), bins)
    with pytest.raises(CodecError, match="rows of pairs"):
        spectra.pairs_of_bins(bins.to(torch.complex128), None, torch.zeros(2, 8))
    with pytest.raises(CodecError, match="owed"):
        spectra.pairs_of_bins(bins, torch.zeros(2, 6), torch.zeros(2, 8))
