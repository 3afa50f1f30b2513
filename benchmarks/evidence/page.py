"""The table of evidence: every codec beside the uncompressed run, at equal steps and at equal bytes."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.evidence.figures import Figures, Plain, compare, shown_gain, shown_with_spread
from benchmarks.evidence.runs import Run, age
from benchmarks.evidence.tasks import TASKS, Line, Task, shorter

SEEDS = 3  # of a complete table
KINDS = {"": "", "paper": "paper's setting", "gentle": "gentler", "tried": "tried for Adam"}


def page(runs: Sequence[Run], command: str) -> str:
    """The whole text; only seeds that the uncompressed run has too are compared."""
    parts = ["# Evidence", _introduction(command)]
    for task in TASKS.values():
        mine = [run for run in runs if run.task == task.key]
        for steps in sorted({run.steps for run in mine if run.codec != "none"} | {task.steps}, reverse=True):
            parts += _section(task, steps, mine)
    return "\n\n".join([*parts, *_missing(runs)]) + "\n"


def _missing(runs: Sequence[Run]) -> list[str]:
    """What of the complete tables has not been run."""
    lines = []
    for task in TASKS.values():
        done = {(r.codec, r.seed, r.steps) for r in runs if r.task == task.key}
        seeds = [sum((c, seed, task.steps) in done for seed in range(SEEDS)) for c in task.lines]
        complete, begun = sum(n == SEEDS for n in seeds), sum(n > 0 for n in seeds)
        short = sum(("none", seed, steps) in done for seed in range(SEEDS) for steps in shorter(task.steps))
        wanted = SEEDS * len(shorter(task.steps))
        if complete < len(seeds) or short < wanted:
            lines.append(
                f"- {task.title}: {begun} of {len(seeds)} lines have been run, {complete} with {SEEDS} seeds;"
                f" {short} of {wanted} shorter uncompressed runs."
            )
    return ["## What is missing", "\n".join(lines)] if lines else []


def _introduction(command: str) -> str:
    return (
        f"Made by `{command}`: simulated ranks, which send the bytes that DDP would. *Fewer bytes* is what an fp32"
        " all-reduce of all parameters sends, divided by what was sent in the whole run. Figures are of test data, the"
        " mean over the seeds, ± their standard deviation (none with one seed).\n\n"
        "*Gain at equal steps* is the difference from the uncompressed run. *Gain at equal bytes* is the difference"
        " from an uncompressed run that ends after as many bytes, with a learning-rate schedule of its own. For this"
        " there are uncompressed runs of 1/2, 1/4 and so on to 1/64 of the steps; between them the figure is"
        " interpolated by the logarithm of the bytes. Where a codec sends fewer bytes than the shortest of them, that"
        " one is taken, which favours the uncompressed run. Positive gains are better; **bold** ones are worse by more"
        " than two deviations of the uncompressed seeds, or by any amount where there is one seed.\n\n"
        "*Paper's setting* is the ratio, theta, density or number of bits that the paper of the system reports, with"
        " this library's defaults otherwise; *gentler* is what we would take instead."
    )


def _section(task: Task, steps: int, runs: Sequence[Run]) -> list[str]:
    plain = Plain.of(runs, task.key, steps)
    if not plain.full:
        return []
    short = f" This is shorter than the {task.steps:,} steps of the complete table." if steps < task.steps else ""
    lines = [
        f"| codec | | fewer bytes | {task.figure} | gain at equal steps | gain at equal bytes | seeds |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    mine = [run for run in runs if run.steps == steps]
    for codec in dict.fromkeys([*task.lines, *(run.codec for run in mine)]):
        if (figures := compare(task, codec, runs, plain, steps)) is not None:
            lines.append(_row(task, codec, figures))
    recipe = task.recipe
    rate = f"Learning rate {recipe.lr:g}, falling as a cosine after a warm-up of {recipe.warmup} steps."
    told = f"{task.told} {rate} {steps:,} steps, seeds {', '.join(map(str, sorted(plain.full)))}.{short}"
    return [f"## {task.title}: {steps:,} steps", told, "\n".join(lines), f"Made by: {_made_with(mine)}."]


def _row(task: Task, codec: str, figures: Figures) -> str:
    gains = (figures.gain, figures.gain_at_bytes)
    cells = [
        f"`{codec}`".replace("|", "\\|"),
        ", ".join(filter(None, (KINDS[task.lines.get(codec, Line()).kind], age(figures.runs)))),
        f"{figures.ratio:.1f} ×",
        shown_with_spread(task, figures.values),
        *("" if codec == "none" else shown_gain(task, figures, gain) for gain in gains),
        str(len(figures.runs)),
    ]
    return "| " + " | ".join(cells) + " |"


def _made_with(runs: Sequence[Run]) -> str:
    """The versions that the runs of a table were made with."""
    kinds = Counter(f"thinwire {run.thinwire}, torch {run.torch}, {run.date}" for run in runs if run.thinwire)
    kinds["a version that was not recorded"] = sum(run.thinwire is None for run in runs)
    return "; ".join(f"{count} runs with {kind}" for kind, count in kinds.most_common() if count)
