"""Real FFTs of rows and orthonormal spectra: one pass over memory on the CPU, torch elsewhere."""

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import spectra as reference
from thinwire.kernels.reference.fourier import roots

LONGEST = 1 << 16  # numbers of a row whose buffers still lie in a core's own caches


def pairs_of_rows(rows: Tensor, owed: Tensor | None, out: Tensor) -> None:  # [count, N] all
    """The orthonormal spectrum of each row, with what is owed added; `reference.spectra` says what it is.

    Rows of a power of two have the same bits on every machine; torch's FFT, whose last bits depend on the machine,
    has the others. Which it is depends on N alone, so that all ranks do the same.
    """
    _check_rows(rows, out)
    _check_owed(owed, out)
    count, length = rows.shape
    if not _has_own(length):
        return pairs_of_bins(torch.fft.rfft(rows), owed, out)
    native = native_for(rows, out) if owed is None else native_for(rows, out, owed)
    if native is None:
        return reference.pairs_of_rows(rows, owed, out)
    table, more = roots(length, rows.device), 0 if owed is None else owed.data_ptr()
    native.pairs_of_rows(rows.data_ptr(), count, length, table.data_ptr(), table.numel(), more, out.data_ptr())
    return None


def rows_of_pairs(spectrum: Tensor, out: Tensor) -> None:  # [count, N] both
    """The rows that such spectra stand for."""
    _check_rows(spectrum, out)
    count, length = spectrum.shape
    if not _has_own(length):
        bins = torch.empty(count, length // 2 + 1, dtype=torch.complex64, device=spectrum.device)
        bins_of_pairs(spectrum, bins)
        torch.fft.irfft(bins, n=length, out=out)
        return None
    native = native_for(spectrum, out)
    if native is None:
        return reference.rows_of_pairs(spectrum, out)
    table = roots(length, out.device)
    native.rows_of_pairs(spectrum.data_ptr(), count, length, table.data_ptr(), table.numel(), out.data_ptr())
    return None


def pairs_of_bins(bins: Tensor, owed: Tensor | None, out: Tensor) -> None:  # [rows, N/2 + 1] complex -> [rows, N]
    """The pairs of an orthonormal spectrum, with what is owed added; `reference.spectra` says what they are."""
    _check(out, bins)
    _check_owed(owed, out)
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


def _check_rows(rows: Tensor, out: Tensor) -> None:
    if rows.dtype != torch.float32 or rows.dim() != 2 or rows.shape[1] % 2 or rows.shape[1] == 0:
        raise CodecError(f"a real FFT takes float32 rows of even length, not {rows.dtype} of {tuple(rows.shape)}.")
    if out.shape != rows.shape or out.dtype != rows.dtype:
        wanted, got = f"{rows.dtype} of {tuple(rows.shape)}", f"{out.dtype} of {tuple(out.shape)}"
        raise CodecError(f"rows and their spectra are alike, {wanted} both; got {got}.")


def _check_owed(owed: Tensor | None, out: Tensor) -> None:
    if owed is not None and (owed.shape != out.shape or owed.dtype != out.dtype):
        wanted, got = f"{out.dtype} of {tuple(out.shape)}", f"{owed.dtype} of {tuple(owed.shape)}"
        raise CodecError(f"what is owed is {wanted} like the spectrum, not {got}.")


def _has_own(length: int) -> bool:
    return length <= LONGEST and not length & (length - 1)
