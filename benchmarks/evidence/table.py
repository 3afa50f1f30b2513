"""The short table of the README: the four systems at the papers' own settings and gentler ones, images beside text."""

from collections.abc import Sequence

from benchmarks.evidence.figures import Figures, Plain, compare, shown_gain, shown_with_spread
from benchmarks.evidence.runs import Run, age
from benchmarks.evidence.tasks import TASKS, Line, Task

COLUMNS = (TASKS["images"], TASKS["text"])
# Names by which codecs begin: those of the four systems, and relatives that should be used in their place.
SYSTEMS = {
    "GradiVeQ": ("gradiveq", "powersgd"),
    "FFT": ("fftsgd", "topk"),
    "importance pruning": ("iwp",),
    "NUQSGD": ("nuqsgd", "qsgd", "alq"),
}
KINDS = {"paper": "paper's setting", "gentle": "gentler"}


def table(runs: Sequence[Run]) -> str:
    """Rows of what has been run at full length, and a sentence on what has not."""
    codecs = sorted({c: None for task in COLUMNS for c, line in task.lines.items() if line.kind in KINDS}, key=_order)
    found = {task.key: _figures(task, ["none", *codecs], runs) for task in COLUMNS}
    heads = [cell for task in COLUMNS for cell in (f"{task.data}: fewer bytes", task.figure, "at equal bytes")]
    lines = [f"| system | codec | {' | '.join(heads)} |", f"|---|---|{'--:|' * len(heads)}"]
    for codec in ("none", *codecs):
        if any(codec in figures for figures in found.values()):
            cells = [cell for task in COLUMNS for cell in _cells(task, codec, found[task.key])]
            lines.append(f"| {_name(codec)} | `{codec.replace('|', f'{chr(92)}|')}` | {' | '.join(cells)} |")
    return "\n\n".join(["\n".join(lines), *_said(found, codecs)])


def _figures(task: Task, codecs: Sequence[str], runs: Sequence[Run]) -> dict[str, Figures]:
    plain = Plain.of(runs, task.key, task.steps)
    compared = {codec: compare(task, codec, runs, plain, task.steps) for codec in codecs}
    return {codec: figures for codec, figures in compared.items() if figures is not None}


def _kind(codec: str) -> str:
    return next((task.lines[codec].kind for task in COLUMNS if task.lines.get(codec, Line()).kind in KINDS), "")


def _system(codec: str) -> str:
    return next((name for name, begins in SYSTEMS.items() if codec.startswith(begins)), "others")


def _order(codec: str) -> tuple[int, bool]:
    """Systems in the order of their names above, each with the paper's settings first; then the others."""
    return [*SYSTEMS, "others"].index(_system(codec)), _kind(codec) != "paper"


def _name(codec: str) -> str:
    return "uncompressed" if codec == "none" else f"{_system(codec)}, {KINDS[_kind(codec)]}"


def _cells(task: Task, codec: str, found: dict[str, Figures]) -> list[str]:
    """Fewer bytes, the figure at equal steps and the gain at equal bytes."""
    if (figures := found.get(codec)) is None:
        return ["–"] * 3 if codec in task.lines else [""] * 3
    value = shown_with_spread(task, figures.values)
    if len(figures.runs) < len(found["none"].runs):
        value += f" ({len(figures.runs)} of {len(found['none'].runs)} seeds)"
    return [
        f"{figures.ratio:.1f} ×",
        f"**{value}**" if figures.loses(figures.gain) else value,
        "" if codec == "none" else shown_gain(task, figures, figures.gain_at_bytes),
    ]


def _said(found: dict[str, dict[str, Figures]], codecs: Sequence[str]) -> list[str]:
    """How to read the table, what its seeds are, and what is missing or old."""
    seeds, missing, old = [], [], []
    for task in COLUMNS:
        mine = found[task.key]
        if "none" in mine:
            numbers = ", ".join(str(run.seed) for run in mine["none"].runs)
            seeds.append(f"{task.data}: {task.title}, {task.steps:,} steps, seeds {numbers}")
            missing += [f"{task.data} `{c}`" for c in codecs if c in task.lines and c not in mine]
        else:
            missing.append(f"{task.data} (nothing to compare with)")
        old += [f"{task.data} `{c}`" for c in codecs if c in mine and age(mine[c].runs)]
    told = (
        f"{'; '.join(seeds)}. Mean ± standard deviation over seeds. *At equal bytes*: gain over an uncompressed run"
        " that ends after as many bytes. **Bold**: worse than uncompressed by more than two deviations of its seeds,"
        " or by any amount where there is one seed."
    )
    return [
        *([told] if seeds else []),
        *([f"Not run: {', '.join(missing)}."] if missing else []),
        *([f"Made with other or unknown defaults: {', '.join(old)}."] if old else []),
    ]
