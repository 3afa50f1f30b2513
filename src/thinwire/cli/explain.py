"""What a chain does, where sums are taken, what travels, and how many bytes: as facts, and as text for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from thinwire import Codec, CodecError, Spec, Stage
from thinwire.cli.catalogue import first_sentence
from thinwire.cli.layout import columns, wrapped
from thinwire.core.reducers import choose_reduction, rounds_of

TRAVELS = {
    "summed": "the numbers of the sum space go through the backend's own all-reduce, which adds them on the way",
    "sharded": "each rank sends every peer one shard as a message, adds what it receives in fp32, encodes its sum once,"
    " and sends that to all",
    "gathered": "each rank sends its whole message to all others, which decode and add",
    "ring": "messages go around a ring, decoded and encoded at every hop",
}

WITH_ADAM = {
    False: "nothing arrives late or in bursts: such chains of 3 bits and more lost least where AdamW trained",
    True: "most biased chains lost more than qsgd(bits=4) and alq(bits=3): compare with these, or take"
    " outer steps (thinwire.attach_outer)",
}


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
        "biased": any(stage.wants_feedback for stage in codec.stages),  # more than by rounding to a shorter float
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


def explanation_lines(facts: Mapping[str, Any], width: int) -> list[str]:
    """The facts as text for people."""
    was_summed = False
    lines = [facts["chain"], ""]
    for stage in facts["stages"]:
        if stage["role"] == "wire" and not was_summed:
            lines += wrapped(
                f"-- the cut: sums are taken of {facts['sum_space']}; what follows is how they travel --",
                *(width, "  ", "  "),
            )
            was_summed = True
        lines += [*wrapped(stage["stage"], width, "  ", "      "), *_stage_lines(stage, width)]
    if not was_summed:
        end = f"-- no cut: sums are taken of {facts['sum_space']}, which is what travels --"
        lines += wrapped(end, width, "  ", "  ")
    return [*lines, "", *columns(_figures(facts), width)]


def _stage_lines(stage: Mapping[str, Any], width: int) -> list[str]:
    told = [f"{stage['does']}."]
    if stage["role"] != "setting":
        told.append(f"gives {stage['gives']}{'; unbiased' if stage['unbiased'] else ''}")
    if stage["agreement_bytes"]:
        told.append(f"the ranks agree first: {stage['agreement_bytes']:,} bytes from each")
    return wrapped("\n".join(told), width, " " * 6, " " * 6)


def _figures(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    about = "" if facts["exact"] else "about "
    shape = "x".join(map(str, facts["shape"]))
    sent = f"{about}{facts['bytes']:,} sent by each of {facts['ranks']} ranks for {facts['numel']:,} numbers"
    ratio = [("ratio", f"{about}{facts['ratio']:.2f}x, {facts['bits']:.2f} bits a number")] if facts["ratio"] else []
    return [
        ("reduction", f"{facts['reduction']}: {facts['travels']}"),
        ("rounds", str(facts["rounds"])),
        ("bytes", f"{sent} (shape {shape}); fp32: {facts['plain_bytes']:,}"),
        *ratio,
        ("mean", "right in expectation (unbiased)" if facts["unbiased"] else "biased"),
        ("feedback", _feedback(facts["feedback"])),
        ("with Adam", WITH_ADAM[facts["biased"]]),
    ]


def _feedback(keep: str) -> str:
    return "none" if keep == "off" else f"what is not delivered is kept in {keep} and added to the next step"
