"""Facts about single stages and presets, read from themselves: whatever is registered or installed is listed."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from thinwire import OUTER_PRESETS, PRESETS, STAGES, Codec, CodecError, Stage, ThinwireError
from thinwire.core.options import print_value
from thinwire.core.settings import Setting
from thinwire.core.text import installed_names, load_installed, lookup, package_of

SAMPLE = (1000, 1000)  # the shape of the matrix for which ratios are told
RANKS = 4
ENDLESS = 1e9  # a limit of this size is none that anyone meets

# Chains for stages that need options or other stages around them; all others are their own example.
EXAMPLES: Mapping[str, str] = {
    "feedback": "feedback(keep=bf16) | topk(density=0.01)",
    "delay": "delay(steps=100) | qsgd(bits=4)",
    "fft": "fft | topk(density=0.15) | rangefloat(bits=10)",
    "dct": "dct | topk(density=0.1)",
    "hadamard": "hadamard | qsgd(bits=4)",
    "topk": "topk(density=0.01)",
    "sharedtopk": "sharedtopk(density=0.01)",
    "threshold": "threshold(value=0.001)",
    "momentum": "momentum(beta=0.9) | topk(density=0.01)",
    "ef21": "ef21 | topk(density=0.01)",
    "randomk": "randomk(density=0.01)",
    "ballot": "ballot | vote",
    "vote": "ballot | vote",
    "elias": "qsgd(bits=4) | elias",
    "huffman": "nuqsgd(bits=4) | huffman",
}


OUTER_TEXTS: Mapping[str, str] = {
    "localsgd": "The mean of the weights after every round (Stich, ICLR 2019).",
    "diloco": "Differences of weights as gradients of Nesterov's method (Douillard et al. 2023).",
    "sparseloco": "The largest differences of each chunk in 2 bits, and a decaying residual (Sarfi et al. 2025).",
    "streaming-diloco": "DiLoCo in fragments that travel while training goes on, in 4 bits (Douillard et al. 2025).",
}
OUTER_HELP: Mapping[str, str] = {
    "codec": "what the differences travel through",
    "every": "steps in a round",
    "outer": "the optimizer that takes the mean difference for a gradient",
    "fragments": "groups of layers, each exchanged once in a round",
    "overlap": "further steps during which an exchange runs in the background",
    "mix": "weight of the common weights when they are applied",
}


def catalogue() -> list[dict[str, Any]]:
    """The entries of all stages and presets of thinwire, of its outer steps, then those of installed packages."""
    own = [stage.name for stage in STAGES] + list(PRESETS)
    outer = [outer_entry(name) for name in OUTER_PRESETS]
    installed = [_installed(name, name in own) for name in sorted(installed_names())]
    return [*(entry(name) for name in own), *outer, *installed]


def outer_entry(name: str) -> dict[str, Any]:
    """What is known of a preset of outer steps; its ratio is that of a step, with those in which nothing is sent."""
    settings = OUTER_PRESETS[name]
    options = [
        {"name": f.name, "default": print_value(getattr(settings, f.name)), "help": OUTER_HELP[f.name]}
        for f in fields(settings)
    ]
    bits, exact = bits_per_number(str(settings.codec))
    if settings.codec == "none":
        bits = 32.0
    found = _entry("preset of outer steps", name, "thinwire", OUTER_TEXTS[name].rstrip("."), OUTER_TEXTS[name])
    found |= {"chain": str(settings.codec), "options": options, "example": name, "exact": exact}
    return found | ({} if bits is None else {"bits": bits / settings.every, "ratio": 32 * settings.every / bits})


def _installed(name: str, hidden: bool) -> dict[str, Any]:
    """What a package declares; one that cannot be used is listed with the reason."""
    try:
        if hidden:
            raise CodecError(f"it cannot be used, because thinwire itself has a stage {name!r}.")
        load_installed(name)
        return entry(name)
    except Exception as error:  # code of another package: whatever happens, the rest is listed
        why = str(error) if isinstance(error, ThinwireError) else f"{type(error).__name__}: {error}"
        return _entry("stage", name, package_of(name), " ".join(why.rstrip(".").split()), "")


def entry(name: str) -> dict[str, Any]:
    """What is known of one stage or preset: purpose, options with defaults, an example, and its bytes."""
    maker = lookup(name)
    kind = "stage" if isinstance(maker, type) else "preset"
    options = _stage_options(maker) if kind == "stage" else _preset_options(maker, name)
    package = "thinwire" if maker.__module__.startswith("thinwire.") else package_of(name) or maker.__module__
    found = _entry(kind, name, package, first_sentence(maker), inspect.getdoc(maker) or "")
    bits, exact = bits_per_number(name)
    chain = _chain(name)
    found |= {"chain": chain, "options": options, "example": _example(name, kind, chain)}
    return found | {"bits": bits, "ratio": 32 / bits if bits else None, "exact": exact}


def _entry(kind: str, name: str, package: str, does: str, text: str) -> dict[str, Any]:
    known = {"kind": kind, "name": name, "package": package, "does": does, "text": text}
    return known | {"chain": None, "options": [], "example": None, "bits": None, "ratio": None, "exact": True}


def _chain(name: str) -> str | None:
    """The chain that a name alone stands for; None where it needs options or another stage."""
    try:
        return str(Codec.parse(name))
    except ThinwireError:
        return None


def _example(name: str, kind: str, chain: str | None) -> str | None:
    return EXAMPLES.get(name, chain if kind == "stage" or chain is None else name)


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<!et al)\.(?: (?=[A-Z])|$)", text)[0]  # names of authors are no end of a sentence


def _stage_options(stage: type[Stage] | type[Setting]) -> list[dict[str, str]]:
    return [
        {
            "name": f.name,
            "default": "..." if f.default is MISSING else print_value(f.default),
            "help": _option_help(f.metadata),
        }
        for f in fields(stage)
    ]


def _option_help(metadata: Any) -> str:
    text = str(metadata.get("help", ""))
    if "choices" in metadata:
        return f"{text} ({', '.join(metadata['choices'])})"
    if "low" not in metadata:
        return text
    return f"{text} ({metadata['low']:g} to {metadata['high']:g})" if metadata["high"] < ENDLESS else text


def _preset_options(preset: Any, name: str) -> list[dict[str, str]]:
    """The parameters of a preset; those that its chain has under the same name are explained as there."""
    stages = Codec.parse(name).stages if _chain(name) else ()
    help_of = {option["name"]: option["help"] for stage in stages for option in _stage_options(type(stage))}
    empty = inspect.Parameter.empty
    return [
        {
            "name": p.name,
            "default": "..." if p.default is empty else print_value(p.default),
            "help": help_of.get(p.name, ""),
        }
        for p in inspect.signature(preset).parameters.values()
    ]


def bits_per_number(text: str) -> tuple[float | None, bool]:
    """32 x (bytes that a rank sends) / (bytes of an fp32 all-reduce); None for what cannot stand alone."""
    try:
        codec = Codec.parse(text)
        size = codec.wire_bytes(SAMPLE, RANKS)
    except ThinwireError:  # it needs options, or another stage before it
        return None, True
    if not codec.stages or "float32" not in codec.stages[0].accepts:
        return None, True
    return 32 * int(size) / int(Codec().wire_bytes(SAMPLE, RANKS)), size.exact
