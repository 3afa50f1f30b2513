"""The words and figures of the page: headline cards, notices, the final table, and how to repeat it all."""

import json
from collections.abc import Sequence
from html import escape

from thinwire.report.contenders import Contender, ranked
from thinwire.report.palette import BASELINE
from thinwire.report.record import Run
from thinwire.report.standings import Spread
from thinwire.report.wording import join_words, show_bytes, show_percent, show_seconds, show_times

EQUAL_ACCURACY = 0.005  # below uncompressed training by no more than this counts as equal
MACHINE_WORDS = {"memory_bytes": "memory", "native": "compiled kernels"}


def plain_contender(contenders: Sequence[Contender]) -> Contender | None:
    """Uncompressed training, which the others are measured against."""
    by_label = {c.label: c for c in contenders}
    return next((c for label in (BASELINE, "ddp") if (c := by_label.get(label)) and c.standing.step_seconds), None)


def headline_cards(contenders: Sequence[Contender]) -> str:
    plain = plain_contender(contenders)
    codecs = [c for c in contenders if not c.standing.baseline and c is not plain]
    cards = [
        speed_card(codecs, plain),
        *bytes_card(codecs),
        *target_card(codecs, plain),
        *losers_card(contenders, plain),
    ]
    return "\n".join(
        f'<div class="card {kind}"><p class="what">{what}</p><p class="figure">{figure}</p><p>{words}</p></div>'
        for kind, what, figure, words in filter(None, cards)
    )


Card = tuple[str, str, str, str]  # kind, what it is about, the figure, one sentence


def speed_card(codecs: Sequence[Contender], plain: Contender | None) -> Card | None:
    """The fastest codec, at equal accuracy where accuracy is known."""
    base = plain.standing.accuracy if plain else None
    fair = [c for c in codecs if base is None or is_equal(c.standing.accuracy, base)]
    first = next(iter(ranked(fair, lambda s: s.speed_up)), None)
    if plain is None or (first is None and not codecs):
        return None
    fairly = "" if base is None else f", at equal accuracy (at most {100 * EQUAL_ACCURACY:g} points lower)"
    if first is None or (first.standing.speed_up or 0) <= 1:
        return "bad", "Best codec", "none", f"No codec is faster than <b>{escape(plain.label)}</b> here{fairly}."
    words = (
        f"faster over the whole training than <b>{escape(plain.label)}</b> with <b>{escape(first.label)}</b>{fairly}."
    )
    return "good", "Best codec", show_times(first.standing.speed_up), words


def is_equal(accuracy: Spread | None, base: Spread) -> bool:
    return accuracy is not None and accuracy.mean >= base.mean - EQUAL_ACCURACY


def bytes_card(codecs: Sequence[Contender]) -> list[Card]:
    return [
        ("", "Fewest bytes", show_times(c.standing.wire_ratio), f"fewer than fp32 with <b>{escape(c.label)}</b>: "
         f"{show_bytes(c.standing.bytes_per_step)} a step from each rank.")
        for c in ranked(codecs, lambda s: s.wire_ratio)[:1]
    ]  # fmt: skip


def target_card(codecs: Sequence[Contender], plain: Contender | None) -> list[Card]:
    """Who is first at the accuracy that was asked for."""
    first = next(iter(ranked(codecs, lambda s: -s.seconds_to_target if s.seconds_to_target else None)), None)
    if first is None:
        return []
    target = first.logs[0].run.target_accuracy
    base = plain.standing.seconds_to_target if plain else None
    than = f"; <b>{escape(plain.label)}</b> takes {show_seconds(base)}" if plain and base else ""
    words = f"of training until {show_percent(target)} with <b>{escape(first.label)}</b>{than}."
    return [("", "First at the target", show_seconds(first.standing.seconds_to_target), words)]


def losers_card(contenders: Sequence[Contender], plain: Contender | None) -> list[Card]:
    slow = [c for c in contenders if c.standing.speed_up is not None and c.standing.speed_up < 1 and c is not plain]
    if plain is None or not slow:
        return []
    names = join_words([f"<b>{escape(c.label)}</b>" for c in slow])
    verb = "is" if len(slow) == 1 else "are"
    return [
        (
            "bad",
            "Slower than no compression",
            str(len(slow)),
            f"{names} {verb} slower over the whole training than {escape(plain.label)}.",
        )
    ]


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


