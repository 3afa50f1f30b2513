"""The metrics of a step, as users get them. The DDP guide (docs/ddp.md, "Metrics") explains every field."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CodecMetrics:
    """One step of the parameters that share a codec, on this rank."""

    parameters: int
    elements: int
    element_ratio: float
    bytes_sent: int
    bytes_received: int
    wire_ratio: float
    rounds: int
    relative_error: float | None  # None: not measured in this step
    encode_seconds: float
    communicate_seconds: float
    decode_seconds: float


@dataclass(frozen=True, kw_only=True)
class StepMetrics(CodecMetrics):
    """One step of all parameters, on this rank; `codecs` has the same fields for each codec."""

    step: int
    exposed_seconds: float
    bytes_inside: int  # to other ranks on the same host, which `bytes_sent` does not have (`local_size`)
    codecs: dict[str, CodecMetrics]

    def to_dict(self) -> dict[str, Any]:
        """The same as dictionaries, ready for JSON."""
        return asdict(self)

    def scalars(self) -> dict[str, float]:
        """The numbers of all parameters together by their names, as loggers take them; `step` is not among them."""
        values = {name: value for name, value in vars(self).items() if name not in ("step", "codecs")}
        return {name: float(value) for name, value in values.items() if value is not None}
