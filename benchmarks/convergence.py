"""Trains through each codec and compares the accuracy with that of none; runs in the file already are not repeated.

python benchmarks/convergence.py [--steps 1000] [--seeds 0 1 2] [--only qsgd nuqsgd] [-o docs/results/convergence.json]
"""

import argparse
from pathlib import Path

import torch

from thinwire.bench.convergence import CODECS, measure


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--only", nargs="+", default=list(CODECS), help="codecs of the table")
    options.add_argument("-o", "--output", type=Path, default=Path("docs/results/convergence.json"))
    chosen = options.parse_args()
    torch.set_num_threads(1)
    measure(chosen.only, chosen.seeds, chosen.steps, chosen.output)


if __name__ == "__main__":
    main()
