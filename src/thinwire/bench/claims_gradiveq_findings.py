"""What the measurements of GradiVeQ say about the paper's claims."""

import math
from collections.abc import Sequence

from thinwire.bench.claims_findings import UNMEASURED, Claim, Figures, Finding, percent, short, verdict
from thinwire.bench.claims_gradiveq import (
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
from thinwire.bench.claims_recording import Recording

NAME = "GradiVeQ"


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
    hops = [(r, hop_errors(layer, r.wide, "qsgd(bits=4)")) for r, layer in layers]
    finding.claims.append(
        Claim(
            NAME,
            "8x, and faster aggregation than 4-bit QSGD at the same ratio, because encoding overlaps with the ring",
            "aggregation 5.25x faster than fp32; QSGD takes almost twice as long",
            "no clock here: see the benchmark of collectives. Energy lost by 4-bit QSGD encoded at every hop, and by"
            " shards encoded twice: "
            + "; ".join(f"{percent(e['ring'])}, {percent(e['sharded'])} ({r.name})" for r, e in hops)
            + "; the ring of `pca` loses nothing on its way",
            UNMEASURED,
        )
    )
    return finding


def order_finding(sweeps: Sequence[Sweep]) -> Finding:
    """Energy lost by slice length and order."""
    finding = Finding("order", "GradiVeQ: slice length and order of a layer's numbers", plot="order")
    finding.explanation = (
        "Share of the energy that a basis of 100 steps loses in the 20 steps behind them. Dotted lines mark multiples"
        " of F·D (filters times input channels), in a matrix of F. All points of a panel send as many coefficients, but"
        " for the filling of the last slice."
    )
    first = sweeps[0]
    dips = {form: dip(first, form) for form in FORMS}
    finding.claims.append(
        Claim(
            NAME,
            "strong correlation only with the filter index fastest and K a multiple of F·D",
            "sharp minima at multiples of F·D (Fig. 4, 5)",
            f"first slice only: at multiples of F·D {short(1 / dips[PAPER])} times less loss than beside them; order"
            f" `rows` with all slices loses {percent(best(first, DEFAULT))} at its best K, the paper's form"
            f" {percent(best(first, PAPER))}",
            verdict([dips[PAPER] < 0.9, best(first, PAPER) <= best(first, DEFAULT)]),
        )
    )
    rows = [
        [f"{s.title}: {form}", percent(best(s, form)), str(s.lengths[_finite(s.lost[form]).index(best(s, form))])]
        for s in sweeps
        for form in FORMS
    ]
    finding.figures.append(Figures("Least energy lost, and the K it needs", ("layer and form", "lost", "K"), rows))
    for s in sweeps:
        if best(s, PAPER) > best(s, DEFAULT):
            finding.losses.append(
                f"{s.title}: the paper's order with the first slice as sample loses {percent(best(s, PAPER))} at its"
                f" best K; plain rows with all slices as samples lose {percent(best(s, DEFAULT))} for as many bytes."
            )
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
        f" Each point is a mean of {WINDOW} steps."
    )
    rows = []
    for ages in found:
        for label, curve in ages.curves.items():
            span = (len(curve) - 1) * WINDOW
            rows.append([ages.title, label, percent(curve[0]), percent(curve[-1]), str(span)])
    finding.figures.append(Figures("Energy lost by a fresh basis and by an old one",
        ("recording", "form", "fresh", "old", "age of the old, steps"), rows))  # fmt: skip
    early = next(iter(found[0].curves.values()))
    late = list(found[0].curves.values())[1]
    finding.claims.append(
        Claim(
            NAME,
            "the basis persists in time",
            "about 400 iterations",
            f"{found[0].title}, learnt from step 20: {percent(early[0])} lost at once, {percent(early[-1])} after"
            f" {(len(early) - 1) * WINDOW} steps; learnt in the middle of the run: {percent(late[0])}, then"
            f" {percent(late[-1])} after {(len(late) - 1) * WINDOW}",
            verdict([early[-1] < 0.2, late[-1] < 0.2]),
        )
    )
    for ages in found:
        for label, curve in ages.curves.items():
            if curve[0] > 0.3:
                finding.losses.append(
                    f"{ages.title}, {label}: even the fresh basis loses {percent(curve[0])} of the energy."
                )
    return finding
