"""Slices in a learnt basis: compiled loops for few columns, which matrix products are too wide for, torch otherwise.

Torch's products add their terms in an order that depends on the processor and its library. What is rebuilt must be
equal on all ranks: where the compiled loops are missing, `reference.basis` takes their place, with the same bits. A
projection is a rank's own, so that torch's products may.
"""

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.native import native_for, threads_for
from thinwire.kernels.reference import basis as reference

MOST_COLUMNS = 16  # from there on, torch's products are as fast
MOST_NUMBERS = 8192  # of a basis that stays in the first-level cache while slices are projected
MOST_REBUILT = 1 << 15  # and of one from which slices are rebuilt: it is read in order, from the second level too


def project(rows: Tensor, columns: Tensor, offset: Tensor | None, part: float, out: Tensor) -> Tensor:
    """out = x U + offset * part: [count, length] x [length, kept] -> [count, kept]."""
    given = [rows, columns, out] if offset is None else [rows, columns, out, offset]
    (count, length), kept = rows.shape, columns.shape[1]
    _expect(out.shape == (count, kept) and (offset is None or offset.shape == out.shape), given)
    native = native_for(*given) if _narrow(columns, given, MOST_NUMBERS) else None
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
    tensors = [q, columns.t() if lying else columns, *large]
    if not _narrow(columns, tensors, MOST_REBUILT):
        return False
    native = native_for(*tensors)
    if native is None:
        rebuilt = reference.rebuild(q, columns, mean, part)
        out.copy_(rebuilt) if given is None else torch.sub(given, rebuilt, out=out)
        return True
    shapes = (q.data_ptr(), count, length, columns.data_ptr(), kept, lying)
    held = (_address(mean), part, _address(given), out.data_ptr())
    native.basis_rebuild(*shapes, *held, threads_for(out.numel()))
    return True


def _narrow(columns: Tensor, tensors: list[Tensor], most: int) -> bool:
    """Whether the compiled loops are meant for this basis; the answer does not depend on their being there."""
    if not (0 < columns.shape[1] <= MOST_COLUMNS and columns.numel() <= most):
        return False
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not (tensor.is_cpu and tensor.is_contiguous()):
            return False
    return True


def _expect(fits: bool, tensors: list[Tensor]) -> None:
    if not fits:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise CodecError(f"slices, their coefficients and their basis must fit each other, unlike {shapes}")


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
