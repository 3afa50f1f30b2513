"""Published systems, each as one chain with good defaults.

A preset takes options (`gradiveq(ratio=16)`), prints as the chain it stands for, and can be extended
(`gradiveq | qsgd(bits=4)`). Names that are stages already (qsgd, nuqsgd, topk, fp16, ...) need no preset.
"""

from typing import Any

from thinwire.core.codec import Codec
from thinwire.core.text import NAMES
from thinwire.stages.integers import Integers
from thinwire.stages.quantise import NUQSGD, QSGD, Sign, Ternary

# Quantisers.


def qsgdinf(bits: int = 4, bucket: int = 512) -> Codec:
    """QSGD scaled by the largest magnitude of each bucket, as it is used in practice."""
    return Codec((QSGD(bits=bits, norm="max", bucket=bucket),))


def nuqsgdinf(bits: int = 4, bucket: int = 512) -> Codec:
    """Exponential levels scaled by the largest magnitude: never bad, best for heavy tails."""
    return Codec((NUQSGD(bits=bits, norm="max", bucket=bucket),))


def onebit(bucket: int = 512) -> Codec:
    """1-bit SGD with feedback of both encodings (Seide et al. 2014)."""
    return Codec((Sign(bucket=bucket),))


def terngrad(clip: float | None = 2.5, bucket: int = 512) -> Codec:
    """TernGrad with its clipping (Wen et al. 2017)."""
    return Codec((Ternary(clip=clip, bucket=bucket),))


def int8() -> Codec:
    """Eight-bit integers of a scale that all ranks share."""
    return Codec((Integers(bits=8),))


PRESETS: dict[str, Any] = {
    "qsgdinf": qsgdinf,
    "nuqsgdinf": nuqsgdinf,
    "onebit": onebit,
    "terngrad": terngrad,
    "int8": int8,
}

NAMES.update(PRESETS)
