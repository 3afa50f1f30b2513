"""What a decoder does with its elements: write them over `out`, add them to it, or subtract them from it."""

from typing import Literal, TypeAlias

from torch import Tensor

Mode: TypeAlias = Literal["write", "add", "subtract"]


def put(values: Tensor, out: Tensor, mode: Mode) -> None:
    """Write, add or subtract values that are decoded already."""
    if mode == "write":
        out.copy_(values)
    elif mode == "add":
        out.add_(values)
    else:
        out.sub_(values)
