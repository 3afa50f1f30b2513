"""Block floats of the OCP Microscaling standard, compiled where possible; `reference.blockfloat` is the rule."""

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import blockfloat as reference
from thinwire.kernels.reference.blockfloat import FORMATS, LENGTH, NOT_FINITE, values_of

__all__ = ["FORMATS", "LENGTH", "NOT_FINITE", "block_decode", "block_encode", "exponent_bytes", "values_of"]


def exponent_bytes(numel: int) -> int:
    return -(-numel // LENGTH)


def block_encode(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:  # [n] -> [ceil(n/32)], [n], both uint8
    """The shared exponents and the symbols."""
    native = native_for(x)
    if native is None:
        return reference.encode(x, bits)
    exponents = torch.empty(exponent_bytes(x.numel()), dtype=torch.uint8)
    symbols = torch.empty(x.numel(), dtype=torch.uint8)
    native.block_encode(x, *FORMATS[bits], exponents, symbols)
    return exponents, symbols


def block_decode(symbols: Tensor, exponents: Tensor, bits: int, out: Tensor, mode: Mode) -> None:
    """The numbers, written to `out`, added to it or subtracted from it."""
    if exponents.numel() != exponent_bytes(out.numel()) or symbols.numel() != out.numel():
        raise WireError(
            f"{out.numel()} block floats have {exponent_bytes(out.numel())} exponents, but {exponents.numel()} and"
            f" {symbols.numel()} symbols came; the message is truncated or of another codec"
        )
    if symbols.numel() and int(symbols.max()) >= 2**bits:
        raise WireError(f"A symbol is wider than {bits} bits; resend the message.")
    native = native_for(symbols, exponents, out)
    if native is None or mode == "subtract":
        put(reference.decode(symbols, exponents, bits), out, mode)
    else:
        native.block_decode(symbols, exponents, values_of(bits), out, mode == "add")
