"""Real FFTs of rows and orthonormal spectra: one pass over memory on the CPU, torch elsewhere."""

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import spectra as reference
from thinwire.kernels.reference.fourier import roots
from thinwire.kernels.shares import check_ranks, divided


def pairs_of_rows(rows: Tensor, owed: Tensor | None, out: Tensor, ranks: int = 1) -> None:  # [count, N] all
    """The orthonormal spectrum of each row divided by `ranks`, with what is owed added; `reference.spectra` says what
    it is."""
    check_ranks(ranks)
    _check_rows(rows, out)
    _check_owed(owed, out)
    count, length = rows.shape
    native = native_for(rows, out) if owed is None else native_for(rows, out, owed)
    if native is None:
        return reference.pairs_of_rows(rows if ranks == 1 else divided(rows, ranks), owed, out)
    table, more = roots(length, rows.device), 0 if owed is None else owed.data_ptr()
    native.pairs_of_rows(rows.data_ptr(), count, length, ranks, table.data_ptr(), table.numel(), more, out.data_ptr())
    return None


def rows_of_pairs(spectrum: Tensor, out: Tensor) -> None:  # [count, N] both
    """The rows that such spectra stand for."""
    _check_rows(spectrum, out)
    count, length = spectrum.shape
    native = native_for(spectrum, out)
    if native is None:
        return reference.rows_of_pairs(spectrum, out)
    table = roots(length, out.device)
    native.rows_of_pairs(spectrum.data_ptr(), count, length, table.data_ptr(), table.numel(), out.data_ptr())
    return None


def _check_rows(rows: Tensor, out: Tensor) -> None:
    length = rows.shape[1] if rows.dim() == 2 else 0
    if rows.dtype != torch.float32 or length < 2 or length & (length - 1):
        raise CodecError(
            "an FFT takes float32 rows whose length is a power of two and at least 2,"
            f" not {rows.dtype} of {tuple(rows.shape)}."
        )
    if out.shape != rows.shape or out.dtype != rows.dtype:
        wanted, got = f"{rows.dtype} of {tuple(rows.shape)}", f"{out.dtype} of {tuple(out.shape)}"
        raise CodecError(f"rows and their spectra are alike, {wanted} both; got {got}.")


def _check_owed(owed: Tensor | None, out: Tensor) -> None:
    if owed is not None and (owed.shape != out.shape or owed.dtype != out.dtype):
        wanted, got = f"{out.dtype} of {tuple(out.shape)}", f"{owed.dtype} of {tuple(owed.shape)}"
        raise CodecError(f"what is owed is {wanted} like the spectrum, not {got}.")
