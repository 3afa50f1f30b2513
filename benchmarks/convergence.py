"""Accuracy through each codec: a small CNN on Fashion-MNIST, four simulated ranks, the same seeds as without one.

Where the chain has the momentum (`momentum=0.9`), the optimiser has none, so that all runs use the same momentum SGD.
Runs that are in the file already are not repeated. `--only` takes any codec.

python benchmarks/convergence.py [--steps 1000] [--seeds 0 1 2] [--only qsgd nuqsgd] [-o docs/results/convergence.json]
python benchmarks/convergence.py --steps 2000 --batch 8 --only none gradiveq "gradiveq | qsgd" -o gradiveq.json
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from thinwire import __version__
from thinwire_lab.bench.timing import circumstances
from thinwire_lab.recipes.compressed import CompressedAverage
from thinwire_lab.recipes.data import Data
from thinwire_lab.recipes.recipe import RECIPES, Recipe, load_data
from thinwire_lab.recipes.simulated import train_simulated
from thinwire_lab.report.jsonl import read_document

# Codec, and the points of accuracy it may lose against none (mean of the seeds).
CODECS: dict[str, float | None] = {
    "none": 0.0,
    "fp16": 0.5,
    "qsgd": 0.5,
    "nuqsgd": 0.5,
    "onebit(momentum=0.9)": 0.5,
    "gradiveq": 1.0,
    "fftsgd(momentum=0.9)": 1.0,
    "powersgd(rank=4)": 1.5,
    "iwp(density=1/16)": 1.5,
    "iwp": None,
}
RANKS = 4
WRITER = "benchmarks/convergence.py"


@dataclass(frozen=True, kw_only=True)
class _Run:
    codec: str
    seed: int
    steps: int
    accuracy: float
    wire_ratio: float
    batch: int | None = None  # of a rank; None: that of the recipe
    thinwire: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Document:
    runs: list[_Run]


def train_once(text: str, seed: int, recipe: Recipe, data: Data) -> dict[str, Any]:
    """Final accuracy and bytes of one run."""
    recipe = replace(recipe, seed=seed, momentum=0.0 if "momentum=" in text else recipe.momentum)
    average = CompressedAverage(text, RANKS, seed)
    run = train_simulated(recipe, RANKS, average, data=data)
    ratio = average.wire_ratio(dict(run.model.named_parameters()))
    found = {"codec": text, "seed": seed, "steps": recipe.steps, "accuracy": run.accuracy, "wire_ratio": ratio}
    return found | {"batch": recipe.batch, "thinwire": __version__}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a codec: accuracies by seed beside those of none, and what may be lost."""
    rows = []
    plain = {run["seed"]: run["accuracy"] for run in runs if run["codec"] == "none"}
    for text in dict.fromkeys([*CODECS, *(run["codec"] for run in runs)]):
        allowed = CODECS.get(text)
        mine = {run["seed"]: run for run in runs if run["codec"] == text and run["seed"] in plain}
        if mine:
            seeds = sorted(mine)
            lost = 100 * sum(plain[s] - mine[s]["accuracy"] for s in seeds) / len(seeds)
            rows.append(
                {
                    "codec": text,
                    "accuracies": [mine[s]["accuracy"] for s in seeds],
                    "none": [plain[s] for s in seeds],
                    "points_lost": round(lost, 2),
                    "points_allowed": allowed,
                    "wire_ratio": sum(mine[s]["wire_ratio"] for s in seeds) / len(seeds),
                }
            )
    return rows


def measure(codecs: Sequence[str], seeds: Sequence[int], steps: int, output: Path, batch: int | None = None) -> None:
    """Train what is not in the file yet; after each run the file is complete, and another process may add to it."""
    recipe = replace(RECIPES["fashion-tiny"], steps=steps)
    recipe = replace(recipe, batch=batch or recipe.batch)
    wanted = (steps, recipe.batch)
    data = load_data(recipe)
    for seed in seeds:
        for text in codecs:
            done = [r for r in read_runs(output) if (r["steps"], r["batch"] or recipe.batch) == wanted]
            if any((r["codec"], r["seed"]) == (text, seed) for r in done):
                continue
            run = train_once(text, seed, recipe, data)
            shown = f"{100 * run['accuracy']:.2f} %, {run['wire_ratio']:.1f}x fewer bytes"
            print(f"{text:45} seed {seed}: {shown}", flush=True)
            write_runs(output, [*read_runs(output), run])


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The runs in a file; none if there is no file."""
    return [asdict(run) for run in read_document(path, _Document, WRITER).runs] if path.exists() else []


def write_runs(path: Path, runs: list[dict[str, Any]]) -> None:
    """Replace the file in one go: several of these may run at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    document = {"circumstances": circumstances(), "summary": summary(runs), "runs": runs}
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--batch", type=int, help="images of a rank in a step; those of the recipe unless given")
    options.add_argument("--only", nargs="+", default=list(CODECS), help="codecs in place of those of the table")
    options.add_argument("-o", "--output", type=Path, default=Path("docs/results/convergence.json"))
    chosen = options.parse_args()
    torch.set_num_threads(1)
    measure(chosen.only, chosen.seeds, chosen.steps, chosen.output, chosen.batch)


if __name__ == "__main__":
    main()
