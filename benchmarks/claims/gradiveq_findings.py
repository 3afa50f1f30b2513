"""What the measurements of GradiVeQ say about the paper's claims."""

import math
from collections.abc import Sequence

from benchmarks.claims.aggregation import RESULTS, order_of_times
from benchmarks.claims.findings import Claim, Figures, Finding, percent, short, verdict
from benchmarks.claims.gradiveq import (
    DEFAULT,
    FORMS,
    LINEAR,
    PAPER,
    WINDOW,
    Ages,
    Sweep,
    hop_errors,
    linearity,
    ring_deviation,
)
from benchmarks.claims.recording import Recording

NAME = "GradiVeQ"
MOST_LOST = 0.2  # the `limit` of the preset, above which ranks vote for a new basis


def linear_finding(recordings: Sequence[Recording]) -> Finding:
    """Linearity, the ring, and what encoding at every hop costs."""
    finding = Finding("linearity", "Sums of compressed gradients")
    layers = [(r, max(r.series, key=lambda name: r.series[name][0].numel())) for r in recordings]
    worst = {codec: max(linearity(codec, layer, r.wide[:8]) for r, layer in layers) for codec in LINEAR}
    ring = max(ring_deviation(LINEAR[0], layer, r.wide[:8]) for r, layer in layers)
    ranks = len(recordings[0].wide[0].gradients)
    finding.claims += [
        Claim(
            NAME,
            "sum Q(g_i) = Q(sum g_i)",
            "exact",
            f"largest deviation {short(worst[LINEAR[0]])} of the largest number ({ranks} ranks, fp32)",
            verdict([worst[LINEAR[0]] < 1e-5]),
        ),
        Claim(
            NAME,
            "the pipelined ring gives what an all-reduce gives",
            "equal",
            f"largest deviation {short(ring)}",
            verdict([ring < 1e-5]),
        ),
    ]
    rows = [[f"`{codec}`", short(value)] for codec, value in worst.items()]
    finding.figures.append(Figures("Largest deviation of sum Q(g_i) from Q(sum g_i)", ("chain", "deviation"), rows))
    times, ordered = order_of_times(RESULTS)
    hops = [(r, hop_errors(layer, r.wide, "qsgd(bits=4)")) for r, layer in layers]
    finding.claims.append(
        Claim(
            NAME,
            "8x, and faster aggregation than 4-bit QSGD at the same ratio, because encoding overlaps with the ring",
            "aggregation 5.25x faster than fp32; QSGD takes almost twice as long",
            f"{times} (`thinwire bench aggregation`). Energy lost by 4-bit QSGD encoded at every hop, and by"
            " shards encoded twice: "
            + "; ".join(f"{percent(e['ring'])}, {percent(e['sharded'])} ({r.name})" for r, e in hops)
            + "; the ring of `pca` loses nothing on its way but rounding",
            ordered,
        )
    )
    return finding


def order_finding(sweeps: Sequence[Sweep]) -> Finding:
    """Energy lost by slice length and order."""
    finding = Finding("order", "GradiVeQ: slice length and order of a layer's numbers", plot="order")
    finding.explanation = (
        "Share of the energy that a basis of 100 steps loses in the 20 steps behind them. Dotted lines mark multiples"
        " of F·D (filters times input channels), in a matrix of F. All points of a panel send as many coefficients, but"
        " for the filling of the last slice. The best K of the table is chosen on the steps it is measured on, for all"
        " forms alike; `pca` itself takes the length of a filter."
    )
    kernels = [s for s in sweeps if "conv" in s.title] or list(sweeps)
    finding.claims.append(
        Claim(
            NAME,
            "strong correlation only with the filter index fastest and K a multiple of F·D",
            "sharp minima at multiples of F·D",
            "; ".join(
                f"{s.title}: at multiples of F·D {short(1 / dip(s, PAPER))} times less loss than beside them; best K:"
                f" {percent(best(s, PAPER))} lost, order `rows` with all slices {percent(best(s, DEFAULT))}"
                for s in kernels
            )
            + (". The order is not needed" if all(best(s, DEFAULT) < best(s, PAPER) for s in kernels) else ""),
            verdict([case for s in kernels for case in (dip(s, PAPER) < 0.9, best(s, PAPER) <= best(s, DEFAULT))]),
        )
    )
    rows = [
        [f"{s.title}: {form}", percent(best(s, form)), str(s.lengths[_finite(s.lost[form]).index(best(s, form))])]
        for s in sweeps
        for form in FORMS
    ]
    finding.figures.append(Figures("Least energy lost, and the K it needs", ("layer and form", "lost", "K"), rows))
    for s in sweeps:
        winner = min(FORMS, key=lambda form: best(s, form))
        finding.losses += [
            f"{s.title}: {form} loses {percent(best(s, form))} at its best K; {winner} loses"
            f" {percent(best(s, winner))} for as many bytes."
            for form in (PAPER, DEFAULT)
            if form != winner
        ]
    return finding


def dip(sweep: Sweep, form: str) -> float:
    """Mean loss at multiples of F·D relative to the mean loss within a tenth of F·D beside them."""
    at: list[float] = []
    beside: list[float] = []
    for length, value in zip(sweep.lengths, sweep.lost[form], strict=True):
        off = abs(length - round(length / sweep.period) * sweep.period)
        if length >= 0.9 * sweep.period and off <= 0.1 * sweep.period and not math.isnan(value):
            (at if off == 0 else beside).append(value)
    return (sum(at) / len(at)) / (sum(beside) / len(beside)) if at and beside else 1.0


def best(sweep: Sweep, form: str) -> float:
    return min(_finite(sweep.lost[form]))


def _finite(values: Sequence[float]) -> list[float]:
    return [math.inf if math.isnan(value) else value for value in values]


def age_finding(found: Sequence[Ages]) -> Finding:
    """Energy lost by the age of the basis."""
    finding = Finding("age", "GradiVeQ: the age of a basis", plot="age")
    finding.explanation = (
        "Share of the energy of all layers that a basis of 100 steps loses, by the number of steps since, at ratio 8."
        f" Each point is a mean of {WINDOW} steps. The learning rate falls to 0 until the end of each recording, which"
        " makes late bases last longer than they would at a constant rate."
    )
    rows = []
    for ages in found:
        for label, curve in ages.curves.items():
            span = (len(curve) - 1) * WINDOW
            rows.append([ages.title, label, percent(curve[0]), percent(curve[-1]), str(span)])
    finding.figures.append(Figures("Energy lost by a fresh basis and by an old one",
        ("recording", "form", "fresh", "old", "age of the old, steps"), rows))  # fmt: skip
    spans = [
        f"{ages.title}, {label}: {percent(curve[0])} lost, {percent(curve[-1])} after {(len(curve) - 1) * WINDOW} steps"
        for ages in found
        for label, curve in ages.curves.items()
    ]
    finding.claims.append(
        Claim(
            NAME,
            "the basis persists in time",
            "about 400 iterations",
            "; ".join(spans) + f". The rule here: at most {percent(MOST_LOST)} lost at the end. Only one recording has"
            " 400 steps behind a basis",
            verdict([curve[-1] <= MOST_LOST for ages in found for curve in ages.curves.values()]),
        )
    )
    for ages in found:
        for label, curve in ages.curves.items():
            if curve[-1] > MOST_LOST:
                finding.losses.append(
                    f"{ages.title}, {label}: the fresh basis loses {percent(curve[0])} of the energy, the old one"
                    f" {percent(curve[-1])}."
                )
    return finding
