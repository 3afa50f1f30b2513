"""Prints how fast every codec encodes and decodes, relative to Tensor.copy_ in the same run.

python benchmarks/kernels.py [--only qsgd] [--numel 16777216] [--threads 1]
"""

import argparse

from rich import print as show

from thinwire.bench.kernels import bench_kernels, kernel_table


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", help="codecs whose text contains this")
    options.add_argument("--numel", type=int, default=1 << 24, help="fp32 numbers; the default is 64 MiB")
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    show(kernel_table(bench_kernels(chosen.numel, chosen.threads, chosen.only)))


if __name__ == "__main__":
    main()
