"""Where `fftsgd` leaves the FFT out by its first steps, and whether later steps agree."""

from collections.abc import Sequence

from torch import Tensor

from benchmarks.claims.findings import Claim, Figures, Finding, percent, verdict
from benchmarks.claims.recording import Recording
from thinwire import FFT, Codec
from thinwire.core.context import Context, State
from thinwire.core.spec import Spec
from thinwire.stages.fourier import AGAIN, TRIALS

DENSITY = 0.15
WITH = "fft | topk(density=0.15) | rangefloat(bits=10)"
WITHOUT = "topk(density=0.125) | rangefloat(bits=10)"  # as many bytes
LATE = 20  # steps at the end of a recording


def decided(series: Tensor) -> tuple[bool, int]:
    """Whether the FFT stays after its trials, and in how many steps of the last one [count, *shape] it held more."""
    stage, spec = FFT(auto=DENSITY), Spec.of(tuple(series.shape[1:]))
    state: State = stage.init(spec)
    for step in series[: AGAIN + TRIALS]:
        if not stage.left_out(state):
            stage.observe(step.reshape(-1), Context(spec, state))
    return not stage.left_out(state), state["better"]


def squared_error(chain: str, series: Tensor) -> float:
    """Of one message for each of the last steps, and without feedback."""
    codec, error = Codec.parse(chain), 0.0
    for step in series[-LATE:]:
        x = step.reshape(-1)
        error += float((codec.decode(codec.encode(x), x.numel()) - x).double().square().sum())
    return error


def transform_finding(recordings: Sequence[Recording]) -> Finding:
    finding = Finding("transform", "FFT: where the transform is left out")
    finding.explanation = (
        f"The first {TRIALS} steps decide, and where the transform stays {TRIALS} more after {AGAIN} steps (`fftsgd`,"
        f" theta = 0.85, 10 bits). Energy lost in the last {LATE} steps of the recording with `{WITH}`, and in as many"
        f" bytes with `{WITHOUT}`."
    )
    rows, totals, right = [], [], []
    for recording in recordings:
        sums = {"always": 0.0, "auto": 0.0, "never": 0.0}
        whole = 0.0
        for name, series in recording.series.items():
            stays, held = decided(series)
            energy = float(series[-LATE:].double().square().sum())
            losses = squared_error(WITH, series), squared_error(WITHOUT, series)
            right.append(stays == (losses[0] <= losses[1]))
            cells = [percent(loss / energy) for loss in losses]
            word = "kept" if stays else "left out"
            rows.append(
                [recording.name, f"`{name}`", f"{word}, {held} of {TRIALS}", *cells, "yes" if right[-1] else "no"]
            )
            for key, loss in zip(sums, (losses[0], losses[0 if stays else 1], losses[1]), strict=True):
                sums[key] += loss
            whole += energy
        totals.append([recording.name, *(percent(value / whole) for value in sums.values())])
    by_parameter = ("recording", "parameter", "decided", "lost with it", "lost without it", "decided rightly")
    together = ("recording", "`transform=always`", "`transform=auto`", "never")
    finding.figures += [
        Figures("Energy lost by parameter", by_parameter, rows),
        Figures("Energy lost, all parameters together", together, totals),
    ]
    finding.claims.append(
        Claim(
            "FFT",
            "the first steps tell where the transform pays (ours)",
            "",
            f"{sum(right)} of {len(right)} parameters; energy lost with the transform always, by decision, never: "
            + "; ".join(f"{name}: {', '.join(values)}" for name, *values in totals),
            verdict(right),
        )
    )
    return finding
