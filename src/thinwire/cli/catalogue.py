"""Facts about stages and chains, read from the stages themselves: whatever is registered is listed."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from thinwire import PRESETS, STAGES, Codec, CodecError, Spec, Stage, ThinwireError
from thinwire.core.options import print_value
from thinwire.core.reducers import choose_reduction, rounds_of
from thinwire.core.settings import Setting

SAMPLE = (1000, 1000)  # numbers of a matrix, of which a codec's bits are told
RANKS = 4
ENDLESS = 1e9  # a limit of this size is none that anyone meets

TRAVELS = {
    "summed": "the numbers of the sum space go through the backend's own all-reduce, which adds them on the way",
    "sharded": "each rank sends every peer one shard as a message, adds what it receives in fp32, encodes its sum once,"
    " and sends that to all",
    "gathered": "each rank sends its whole message to all others, which decode and add",
    "ring": "messages go around a ring, decoded and encoded at every hop",
}


def catalogue() -> list[dict[str, Any]]:
    """A dictionary for each stage and preset: name, what it does, options, bits."""
    found = [_entry("stage", stage.name, stage, _stage_options(stage)) for stage in STAGES]
    return found + [_entry("preset", name, preset, _preset_options(preset)) for name, preset in PRESETS.items()]


def _entry(kind: str, name: str, maker: Any, options: list[dict[str, str]]) -> dict[str, Any]:
    bits, exact = bits_per_number(name)
    return {"kind": kind, "name": name, "does": first_sentence(maker), "options": options, "bits": bits, "exact": exact}


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


def _preset_options(preset: Any) -> list[dict[str, str]]:
    parameters = inspect.signature(preset).parameters.values()
    empty = inspect.Parameter.empty
    return [
        {"name": p.name, "default": "..." if p.default is empty else print_value(p.default), "help": ""}
        for p in parameters
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


def explanation(text: str, shape: Sequence[int], ranks: int) -> dict[str, Any]:
    """Everything about a chain that is known before data are."""
    if ranks < 2:
        raise CodecError(f"a gradient is averaged by at least 2 ranks, not {ranks}.")
    codec = Codec.parse(text)
    spec = Spec.of(tuple(shape))
    sums = codec.sum_spec(spec)
    reduction = choose_reduction(codec.coders, sums, ranks, None)
    size, plain = codec.wire_bytes(tuple(shape), ranks), Codec().wire_bytes(tuple(shape), ranks)
    return {
        "chain": str(codec),
        "shape": list(shape),
        "numel": spec.numel,
        "ranks": ranks,
        "stages": [_stage_facts(codec, i, spec, ranks) for i in range(len(codec.parts))],
        "sum_space": _describe(sums),
        "reduction": reduction,
        "rounds": rounds_of(reduction, codec.coders, sums) + sum(stage.rounds for stage in codec.stages),
        "travels": TRAVELS[reduction],
        "bytes": int(size),
        "exact": size.exact,
        "plain_bytes": int(plain),
        "ratio": int(plain) / int(size) if size else None,
        "bits": 32 * int(size) / int(plain) if plain else None,
        "unbiased": codec.unbiased,
        "feedback": codec.feedback,
    }


def _stage_facts(codec: Codec, at: int, spec: Spec, ranks: int) -> dict[str, Any]:
    part, specs, at = codec.parts[at], codec.specs(spec), at - codec.offset
    stage = part if isinstance(part, Stage) else None
    return {
        "stage": str(part),
        "does": first_sentence(type(part)),
        "role": "setting" if stage is None else "additive" if at < len(codec.transforms) else "wire",
        "gives": _describe(specs[max(at + 1, 0)]),
        "agreement_bytes": 0 if stage is None else int(stage.agreement(specs[at], ranks)),
        "unbiased": stage is not None and stage.unbiased,
    }


def _describe(spec: Spec) -> str:
    return f"{'' if spec.exact else 'about '}{spec.numel:,} {spec.describe()}"


def explanation_lines(facts: dict[str, Any]) -> list[str]:
    """The facts as text for people."""
    lines = [facts["chain"], ""]
    was_summed = False
    for stage in facts["stages"]:
        if stage["role"] == "wire" and not was_summed:
            lines.append(f"  -- the cut: sums are taken of {facts['sum_space']}; what follows is how they travel --")
            was_summed = True
        lines += [f"  {stage['stage']}", f"      {stage['does']}."]
        if stage["role"] != "setting":
            lines.append(f"      gives {stage['gives']}{'; unbiased' if stage['unbiased'] else ''}")
        if stage["agreement_bytes"]:
            lines.append(f"      the ranks agree first: {stage['agreement_bytes']:,} bytes from each")
    if not was_summed:
        lines.append(f"  -- no cut: sums are taken of {facts['sum_space']}, which is what travels --")
    bytes_of = f"{'' if facts['exact'] else 'about '}{facts['bytes']:,}"
    return [
        *lines,
        "",
        f"reduction  {facts['reduction']}: {facts['travels']}",
        f"rounds     {facts['rounds']}",
        f"bytes      {bytes_of} sent by each of {facts['ranks']} ranks for {facts['numel']:,} numbers"
        f" (shape {'x'.join(map(str, facts['shape']))}); fp32: {facts['plain_bytes']:,}",
        *([f"ratio      {facts['ratio']:.2f}x, {facts['bits']:.2f} bits a number"] if facts["ratio"] else []),
        f"mean       {'right in expectation (unbiased)' if facts['unbiased'] else 'biased'}",
        f"feedback   {_feedback(facts['feedback'])}",
    ]


def _feedback(keep: str) -> str:
    return "none" if keep == "off" else f"what is not delivered is kept in {keep} and added to the next step"
