"""Trains at the papers' own settings and at gentler ones, and writes docs/results/evidence.jsonl and evidence.md.

python -m benchmarks.evidence --images cifar10-20k.npz --text state-of-the-union.txt.xz [--tasks text] [--seeds 0]
python -m benchmarks.evidence --table    (trains nothing, prints the short table of the README from the file)

Runs that are in the file already are not repeated, so the command can be stopped and started again. All seeds of one
codec come after the first seed of all codecs. Two of these commands can work on one file at the same time, with other
`--tasks`; all of it then takes somewhat over an hour on 2 cores that do nothing else (an estimate).
"""

import argparse
from pathlib import Path

import torch

from benchmarks.evidence.page import page
from benchmarks.evidence.runs import add_run, data_of, is_done, read_runs, train
from benchmarks.evidence.table import table
from benchmarks.evidence.tasks import TASKS, shorter

COMMAND = "python -m benchmarks.evidence --images cifar10-20k.npz --text state-of-the-union.txt.xz"  # for the page


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", help="CIFAR-10 as a path; needed for the task images")
    options.add_argument("--text", help="a text file, also .gz or .xz; needed for all other tasks")
    options.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--steps", type=int, help="steps of every run in place of the task's own")
    options.add_argument("--only", nargs="+", help="codecs of the table; all unless given")
    options.add_argument("-o", "--output", type=Path, default=Path("docs/results/evidence.jsonl"))
    options.add_argument("--table", action="store_true", help="only print the short table of the runs in the file")
    chosen = options.parse_args()
    if chosen.table:
        print(table(read_runs(chosen.output)))
        return
    sources = {"images": chosen.images, "text": chosen.text}
    for key in chosen.tasks:
        kind = TASKS[key].data
        if sources[kind] is None:
            options.error(f"the task {key} needs data: give --{kind} PATH, or leave the task out with --tasks.")
    torch.set_num_threads(1)
    for seed in chosen.seeds:
        for key in chosen.tasks:
            measure(key, sources[TASKS[key].data], seed, chosen)
    print(page(read_runs(chosen.output), COMMAND))


def measure(key: str, source: str, seed: int, chosen: argparse.Namespace) -> None:
    """Train what is not in the file yet, and write the page after each run."""
    task, data = data_of(TASKS[key], source)
    full = chosen.steps or task.steps
    lines = [(codec, full) for codec in chosen.only or task.lines]
    if ("none", full) in lines:
        lines += [("none", steps) for steps in shorter(full)]
    for codec, steps in lines:
        if is_done(read_runs(chosen.output), key, codec, seed, steps):
            continue
        run = train(task, codec, seed, steps, data)
        add_run(chosen.output, run)
        print(
            f"{key} {codec} seed {seed}, {steps} steps: {run.final:.4f}, {run.ratio:.1f} times fewer bytes", flush=True
        )
        chosen.output.with_suffix(".md").write_text(page(read_runs(chosen.output), COMMAND))


if __name__ == "__main__":
    main()
