"""Who takes part in a comparison: thinwire's own chains and plans, and PyTorch's ways as baselines.

none, qsgd(bits=4), plan.yaml    a chain, a preset or a file of rules, attached as a user would attach it
ddp                              DistributedDataParallel without any hook
torch-fp16, torch-bf16           PyTorch's own hooks that halve every number
torch-powersgd(rank=4)           PyTorch's PowerSGD hook, in one bucket: with several it aborts over Gloo
headroom                         nothing is sent at all: the speed that no codec can exceed, and no training result
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import Codec, Handle, Plan, attach
from thinwire.core.plan import Decision
from thinwire.core.text import NAMES
from thinwire.errors import CodecError
from thinwire_lab.compare.hooks import timed_hook
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

    @property
    def trains(self) -> bool:
        """Whether its ranks end with the same weights; without communication they do not."""
        return self.text != "headroom"

    @property
    def plan(self) -> Plan | None:
        """What decides on every parameter; PyTorch's ways have none."""
        return None if self.baseline else Plan.parse(self.text)

    def attach(self, model: nn.Module, seed: int) -> Compressor:
        """Let this contender average the gradients of a model."""
        assert isinstance(model, DistributedDataParallel)  # a comparison has at least two ranks
        name = self.text.partition("(")[0].strip()
        if self.baseline and name != "headroom":
            return timed_hook(model, name, self.rank)
        return Attached(attach(model, self.text if self.trains else "none", seed=seed, headroom=not self.trains))


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


def parse_contenders(texts: Sequence[str]) -> list[Contender]:
    """All contenders of some texts that each may list several; one that is named twice takes part once."""
    found = [parse_contender(part) for text in texts for part in split_list(text)]
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
