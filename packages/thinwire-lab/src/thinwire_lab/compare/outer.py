"""Outer steps as contenders: `sparseloco`, `diloco(every=50)`, and any codec with `--every`."""

from contextlib import AbstractContextManager
from typing import Any

from torch import distributed as dist
from torch import nn
from torch.optim import Optimizer

from thinwire import Codec, CodecError, OuterHandle, OuterSettings, RoundMetrics, attach_outer
from thinwire_lab.report.record import Layer

LOGGED_EVERY = 10  # steps between records: a mean over the ranks is an exchange, of which these steps have none
_TIMES = ("encode_seconds", "communicate_seconds", "decode_seconds", "exposed_seconds")


class AttachedOuter:
    """Outer steps of thinwire. Their times are told for each inner step, as those of other contenders."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: str, seed: int, scaler: Any) -> None:
        self.handle: OuterHandle = attach_outer(model, optimizer, settings, seed=seed, scaler=scaler)
        self.seconds = dict.fromkeys(_TIMES, 0.0)
        self.handle.on_step.append(self._add)

    def _add(self, metrics: Any) -> None:
        for name in _TIMES:
            self.seconds[name] += getattr(metrics, name)

    def metrics(self) -> dict[str, Any]:
        last: RoundMetrics | None = self.handle.metrics()
        if last is None:
            return {}
        return last.to_dict() | {name: value / self.handle.step for name, value in self.seconds.items()}

    def layers(self) -> list[Layer]:
        every, ranks = self.handle.settings.every, dist.get_world_size()
        found = []
        for decision in self.handle.plan:
            size = int(decision.codec.wire_bytes(decision.shape, ranks))
            plain = int(Codec().wire_bytes(decision.shape, ranks))
            found.append(
                Layer(
                    name=decision.name,
                    shape=list(decision.shape),
                    numel=decision.numel,
                    codec=str(decision.codec),
                    why=decision.why,
                    wire_bytes=round(size / every),
                    wire_ratio=every * plain / size if size else 1.0,
                    relative_error=None,
                )
            )
        return found

    def state_dict(self) -> dict[str, Any]:
        return self.handle.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.handle.load_state_dict(state)

    def synchronize(self) -> int:
        return self.handle.synchronize()

    def agreed(self) -> AbstractContextManager[None]:
        return self.handle.agreed()

    def close(self) -> None:
        self.handle.close()


def outer_text(codec: str, every: int, outer: str | None) -> str:
    """A codec with outer steps, in the one text that names a contender."""
    options = [f"codec={_quoted(codec)}"] if codec.strip() != "none" else []
    options += [f"every={every}"] + ([f"outer={_quoted(outer)}"] if outer else [])
    text = f"diloco({', '.join(options)})"
    OuterSettings.of(text)
    return text


def described(settings: OuterSettings) -> str:
    """All settings in one line."""
    parts = [f"every={settings.every}", f"outer={settings.outer}"]
    parts += [f"fragments={settings.fragments}"] if settings.fragments > 1 else []
    parts += [f"overlap={settings.overlap}", f"mix={settings.mix:g}"] if settings.overlap else []
    return f"{settings.codec} ({', '.join(parts)})"


def _quoted(text: str) -> str:
    for mark in ("'", '"'):
        if mark not in text:
            return f"{mark}{text}{mark}"
    raise CodecError(f"{text} has both kinds of quotation marks, so that no option can hold it; use one kind.")
