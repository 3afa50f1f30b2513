"""Known answers of what has no Triton kernel: torch's operators on the device, against the reference on the CPU."""

from collections.abc import Iterator
from functools import partial

import torch

from thinwire.kernels import blockfloat, casts, codebook, spectra
from thinwire.kernels.answers.inputs import NUMEL, Check, finite_numbers, ordinary, same_bits
from thinwire.kernels.reference import blockfloat as reference_blocks
from thinwire.kernels.reference import casts as reference_casts
from thinwire.kernels.reference import spectra as reference_spectra

MAY_DIFFER = frozenset({"matrix product", "momentum"})  # as docs/gpu.md says: the device's own rounding


def checks(device: torch.device) -> Iterator[Check]:
    yield "fft", partial(_fft, device)
    yield "codebook", partial(_codebook, device)
    yield "mx", partial(_blocks, device)
    for dtype in (torch.float16, torch.bfloat16):
        yield f"cast to {str(dtype).removeprefix('torch.')}", partial(_cast, dtype, device)
    yield "matrix product", partial(_product, device)
    yield "momentum", partial(_momentum, device)


def _fft(device: torch.device) -> bool:
    rows = ordinary(6)[:1280].view(-1, 128)
    spectrum, back = torch.empty_like(rows), torch.empty_like(rows)
    reference_spectra.pairs_of_rows(rows, None, spectrum)
    reference_spectra.rows_of_pairs(spectrum, back)
    there, again = torch.empty_like(rows, device=device), torch.empty_like(rows, device=device)
    spectra.pairs_of_rows(rows.to(device), None, there)
    spectra.rows_of_pairs(spectrum.to(device), again)
    return same_bits(there, spectrum) and same_bits(again, back)


def _codebook(device: torch.device) -> bool:
    x = ordinary(7)
    codes, levels = codebook.quantise(x, 3, 3.0)
    there = codebook.quantise(x.to(device), 3, 3.0)
    return same_bits(there[0], codes) and same_bits(there[1], levels)


def _blocks(device: torch.device) -> bool:
    x, out = finite_numbers(), torch.empty(NUMEL, device=device)
    exponents, symbols = reference_blocks.encode(x, 4)
    there = blockfloat.block_encode(x.to(device), 4)
    blockfloat.block_decode(symbols.to(device), exponents.to(device), 4, out, "write")
    right = same_bits(there[0], exponents) and same_bits(there[1], symbols)
    return right and same_bits(out, reference_blocks.decode(symbols, exponents, 4))


def _cast(dtype: torch.dtype, device: torch.device) -> bool:
    x, out = finite_numbers(), ordinary(8)
    message, there = (torch.empty(2 * NUMEL, dtype=torch.uint8, device=at) for at in ("cpu", device))
    reference_casts.cast_into(x, dtype, message)
    casts.cast_into(x.to(device), dtype, there)
    wanted, to = out.clone(), out.to(device, copy=True)
    reference_casts.cast_from(message, dtype, wanted, True)
    casts.cast_from(message.to(device), dtype, to, True)
    return same_bits(there, message) and same_bits(to, wanted)


def _product(device: torch.device) -> bool:
    a, b = ordinary(9).view(30, 50), ordinary(10).view(50, 30)
    return same_bits(a.to(device) @ b.to(device), a @ b)


def _momentum(device: torch.device) -> bool:
    """Its norm, a sum in the device's own order, and its sum with a factor, which a device may fuse."""
    x, velocity = ordinary(11), ordinary(12)
    there = x.to(device)
    norm = torch.linalg.vector_norm(there, dtype=torch.float64).cpu()
    same = torch.equal(norm, torch.linalg.vector_norm(x, dtype=torch.float64))
    moved = torch.add(there, velocity.to(device), alpha=0.9)
    return same and same_bits(moved, torch.add(x, velocity, alpha=0.9))
