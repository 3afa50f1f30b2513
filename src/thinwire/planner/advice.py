"""The answer to "will it pay, with what, and how much", for people, programs and plots."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import nn

from thinwire.planner.candidates import Quality
from thinwire.planner.choice import BY_LAYER, Choice, Choices, choose
from thinwire.planner.describe import on_link, rebucketed
from thinwire.planner.link import SECONDS
from thinwire.planner.measure import measure
from thinwire.planner.predict import Prediction, predict
from thinwire.planner.profile import Link, Profile

RATES = tuple(10 ** (6.5 + i / 4) for i in range(17))  # bits per second of plots: 3 Mbit/s to 30 Gbit/s
GROWTH = (2, 4, 16, 64, 256, 1024, 10_000)  # ranks of plots
_SHARE = 0.05  # of a step that exchanges between outer steps may take
_ENOUGH = 1.5  # times the step without communication: above it no codec suffices, and outer steps are worth a look
_BUCKETS = (5, 10, 25, 50, 100)  # megabytes
_OUTER = ("qsgd(bits=4)", "integers(bits=8)", "bf16", "none")


@dataclass(frozen=True)
class OuterAdvice:
    """Exchanges of weights after some steps, where even the best codec leaves long steps.

    Args:
        codec: The codec of the exchange.
        every: Steps between two exchanges, so that these take at most 5 % of the time.
        step: Seconds of a mean step.
    """

    codec: str
    every: int
    step: float


@dataclass(frozen=True)
class Advice:
    """What is recommended, and on what grounds. `print` shows it; `to_dict` has the same for programs.

    Args:
        profile: The figures it is made of.
        choices: All plans that were compared.
        outer: Outer steps, where no codec suffices.
        bucket_mb: A size of DDP's buckets that makes the step shorter by more than 3 %; None: the present one is good.
    """

    profile: Profile
    choices: Choices
    outer: OuterAdvice | None = None
    bucket_mb: int | None = None

    @property
    def best(self) -> Choice:
        """The recommended plan, `none` among them."""
        return self.choices.best

    @property
    def speedup(self) -> float:
        """Of the recommended plan over plain DDP."""
        return self.choices.plain.prediction.step / self.best.prediction.step

    @property
    def line(self) -> str:
        """The line of Python to paste."""
        if not self.choices.pays:
            return "model = DistributedDataParallel(net)  # as it is"
        plan = self.best.plan
        if len(plan.rules) == 1:
            return f'handle = thinwire.attach(model, "{plan.rules[0].codec}")'
        rules = ", ".join(f'"{rule.match}": "{rule.codec}"' for rule in plan.rules)
        return f"handle = thinwire.attach(model, {{{rules}}})"

    @property
    def verdict(self) -> str:
        """One or two sentences."""
        plain, model = self.choices.plain.prediction, self.profile.model
        added = plain.step / max(model.step, 1e-12) - 1.0
        if not self.choices.pays:
            told = f"Do not compress: the network adds {added:.0%} to your step"
            least = self.choices.admitted[0].prediction.step if self.choices.admitted else plain.step
            more = f", and the best codec would make it {plain.step / least:.2f} times as fast" if added > 0.03 else ""
            return f"{told}{more}."
        told = (
            f"Compress with {self.best.codec}: {_ms(plain.step)} a step become {_ms(self.best.prediction.step)},"
            f" {self.speedup:.2f} times as fast."
        )
        if self.best.spared:
            told += f" {len(self.best.spared)} layers that would lose too much stay uncompressed."
        return told

    def __str__(self) -> str:
        return "\n".join(advice_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Texts and numbers, with the profile."""
        kinds = {"admitted": self.choices.admitted, "refused": self.choices.refused}
        return {
            "verdict": self.verdict,
            "compress": self.choices.pays,
            "line": self.line,
            "plan": self.best.plan.to_dict(),
            "speedup": self.speedup,
            "plain": facts(self.choices.plain),
            **{kind: [facts(choice) for choice in those] for kind, those in kinds.items()},
            "outer": None if self.outer is None else vars(self.outer),
            "bucket_mb": self.bucket_mb,
            "link_faults": self.profile.link.faults(),
            "profile": self.profile.to_dict(),
        }


