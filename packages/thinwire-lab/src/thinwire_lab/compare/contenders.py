"""Who takes part in a comparison: thinwire's own chains and plans, and PyTorch's ways as baselines.

none, qsgd(bits=4), plan.yaml    a chain, a preset or a file of rules, attached as a user would attach it
auto, auto(quality=balanced)     what `attach` chooses while the model trains
ddp                              DistributedDataParallel without any hook
torch-fp16, torch-bf16           PyTorch's own hooks that halve every number
torch-powersgd(rank=4)           PyTorch's PowerSGD hook, in one bucket: with several it aborts over Gloo
sparseloco, diloco(every=50)     outer steps: a preset of `attach_outer`, with options if need be
headroom                         nothing is sent at all: the speed that no codec can exceed, and no training result
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire import AutoSettings, Codec, Handle, OuterSettings, Plan, attach
from thinwire.core.plan import Decision
from thinwire.core.text import NAMES
from thinwire.errors import CodecError
from thinwire.outer.settings import preset_name
from thinwire_lab.compare.hooks import timed_hook
from thinwire_lab.compare.outer import AttachedOuter, described, outer_text
from thinwire_lab.report.record import Layer

BASELINES = ("ddp", "headroom", "torch-fp16", "torch-bf16", "torch-powersgd")
USUAL = ("none", "fp16", "qsgd", "nuqsgd", "gradiveq", "fftsgd", "iwp", "powersgd")
ONE_BUCKET = {"bucket_cap_mb": 1 << 20}
_BASELINE = re.compile(r"(?P<name>[a-z0-9-]+)\s*(?:\(\s*rank\s*=\s*(?P<rank>\d+)\s*\))?")


class Compressor(Protocol):
    """What a contender did to a model."""

    def metrics(self) -> dict[str, Any]:
        """The last step's figures that are known, under the names that StepMetrics gives them."""

    def layers(self) -> list[Layer]:
        """What every parameter went through."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Contender:
    """One way to average gradients; `text` is what the user wrote, and names it."""

    text: str
    codec: str
    baseline: bool = False
    rank: int = 0
    ddp_options: dict[str, Any] = field(default_factory=dict)
    outer: OuterSettings | None = None
    auto: bool = False

    @property
    def trains(self) -> bool:
        """Whether its ranks end with the same weights; without communication they do not."""
        return self.text != "headroom"

    @property
    def plan(self) -> Plan | None:
        """What decides on every parameter's gradient; PyTorch's ways, outer steps and auto have none from the start."""
        return None if self.baseline or self.outer is not None or self.auto else Plan.parse(self.text)

    def attach(self, model: nn.Module, seed: int) -> Compressor:
        """Let this contender average the gradients of a model."""
        assert isinstance(model, DistributedDataParallel)  # a comparison has at least two ranks
        name = self.text.partition("(")[0].strip()
        if self.baseline and name != "headroom":
            return timed_hook(model, name, self.rank)
        return Attached(attach(model, self.text if self.trains else "none", seed=seed, headroom=not self.trains))

    def attach_outer(self, model: nn.Module, optimizer: Optimizer, seed: int, scaler: Any) -> Compressor:
        """Let this contender exchange differences of weights."""
        return AttachedOuter(model, optimizer, self.text, seed, scaler)


class Attached:
    """A chain or plan of thinwire."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.errors: dict[str, float] = {}  # relative ones of the parameters, measured every few steps

    def metrics(self) -> dict[str, Any]:
        for name, slot in self.handle.engine.slots.items():
            if slot.notes.get("given", 0.0) > 0:
                self.errors[name] = (slot.notes["lost"] / slot.notes["given"]) ** 0.5
        last = self.handle.metrics()
        return {} if last is None else last.to_dict()

    def layers(self) -> list[Layer]:
        if self.handle.headroom:
            return []
        return [_layer(d, self.errors.get(d.name), dist.get_world_size()) for d in self.handle.plan]

    def close(self) -> None:
        self.handle.close()


def _layer(decision: Decision, relative_error: float | None, ranks: int) -> Layer:
    size = int(decision.codec.wire_bytes(decision.shape, ranks))
    plain = int(Codec().wire_bytes(decision.shape, ranks))
    return Layer(
        name=decision.name,
        shape=list(decision.shape),
        numel=decision.numel,
        codec=str(decision.codec),
        why=decision.why,
        wire_bytes=size,
        wire_ratio=plain / size if size else 1.0,
        relative_error=relative_error,
    )


def usual_contenders() -> str:
    """Those of the usual ones that are there."""
    return ";".join(name for name in USUAL if name == "none" or name in NAMES)


def parse_contender(text: str) -> Contender:
    """The contender of this name, or of the chain that the text is; a wrong one is refused before anything runs."""
    text = text.strip()
    if preset_name(text) is not None:
        settings = OuterSettings.of(text)
        Plan.parse(settings.codec)
        return Contender(text, described(settings), outer=settings)
    auto = AutoSettings.of(text)
    if auto is not None:
        return Contender(text, str(auto), auto=True)
    match = _BASELINE.fullmatch(text)
    if match is None or match["name"] not in BASELINES:
        if text.startswith("torch-"):
            raise CodecError(f"there is no baseline {text!r}; known are {', '.join(BASELINES)}.")
        return Contender(text, str(Plan.parse(text)))
    if match["rank"] and match["name"] != "torch-powersgd":
        raise CodecError(f"{match['name']} takes no rank; only torch-powersgd(rank=4) does.")
    if match["name"] == "torch-powersgd":
        rank = int(match["rank"] or 4)
        if rank < 1:
            raise CodecError(f"the rank of torch-powersgd must be at least 1; got {rank}.")
        return Contender(text, f"torch-powersgd(rank={rank})", True, rank, ONE_BUCKET)
    return Contender(text, text, True)


def parse_contenders(texts: Sequence[str], every: int | None = None, outer: str | None = None) -> list[Contender]:
    """All contenders of some texts that each may list several; one that is named twice takes part once.

    With `every`, each codec is exchanged in outer steps; baselines and presets of outer steps stay what they are.
    """
    found = [parse_contender(part) for text in texts for part in split_list(text)]
    if every is not None:
        texts = [c.text if c.baseline or c.outer else outer_text(c.text, every, outer) for c in found]
        found = [parse_contender(text) for text in texts]
    elif outer is not None:
        raise CodecError(f"--outer {outer} says what outer steps do, and there are none; give --every too.")
    return list({contender.text: contender for contender in found}.values())


def split_list(text: str) -> list[str]:
    """Cut at commas and semicolons outside of parentheses: chains may hold both."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character in ",;" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
