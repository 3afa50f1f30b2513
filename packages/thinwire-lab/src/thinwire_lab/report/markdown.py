"""The final table as Markdown, so that a page of documentation shows what was measured and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thinwire_lab.report.contenders import Contender, plain_contender, read_contenders
from thinwire_lab.report.decisions import decisions_markdown
from thinwire_lab.report.record import Run
from thinwire_lab.report.standings import ranking
from thinwire_lab.report.tables import machine_words, show_spread
from thinwire_lab.report.verdict import EQUAL_ACCURACY
from thinwire_lab.report.wording import show_bytes, show_seconds, show_times

SHOWN_OF_RECIPE = ("model", "model_options", "data", "batch", "steps", "optimizer", "lr", "momentum", "schedule")


def write_markdown(results: Path, output: Path) -> None:
    """Write the table of a file of results, who loses in it, and how to repeat it."""
    contenders = read_contenders(results)
    runs = [log.run for c in contenders for log in c.logs]
    parts = [f"# {heading(runs)}", circumstances(runs), table(contenders), *losing_cases(contenders)]
    parts += [*decisions_markdown(contenders), repeat(runs)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


def heading(runs: Sequence[Run]) -> str:
    if not runs:
        return "A comparison without runs"
    link = "plain loopback" if runs[0].link == "none" else f"links of {runs[0].link}"
    return f"{runs[0].recipe.get('name', 'A model')} on {runs[0].hosts} hosts, {link}"


def circumstances(runs: Sequence[Run]) -> str:
    """What was trained, and how to read the table."""
    if not runs:
        return ""
    run, seeds = runs[0], len({r.seed for r in runs})
    recipe = ", ".join(f"{key} {_option(run.recipe[key])}" for key in SHOWN_OF_RECIPE if run.recipe.get(key))
    equal = "equal steps" if run.seconds is None else f"{run.seconds:g} s of training"
    return (
        f"{run.parameters:,} parameters, {run.ranks} ranks, {seeds} seed{'s' * (seeds > 1)}; {recipe}.\n\n"
        "*Mean step* is the whole training divided by its steps, a codec's warm-up included, and *speed-up* compares"
        "\nthese means; *median step* is the steady state. *Sent* is the TCP payload of one rank, *ratio* the bytes of"
        f"\nan fp32 ring against it. Accuracy is that of the test part after {equal}, mean ± standard deviation over"
        "\nthe seeds, with the points above or below uncompressed training. A codec marked † has the momentum itself;"
        "\nthe optimiser then has none for what it compresses."
    )


def _option(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return Path(value).name if isinstance(value, str) else f"{value}"


COLUMNS: Mapping[str, Callable[[Contender, Contender | None], str]] = {
    "accuracy": lambda c, plain: show_spread(c.standing.accuracy, 100, 2, " %"),
    "points": lambda c, plain: "" if c is plain else points(c, plain),
    "to target": lambda c, plain: show_seconds(c.standing.seconds_to_target),
    "speed-up": lambda c, plain: show_times(c.standing.speed_up),
    "ratio": lambda c, plain: show_times(c.standing.wire_ratio),
    "sent a step": lambda c, plain: show_bytes(c.standing.bytes_per_step),
    "steps": lambda c, plain: "–" if c.standing.steps is None else f"{c.standing.steps:.0f}",
    "mean step": lambda c, plain: show_seconds(c.standing.mean_seconds),
    "median step": lambda c, plain: show_seconds(c.standing.step_seconds),
    "speed-up of it": lambda c, plain: show_times(c.standing.steady_speed_up),
}


def table(contenders: Sequence[Contender]) -> str:
    """One row a contender, in the order of the page; a column for the target only where there is one."""
    if not contenders:
        return ""
    plain = plain_contender(contenders)
    has_target = contenders[0].logs[0].run.target_accuracy is not None
    columns = {name: cell for name, cell in COLUMNS.items() if has_target or name != "to target"}
    lines = [" | ".join(["codec", *columns]), "|".join(["---", *("--:" for _ in columns)])]
    for c in sorted(contenders, key=lambda c: ranking(c.standing)):
        failed = ["failed", *[""] * (len(columns) - 1)]
        cells = [cell(c, plain) for cell in columns.values()] if c.standing.runs else failed
        lines.append(" | ".join([_codec(c), *cells]))
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


def _codec(c: Contender) -> str:
    return f"`{c.label}`".replace("|", r"\|") + " †" * (c.standing.momentum == "chain")


def points(c: Contender, plain: Contender | None) -> str:
    """Points of accuracy above or below uncompressed training."""
    base = plain.standing.accuracy if plain else None
    if c.standing.accuracy is None or base is None:
        return "–"
    return f"{100 * (c.standing.accuracy.mean - base.mean):+.2f}".replace("-", "−")


def losing_cases(contenders: Sequence[Contender]) -> list[str]:
    """Everyone who is slower, less accurate, failed or not finished, each with its figure."""
    plain = plain_contender(contenders)
    found = []
    for c in contenders:
        s = c.standing
        if s.error:
            found.append(f"{_codec(c)} failed: {s.error}")
        if c is not plain and s.speed_up is not None and s.speed_up < 1:
            found.append(f"{_codec(c)} is slower than uncompressed training: {show_times(s.speed_up)} its speed.")
        if s.shortfall:
            found.append(f"{_codec(c)} does not count: {s.shortfall}.")
        found += [f"{log.run.run} is not finished." for log in c.logs if log.summary is None]
    if not contenders:
        return []
    equal_time = contenders[0].logs[0].run.mode == "seconds"
    less = "less" if equal_time else f"more than {100 * EQUAL_ACCURACY:g} points less"
    rule = f"Slower than uncompressed training, or {less} accurate:"
    return ["## Who loses", rule, "\n".join(f"- {line}" for line in found) or "- nobody"]


def repeat(runs: Sequence[Run]) -> str:
    """The command, the versions and the machine."""
    if not runs:
        return ""
    commands = "\n".join(dict.fromkeys(run.command for run in runs))
    versions = ", ".join(f"{name} {version}" for name, version in runs[0].versions.items())
    return (
        "## How to repeat this\n\n<!-- not executed: takes as long as the comparison did -->\n"
        f"```sh\n{commands}\n```\n\n{versions}; {machine_words(runs[0])}; {min(run.started for run in runs)[:10]}."
    )
