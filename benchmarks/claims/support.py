"""Which numbers travel: the density of the exchanged support, and what importance costs against magnitude."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.claims.findings import Claim, Figures, Finding, percent, short, verdict
from benchmarks.claims.recording import Recording, compressible
from thinwire import Slot, simulate
from thinwire_lab.recipes.simulated import RecordedStep

RANKS = (2, 4, 8, 16)
DENSITY = "1/64"
CHAINS = {
    "local top-k, union": f"topk(density={DENSITY})",
    "importance, 2 mask nodes": f"importance(density={DENSITY})",
    "importance, 1 mask node": f"importance(density={DENSITY}, mask_nodes=1)",
}
CHOICES = {
    "magnitude (guard 1,000,000)": f"importance(density={DENSITY}, mask_nodes=1, guard=1e6)",
    "importance, guard 1 (default)": f"importance(density={DENSITY}, mask_nodes=1)",
    "importance, guard 0.01 (about the paper's bare ratio)": f"importance(density={DENSITY}, mask_nodes=1, guard=0.01)",
}


@dataclass(frozen=True)
class Exchange:
    """What a few steps of one chain exchanged, all tensors together."""

    density: float
    element_ratio: float
    wire_ratio: float
    lost: float


def exchange(steps: Sequence[RecordedStep], ranks: int, chain: str, feedback: bool = True) -> Exchange:
    """Average the first `ranks` ranks' gradients step after step; residuals grow as they do in a run."""
    text = chain if feedback else f"feedback(keep=off) | {chain}"
    names = [name for name, weight in steps[0].weights.items() if compressible(weight)]
    kept = numel = sent = plain = error = energy = 0.0
    for name in names:
        slots: list[Slot] | None = None
        for at, step in enumerate(steps):
            given = [g[name] for g in step.gradients[:ranks]]
            reduction = "gathered" if chain.startswith("topk") else None
            weights = step.weights[name]
            outcome = simulate(
                text, given, slots=slots, step=at, seed=hash_of(name), reduction=reduction, weights=weights
            )
            slots = outcome.slots
            true = torch.stack(given).mean(0)
            kept += int(torch.count_nonzero(outcome.means[0]))
            numel += true.numel()
            sent += sum(outcome.sent) / ranks
            plain += 8 * (ranks - 1) / ranks * true.numel()
            error += float((outcome.means[0] - true).double().square().sum())
            energy += float(true.double().square().sum())
    return Exchange(kept / numel, numel / kept, plain / sent, error / energy)


def hash_of(name: str) -> int:
    """Another seed for each tensor, the same in every run."""
    return sum((at + 1) * ord(letter) for at, letter in enumerate(name))


@dataclass(frozen=True)
class Support:
    """Exchanges by chain and number of ranks, and what different choices of numbers lose."""

    title: str
    ranks: Sequence[int]
    exchanges: dict[str, list[Exchange]]
    lost: dict[str, float]


def support(recording: Recording, ranks: Sequence[int] = RANKS) -> Support:
    wide = recording.wide
    exchanges = {name: [exchange(wide, count, chain) for count in ranks] for name, chain in CHAINS.items()}
    lost = {name: exchange(wide, ranks[-1], chain, feedback=False).lost for name, chain in CHOICES.items()}
    return Support(recording.name, ranks, exchanges, lost)


def support_finding(found: Sequence[Support]) -> Finding:
    finding = Finding("support", "Importance pruning: the exchanged support", plot="support")
    finding.explanation = (
        f"Share of the numbers that change in a step, at density {DENSITY} for each choosing rank, with residuals, mean"
        " of 12 steps."
    )
    for s in found:
        rows = [
            [name, *(f"{percent(e.density)} ({short(e.wire_ratio)}x)" for e in each)]
            for name, each in s.exchanges.items()
        ]
        header = ("chain", *(f"{count} ranks" for count in s.ranks))
        caption = f"Density of the support, and times fewer bytes than an fp32 all-reduce, {s.title}"
        finding.figures.append(Figures(caption, header, rows))
        rows = [[name, percent(value)] for name, value in s.lost.items()]
        caption = f"Energy of the mean lost by the choice of numbers, {s.ranks[-1]} ranks, no feedback, {s.title}"
        finding.figures.append(Figures(caption, ("chosen by", "lost"), rows))
    finding.claims += [_ratio_claim(found), _growth_claim(found)]
    for s in found:
        magnitude, *others = s.lost.items()
        for name, value in others:
            if value > magnitude[1] * 1.02:
                finding.losses.append(
                    f"{s.title}: numbers chosen by {name} leave {percent(value)} of the mean's energy behind; chosen by"
                    f" plain magnitude {percent(magnitude[1])}. Importance does not aim at energy, but pays in it."
                )
    return finding


def _ratio_claim(found: Sequence[Support]) -> Claim:
    parts = []
    for s in found:
        for name in ("importance, 1 mask node", "importance, 2 mask nodes"):
            e = s.exchanges[name][s.ranks.index(4) if 4 in s.ranks else 0]
            parts.append(f"{s.title}, {name.split(', ')[1]}: elements {short(e.element_ratio)}x,"
                         f" bytes {short(e.wire_ratio)}x")  # fmt: skip
    whole = [s.exchanges["importance, 1 mask node"] for s in found]
    elements = [e.element_ratio > 58 for each in whole for e in each]
    wire = [e.wire_ratio > 58 for each in whole for e in each]
    return Claim(
        "IWP",
        "bytes divided by 64 (AlexNet) and 58.8 (ResNet-50)",
        "64x, 58.8x",
        f"at density {DENSITY} on 4 ranks: "
        + "; ".join(parts)
        + ". The headline is a ratio of elements: masks travel too",
        verdict(elements + wire),
    )


def _growth_claim(found: Sequence[Support]) -> Claim:
    def growth(s: Support, name: str) -> float:
        return s.exchanges[name][-1].density / s.exchanges[name][0].density

    names = ("importance, 2 mask nodes", "local top-k, union")
    measured = "; ".join(
        f"{s.title}: importance {short(growth(s, names[0]))} times the density of {s.ranks[0]} ranks at {s.ranks[-1]},"
        f" top-k {short(growth(s, names[1]))} times"
        for s in found
    )
    return Claim(
        "IWP",
        "the support does not grow with the number of nodes",
        "constant",
        measured,
        verdict([growth(s, names[0]) < 1.2 for s in found]),
    )
