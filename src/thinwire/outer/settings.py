"""What an outer step can be told, and the published systems by name."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from thinwire.core.plan import PlanLike
from thinwire.core.text import parse_call
from thinwire.errors import CodecError
from thinwire.outer.optimizers import OuterLike, check_outer

_NAME = re.compile(r"\s*([A-Za-z-]+)\s*(?:\(|$)")

BUFFERS = ("average", "broadcast", "local")


@dataclass(frozen=True, kw_only=True)
class OuterSettings:
    """When the ranks exchange what, and what they do with the result; `attach_outer` explains every field."""

    codec: PlanLike = "none"
    every: int = 30
    outer: OuterLike = "nesterov(lr=0.7, momentum=0.9)"
    fragments: int = 1
    overlap: int = 0
    mix: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("fragments", 1), ("overlap", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise CodecError(f"{name} must be a whole number of at least {least}; got {value!r}.")
        if self.fragments > self.every:
            raise CodecError(
                f"fragments={self.fragments} cannot each be sent once in every={self.every} steps, one in a step;"
                " take fewer fragments or a longer round."
            )
        if self.overlap >= self.every:
            raise CodecError(
                f"overlap={self.overlap} must be less than every={self.every}: a fragment is sent again only after its"
                " last exchange was applied."
            )
        mix: Any = self.mix
        if not isinstance(mix, (int, float)) or isinstance(mix, bool) or not math.isfinite(mix) or not 0.0 < mix <= 1.0:
            raise CodecError(
                f"mix, the weight of what the ranks agreed on, must be above 0 and at most 1; got {self.mix!r}."
            )
        check_outer(self.outer)

    @staticmethod
    def of(codec: PlanLike, given: Mapping[str, Any] | None = None) -> "OuterSettings":
        """The settings of a preset, also with options of its own (`diloco(every=50)`), or of a codec.

        What is given and not None replaces them.
        """
        start = OuterSettings(codec=codec)
        if preset_name(codec) is not None:
            name, options = parse_call(str(codec))
            known = [field.name for field in fields(OuterSettings)]
            for option in options:
                if option not in known:
                    raise CodecError(f"{name} has no option {option!r}; its options are {', '.join(known)}.")
            if options.get("codec", "") is None:  # texts of chains read none as nothing
                options["codec"] = "none"
            start = replace(OUTER_PRESETS[name], **options)
        return replace(start, **{name: value for name, value in (given or {}).items() if value is not None})

    def sends(self, step: int, fragment: int) -> bool:
        """Whether this fragment is sent after this step, counted from 1; fragments take turns over a round."""
        return step % self.every == ((fragment + 1) * self.every // self.fragments) % self.every

    def facts(self) -> dict[str, Any]:
        """What must be equal on all ranks and in a checkpoint; the outer optimizer shows its own settings."""
        return {name: getattr(self, name) for name in ("every", "fragments", "overlap", "mix")}


def preset_name(codec: Any) -> str | None:
    """The preset of outer steps with which a text begins, if there is one."""
    match = _NAME.match(codec) if isinstance(codec, str) else None
    return match[1] if match is not None and match[1] in OUTER_PRESETS else None


# The settings of the papers. Codecs are texts, which are read when one is used.
OUTER_PRESETS: dict[str, OuterSettings] = {
    # Stich, ICLR 2019; also called periodic averaging
    "localsgd": OuterSettings(outer="sgd(lr=1)"),
    # Douillard et al. 2023, arXiv 2311.08105
    "diloco": OuterSettings(every=500),
    # Sarfi et al. 2025, arXiv 2508.15706
    "sparseloco": OuterSettings(
        codec="feedback(decay=0.95) | topk(density=1/64, chunk=4096) | codebook(bits=2)", outer="sgd(lr=1)"
    ),
    # Douillard et al. 2025, arXiv 2501.18512
    "streaming-diloco": OuterSettings(codec="mx(bits=4)", every=100, fragments=4, overlap=5, mix=0.5),
}
