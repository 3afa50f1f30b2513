"""The stage huffman against zstd, on the symbols that qsgd(bits=4) and nuqsgd give for the same gradients.

python benchmarks/entropy_coders.py [--elements 4000000] [--rounds 7]

One thread. The coders take turns in each round. A time is the least processor time of all rounds, so that other
processes matter little. zstd gets symbols of 4 bits packed (what is sent without huffman) and one symbol in each byte.
Packing has a row of its own, and is not a part of zstd's times. "zstd's Huffman" is zstd with the smallest hash table
and matches of at least 7 bytes: it finds almost no match, and codes literals in blocks of 128 KiB.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinwire import Codec
from thinwire.core.context import Context
from thinwire.core.spec import Spec
from thinwire.kernels import packing
from thinwire.kernels.coders import huffman_decode, huffman_encode

CODECS = ("qsgd(bits=4)", "nuqsgd(bits=4)")
BITS = 4


class Coder(NamedTuple):
    """Encodes prepared symbols, and decodes what it encoded; both are timed."""

    name: str
    encode: Callable[[], Any]
    decode: Callable[[Any], Any]


def gradients(kind: str, numel: int) -> Tensor:
    torch.manual_seed(0)
    if kind == "gaussian":
        return torch.randn(numel)
    return torch.distributions.StudentT(3.0).sample((numel,))


def symbols_of(text: str, x: Tensor) -> Tensor:
    (stage,) = Codec.parse(text).stages
    symbols: Tensor = stage.encode(x, Context(Spec(x.numel()), stage.init(Spec(x.numel())))).values
    return symbols


def coders_for(symbols: Tensor, zstandard: Any) -> list[Coder]:
    numel = symbols.numel()
    inputs = {"packed": packing.pack(symbols, BITS).numpy().tobytes(), "a byte each": symbols.numpy().tobytes()}
    literals = zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST, window_log=17, hash_log=6, chain_log=6, search_log=1, min_match=7
    )
    ways = {
        "zstd level 1": {"level": 1},
        "zstd level 3": {"level": 3},
        "zstd's Huffman": {"compression_params": literals},
    }
    coders = [Coder("huffman", lambda: huffman_encode(symbols, BITS), lambda m: huffman_decode(m, numel, BITS))]
    coders.append(Coder("packing alone", lambda: packing.pack(symbols, BITS), lambda m: packing.unpack(m, numel, BITS)))
    for form, data in inputs.items():
        for name, options in ways.items():
            compress = zstandard.ZstdCompressor(**options).compress
            expand = zstandard.ZstdDecompressor().decompress
            coders.append(Coder(f"{name}, {form}", lambda compress=compress, data=data: compress(data), expand))  # type: ignore[misc]
    return coders


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(coders: list[Coder], numel: int, rounds: int) -> list[str]:
    """A row for each coder: bits for each element, times, and times over those of the first coder."""
    messages = [coder.encode() for coder in coders]
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in coders]
    for _ in range(rounds):
        for coder, message, (encoding, decoding) in zip(coders, messages, times, strict=True):
            encoding.append(seconds(coder.encode))
            decoding.append(seconds(lambda coder=coder, message=message: coder.decode(message)))  # type: ignore[misc]
    rows = []
    first = [min(taken) for taken in times[0]]
    for coder, message, taken in zip(coders, messages, times, strict=True):
        encode, decode = (min(each) for each in taken)
        rows.append(
            f"{coder.name:28} {8 * len(message) / numel:6.3f} {1e9 * encode / numel:8.2f} {1e9 * decode / numel:8.2f}"
            f" {encode / first[0]:8.2f} {decode / first[1]:8.2f}"
        )
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--elements", type=int, default=4_000_000)
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    if chosen.elements < 1 or chosen.rounds < 1:
        sys.exit(f"elements and rounds must be at least 1; got {chosen.elements} and {chosen.rounds}.")
    try:
        zstandard = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        sys.exit("this benchmark compares with zstd and needs the package zstandard; run pip install zstandard.")
    torch.set_num_threads(1)
    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    print(
        f"zstd {version}, {chosen.elements:,} elements, {chosen.rounds} rounds; the last columns are ratios to huffman"
    )
    for kind in ("gaussian", "heavy-tailed"):
        x = gradients(kind, chosen.elements)
        for text in CODECS:
            print(f"\n{text}, {kind}\n{'coder':28} {'bits':>6} {'enc ns':>8} {'dec ns':>8} {'enc /':>8} {'dec /':>8}")
            print("\n".join(compare(coders_for(symbols_of(text, x), zstandard), chosen.elements, chosen.rounds)))


if __name__ == "__main__":
    main()