def advise(
    model: nn.Module,
    step: Callable[[], Any],
    steps: int = 10,
    *,
    quality: str | Quality = "safe",
    candidates: Sequence[str] | None = None,
    seconds: float = SECONDS,
) -> Advice:
    """Train for some steps without compression, and say whether compression would pay, with what, and how much.

    All ranks call it with equal arguments, and get the same advice; rank 0 prints it. The training goes on as if there
    had been only the steps.

    Args:
        model: The DistributedDataParallel model.
        step: A function that trains for one step: forward, backward, optimizer. It is called `steps` + 1 times.
        steps: Steps to look at, at least 3.
        quality: How much a codec may lose of a gradient: `"safe"`, `"balanced"`, `"bold"`.
        candidates: Codecs to compare; None takes a list of twelve.
        seconds: What the measurement of the link may take, about.

    Returns:
        The advice: `print(advice)`, `advice.line`, `advice.best.plan`, `advice.profile.save("profile.json")`.

    Raises:
        WorldError: The model cannot be observed.
        CodecError: An argument cannot work.

    Examples:
        >>> def step():
        ...     ddp_model(inputs).sum().backward()
        >>> advice = thinwire.advise(ddp_model, step, steps=3, candidates=["qsgd"], seconds=0.2)
        Do not compress...
        >>> advice.choices.pays
        False
    """
    advice = advice_on(measure(model, step, steps, candidates, seconds), quality)
    if dist.get_rank() == 0:
        print(advice)
    return advice


def advice_on(profile: Profile, quality: str | Quality = "safe", codecs: Sequence[str] | None = None) -> Advice:
    """The advice that follows from a profile, without any measurement.

    Args:
        profile: The figures.
        quality: How much a codec may lose.
        codecs: Only these codecs of the profile; None takes all.
    """
    choices = choose(profile, quality, codecs)
    return Advice(profile, choices, _outer(profile, choices), _bucket_size(profile, choices.best))


