"""The table of evidence: every codec beside the uncompressed run, at equal steps and at equal bytes."""

from collections import Counter
from collections.abc import Sequence
from statistics import mean, stdev

from benchmarks.evidence.runs import Run, is_stale
from benchmarks.evidence.tasks import TASKS, Line, Task

SEEDS = 3  # of a complete table
KINDS = {"": "", "paper": "paper's setting", "gentle": "gentler", "tried": "tried for Adam"}


def page(runs: Sequence[Run], command: str) -> str:
    """The whole text; only seeds that the uncompressed run has too are compared."""
    parts = ["# Evidence", _introduction(command)]
    for task in TASKS.values():
        for steps in sorted({run.steps for run in runs if run.task == task.key}, reverse=True):
            parts += _section(task, steps, [r for r in runs if r.task == task.key and r.steps == steps])
    return "\n\n".join([*parts, *_missing(runs)]) + "\n"


def _missing(runs: Sequence[Run]) -> list[str]:
    """What of the complete tables has not been run."""
    lines = []
    for task in TASKS.values():
        seeds = [
            len({r.seed for r in runs if (r.task, r.codec, r.steps) == (task.key, c, task.steps)}) for c in task.lines
        ]
        complete, begun = sum(n >= SEEDS for n in seeds), sum(n > 0 for n in seeds)
        if complete < len(seeds):
            lines.append(f"- {task.title}: {begun} of {len(seeds)} lines have been run, {complete} with {SEEDS} seeds.")
    return ["## What is missing", "\n".join(lines)] if lines else []


def _introduction(command: str) -> str:
    return (
        f"Made by `{command}`: simulated ranks, which send the bytes that DDP would. Each figure is the mean"
        " over the seeds, ± their standard deviation (none with one seed). *At equal bytes* is the difference from the"
        " uncompressed run after as many bytes, interpolated between its evaluations; that run is then in the middle"
        " of its learning-rate schedule, which favours the compressed one. Where it had not been evaluated"
        " after so few bytes, its first evaluation is taken, which favours the uncompressed one. Positive gains are"
        " better; **bold** ones are worse by more than two deviations of the uncompressed seeds, or by any amount where"
        " there is one seed."
    )


def _section(task: Task, steps: int, runs: Sequence[Run]) -> list[str]:
    plain = {run.seed: run for run in runs if run.codec == "none"}
    if not plain:
        return []
    spread = stdev([run.final for run in plain.values()]) if len(plain) > 1 else 0.0
    short = f" This is shorter than the {task.steps:,} steps of the complete table." if steps < task.steps else ""
    lines = [
        f"| codec | | fewer bytes | {task.figure} | gain at equal steps | gain at equal bytes | seeds |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for codec in dict.fromkeys([*task.lines, *(run.codec for run in runs)]):
        mine = [run for run in runs if run.codec == codec and run.seed in plain]
        if mine:
            lines.append(_row(task, codec, mine, plain, 2 * spread))
    told = f"{task.told} {steps:,} steps, seeds {', '.join(map(str, sorted(plain)))}.{short}"
    return [f"## {task.title}: {steps:,} steps", told, "\n".join(lines), f"Made by: {_made_with(runs)}."]


def _row(task: Task, codec: str, mine: Sequence[Run], plain: dict[int, Run], allowed: float) -> str:
    sign = 1 if task.figure == "accuracy" else -1
    gain = mean(sign * (run.final - plain[run.seed].final) for run in mine)
    equal = mean(sign * (run.final - at_bytes(plain[run.seed], run.curve[-1][1])) for run in mine)
    figures = [run.final for run in mine]
    deviation = f" ± {_shown(task, stdev(figures))}" if len(figures) > 1 else ""
    shown = f"{'+' if gain >= 0 else '−'}{_shown(task, abs(gain))}"
    cells = [
        f"`{codec}`".replace("|", "\\|"),
        ", ".join(filter(None, (KINDS[task.lines.get(codec, Line()).kind], _age(mine)))),
        f"{mean(run.ratio for run in mine):.1f} ×",
        f"{_shown(task, mean(figures))}{deviation}",
        "" if codec == "none" else f"**{shown}**" if gain < -allowed else shown,
        "" if codec == "none" else f"{'+' if equal >= 0 else '−'}{_shown(task, abs(equal))}",
        str(len(mine)),
    ]
    return "| " + " | ".join(cells) + " |"


def _age(runs: Sequence[Run]) -> str:
    """A word on runs whose codec stands for another chain now, or of which that is not known."""
    if any(is_stale(run) for run in runs):
        return "made with other defaults"
    return "" if all(run.chain for run in runs) else "made with unknown defaults"


def _made_with(runs: Sequence[Run]) -> str:
    """The versions that the runs of a table were made with."""
    kinds = Counter(f"thinwire {run.thinwire}, torch {run.torch}, {run.date}" for run in runs if run.thinwire)
    kinds["a version that was not recorded"] = sum(run.thinwire is None for run in runs)
    return "; ".join(f"{count} runs with {kind}" for kind, count in kinds.most_common() if count)


def at_bytes(run: Run, sent: float) -> float:
    """The figure of a run after so many bytes, linear between evaluations; before the first one, that of the first."""
    before = run.curve[0]
    for point in run.curve:
        if point[1] >= sent:
            share = (sent - before[1]) / (point[1] - before[1]) if point[1] > before[1] else 1.0
            return before[2] + max(0.0, share) * (point[2] - before[2])
        before = point
    return before[2]


def _shown(task: Task, value: float) -> str:
    return f"{100 * value:.2f} %" if task.figure == "accuracy" else f"{value:.3f}"
