"""Entropy coders: symbols in as few bits as their frequencies allow. Lossless."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.message import from_bytes, to_bytes
from thinwire.core.spec import Kind, Spec
from thinwire.core.stage import Encoded, WireCoder
from thinwire.errors import CodecError
from thinwire.kernels import coders
from thinwire.kernels.modes import Mode, put


@dataclass(frozen=True, repr=False)
class Huffman(WireCoder):
    """Canonical Huffman codes for the symbols of each message, close to their empirical entropy.

    Other numbers are coded byte by byte. A message that would not shrink is stored as it is.
    """

    name: ClassVar[str] = "huffman"
    accepts: ClassVar[frozenset[Kind]] = frozenset({"symbols", "float32", "float16", "bfloat16"})

    @property
    def unbiased(self) -> bool:
        return True

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(int(spec.payload()), "bytes", exact=False)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        if _small_symbols(ctx.spec):
            return Encoded(coders.huffman_encode(x, ctx.spec.bits))
        return Encoded(coders.huffman_encode(to_bytes(x, ctx.spec), 8))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        if _small_symbols(ctx.spec):
            put(coders.huffman_decode(encoded.values, ctx.spec.numel, ctx.spec.bits), out, mode)
        else:
            payload = coders.huffman_decode(encoded.values, int(ctx.spec.payload()), 8)
            put(from_bytes(payload, ctx.spec), out, mode)


@dataclass(frozen=True, repr=False)
class Elias(WireCoder):
    """Elias omega codes of gaps and levels, as in the analysis of QSGD and NUQSGD (Elias 1975).

    For sign-magnitude symbols only; good when most of them are zero.
    """

    name: ClassVar[str] = "elias"
    accepts: ClassVar[frozenset[Kind]] = frozenset({"symbols"})

    @property
    def unbiased(self) -> bool:
        return True

    def out(self, spec: Spec) -> Spec:
        if spec.kind == "symbols" and not spec.signed:
            raise CodecError(
                "elias codes signs and levels, which only qsgd, nuqsgd, alq and ternary give; use huffman here."
            )
        return spec.numbers(int(spec.payload()), "bytes", exact=False)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return Encoded(coders.elias_encode(x, ctx.spec.bits))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        put(coders.elias_decode(encoded.values, ctx.spec.numel, ctx.spec.bits), out, mode)


def _small_symbols(spec: Spec) -> bool:
    return spec.kind == "symbols" and spec.bits <= 8