def _outer(profile: Profile, choices: Choices) -> OuterAdvice | None:
    """Outer steps, if communication is still a large part of the step with the recommended plan."""
    best, step = choices.best.prediction.step, profile.model.step
    if best <= _ENOUGH * step:
        return None
    codec = next(text for text in _OUTER if text == "none" or text in profile.codecs)
    idle = replace(profile, model=replace(profile.model, step=0.0, ready=tuple(0.0 for _ in profile.model.ready)))
    exchange = predict(idle, codec).step
    every = max(2, math.ceil(exchange / (_SHARE * step)))
    digits = 10 ** max(0, len(str(every)) - 2)
    every = -(-every // digits) * digits
    return OuterAdvice(codec, every, step + exchange / every)


def _bucket_size(profile: Profile, best: Choice) -> int | None:
    """The size of buckets that makes the step shortest, if it is worth a change."""
    steps = {
        size: predict(replace(profile, model=rebucketed(profile.model, size)), best.plan).step for size in _BUCKETS
    }
    size = min(steps, key=lambda megabytes: steps[megabytes])
    return size if steps[size] < 0.97 * min(best.prediction.step, steps[25]) else None


def speedups(profile: Profile, codec: str, rates: Sequence[float] = RATES) -> list[float]:
    """The predicted speed-up of a codec over plain DDP on links of these rates, with the latency of the profile's."""
    found = []
    for rate in rates:
        link = Link.described(rate, max(profile.link.hop_seconds - 50e-6, 0.0), profile.ranks)
        elsewhere = on_link(profile, link)
        found.append(predict(elsewhere, "none").step / predict(elsewhere, codec).step)
    return found


def break_even(rates: Sequence[float], gains: Sequence[float]) -> float | None:
    """The rate above which a codec makes steps longer; None: within these rates it never does."""
    for (low, before), (high, after) in zip(
        zip(rates, gains, strict=True), zip(rates[1:], gains[1:], strict=True), strict=False
    ):
        if before >= 1.0 > after:
            return float(low * (high / low) ** ((before - 1.0) / (before - after)))
    return None


def facts(choice: Choice) -> dict[str, Any]:
    """A plan and its predicted step, as JSON."""
    prediction = choice.prediction
    return {
        "codec": choice.codec,
        "plan": choice.plan.to_dict(),
        "step_seconds": prediction.step,
        "bytes_sent": prediction.sent,
        "rounds": prediction.rounds,
        "memory_bytes": prediction.memory,
        "relative_error": prediction.error if math.isfinite(prediction.error) else None,
        "compressed": prediction.compressed,
        "spared": list(choice.spared),
        **{f"{name}_seconds": value for name, value in vars(prediction.time).items() if name != "step"},
    }


def advice_lines(advice: Advice) -> list[str]:
    """The advice as text."""
    profile, choices = advice.profile, advice.choices
    lines = [advice.verdict, "", *_where(profile, choices.plain.prediction), "", *_table(choices), ""]
    lines += [f"broken link: {fault}" for fault in profile.link.faults()]
    lines += ["Paste:", f"    {advice.line}"]
    if advice.bucket_mb is not None:
        lines.append(
            f"DDP's buckets: DistributedDataParallel(..., bucket_cap_mb={advice.bucket_mb}) is predicted faster."
        )
    if advice.outer is not None:
        outer = advice.outer
        lines += [
            f"The network still takes more than a third of the step. Weights exchanged every {outer.every} steps would"
            f" make the mean step {_ms(outer.step)}; watch the loss:",
            f'    handle = thinwire.attach_outer(net, optimizer, "{outer.codec}", every={outer.every})',
        ]
    return lines


def _where(profile: Profile, plain: Prediction) -> list[str]:
    source = f"{profile.steps_measured} steps measured" if profile.steps_measured else "described, not measured"
    if profile.steps_measured and not profile.link.received_mbit:
        source += ", the link described"
    time = plain.time
    return [
        f"{profile.model.numel:,} parameters, {profile.ranks} ranks, {_rate(profile.link.bits_per_second)} ({source})",
        f"A plain step: {_ms(plain.step)}, of which {_ms(profile.model.step)} without communication and"
        f" {_ms(time.exposed)} waiting for the network behind backward",
    ]


def _table(choices: Choices) -> list[str]:
    rows = [("codec", "step", "speed-up", "MB sent", "error", "memory", "rounds", "")]
    plain = choices.plain.prediction.step
    listed = [(c, "") for c in (*choices.admitted, choices.plain)]
    listed.sort(key=lambda item: item[0].prediction.step)
    listed += [(c, "loses too much") for c in choices.refused]
    for choice, note in listed:
        p = choice.prediction
        shown = "mixed" if choice.codec == BY_LAYER else _percent(p.error)
        mark = "<- recommended" if choice is choices.best else note
        cells = (choice.codec, _ms(p.step), f"{plain / p.step:.2f} x", f"{p.sent / 1e6:.2f}", shown)
        rows.append((*cells, f"{p.memory / 1e6:.1f} MB", str(p.rounds), mark))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [_row(cells, widths) for cells in rows]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, figures to the right."""
    placed = [f"{cell:<{width}}" if at in (0, 7) else f"{cell:>{width}}" for at, (cell, width) in _pairs(cells, widths)]
    return "  ".join(placed).rstrip()


def _pairs(cells: Sequence[str], widths: Sequence[int]) -> list[tuple[int, tuple[str, int]]]:
    return list(enumerate(zip(cells, widths, strict=True)))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _percent(error: float) -> str:
    if math.isinf(error):
        return "not known"
    return f"{error:.1%}" if error < 0.1 else f"{error:.0%}"


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"
