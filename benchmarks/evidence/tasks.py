"""What is trained with what: the tasks of the evidence and their lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.evidence.adam import Variant
from thinwire.outer.settings import OuterSettings
from thinwire_lab.recipes.recipe import Recipe


@dataclass(frozen=True)
class Line:
    """One way to exchange, named by its text: a codec unless `plan` or `outer` says more."""

    kind: str = ""  # "paper" (a paper's own setting), "gentle" (what should be used), "tried" (to help Adam), or none
    plan: Any = None
    outer: OuterSettings | None = None
    adam: Variant | None = None
    lr: float = 1.0  # factor of the task's learning rate


@dataclass(frozen=True)
class Task:
    """A training without its seed; of the figure `accuracy` more is better, of `loss` less."""

    key: str
    title: str
    told: str  # the model and the data, in a sentence
    figure: str  # "accuracy" or "loss"
    steps: int
    ranks: int
    recipe: Recipe
    lines: Mapping[str, Line]
    data: str = "text"  # or "images"
    pool: int = 1  # pixels of the side of a square that becomes one pixel


PAPER, GENTLE = Line("paper"), Line("gentle")


def shorter(steps: int) -> list[int]:
    """Lengths of the uncompressed runs with which a codec is compared at equal bytes."""
    return sorted({max(1, round(steps / 2**halved)) for halved in range(1, 7)} - {steps})


def everywhere(kind: str, codec: str) -> Line:
    """This codec for vectors and short tensors too, which otherwise stay uncompressed."""
    return Line(kind, {"rules": [{"match": "*", "codec": codec, "small": True}]})


def outer(codec: Any, kind: str = "", lr: float = 1.0, **given: Any) -> Line:
    return Line(kind, outer=OuterSettings.of(codec, given), lr=lr)


IWP = "iwp(density=1/64, mask_nodes=1)"
_IMAGES: Mapping[str, Line] = {
    "none": Line(),
    "nuqsgd(bits=4)": PAPER,
    "gradiveq(ratio=8)": PAPER,
    "fftsgd(theta=0.85)": PAPER,
    f"{IWP}, small tensors too": everywhere("paper", IWP),
    "iwp(kappa=3)": PAPER,
    "qsgd(bits=4)": GENTLE,
    "iwp(density=1/16)": GENTLE,
    "fftsgd(theta=0.7, mantissa=6)": GENTLE,
    "gradiveq(ratio=8, travel='qsgd(bits=8)')": GENTLE,
}
_TEXT: Mapping[str, Line] = {
    "none": Line(),
    "nuqsgd(bits=4)": PAPER,
    "gradiveq(ratio=8)": PAPER,
    "fftsgd(theta=0.85)": PAPER,
    f"{IWP}, small tensors too": everywhere("paper", IWP),
    "iwp(kappa=3)": PAPER,
    "qsgd(bits=4)": GENTLE,
    "qsgd(bits=3)": GENTLE,
    "alq(bits=3)": GENTLE,
    "powersgd(rank=16)": GENTLE,
    "topk(density=0.15) | rangefloat(bits=8, mantissa=4)": GENTLE,
    "iwp(density=1/16)": GENTLE,
    "fftsgd(theta=0.7, mantissa=6)": GENTLE,
    "gradiveq(ratio=8, travel='qsgd(bits=8)')": GENTLE,
}
_CHAIN = "topk(density=1/64)"
_MOMENTUM = "momentum(beta=0.9, masking=false)"
_OTHERS: Mapping[str, Line] = {
    "int8": Line(),
    "qsgd(bits=2)": Line(),
    "onebit": Line(),
    "signsgd": Line(),
    "terngrad": Line(),
    "powersgd(rank=4)": Line(),
    "powersgd(rank=8)": Line(),
    "iwp": Line(),
    "scalecom": Line(),
    "dgc(momentum=0, warmup=150)": Line(),
    _CHAIN: Line(),
}


def tried(plan: Any = None, adam: Variant | None = None) -> Line:
    return Line("tried", plan, adam=adam)


def spared(codec: str) -> Line:
    """This codec for the layers between; 4 bits for the tables of tokens and positions and for the output layer."""
    tables = [{"match": name, "codec": "qsgd(bits=4)"} for name in ("tokens*", "positions*", "head*")]
    return tried({"rules": [*tables, {"match": "*", "codec": codec}]})


# A variance that is remembered for longer than an element waits.
_REMEMBERED = (
    *("none", _CHAIN, "powersgd(rank=4)", "onebit", "iwp", "fftsgd(theta=0.85)", "gradiveq(ratio=8)"),
    "topk(density=1/64, warmup=300)",
)
# One biased chain that loses much, and what might help it.
_TRIED: Mapping[str, Line] = {
    f"{_CHAIN}, learning rate x 3": tried(_CHAIN, Variant(lr=3.0)),
    f"{_CHAIN}, dense variance": tried(_CHAIN, Variant(dense=True)),
    f"{_CHAIN}, learning rate x 8": tried(_CHAIN, Variant(lr=8.0)),
    f"{_MOMENTUM} | {_CHAIN}, beta1=0": tried(f"{_MOMENTUM} | {_CHAIN}", Variant(beta1=0.0)),
    f"delay(steps=150) | {_MOMENTUM} | {_CHAIN}, frozen variance": tried(
        f"delay(steps=150) | {_MOMENTUM} | {_CHAIN}", Variant(frozen=150)
    ),
    f"delay(steps=150) | {_MOMENTUM} | onebit, frozen variance": tried(
        f"delay(steps=150) | {_MOMENTUM} | onebit", Variant(frozen=150)
    ),
    f"ef21 | {_CHAIN}": tried(),
    f"{_CHAIN}, tables and head qsgd(bits=4)": spared(_CHAIN),
    "topk(density=1/64, warmup=300)": tried(),
    **{f"{codec}, beta2=0.999": tried(codec, Variant(beta2=0.999)) for codec in _REMEMBERED},
    f"{_CHAIN}, beta2=0.9999": tried(_CHAIN, Variant(beta2=0.9999)),
    f"{_MOMENTUM} | {_CHAIN}, beta1=0, beta2=0.999": tried(f"{_MOMENTUM} | {_CHAIN}", Variant(beta1=0.0, beta2=0.999)),
    "onebit, learning rate x 3": tried("onebit", Variant(lr=3.0)),
    "none, learning rate x 3": tried("none", Variant(lr=3.0)),
    "powersgd(rank=4), tables and head qsgd(bits=4)": spared("powersgd(rank=4)"),
}
# SparseLoCo with more of the elements, shorter rounds and a momentum of the outer steps, as tuned for this model.
_SIGNS = "feedback(decay=0.95) | topk(density=1/16, chunk=4096) | sign"
_FEW_SIGNS = "feedback(decay=0.95) | topk(density=1/64, chunk=4096) | sign"
_NESTEROV = "nesterov(lr=1, momentum=0.5)"
_ROUNDS: Mapping[str, Line] = {
    "none": Line(),
    "diloco, every=15": outer("diloco", every=15),
    "diloco, every=15, qsgd(bits=2)": outer("qsgd(bits=2)", every=15),
    "localsgd, every=15": outer("localsgd", every=15),
    "diloco, every=50": outer("diloco", every=50),
    "sparseloco, every=30": outer("sparseloco", every=30),
    "diloco, every=15, codebook(bits=2)": outer("codebook(bits=2)", every=15),
    "diloco, every=30, qsgd(bits=4)": outer("qsgd(bits=4)", every=30),
    "diloco, every=60, codebook(bits=2)": outer("codebook(bits=2)", every=60),
    "qsgd(bits=4)": Line(),
    "diloco, every=15, qsgd(bits=4)": outer("qsgd(bits=4)", every=15),
    "streaming-diloco, every=60": outer("streaming-diloco", every=60),
    "powersgd(rank=4)": Line(),
    "diloco, every=50, qsgd(bits=2)": outer("qsgd(bits=2)", every=50),
    "sparseloco, every=15": outer("sparseloco", every=15),
    "diloco, every=400": outer("diloco", every=400),
    f"{_SIGNS}, every=7, {_NESTEROV}, learning rate x 2": outer(_SIGNS, every=7, outer=_NESTEROV, lr=2.0),
    f"{_FEW_SIGNS}, small tensors too, every=11, {_NESTEROV}, learning rate x 3": outer(
        everywhere("", _FEW_SIGNS).plan, every=11, outer=_NESTEROV, lr=3.0
    ),
    "none, learning rate x 2": Line("tried", "none", lr=2.0),
    "none, learning rate x 3": Line("tried", "none", lr=3.0),
}

_SMALL_GPT = Recipe(
    model="gpt-tiny",
    model_options={"layers": 1},
    batch=4,
    optimizer="adamw",
    lr=3e-3,
    weight_decay=0.1,
    clip=1.0,
    context=64,
    warmup=50,
    test_limit=256,
)
_GPT = "a GPT of one layer, width 64 and 86,720 parameters on bytes of text, windows of 64 bytes"
TASKS: Mapping[str, Task] = {
    "images": Task(
        "images",
        "ResNet on CIFAR-10, SGD with momentum 0.9",
        "A ResNet of 8 layers, width 16 and 77,850 parameters on the first 20,000 images of CIFAR-10, halved to 16 x 16"
        " pixels; 2 simulated ranks of 8 images.",
        "accuracy",
        3000,
        2,
        Recipe(model="resnet", model_options={"width": 16, "blocks": 1}, batch=8, lr=0.05, warmup=100, test_limit=1000),
        _IMAGES,
        data="images",
        pool=2,
    ),
    "text": Task(
        "text",
        "GPT on text, AdamW",
        f"{_GPT[0].upper()}{_GPT[1:]}; 2 simulated ranks of 4 windows.",
        "loss",
        1500,
        2,
        _SMALL_GPT,
        {**_TEXT, **_OTHERS, **_TRIED},
    ),
    "rounds": Task(
        "rounds",
        "AdamW: outer steps",
        f"{_GPT[0].upper()}{_GPT[1:]}; 4 simulated ranks of 4 windows.",
        "loss",
        2400,
        4,
        _SMALL_GPT,
        _ROUNDS,
    ),
}
