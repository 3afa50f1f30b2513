"""What flows through a chain, described before any data does."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import torch

from thinwire.kernels.packing import packed_size

Kind: TypeAlias = Literal["float32", "float16", "bfloat16", "int32", "symbols", "bytes"]

DTYPES: dict[Kind, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "bytes": torch.uint8,
}


class Size(int):
    """A number of bytes; `exact` is False when it is an expectation."""

    exact: bool

    def __new__(cls, value: float, exact: bool = True) -> "Size":
        size = super().__new__(cls, round(value))
        size.exact = exact
        return size

    def plus(self, *others: "Size | int") -> "Size":
        """The sum, exact only if every part is."""
        return Size(
            int(self) + sum(int(o) for o in others), self.exact and all(getattr(o, "exact", True) for o in others)
        )

    def times(self, factor: int) -> "Size":
        return Size(int(self) * factor, self.exact)

    def __repr__(self) -> str:
        return f"{int(self)}" if self.exact else f"~{int(self)}"


@dataclass(frozen=True)
class Spec:
    """A flat run of numbers (or symbols, or bytes) between two stages.

    `shape` is the tensor's own shape, which only a chain's first stage sees, and `row` the length of one of its
    rows (the weights of one output); `signed` marks symbols with a sign in the top bit; with `exact` False,
    `numel` is not known before the data are; `group` consecutive numbers (the two parts of a complex bin) are
    chosen or left together.
    """

    numel: int
    kind: Kind = "float32"
    bits: int = 32
    shape: tuple[int, ...] = ()
    row: int = 0
    signed: bool = False
    exact: bool = True
    group: int = 1

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(shape: tuple[int, ...]) -> "Spec":
        """The fp32 numbers of a tensor of this shape; the same object in every step, which is found fast in caches."""
        numel = 1
        for extent in shape:
            numel *= extent
        return Spec(numel, shape=shape, row=numel // shape[0] if len(shape) > 1 and shape[0] else numel)

    def numbers(self, numel: int, kind: Kind = "float32", exact: bool = True, group: int = 1) -> "Spec":
        bits = {"float32": 32, "int32": 32, "float16": 16, "bfloat16": 16, "bytes": 8}[kind]
        return Spec(numel, kind, bits, exact=self.exact and exact, group=group)

    def part(self, numel: int) -> "Spec":
        """Some of these elements."""
        return replace(self, numel=numel, shape=())

    def symbols(self, bits: int, signed: bool) -> "Spec":
        return Spec(self.numel, "symbols", bits, row=self.row, signed=signed, exact=self.exact, group=self.group)

    def payload(self) -> Size:
        """Bytes these numbers take on the wire."""
        if self.kind == "symbols":
            return Size(packed_size(self.numel, self.bits), self.exact)
        return Size(self.numel * self.bits // 8, self.exact)

    def describe(self) -> str:
        return f"{self.bits}-bit symbols" if self.kind == "symbols" else f"{self.kind} numbers"
