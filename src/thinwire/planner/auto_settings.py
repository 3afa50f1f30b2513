"""What `attach(model, "auto")` may choose from: `auto(quality=balanced)`, or an `AutoSettings`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.core.text import parse_call
from thinwire.errors import CodecError
from thinwire.planner.candidates import Quality, checked_candidates, quality_of

NAME = "auto"


@dataclass(frozen=True)
class AutoSettings:
    """Let `attach` choose the plan: `attach(model, "auto")`, `attach(model, thinwire.AutoSettings(quality="bold"))`.

    Args:
        quality: How much a codec may lose: `"safe"` (unbiased codecs, and those that lose less than quantisation with
            4 bits), `"balanced"`, `"bold"`, or a `Quality`.
        candidates: The codecs to choose from; None takes a list for general use. No compression is always a candidate.

    Examples:
        >>> handle = thinwire.attach(ddp_model, "auto(quality=balanced)")
        >>> handle.decisions
        []
    """

    quality: str | Quality = "safe"
    candidates: Sequence[str] | None = None

    def __post_init__(self) -> None:
        quality_of(self.quality)
        checked_candidates(self.candidates)

    @staticmethod
    def of(plan: Any) -> "AutoSettings | None":
        """The settings, if a plan is `auto`, `auto(...)` or settings already; None for every other plan."""
        if isinstance(plan, AutoSettings):
            return plan
        if not isinstance(plan, str) or plan.strip().partition("(")[0].strip() != NAME:
            return None
        _, options = parse_call(plan)
        unknown = [name for name in options if name not in ("quality", "candidates")]
        if unknown:
            raise CodecError(f"auto has no option {unknown[0]!r}; it takes quality and candidates.")
        if isinstance(options.get("candidates"), str):
            options["candidates"] = tuple(text.strip() for text in options["candidates"].split(";"))
        return AutoSettings(**options)

    def __str__(self) -> str:
        quality = self.quality if isinstance(self.quality, str) else self.quality.name
        listed = "" if self.candidates is None else f", candidates='{'; '.join(self.candidates)}'"
        return f"{NAME}(quality={quality}{listed})"
