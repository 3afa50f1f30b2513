"""Relative squared errors of the quantisers, E|Q(x) - x|^2 / |x|^2, on elements of several distributions.

Two simulated ranks average the same x, and every rank gets both messages. Their errors are independent, so that of one
message is twice that of the mean. `alq` has fitted its levels to the same distribution before.

python -m benchmarks.quantiser_errors [--draws 3]
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire import simulate

NUMEL = 2**16
FITS = 2  # steps before the one that counts: `alq` fits at step 1


def student(generator: torch.Generator) -> Tensor:
    """Three degrees of freedom: a Gaussian over the root of a mean of three squares."""
    squares = torch.randn(3, NUMEL, generator=generator).square().mean(0)
    return torch.randn(NUMEL, generator=generator) / squares.sqrt()


def laplace(generator: torch.Generator) -> Tensor:
    uniform = torch.rand(NUMEL, generator=generator, dtype=torch.float64) - 0.5
    return (-uniform.sign() * (1 - 2 * uniform.abs()).clamp(min=1e-300).log()).float()


def log_normal(generator: torch.Generator) -> Tensor:
    signs = torch.randint(2, (NUMEL,), generator=generator) * 2 - 1
    return signs * (2 * torch.randn(NUMEL, generator=generator)).exp()


DISTRIBUTIONS: Mapping[str, Callable[[torch.Generator], Tensor]] = {
    "Gaussian": lambda generator: torch.randn(NUMEL, generator=generator),
    "Laplace": laplace,
    "Student t3": student,
    "log-normal(2)": log_normal,
    "uniform": lambda generator: 2 * torch.rand(NUMEL, generator=generator) - 1,
}
CHAINS = {
    "QSGD": "qsgd(bits={bits}, bucket={bucket}, norm=l2)",
    "NUQSGD": "nuqsgd(bits={bits}, bucket={bucket}, norm=l2)",
    "QSGDinf": "qsgd(bits={bits}, bucket={bucket})",
    "NUQSGDinf": "nuqsgd(bits={bits}, bucket={bucket}, norm=max)",
    "ALQ": "alq(bits={bits}, bucket={bucket}, start=1)",
    "hadamard \\| qsgd": "hadamard | qsgd(bits={bits}, bucket={bucket})",
    "hadamard \\| alq": "hadamard | alq(bits={bits}, bucket={bucket}, start=1)",
}
ROWS = (
    *((name, 4, 512) for name in DISTRIBUTIONS),
    ("Student t3", 4, 8192),
    ("Gaussian", 3, 512),
    ("Student t3", 3, 512),
)


def error(codec: str, distribution: str, draws: int) -> float:
    """The mean over the draws; each begins with fresh levels."""
    total = 0.0
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        slots = None
        for step in range(FITS + 1):
            x = DISTRIBUTIONS[distribution](generator)
            outcome = simulate(codec, [x, x], slots=slots, seed=draw, step=step, reduction="gathered")
            slots = outcome.slots
        wrong = (outcome.means[0] - x).double().square().sum() / x.double().square().sum()
        total += 2 * float(wrong) / draws
    return total


def table(rows: Sequence[tuple[str, int, int]], draws: int) -> list[str]:
    lines = [f"| data, bits, bucket | {' | '.join(CHAINS)} |", f"|---|{'---|' * len(CHAINS)}"]
    for name, bits, bucket in rows:
        found = [error(chain.format(bits=bits, bucket=bucket), name, draws) for chain in CHAINS.values()]
        lines.append(f"| {name}, {bits}, {bucket} | {' | '.join(f'{value:.3g}' for value in found)} |")
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draws", type=int, default=3)
    torch.set_num_threads(1)
    print("\n".join(table(ROWS, options.parse_args().draws)))


if __name__ == "__main__":
    main()
