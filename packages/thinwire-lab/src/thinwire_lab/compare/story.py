"""What a comparison came to, in the few lines that are printed last."""

from collections.abc import Sequence

from thinwire_lab.compare.session import Comparison
from thinwire_lab.report.standings import Standing, plain_standing, ranking
from thinwire_lab.report.wording import row_names, show_times


def story(rows: Sequence[Standing], comparison: Comparison) -> list[str]:
    """Sentences without a figure of speech; nobody is praised who learnt less than uncompressed training."""
    ended = sorted((row for row in rows if row.runs), key=ranking)
    plain = plain_standing(ended)
    names = dict(zip((row.label for row in rows), row_names([row.label for row in rows]), strict=True))
    if comparison.seconds is None:
        return _by_speed(ended, plain, names, comparison)
    measured = [row for row in reversed(ended) if row.accuracy is not None]
    if not measured:
        return []
    figures = ", ".join(f"{names[row.label]} {_percent(row, 0)}" for row in measured)
    lines = [f"After {comparison.seconds:g} s over {links_text(comparison)}: {figures}."]
    if comparison.target is not None:
        lines.append(_to_target(ended, plain, names, comparison))
    best = next((row for row in ended if not row.shortfall), None)
    if plain is not None and plain.accuracy is not None and best is not None and best.accuracy is not None:
        lines.append(_best_line(best, plain, names))
    return lines


def _best_line(best: Standing, plain: Standing, names: dict[str, str]) -> str:
    assert best.accuracy is not None
    assert plain.accuracy is not None
    points = 100 * (best.accuracy.mean - plain.accuracy.mean)
    if points <= 0:
        return f"No contender is more accurate than {names[plain.label]} after this time."
    sent = f" and {show_times(best.wire_ratio)} fewer bytes a step than fp32" if best.wire_ratio else ""
    return (
        f"{names[best.label]} is {points:.1f} points more accurate than {names[plain.label]} after the same time,"
        f" with {show_times(best.speed_up)} as many steps{sent}."
    )


def _to_target(ended: Sequence[Standing], plain: Standing | None, names: dict[str, str], comparison: Comparison) -> str:
    target = f"{100 * (comparison.target or 0.0):g} % accuracy"
    counted = [row for row in ended if not row.shortfall]
    times = {row.label: row.seconds_to_target for row in counted if row.seconds_to_target is not None}
    if not times:
        return f"{target}: not reached by any contender."
    first = min(times, key=lambda label: times[label])
    beside = ""
    if plain is not None and plain.label != first:
        late = f"after {times[plain.label]:.1f} s" if plain.label in times else "not reached"
        beside = f", {names[plain.label]} {late}"
    return f"{target}: {names[first]} after {times[first]:.1f} s{beside}."


def _by_speed(
    ended: Sequence[Standing], plain: Standing | None, names: dict[str, str], comparison: Comparison
) -> list[str]:
    if plain is None or plain.accuracy is None:
        return []
    place = f"After {comparison.recipe.steps} steps over {links_text(comparison)}"
    first = next((row for row in ended if not row.shortfall and (row.speed_up or 0.0) > 1), None)
    if first is None or first.label == plain.label:
        return [f"{place}: no contender is faster than {names[plain.label]} at equal accuracy."]
    return [
        f"{place}: {names[first.label]} is {show_times(first.speed_up)} as fast as {names[plain.label]}"
        f" at equal accuracy ({_percent(first, 1)} and {_percent(plain, 1)})."
    ]


def links_text(comparison: Comparison) -> str:
    return "plain loopback" if comparison.lab.is_loopback else f"links of {comparison.lab.links}"


def _percent(row: Standing, digits: int) -> str:
    return f"{100 * row.accuracy.mean:.{digits}f} %" if row.accuracy is not None else ""
