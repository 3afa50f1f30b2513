"""What errors at equal bytes say about the claims of the FFT paper (Wang et al., HPDC 2020)."""

from collections.abc import Mapping, Sequence

from benchmarks.claims.errors import FFT, RIVALS, SHORT_TOPK, Point, Rivalry, at_bits
from benchmarks.claims.findings import UNMEASURED, Claim, Figures, Finding, percent, short, verdict

BITS = (0.5, 1.1, 2.1, 4.1)  # a scale for each bucket of 512 takes 1/16 bit
PAPERS_RIVALS = [name for name in RIVALS if name not in (FFT, SHORT_TOPK)]


GPU_CLAIM = Claim(
    "FFT",
    "fast on GPUs",
    "yes",
    "not verified: Triton kernels exist and were checked in emulation, but this project has never run on a GPU",
    UNMEASURED,
)


def error_finding(found: Mapping[str, Mapping[str, Sequence[Point]]], rivals: Sequence[Rivalry]) -> Finding:
    """`found`: by recording and family."""
    finding = Finding("errors", "Loss against bits for every codec", plot="errors")
    finding.explanation = (
        "Share of the energy of one gradient that one message loses, without error feedback, over the last steps of"
        " each recording. Chains that sum coefficients (`pca`, `powersgd`, `importance`, `integers`) count what they"
        " all-reduce; the basis that `pca` broadcasts now and then is not counted. `pca` learnt from the 60 steps"
        " before, at the end of a run, when the learning rate is near 0 and gradients change their space"
        " least. Single points: codecs without a choice of bits."
    )
    for recording, curves in found.items():
        rows = [[f"`{name}`", *(_cell(points, bits) for bits in BITS)] for name, points in curves.items()]
        header = ("codec", *(f"{bits:g} bits" for bits in BITS))
        caption = f"Energy lost at equal bits for a number, {recording} (interpolated; single points as (bits) loss)"
        finding.figures.append(Figures(caption, header, rows))
    finding.claims += [_fft_claim(rivals), GPU_CLAIM]
    header = ("gradient", "bits", *(f"`{name}`" for name in RIVALS))
    rows = [[r.title, short(r.bits), *("" if v is None else percent(v) for v in r.lost.values())] for r in rivals]
    caption = "Energy lost by the FFT chain at theta = 0.85 and 10 bits, and by others at as many bytes"
    finding.figures.append(Figures(f"{caption} (2-bit codecs: at their own, slightly more)", header, rows))
    finding.losses += _losses(rivals)
    for recording, curves in found.items():
        finding.losses += _codec_losses(recording, curves)
    return finding


def _cell(points: Sequence[Point], bits: float) -> str:
    if len(points) == 1:
        nearest = min(BITS, key=lambda b: abs(b - points[0].bits))
        return f"({points[0].bits:.2g}) {percent(points[0].lost)}" if nearest == bits else ""
    value = at_bits(points, bits)
    return "" if value is None else percent(value)


def _fft_claim(rivals: Sequence[Rivalry]) -> Claim:
    networks = [r for r in rivals if r.title.endswith(": all")]
    tensors = [r for r in rivals if "`" in r.title]
    measured = "; ".join(
        f"{r.title}: {percent(r.lost[FFT] or 0)}, " + ", ".join(
            f"{name} {percent(value)}" for name, value in r.lost.items() if name != FFT and value is not None
        )
        for r in networks
    )  # fmt: skip
    won, won_all = (sum(r.wins(names) for r in tensors) for names in (PAPERS_RIVALS, RIVALS))
    return Claim(
        "FFT",
        "lower approximation error than top-k, QSGD and TernGrad at the same bytes",
        "yes (theta = 0.85)",
        f"energy lost at theta = 0.85: {measured}. It loses less than top-k, QSGD and TernGrad on {won} of"
        f" {len(tensors)} tensors; less than top-k with the same 10-bit numbers, too, on {won_all}",
        verdict([r.wins(PAPERS_RIVALS) for r in networks + tensors]),
    )


def _losses(rivals: Sequence[Rivalry]) -> list[str]:
    sentences = []
    for r in rivals:
        mine, other = r.lost[FFT], r.lost[SHORT_TOPK]
        made_up_or_whole = "`" not in r.title
        if made_up_or_whole and mine is not None and other is not None and mine > other:
            sentences.append(
                f"{r.title}: `fft | topk | rangefloat` loses {percent(mine)} of the energy; without the transform,"
                f" `topk | rangefloat` loses {percent(other)} in as many bytes."
            )
    tensors = [r for r in rivals if "`" in r.title]
    beaten = [r for r in tensors if (r.lost[FFT] or 0) > (r.lost[SHORT_TOPK] or 0)]
    if beaten:
        sentences.append(
            f"The FFT loses to plain top-k with the same 10-bit numbers on {len(beaten)} of {len(tensors)} tensors:"
            f" {', '.join(r.title for r in beaten)}."
        )
    return sentences


def _codec_losses(recording: str, curves: Mapping[str, Sequence[Point]]) -> list[str]:
    """What every codec's curve shows, beyond the papers."""
    sentences = []
    exponential = curves["nuqsgd"]
    if exponential[-1].lost > exponential[1].lost / 2:
        sentences.append(
            f"{recording}: beyond 4 bits, exponential levels gain next to nothing: `nuqsgd` loses"
            f" {percent(exponential[1].lost)} at 4 bits and {percent(exponential[-1].lost)} at 6, `qsgd`"
            f" {percent(curves['qsgd'][-2].lost)} at 6."
        )
    if curves["qsgd"][0].lost > 1:
        sentences.append(
            f"{recording}: unbiased codecs of 2 bits err by more than the gradient itself: `qsgd(bits=2)` by"
            f" {percent(curves['qsgd'][0].lost)} of its energy; biased `sign` loses {percent(curves['sign'][0].lost)}"
            " in half the bytes."
        )
    learnt, product = at_bits(curves["pca"], 2.1), at_bits(curves["powersgd"], 2.1)
    if learnt is not None and product is not None and learnt > product:
        sentences.append(
            f"{recording}: at 2.1 bits `pca` loses {percent(learnt)}; `powersgd`, which follows every step, loses"
            f" {percent(product)} (at the price of a second round)."
        )
    return sentences
