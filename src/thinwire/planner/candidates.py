"""What may be recommended: codecs, and how much they may lose of a gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.core.codec import Codec
from thinwire.errors import CodecError
from thinwire.planner.profile import Figures

# From those that lose least to those that lose most. None of them has a warm-up that a short run would not leave.
CANDIDATES: tuple[str, ...] = (
    "bf16",
    "int8",
    "qsgd(bits=8)",
    "qsgd(bits=4)",
    "nuqsgd(bits=4)",
    "mx(bits=4)",
    "qsgd(bits=2)",
    "powersgd(rank=4)",
    "fftsgd(transform=always)",
    "onebit",
    "powersgd(rank=1)",
    "topk(density=1/64, chunk=4096) | codebook(bits=2)",
)
REFERENCE = "qsgd(bits=4)"  # what its noise does to training is known from many runs


@dataclass(frozen=True)
class Quality:
    """How much a codec may lose, layer by layer.

    A layer may travel through a codec if the codec is unbiased and its relative error is at most `error`, or if it is
    biased, its error at most `biased_error`, and its residual at most `growth` gradients long after four equal ones.

    Args:
        name: What the budget is called.
        error: Largest relative error of an unbiased codec in one step.
        biased_error: Largest relative error of a biased codec in one step.
        growth: Largest residual, relative to the gradient.
    """

    name: str
    error: float
    biased_error: float
    growth: float

    def admits(self, codec: str, figures: Figures, reference: Figures | None = None) -> bool:
        """Whether a layer may travel through a codec.

        Args:
            codec: The codec, as text.
            figures: What it does to the layer.
            reference: What 4-bit quantisation does to the layer; a biased codec may lose as much, up to `error`.
        """
        if Codec.parse(codec).unbiased:
            return figures.error <= self.error
        known = min(reference.error, self.error) if reference is not None else 0.0
        return figures.error <= max(self.biased_error, known) and figures.growth <= self.growth


# An unbiased codec with relative error e multiplies the variance of a step by about 1 + e^2. Safe: the noise of QSGD
# with 4 bits in buckets of 512 (e = 0.5 to 0.9 on gradients with heavy tails).
SAFE = Quality("safe", 1.0, 0.35, 1.0)
BALANCED = Quality("balanced", 2.0, 0.9, 4.0)
BOLD = Quality("bold", 8.0, 1.0, float("inf"))
QUALITIES: dict[str, Quality] = {quality.name: quality for quality in (SAFE, BALANCED, BOLD)}


def quality_of(quality: str | Quality) -> Quality:
    """A budget by its name."""
    if isinstance(quality, Quality):
        return quality
    if quality not in QUALITIES:
        raise CodecError(f"quality is one of {', '.join(QUALITIES)}; got {quality!r}.")
    return QUALITIES[quality]


def checked_candidates(candidates: Sequence[str] | None) -> tuple[str, ...]:
    """The codecs as they print, each once and without none, which is always a candidate."""
    if isinstance(candidates, str):
        raise CodecError(f"candidates are a list of codecs; got the text {candidates!r}; write [{candidates!r}].")
    texts = [str(Codec.parse(text)) for text in (CANDIDATES if candidates is None else candidates)]
    return tuple(text for text in dict.fromkeys(texts) if text != "none")


def measuring_order(codecs: Sequence[str]) -> tuple[str, ...]:
    """The order in which codecs are measured while there is time: the reference for errors is first."""
    return tuple(sorted(codecs, key=lambda text: text != str(Codec.parse(REFERENCE))))
