"""Published systems, each as one chain with good defaults.

A preset takes options (`gradiveq(ratio=16)`), prints as the chain it stands for, and can be extended
(`gradiveq | qsgd(bits=4)`). Names that are stages already (qsgd, nuqsgd, topk, fp16, ...) need no preset.
"""

from typing import Any

from thinwire.core.codec import Codec
from thinwire.core.settings import Delay, Feedback
from thinwire.core.text import NAMES
from thinwire.errors import CodecError
from thinwire.stages.fourier import DCT, FFT
from thinwire.stages.importance import Importance
from thinwire.stages.integers import Integers
from thinwire.stages.momentum import Momentum
from thinwire.stages.pca import PCA
from thinwire.stages.quantise import NUQSGD, QSGD, Sign, Ternary
from thinwire.stages.rangefloat import RangeFloat
from thinwire.stages.sharedtopk import SharedTopK
from thinwire.stages.sparsify import TopK
from thinwire.stages.vote import Ballot, Vote

# Quantisers.


def qsgdinf(bits: int = 4, bucket: int = 512) -> Codec:
    """QSGD scaled by the largest magnitude of each bucket, as it is used in practice."""
    return Codec((QSGD(bits=bits, norm="max", bucket=bucket),))


def nuqsgdinf(bits: int = 4, bucket: int = 512) -> Codec:
    """Exponential levels scaled by the largest magnitude: never bad, best for heavy tails."""
    return Codec((NUQSGD(bits=bits, norm="max", bucket=bucket),))


def onebit(bucket: int = 512, warmup: int = 0, momentum: float = 0.0) -> Codec:
    """1-bit SGD with feedback of both encodings (Seide et al. 2014), after `warmup` steps as they are.

    Feedback and an optimiser's momentum amplify each other's noise: give the momentum to the chain
    (`momentum=0.9`) and train with plain SGD.
    """
    return _with_momentum(momentum, warmup) | Sign(bucket=bucket)


def terngrad(clip: float | None = 2.5, bucket: int = 512) -> Codec:
    """TernGrad with its clipping (Wen et al. 2017)."""
    return Codec((Ternary(clip=clip, bucket=bucket),))


def int8() -> Codec:
    """Eight-bit integers of a scale that all ranks share."""
    return Codec((Integers(bits=8),))


def _with_momentum(momentum: float, delay: int = 0) -> Codec:
    """The head of a chain: a delay and momentum correction, as far as they are asked for."""
    head = Codec(settings=(Delay(steps=delay),)) if delay else Codec()
    return head | Momentum(beta=momentum, masking=False) if momentum else head


# Sparsifiers.


def fftsgd(
    theta: float = 0.85,
    bits: int = 10,
    mantissa: int | None = None,
    chunk: int = 4096,
    warmup: int = 0,
    decay: int | None = None,
    momentum: float = 0.0,
    transform: str = "auto",
) -> Codec:
    """The share theta of the frequencies dropped, the rest as range-based floats (Wang et al., HPDC 2020).

    Without `mantissa`, each message takes the number of its mantissa bits that loses least, at some cost in time.
    `momentum` moves the momentum from the optimiser into the chain: with 0.9, train with plain SGD.
    `transform=auto` leaves the FFT out of tensors whose first steps it does not concentrate; `always` is the paper's.
    """
    if transform not in ("auto", "always"):
        raise CodecError(f"fftsgd(transform={transform}): transform must be auto or always.")
    if not 0.0 <= theta < 1.0:
        raise CodecError(f"fftsgd(theta={theta}): theta, the share that is dropped, must be from 0 to below 1.")
    density = round(1.0 - theta, 12)
    kept = TopK(density, warmup=warmup, decay=decay, dial=True)
    return (
        _with_momentum(momentum)
        | FFT(chunk, density if transform == "auto" else None)
        | kept
        | RangeFloat(bits=bits, mantissa=mantissa)
    )


def scalecom(density: float = 1 / 64, beta: float = 0.1, warmup: int = 100) -> Codec:
    """One rank's top-k in turn, sent by all, and a residual behind a low-pass filter (Chen et al., NeurIPS 2020)."""
    return Feedback(beta=beta) | SharedTopK(density, warmup=warmup)


