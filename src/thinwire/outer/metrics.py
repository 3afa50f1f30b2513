"""The metrics of an exchange, as users get them."""

from dataclasses import dataclass

from thinwire.ddp.metrics import StepMetrics


@dataclass(frozen=True, kw_only=True)
class RoundMetrics(StepMetrics):
    """One exchange of one fragment, on this rank; `step` is the inner step after which it was applied.

    Bytes and seconds are those of the exchange, `exposed_seconds` those for which training waited. `bytes_per_step` is
    the mean over all inner steps of this process. `drift` says how far the ranks went apart: the root of 1 - |mean|^2 /
    (mean of |difference|^2 over the ranks). It is 0 if all went the same way and 1 if their differences cancel; what a
    codec holds back counts as drift.
    """

    round: int
    fragment: int
    bytes_per_step: float
    drift: float
