"""What is measured: a list of cases, each a few words that the workers understand."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.revisions.links import LOOPBACK

PARTS = ("kernels", "averages", "steps")
RANKS = 4  # of averages and steps
LINKS = (LOOPBACK, "1gbit")

# as chains, since the defaults of presets differ between revisions; compresses from the fourth step on
GRADIVEQ = "pca(ratio=8, warmup=1, sample=2, reuse=1000, slice=64, limit=0.2)"
FFTSGD = "fft | topk(density=0.15, dial=true) | rangefloat(bits=10)"
SPARSE = "topk(density=0.01) | rangefloat(bits=8)"
MESSAGES = (
    "qsgd(bits=4)",
    "nuqsgd(bits=4, norm=max)",
    "sign",
    "rangefloat(bits=8)",
    "fp16",
    SPARSE,
    "qsgd(bits=4) | huffman",
)
SIMULATED = (FFTSGD, "integers(bits=8)", GRADIVEQ)  # they need agreement or a transform: no message of their own
AVERAGED = ("none", "qsgd", GRADIVEQ, "powersgd", f"{SPARSE} | huffman", FFTSGD, "iwp", "integers")
TRAINED = ("none", "qsgd", GRADIVEQ, "powersgd")
MODELS = ("vgg", "gpt")
QUICK = {"qsgd(bits=4)", SPARSE, FFTSGD, "none", "qsgd", GRADIVEQ}

KERNEL_SIZES = (2**24, 2**16)  # elements: 64 MiB and 256 KiB
AVERAGE_SIZES = ((1, 25 * 2**18), (100, 2**14))  # tensors, and elements of each: 25 MiB and 64 KiB


@dataclass(frozen=True)
class Case:
    """One row of the table: a call, its codec, and the tensors that it gets."""

    part: str
    call: str  # encode, decode, simulate, average, average_gradients; or the model whose steps are taken
    codec: str
    tensors: int = 0
    numel: int = 0  # of each tensor
    link: str | None = None

    @property
    def title(self) -> str:
        size = f"{self.tensors} x " if self.tensors > 1 else ""
        size += _shown(4 * self.numel) if self.numel else ""
        codec = {GRADIVEQ: "gradiveq", FFTSGD: "fftsgd"}.get(self.codec, self.codec)
        return ", ".join(word for word in (self.call, size, codec, self.link) if word)


def _shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB"


def chosen_cases(parts: Iterable[str], quick: bool) -> list[Case]:
    """The cases of these parts; a quick run has fewer codecs, and of the models only the first."""
    makers = {"kernels": _kernels, "averages": _averages, "steps": _steps}
    cases = [case for part in PARTS if part in parts for case in makers[part]()]
    return [case for case in cases if not quick or (case.codec in QUICK and case.call not in MODELS[1:])]


def _kernels() -> list[Case]:
    calls = [(call, codec) for codec in MESSAGES for call in ("encode", "decode")]
    calls += [("simulate", codec) for codec in SIMULATED]
    return [Case("kernels", call, codec, 1, numel) for numel in KERNEL_SIZES for call, codec in calls]


def _averages() -> list[Case]:
    return [
        Case("averages", call, codec, tensors, numel, link)
        for link in LINKS
        for tensors, numel in AVERAGE_SIZES
        for call in ("average", "average_gradients")
        for codec in AVERAGED
    ]


def _steps() -> list[Case]:
    return [Case("steps", model, codec, link=link) for link in LINKS for model in MODELS for codec in TRAINED]
