"""Range-based floats, compiled where possible; `reference.rangefloat` says what they compute."""

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.gpu import gpu_for
from thinwire.kernels.gpu.layouts import WIDEST
from thinwire.kernels.native import native_for
from thinwire.kernels.packing import check_packed, check_symbols, pack, symbol_dtype, unpack
from thinwire.kernels.reference import rangefloat as reference
from thinwire.kernels.reference.rangefloat import RangeGrid, Rounding, check_format, rangefloat_grid

__all__ = [
    "RangeGrid",
    "Rounding",
    "rangefloat_choose_mantissa",
    "rangefloat_decode",
    "rangefloat_dequantise",
    "rangefloat_encode",
    "rangefloat_grid",
    "rangefloat_symbols",
]

_MASK32, _MASK64 = 2**32 - 1, 2**64 - 1


def _check(x: Tensor, bits: int, mantissa: int, rounding: str) -> None:
    check_format(bits, mantissa)
    if x.dtype != torch.float32:
        raise CodecError(f"range floats are made from float32, not {x.dtype}; convert the data first")
    if rounding not in ("nearest", "stochastic"):
        raise CodecError(f"rounding is 'nearest' or 'stochastic', not {rounding!r}")


def rangefloat_symbols(
    x: Tensor, bits: int, mantissa: int, grid: RangeGrid, rounding: Rounding, key: int, base: int
) -> tuple[Tensor, int]:
    """Codes [n] (uint8 up to 8 bits, else int32) and the number of saturated elements."""
    _check(x, bits, mantissa, rounding)
    x = x.detach()
    native = native_for(x)
    if native is None:
        return reference.rangefloat_symbols(x, bits, mantissa, grid, rounding, key, base)
    symbols = torch.empty(x.numel(), dtype=symbol_dtype(bits))
    stochastic = rounding == "stochastic"
    saturated: int = native.range_symbols(x, bits, mantissa, *grid, stochastic, key & _MASK64, base & _MASK32, symbols)
    return symbols, saturated


def rangefloat_encode(
    x: Tensor, bits: int, mantissa: int, grid: RangeGrid, rounding: Rounding, key: int, base: int, packed_out: Tensor
) -> int:
    """Packed codes into `packed_out`; returns the number of saturated elements."""
    _check(x, bits, mantissa, rounding)
    check_packed(packed_out, x.numel(), bits)
    x = x.detach()
    if bits <= WIDEST and (gpu := gpu_for("rangefloat", x, packed_out)) is not None:
        at = key, base, packed_out
        return int(gpu.symbols.range_encode(x, bits, mantissa, grid, rounding == "stochastic", *at))
    native = native_for(x, packed_out)
    if native is None:
        symbols, saturated = rangefloat_symbols(x, bits, mantissa, grid, rounding, key, base)
        packed_out.copy_(pack(symbols, bits))
        return saturated
    stochastic = rounding == "stochastic"
    found: int = native.range_encode(x, bits, mantissa, *grid, stochastic, key & _MASK64, base & _MASK32, packed_out)
    return found


def rangefloat_dequantise(symbols: Tensor, bits: int, mantissa: int, grid: RangeGrid, out: Tensor, add: bool) -> None:
    """Values of codes, written to `out` or added to it."""
    check_format(bits, mantissa)
    check_symbols(symbols, bits)
    native = native_for(symbols, out)
    if native is None:
        reference.rangefloat_dequantise(symbols, bits, mantissa, grid, out, add)
    else:
        native.range_dequantise(symbols, bits, mantissa, *grid, out, add)


def rangefloat_decode(packed: Tensor, bits: int, mantissa: int, grid: RangeGrid, out: Tensor, add: bool) -> None:
    """Values of packed codes, written to `out` or added to it."""
    check_format(bits, mantissa)
    check_packed(packed, out.numel(), bits)
    if bits <= WIDEST and (gpu := gpu_for("rangefloat", out, packed)) is not None:
        gpu.symbols.range_decode(packed, bits, mantissa, grid, out, add)
        return
    native = native_for(packed, out)
    if native is None:
        reference.rangefloat_dequantise(unpack(packed, out.numel(), bits), bits, mantissa, grid, out, add)
    else:
        native.range_decode(packed, bits, mantissa, *grid, out, add)


def rangefloat_choose_mantissa(x: Tensor, bits: int) -> int:
    """The mantissa width with the smallest squared error on a sample, rounded to the nearest on the sample's own grid.

    More mantissa makes finer steps but a larger smallest magnitude. A sample without a finite nonzero value decides
    nothing: then the bits are halved between mantissa and exponent.
    """
    check_format(bits, 0)
    x = x.detach().reshape(-1).float()
    low, high = _ends(x)
    if not (low - low == 0 and high - high == 0):
        x = x[torch.isfinite(x)]
        low, high = _ends(x)
    if low == high == 0:
        return (bits - 2) // 2
    x = x.contiguous()
    errors = [_error(x, bits, mantissa, rangefloat_grid(bits, mantissa, low, high)) for mantissa in range(bits - 2)]
    return errors.index(min(errors))


def _ends(x: Tensor) -> tuple[float, float]:
    if x.numel() == 0:
        return 0.0, 0.0
    low, high = torch.aminmax(x)
    return low.item(), high.item()


def _error(x: Tensor, bits: int, mantissa: int, grid: RangeGrid) -> float:
    """The squared error of rounding x to the nearest. A difference is exact: the two are less than a factor of 2 apart,
    or 0."""
    native = native_for(x)
    if native is not None:
        return float(native.range_error(x.data_ptr(), x.numel(), bits, mantissa, *grid))
    symbols, _ = reference.rangefloat_symbols(x, bits, mantissa, grid, "nearest", 0, 0)
    reference.rangefloat_dequantise(symbols, bits, mantissa, grid, decoded := torch.empty_like(x), add=False)
    return float(decoded.sub_(x).double().square().sum())