COLUMNS = (
    ("Codec", "the chain that gradients go through"),
    ("Step", "median over the steps after the first few"),
    ("Samples/s", "all ranks together"),
    ("Mean step", "the whole training divided by its steps, a codec's warm-up included"),
    ("Speed-up", "over uncompressed training, whole against whole; below it that of the median steps"),
    ("Bytes/step", "sent by one rank, measured"),
    ("Wire ratio", "bytes of an fp32 ring all-reduce / bytes sent"),
    ("Accuracy", "on the test part at the end: mean ± standard deviation over the seeds"),
    ("Test loss", "at the end: mean ± standard deviation over the seeds"),
    ("To target", "seconds of training until the target accuracy"),
    ("Error", "relative error of the averaged gradient"),
    ("Runs", "that ended well"),
)


def final_table(contenders: Sequence[Contender]) -> str:
    """One row a contender, fastest first; failed ones last, with their error."""
    if not contenders:
        return ""
    plain = plain_contender(contenders)
    rows = sorted(contenders, key=lambda c: (c.standing.mean_seconds is None, c.standing.mean_seconds or 0))
    head = "".join(
        f'<th scope="col" title="{why}" aria-sort="none"><button type="button">{name}</button></th>'
        for name, why in COLUMNS
    )
    return f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(table_row(c, plain) for c in rows) + "\n</tbody>"


def table_row(c: Contender, plain: Contender | None) -> str:
    s = c.standing
    chain = f"<small>{escape(s.codec)}</small>" if s.codec != s.label else ""
    error = f'<small class="bad">failed: {escape(s.error)}</small>' if s.error else ""
    momentum = "<small>momentum in the chain, none in the optimiser</small>" * (s.momentum == "chain")
    steady = f"<small>steady {show_times(s.steady_speed_up)}</small>" * (c is not plain and bool(s.steady_speed_up))
    slower = s.speed_up is not None and s.speed_up < 1 and c is not plain
    base = plain.standing.accuracy if plain and plain is not c else None
    reached = f"<small>{s.reached_target} of {s.runs} seeds</small>" if 0 < s.reached_target < s.runs else ""
    cells = [
        cell(s.step_seconds, show_seconds(s.step_seconds)),
        cell(s.samples_per_second, "–" if s.samples_per_second is None else f"{s.samples_per_second:.1f}"),
        cell(s.mean_seconds, show_seconds(s.mean_seconds)),
        cell(s.speed_up, show_times(s.speed_up) + steady + "<small>slower</small>" * slower, "bad" if slower else ""),
        cell(s.bytes_per_step, show_bytes(s.bytes_per_step)),
        cell(s.wire_ratio, show_times(s.wire_ratio)),
        accuracy_cell(s.accuracy, base),
        cell(s.test_loss.mean if s.test_loss else None, show_spread(s.test_loss, 1, 3)),
        cell(s.seconds_to_target, "not reached" if is_missed(c) else show_seconds(s.seconds_to_target) + reached),
        cell(s.relative_error, "–" if s.relative_error is None else f"{s.relative_error:.3g}"),
        cell(len(c.logs), f"{s.runs} of {len(c.logs)}"),
    ]
    swatch = f'<i class="swatch" style="background:var(--{c.look.token})"></i>'
    return f'<tr><th scope="row">{swatch}{escape(s.label)}{chain}{momentum}{error}</th>{"".join(cells)}</tr>'


def is_missed(c: Contender) -> bool:
    return c.standing.runs > 0 and c.standing.reached_target == 0 and c.logs[0].run.target_accuracy is not None


def cell(value: float | None, shown: str, kind: str = "") -> str:
    order = "" if value is None else f' data-order="{value:.9g}"'
    return f"<td{order}{f' class={kind}' if kind else ''}>{shown}</td>"


def accuracy_cell(accuracy: Spread | None, base: Spread | None) -> str:
    if accuracy is None:
        return cell(None, "–")
    worse = base is not None and not is_equal(accuracy, base)
    beside = f"<small>{100 * (accuracy.mean - base.mean):+.2f} points</small>".replace("-", "−") if base else ""
    return cell(accuracy.mean, show_spread(accuracy, 100, 2, " %") + beside, "bad" if worse else "")


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
    return escape(f"{model} · {run.hosts} hosts, {link} · {run.ranks} ranks · {seeds} seed{'s' * (seeds > 1)}")


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
