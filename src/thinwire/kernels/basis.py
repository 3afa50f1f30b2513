"""Slices in a learnt basis: compiled loops for few columns, which matrix products are too wide for, torch otherwise.

Compiled or not, a sum has the same terms; torch's products add them in an order of their own, so that results are
equal up to rounding. `reference.basis` says what the compiled loops compute.
"""

from types import ModuleType

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.native import native_for, threads_for

MOST_COLUMNS = 16  # from there on, torch's products are as fast
MOST_NUMBERS = 8192  # of a basis that stays in the first-level cache while slices are projected
MOST_REBUILT = 1 << 15  # and of one from which slices are rebuilt: it is read in order, from the second level too


def project(rows: Tensor, columns: Tensor, offset: Tensor | None, part: float, out: Tensor) -> Tensor:
    """out = x U + offset * part: [count, length] x [length, kept] -> [count, kept]."""
    given = [rows, columns, out] if offset is None else [rows, columns, out, offset]
    (count, length), kept = rows.shape, columns.shape[1]
    _expect(out.shape == (count, kept) and (offset is None or offset.shape == out.shape), given)
    native = _native_for(columns, given, MOST_NUMBERS)
    if native is not None:
        shapes = (rows.data_ptr(), count, length, columns.data_ptr(), kept)
        native.basis_project(*shapes, _address(offset), part, out.data_ptr(), threads_for(rows.numel()))
        return out
    if offset is None:
        return torch.mm(rows, columns, out=out)
    return torch.addmm(offset, rows, columns, beta=part, out=out)


def rebuild(q: Tensor, columns: Tensor, mean: Tensor | None, part: float, out: Tensor) -> Tensor:
    """out = q U^T + mean * part: [count, kept] x [kept, length] -> [count, length]."""
    if _rebuilt(q, columns, mean, part, None, out):
        return out
    if mean is None:
        return torch.mm(q, columns.t(), out=out)
    return torch.addmm(mean, q, columns.t(), beta=part, out=out)


def subtract(q: Tensor, columns: Tensor, mean: Tensor | None, part: float, out: Tensor) -> None:
    """out -= q U^T + mean * part, in one pass over memory where that is compiled."""
    if not _rebuilt(q, columns, mean, part, out, out):
        out.sub_(rebuild(q, columns, mean, part, torch.empty_like(out)))


def _rebuilt(q: Tensor, columns: Tensor, mean: Tensor | None, part: float, given: Tensor | None, out: Tensor) -> bool:
    (count, kept), length = q.shape, columns.shape[0]
    large = [out, *(t for t in (mean, given) if t is not None)]
    _expect(columns.shape[1] == kept and all(t.shape == (count, length) for t in large), [q, columns, *large])
    lying = columns.t().is_contiguous()  # column after column
    native = _native_for(columns, [q, columns.t() if lying else columns, *large], MOST_REBUILT)
    if native is not None:
        shapes = (q.data_ptr(), count, length, columns.data_ptr(), kept, lying)
        held = (_address(mean), part, _address(given), out.data_ptr())
        native.basis_rebuild(*shapes, *held, threads_for(out.numel()))
    return native is not None


def _native_for(columns: Tensor, tensors: list[Tensor], most: int) -> ModuleType | None:
    narrow = 0 < columns.shape[1] <= MOST_COLUMNS and columns.numel() <= most
    return native_for(*tensors) if narrow and all(t.dtype == torch.float32 for t in tensors) else None


def _expect(fits: bool, tensors: list[Tensor]) -> None:
    if not fits:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise CodecError(f"slices, their coefficients and their basis must fit each other, unlike {shapes}")


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
