"""Bins of real FFTs and orthonormal spectra: one pass over memory on the CPU, torch elsewhere."""

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import spectra as reference


def pairs_of_bins(bins: Tensor, owed: Tensor | None, out: Tensor) -> None:  # [rows, N/2 + 1] complex -> [rows, N]
    """The pairs of an orthonormal spectrum, with what is owed added; `reference.spectra` says what they are."""
    _check(out, bins)
    if owed is not None and (owed.shape != out.shape or owed.dtype != out.dtype):
        wanted, got = f"{out.dtype} of {tuple(out.shape)}", f"{owed.dtype} of {tuple(owed.shape)}"
        raise CodecError(f"what is owed is {wanted} like the spectrum, not {got}.")
    native = native_for(bins, out) if owed is None else native_for(bins, out, owed)
    if native is None:
        return reference.pairs_of_bins(bins, owed, out)
    native.pairs_of_bins(bins.data_ptr(), *out.shape, 0 if owed is None else owed.data_ptr(), out.data_ptr())
    return None


def bins_of_pairs(spectrum: Tensor, out: Tensor) -> None:  # [rows, N] -> [rows, N/2 + 1] complex
    """The bins that such a spectrum stands for."""
    _check(spectrum, out)
    native = native_for(spectrum, out)
    if native is None:
        return reference.bins_of_pairs(spectrum, out)
    native.bins_of_pairs(spectrum.data_ptr(), *spectrum.shape, out.data_ptr())
    return None


def _check(spectrum: Tensor, bins: Tensor) -> None:
    kinds = spectrum.dtype == torch.float32 and bins.dtype == torch.complex64
    if not kinds or spectrum.dim() != 2 or spectrum.shape[1] % 2 or spectrum.shape[1] == 0:
        raise CodecError(f"a spectrum is float32 rows of pairs, not {spectrum.dtype} of {tuple(spectrum.shape)}.")
    if bins.shape != (spectrum.shape[0], spectrum.shape[1] // 2 + 1):
        raise CodecError(f"rows of {spectrum.shape[1]} numbers have one more bin than pairs; got {tuple(bins.shape)}.")
