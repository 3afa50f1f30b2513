"""The words and figures of the page: notices, the final table, and how to repeat it all."""

import json
from collections.abc import Sequence
from html import escape

from thinwire_lab.report.contenders import Contender, plain_contender
from thinwire_lab.report.record import Run
from thinwire_lab.report.standings import Spread, Standing, ranking
from thinwire_lab.report.wording import join_words, show_bytes, show_seconds, show_times

MACHINE_WORDS = {"memory_bytes": "memory", "native": "compiled kernels"}


def notices(contenders: Sequence[Contender]) -> str:
    """What a reader must know before believing the rest."""
    found = []
    if not contenders:
        found.append("There are no runs in these results yet.")
    found += [f"<b>{escape(c.label)}</b> failed: {escape(c.standing.error)}" for c in contenders if c.standing.error]
    stopped = [escape(log.run.run) for c in contenders for log in c.logs if log.summary is None]
    if stopped:
        found.append(f"Not finished: {join_words(stopped)}. Curves show what is there; the table leaves them out.")
    if contenders and plain_contender(contenders) is None:
        found.append("Uncompressed training is not among the finished runs, so there are no speed-ups.")
    return "\n".join(f'<p class="notice">{text}</p>' for text in found)


COLUMNS = (  # what decides comes first, so that it is seen without scrolling
    ("Codec", "the chain that gradients go through"),
    ("Accuracy", "on the test part at the end: mean ± standard deviation over the seeds"),
    ("To target", "seconds of training until the target accuracy"),
    ("Speed-up", "over uncompressed training, whole against whole; below it that of the median steps"),
    ("Wire ratio", "bytes of an fp32 ring all-reduce / bytes sent"),
    ("Bytes/step", "sent by one rank, measured"),
    ("Steps", "that were made"),
    ("Mean step", "the whole training divided by its steps, a codec's warm-up included"),
    ("Step", "median over the steps after the first few"),
    ("Samples/s", "all ranks together"),
    ("Test loss", "at the end: mean ± standard deviation over the seeds"),
    ("Error", "relative error of the averaged gradient"),
    ("Runs", "that ended well"),
)


def final_table(contenders: Sequence[Contender]) -> str:
    """One row a contender, the best first."""
    if not contenders:
        return ""
    plain = plain_contender(contenders)
    head = "".join(
        f'<th scope="col" title="{why}" aria-sort="none"><button type="button">{name}</button></th>'
        for name, why in COLUMNS
    )
    caption = "<caption>Accuracy, speed and bytes of every contender</caption>"
    rows = "\n".join(table_row(c, plain) for c in sorted(contenders, key=lambda c: ranking(c.standing)))
    return f"{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>"


def table_row(c: Contender, plain: Contender | None) -> str:
    s = c.standing
    steady = f"<small>steady {show_times(s.steady_speed_up)}</small>" * (c is not plain and bool(s.steady_speed_up))
    slower = s.speed_up is not None and s.speed_up < 1 and c is not plain
    base = plain.standing.accuracy if plain and plain is not c else None
    reached = f"<small>{s.reached_target} of {s.runs} seeds</small>" if 0 < s.reached_target < s.runs else ""
    cells = [
        accuracy_cell(s.accuracy, base),
        cell(s.seconds_to_target, "not reached" if is_missed(c) else show_seconds(s.seconds_to_target) + reached),
        cell(s.speed_up, show_times(s.speed_up) + steady + "<small>slower</small>" * slower, "bad" if slower else ""),
        cell(s.wire_ratio, show_times(s.wire_ratio)),
        cell(s.bytes_per_step, show_bytes(s.bytes_per_step)),
        cell(s.steps, "–" if s.steps is None else f"{s.steps:,.0f}"),
        cell(s.mean_seconds, show_seconds(s.mean_seconds)),
        cell(s.step_seconds, show_seconds(s.step_seconds)),
        cell(s.samples_per_second, "–" if s.samples_per_second is None else f"{s.samples_per_second:.1f}"),
        cell(s.test_loss.mean if s.test_loss else None, show_spread(s.test_loss, 1, 3)),
        cell(s.relative_error, "–" if s.relative_error is None else f"{s.relative_error:.3g}"),
        cell(len(c.logs), f"{s.runs} of {len(c.logs)}"),
    ]
    swatch = f'<i class="swatch" style="background:var(--{c.look.token})"></i>'
    grey = ' class="grey"' * bool(s.shortfall)
    head = f'<th scope="row">{swatch}{escape(s.label)}{row_notes(s)}</th>'
    return f"<tr{grey}>{head}{''.join(cells)}</tr>"


