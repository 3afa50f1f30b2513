"""Sizes of Elias-coded messages beside the expected bits that the papers' theorems allow, one L2 norm for all elements.

QSGD (Alistarh et al. 2017, theorem 3.2) with s levels, and NUQSGD (Ramezani-Kebrya et al. 2021) with its smallest level
2^-S, both for n elements and without their o(1) terms:

    QSGD    32 + (3 + 3/2 log2(2 (s^2 + n) / (s (s + sqrt n)))) s (s + sqrt n)
    NUQSGD  32 + m (3 + log2(n / m) + log2 log2(8 (4^S + n) / m)),  m = 4^S + 2^S sqrt n

The theorem of NUQSGD is for m <= n / e. Elsewhere the table shows a dash.

python -m benchmarks.elias_sizes [--draws 5]
"""

import argparse
import math
from collections.abc import Sequence

import torch

from thinwire import Codec

ONE_BUCKET = 2**30
LENGTHS = (2**14, 2**18, 2**22)


def qsgd_bits(numel: int, bits: int) -> float:
    """The bound of QSGD's theorem 3.2, in bits."""
    levels = (1 << (bits - 1)) - 1
    nonzero = levels * (levels + math.sqrt(numel))
    return 32 + (3 + 1.5 * math.log2(2 * (levels**2 + numel) / nonzero)) * nonzero


def nuqsgd_bits(numel: int, bits: int) -> float:
    """The bound of NUQSGD's theorem on code lengths, in bits; infinite where m > n / e, which the theorem excludes."""
    finest = float(1 << ((1 << (bits - 1)) - 2))
    nonzero = finest**2 + finest * math.sqrt(numel)
    if nonzero > numel / math.e:
        return math.inf
    return 32 + nonzero * (3 + math.log2(numel / nonzero) + math.log2(math.log2(8 * (finest**2 + numel) / nonzero)))


BOUNDS = {"qsgd": qsgd_bits, "nuqsgd": nuqsgd_bits}


def rows(lengths: Sequence[int], draws: int) -> list[tuple[str, int, float, float, float]]:
    """Chain, elements, bits of an element as coded, as the theorem allows, and as `wire_bytes` expects."""
    found = []
    for name, bound in BOUNDS.items():
        for bits in (2, 3, 4):
            codec = Codec.parse(f"{name}(bits={bits}, norm=l2, bucket={ONE_BUCKET}) | elias")
            for numel in lengths:
                sizes = [
                    codec.encode(torch.randn(numel, generator=torch.Generator().manual_seed(draw)), step=draw).numel()
                    for draw in range(draws)
                ]
                allowed = bound(numel, bits)
                measured = 8 * sum(sizes) / draws / numel
                expected = 8 * int(codec.message_bytes(numel)) / numel
                found.append((f"{name}(bits={bits}, norm=l2)", numel, measured, allowed / numel, expected))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draws", type=int, default=5)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    print("| chain, one bucket, then `elias` | elements | coded, bits | theorem, bits | `message_bytes`, bits |")
    print("|---|--:|--:|--:|--:|")
    for chain, numel, measured, allowed, expected in rows(LENGTHS, chosen.draws):
        bound = f"{allowed:.4f}" if math.isfinite(allowed) else "-"
        print(f"| `{chain}` | {numel:,} | {measured:.4f} | {bound} | {expected:.4f} |")


if __name__ == "__main__":
    main()
