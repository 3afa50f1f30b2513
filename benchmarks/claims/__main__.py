"""Measures the papers' claims on recorded gradients and writes docs/claims.md with its pictures.

python -m benchmarks.claims [--images cifar10.npz] [--text some.txt.xz] [--only variance]

With --only, one measurement is run, and its claims and tables are printed; no file is written.
"""

import argparse
import time
from pathlib import Path

import torch

from benchmarks.claims.measurements import MEASUREMENTS, measure_claims, public_circumstances, write_claims
from benchmarks.claims.page import claims_table, section
from benchmarks.claims.recording import record_all


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", default="fashion-subset", help="a data set of images; fashion-subset is packaged")
    options.add_argument("--text", help="a text file, also .gz or .xz; without it there is no transformer")
    options.add_argument("--output", type=Path, default=Path("docs/claims.md"))
    options.add_argument("--only", choices=list(MEASUREMENTS))
    chosen = options.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    print("recording gradients ...")
    recordings = record_all(chosen.images, chosen.text)
    findings, drawings = measure_claims(recordings, chosen.only)
    if chosen.only:
        print("\n\n".join([claims_table(findings), *(section(finding) for finding in findings)]))
        return
    about = public_circumstances() | {"processor time": f"{(time.process_time() - began) / 60:.1f} minutes, one thread"}
    notes = [f"Recorded: {', '.join(r.name for r in recordings)}."]
    if chosen.text is None:
        notes.append("No text was given (`--text`), so the transformer was left out.")
    write_claims(chosen.output, findings, drawings, about, notes)
    print(f"wrote {chosen.output}")


if __name__ == "__main__":
    main()