def row_notes(s: Standing) -> str:
    """What stands below a contender's name."""
    notes = [
        ("", s.codec if s.codec != s.label else ""),
        ("", s.shortfall),
        ("", "momentum in the chain, none in the optimiser" if s.momentum == "chain" else ""),
        ("bad", f"failed: {s.error}" if s.error else ""),
    ]
    return "".join(f"<small{f' class={kind}' if kind else ''}>{escape(text)}</small>" for kind, text in notes if text)


def is_missed(c: Contender) -> bool:
    return c.standing.runs > 0 and c.standing.reached_target == 0 and c.logs[0].run.target_accuracy is not None


def cell(value: float | None, shown: str, kind: str = "") -> str:
    order = "" if value is None else f' data-order="{value:.9g}"'
    return f"<td{order}{f' class={kind}' if kind else ''}>{shown}</td>"


def accuracy_cell(accuracy: Spread | None, base: Spread | None) -> str:
    if accuracy is None:
        return cell(None, "–")
    beside = f"<small>{100 * (accuracy.mean - base.mean):+.2f} points</small>".replace("-", "−") if base else ""
    return cell(accuracy.mean, show_spread(accuracy, 100, 2, " %") + beside)


def show_spread(spread: Spread | None, scale: float, digits: int, unit: str = "") -> str:
    if spread is None:
        return "–"
    about = f" ± {scale * spread.deviation:.{digits}f}" if spread.seeds > 1 else ""
    return f"{scale * spread.mean:.{digits}f}{about}{unit}"


def subtitle(runs: Sequence[Run]) -> str:
    """What was trained where, in one line."""
    if not runs:
        return ""
    run, seeds = runs[0], len({r.seed for r in runs})
    link = "plain loopback" if run.link == "none" else f"{run.link} links"
    model = f"{run.recipe.get('name', 'a model')}, {run.parameters:,} parameters".replace(
        ",", "\N{NARROW NO-BREAK SPACE}", 0
    )
    length = f"{run.recipe.get('steps', '?')} steps" if run.seconds is None else f"{run.seconds:g} s of training"
    parts = [
        model,
        f"{run.hosts} hosts, {link}",
        f"{run.ranks} ranks",
        f"{length} each",
        f"{seeds} seed{'s' * (seeds > 1)}",
    ]
    return escape(" · ".join(parts))


def facts(runs: Sequence[Run]) -> str:
    """Commands, versions and machine; where runs differ, each value is listed."""
    rows: list[tuple[str, list[str]]] = []
    for word, name in (
        ("Hosts", "hosts"),
        ("Ranks a host", "procs_per_host"),
        ("Link", "link"),
        ("Latency", "latency"),
    ):
        rows.append((word, [str(getattr(run, name)) for run in runs]))
    lengths = [f"{run.recipe.get('steps')} steps" if run.seconds is None else f"{run.seconds:g} s" for run in runs]
    rows.append(("Length of a run", lengths))
    rows.append(("Recipe", [", ".join(f"{key} {plainly(value)}" for key, value in run.recipe.items()) for run in runs]))
    rows.append(("Parameters", [f"{run.parameters:,}" for run in runs]))
    rows.append(("Versions", [", ".join(f"{key} {value}" for key, value in run.versions.items()) for run in runs]))
    rows.append(("Machine", [machine_words(run) for run in runs]))
    rows.append(("Started", sorted(run.started for run in runs)[:1]))
    listed = "".join(
        f"<dt>{word}</dt><dd>{'<br>'.join(map(escape, dict.fromkeys(said)))}</dd>" for word, said in rows if said
    )
    commands = "\n".join(dict.fromkeys(run.command for run in runs))
    return f'<pre tabindex="0"><code>{escape(commands)}</code></pre>\n<dl>{listed}</dl>' if runs else ""


def machine_words(run: Run) -> str:
    shown = {**run.machine}
    if isinstance(memory := shown.get("memory_bytes"), int | float):
        shown["memory_bytes"] = f"{memory / 2**30:.1f} GiB"
    return ", ".join(f"{MACHINE_WORDS.get(key, key)} {plainly(value)}" for key, value in shown.items())


def plainly(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