def signsgd(feedback: bool = False) -> Codec:
    """signSGD with majority vote (Bernstein et al. 2018); the result has the sign of the majority, and is no mean."""
    votes = Ballot() | Vote()
    return votes if feedback else Feedback(keep="off") | votes


def iwp(
    density: float | None = None,
    threshold: float | None = None,
    mask_nodes: int = 2,
    warmup: int = 0,
    momentum: float = 0.0,
    kappa: float | None = None,
    masking: bool = False,
) -> Codec:
    """Importance-weighted pruning (Cheng & Xu 2019); density 1/64 unless `threshold` or `kappa` is given.

    `kappa` is the layer-wise threshold mean(I) + kappa * std(I), which `warmup` raises step by step.
    `momentum` moves the momentum from the optimiser into the chain: with 0.9, train with plain SGD.
    It is off by default, because most optimisers have momentum already, and two of them would multiply.
    `masking` is the momentum factor masking of DGC: it forgets the velocity of what was sent.
    """
    if masking and momentum == 0:
        raise CodecError(
            "iwp(masking=true): masking forgets a velocity, and without momentum there is none; add momentum=0.9 and"
            " train with plain SGD, or leave masking out."
        )
    masks = masking or momentum == 0  # without a velocity there is nothing to say about it
    return Codec((Importance(density, threshold, kappa, mask_nodes, warmup, momentum, masks),))


def dgc(density: float = 0.001, momentum: float = 0.9, clip: float | None = None, warmup: int = 400) -> Codec:
    """Deep gradient compression (Lin et al. 2018): top-k of the velocity. Train with an optimiser without momentum."""
    return Codec((Momentum(beta=momentum, masking=True, clip=clip), TopK(density=density, warmup=warmup)))


def demo(decay: float = 0.999, chunk: int = 64, topk: int = 32) -> Codec:
    """DeMo (Peng et al. 2024): each rank's momentum, less its largest cosine coefficients, which travel.

    Train with the sign of the mean and without another momentum, as DeMo does.
    """
    if not 1 <= topk <= chunk * chunk:
        raise CodecError(f"demo(topk={topk}): topk must be from 1 to chunk * chunk, here {chunk * chunk}.")
    square = chunk * chunk
    return Feedback(decay=decay) | DCT(chunk, dims=2) | TopK(topk / square, chunk=square)


# Learnt bases.


def gradiveq(
    ratio: float | None = None,
    energy: float | None = None,
    warmup: int = 10,
    sample: int = 20,
    reuse: int = 400,
    slice: int | None = None,
    order: str = "auto",
    pool: bool = True,
    travel: str | None = "auto",
    limit: float | str | None = "auto",
) -> Codec:
    """GradiVeQ (Yu et al. 2018): one PCA basis a layer, coefficients summed by the all-reduce.

    Steps that are not compressed travel through qsgd(bits=4), as in the paper; with an energy target through
    qsgd(bits=8), because the noise of 4 bits would hide what a basis loses. `travel=none` sends them as they are.
    """
    if isinstance(limit, str):
        if limit != "auto":
            raise CodecError(f"gradiveq(limit={limit}): limit must be auto, none, or a number from 0 to 1.")
        limit = 0.2 if energy is None else energy
    if travel == "auto":
        travel = "qsgd(bits=4)" if energy is None else "qsgd(bits=8)"
    return Codec((PCA(ratio, energy, warmup, sample, reuse, slice, order, pool, travel=travel, limit=limit),))


PRESETS: dict[str, Any] = {
    "qsgdinf": qsgdinf,
    "nuqsgdinf": nuqsgdinf,
    "onebit": onebit,
    "terngrad": terngrad,
    "int8": int8,
    "fftsgd": fftsgd,
    "scalecom": scalecom,
    "signsgd": signsgd,
    "iwp": iwp,
    "dgc": dgc,
    "demo": demo,
    "gradiveq": gradiveq,
}

NAMES.update(PRESETS)
