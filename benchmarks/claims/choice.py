"""What `pca` decides from its samples: the order of a layer's numbers, and the coefficients that an energy needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from benchmarks.claims.findings import Claim, Figures, Finding, percent, short, verdict
from benchmarks.claims.gradiveq import Learnt
from benchmarks.claims.recording import Recording
from thinwire import PCA
from thinwire.core.context import State
from thinwire.core.spec import Spec
from thinwire.stages.pca_basis import Basis
from thinwire.stages.pca_samples import in_layout, learn, start_sampling, take_sample

SAMPLES, NEAR, FAR = 20, 20, 100
STARTS = (20, 60, 100, 140, 200, 300, 400)
ORDERS = ("rows", "filters", "auto")
ASKED = (0.01, 0.05, 0.1)
WORSE = 1.1  # times the loss of the better fixed order


@dataclass(frozen=True)
class Loss:
    """Of one layer, behind the samples of one moment."""

    layer: str
    start: int
    error: float
    energy: float
    later: float  # share lost over more steps
    kept: float  # coefficients of an element

    @property
    def share(self) -> float:
        return self.error / self.energy


def learnt(pca: PCA, samples: Tensor, tries: bool = True) -> Learnt | None:
    """What the stage learns from these steps of a layer [count, *shape]; `tries`: as it does, not by them alone."""
    possible, state = pca.layouts(Spec.of(tuple(samples.shape[1:]))), State()
    start_sampling(state)
    for step in samples:
        rows = [layout.rows(step.reshape(-1)) for layout in possible]
        take_sample(state, rows, len(samples), True, True, True, pca.tries)
    kept = None if pca.ratio is None else [pca.kept(layout) for layout in possible]
    found = learn(state, possible, True, len(samples) if pca.tries and tries else 0, kept, pca.energy)
    if found is None:
        return None
    mean = in_layout(state["sum"] / state["taken"], possible, found.layout)
    return Learnt(possible[found.layout], Basis(found.columns, mean, mean @ found.columns))


def losses(recording: Recording, pca: PCA, tries: bool = True) -> tuple[list[Loss], int]:
    """The losses of all layers and moments, and how many of them have no basis."""
    found, without = [], 0
    for start in STARTS:
        end = start + SAMPLES
        for name, series in recording.series.items():
            if end + NEAR > len(series):
                continue
            basis = learnt(pca, series[start:end], tries)
            if basis is None:
                without += 1
                continue
            assert basis.basis.columns is not None
            length, columns = basis.basis.columns.shape
            error, energy = basis.loss(series[end : end + NEAR])
            missed, given = basis.loss(series[end : end + FAR])
            found.append(Loss(name, start, error, energy, missed / given, columns / length))
    return found, without


def together(found: Sequence[Loss]) -> float:
    return sum(loss.error for loss in found) / sum(loss.energy for loss in found)


def order_rows(recording: Recording) -> tuple[list[list[str]], list[bool], str]:
    """The table's rows, whether "auto" is as good as the better order in each, and the layers in which it is not."""
    by_order = {order: losses(recording, PCA(ratio=8, sample=SAMPLES, order=order))[0] for order in ORDERS}
    rows, holds = [], []
    for start in sorted({loss.start for loss in by_order["auto"]}):
        share = {order: together([loss for loss in each if loss.start == start]) for order, each in by_order.items()}
        rows.append([recording.name, str(start), *(percent(share[order]) for order in ORDERS)])
        holds.append(share["auto"] <= WORSE * min(share["rows"], share["filters"]))
    pairs = zip(*(by_order[order] for order in ORDERS), strict=True)
    times = {f"`{a.layer}` at step {a.start}": a.share / min(r.share, f.share) for r, f, a in pairs}
    worse = {name: value for name, value in times.items() if value > WORSE}
    said = f"{recording.name}: {len(worse)} of {len(times)} layers and moments"
    if worse:
        name = max(worse, key=lambda key: worse[key])
        said += f" (most: {name}, {short(worse[name])} times)"
    return rows, holds, said


def energy_rows(recording: Recording) -> tuple[list[list[str]], list[bool]]:
    rows, holds = [], []
    for asked in ASKED:
        pca = PCA(energy=asked, sample=SAMPLES, order="auto")
        (found, without), (alone, _) = losses(recording, pca), losses(recording, pca, tries=False)
        above = sum(loss.share > asked for loss in found)
        kept = sum(loss.kept for loss in found) / len(found)
        rows.append(
            [
                recording.name,
                percent(asked),
                percent(together(alone)),
                percent(together(found)),
                f"{above} of {len(found)}, most {percent(max(loss.share for loss in found))}",
                percent(sum(loss.later for loss in found) / len(found)),
                f"{kept:.3f}",
                f"{without} of {len(found) + without}",
            ]
        )
        holds.append(together(found) <= asked)
    return rows, holds


def choice_finding(recordings: Sequence[Recording]) -> Finding:
    finding = Finding("choice", "GradiVeQ: what the samples decide")
    finding.explanation = (
        f"Bases of {SAMPLES} steps, tried on the {NEAR} steps behind them, at several moments of each recording."
        " `order=auto` takes the order that lost less in the second half of the samples with a basis of the first."
        " An energy gets the fewest coefficients that lost half of it there; the other half is for the age of the"
        " basis."
    )
    orders = [order_rows(recording) for recording in recordings]
    energies = [energy_rows(recording) for recording in recordings]
    header = ("recording", "samples from step", *(f"`order={order}`" for order in ORDERS))
    caption = "Energy of all layers that is lost, ratio 8"
    finding.figures.append(Figures(caption, header, [row for rows, _, _ in orders for row in rows]))
    header = (
        "recording",
        "asked",
        "lost if the samples alone decide",
        "lost",
        "layers that lose more than asked",
        f"mean loss of a layer over {FAR} steps",
        "coefficients of an element",
        "layers without a basis",
    )
    asked = [row for rows, _ in energies for row in rows]
    finding.figures.append(Figures("Energy asked and lost, `order=auto`", header, asked))
    worse = "; ".join(said for _, _, said in orders)
    finding.claims.append(
        Claim(
            "GradiVeQ",
            "order and d can be chosen from samples (ours)",
            "",
            f"all layers together: `order=auto` at most {WORSE} times the loss of the better order; layer by layer"
            f" worse than that in {worse}. `energy`: all layers together lose at most what is asked",
            verdict([case for _, cases, _ in orders for case in cases] + [c for _, cases in energies for c in cases]),
        )
    )
    return finding
