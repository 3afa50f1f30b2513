"""Momentum in the chain of `iwp`, with and without factor masking, at densities from 1/4 to 1/1000.

An MLP on the packaged images of Fashion-MNIST, 4 simulated ranks, SGD whose momentum 0.9 is in the chain, in the
optimizer, or in both forms of the chain; some minutes on one core. Runs that are in the file are not repeated.

python -m benchmarks.masking [--steps 300] [--seeds 0 1 2] [-o docs/results/masking.jsonl]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch

from thinwire import Plan
from thinwire_lab.recipes.compressed import CompressedAverage
from thinwire_lab.recipes.data import Data
from thinwire_lab.recipes.recipe import Recipe, load_data
from thinwire_lab.recipes.simulated import train_simulated
from thinwire_lab.report.jsonl import build, read_lines, to_line

RANKS = 4
DENSITIES = ("1/4", "1/16", "1/64", "1/256", "1/1000")
WARMUPS = (0, 100)
FORMS = {
    "in the optimizer": "",
    "in the chain": ", momentum=0.9, masking=false",
    "in the chain, masked": ", momentum=0.9, masking=true",
}
WRITER = "python -m benchmarks.masking"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished training."""

    codec: str
    seed: int
    steps: int
    accuracy: float
    ratio: float


def codec_of(density: str, warmup: int, form: str) -> str:
    return f"iwp(density={density}{f', warmup={warmup}' if warmup else ''}{FORMS[form]})"


def codecs() -> list[str]:
    """All of them; at 1/4 a warm-up changes nothing."""
    lines = [(d, w, f) for d in DENSITIES for w in WARMUPS for f in FORMS if not (w and d == DENSITIES[0])]
    return ["none", *(codec_of(*line) for line in lines)]


def train(codec: str, seed: int, steps: int, data: Data) -> Run:
    recipe = Recipe(model="mlp", model_options={"width": 64}, batch=16, lr=0.05, steps=steps, seed=seed)
    plan = Plan.parse(codec)
    average = CompressedAverage(plan, RANKS, seed)
    done = train_simulated(recipe, RANKS, average, data=data, plan=plan)
    ratio = average.wire_ratio(dict(done.model.named_parameters()))
    return Run(codec=codec, seed=seed, steps=steps, accuracy=done.accuracy, ratio=ratio)


def table(runs: Sequence[Run]) -> str:
    """Accuracies, mean and standard deviation over the seeds; the best form of each row is bold."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.codec, []).append(run)
    plain = found.get("none", [])
    lines = [f"`none`: {_shown(plain)}, {len(plain)} seeds", ""] if plain else []
    lines += ["| density | warm-up | fewer bytes | " + " | ".join(f"momentum {form}" for form in FORMS) + " |"]
    lines += ["|---|--:|--:|" + "--:|" * len(FORMS)]
    for warmup in WARMUPS:
        for density in DENSITIES:
            row = [found.get(codec_of(density, warmup, form), []) for form in FORMS]
            if all(row):
                best = max(mean(r.accuracy for r in each) for each in row)
                cells = [f"**{_shown(e)}**" if mean(r.accuracy for r in e) == best else _shown(e) for e in row]
                ratio = mean(run.ratio for run in row[-1])
                lines.append(f"| {density} | {warmup} | {ratio:.1f} × | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(runs: Sequence[Run]) -> str:
    figures = [100 * run.accuracy for run in runs]
    return f"{mean(figures):.2f}" + (f" ± {stdev(figures):.2f}" if len(figures) > 1 else "")


def read_runs(path: Path) -> list[Run]:
    return [build(Run, given) for _, given in read_lines(path, WRITER)] if path.exists() else []


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("-o", "--output", type=Path, default=Path("docs/results/masking.jsonl"))
    chosen = options.parse_args()
    torch.set_num_threads(1)
    data = load_data(Recipe(model="mlp"))
    for seed in chosen.seeds:
        for codec in codecs():
            if not any((r.codec, r.seed, r.steps) == (codec, seed, chosen.steps) for r in read_runs(chosen.output)):
                run = train(codec, seed, chosen.steps, data)
                chosen.output.parent.mkdir(parents=True, exist_ok=True)
                with chosen.output.open("a") as file:
                    file.write(to_line(run.__dict__).rstrip("\n") + "\n")
                print(f"{codec} seed {seed}: {100 * run.accuracy:.2f} %, {run.ratio:.1f} times fewer bytes", flush=True)
    print(table(read_runs(chosen.output)))


if __name__ == "__main__":
    main()
