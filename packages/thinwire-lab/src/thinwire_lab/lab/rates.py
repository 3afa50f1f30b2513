"""What a lab looks like, read from the text a user types: rates, delays, and one link for each host."""

import re
from dataclasses import dataclass

from thinwire.errors import ThinwireError

MAX_HOSTS = 200  # host i has the address 10.77.0.(i + 1)
_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit", re.IGNORECASE)
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)", re.IGNORECASE)
_BITS = {"k": 10**3, "m": 10**6, "g": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class LabError(ThinwireError, RuntimeError):
    """A lab that cannot be described, made or started."""


def parse_rate(text: str) -> int | None:
    """Bits per second of a rate such as `200mbit` or `2.5gbit`; None for `none`, a link without a limit."""
    text = text.strip()
    if text.lower() == "none":
        return None
    match = _RATE.fullmatch(text)
    if match is None:
        raise LabError(
            f"a link rate is a number with kbit, mbit or gbit, or `none`, not {text!r}; write for example 200mbit"
        )
    rate = round(float(match[1]) * _BITS[match[2].lower()])
    if not 10**5 <= rate <= 10**11:
        raise LabError(f"a link rate lies between 100kbit and 100gbit, not {text!r}; write `none` for no limit")
    return rate


def parse_delay(text: str) -> float:
    """Seconds of a delay such as `5ms` or `250us`."""
    match = _DELAY.fullmatch(text.strip())
    if match is None:
        raise LabError(f"a latency is a number with us, ms or s, not {text!r}; write for example 5ms")
    delay = float(match[1]) * _SECONDS[match[2].lower()]
    if delay > 10:
        raise LabError(f"a latency is at most 10s, not {text!r}; choose a shorter one")
    return delay


def show_rate(rate: int | None) -> str:
    """The shortest text that `parse_rate` reads back as this rate."""
    if rate is None:
        return "none"
    unit = next(unit for unit in ("g", "m", "k") if rate >= _BITS[unit])
    return f"{rate / _BITS[unit]:.9g}{unit}bit"


@dataclass(frozen=True, kw_only=True)
class LabSpec:
    """A cluster: how many hosts, one rate for all links or one for each host, and the delay between two hosts.

    `links="none"` means no namespaces at all: every host is this machine and talks over its loopback.
    """

    hosts: int = 4
    links: str = "none"
    latency: str = "0ms"

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise LabError(f"a lab has 1 to {MAX_HOSTS} hosts, not {self.hosts}; choose a number in that range")
        if self.delay > 0 and self.is_loopback:
            raise LabError(f"a latency of {self.latency} needs shaped links; give a rate, for example --link 10gbit")
        if len(self.rates) != self.hosts:
            raise LabError(
                f"{self.hosts} hosts need one rate for all or {self.hosts} rates, not the {len(self.rates)} "
                f"in {self.links!r}; add or remove rates"
            )

    @property
    def rates(self) -> tuple[int | None, ...]:
        """Bits per second of every host's link, in host order."""
        rates = tuple(parse_rate(part) for part in self.links.split(","))
        return rates * self.hosts if len(rates) == 1 else rates

    @property
    def delay(self) -> float:
        """Seconds a packet is held on its way from one host to another."""
        return parse_delay(self.latency)

    @property
    def is_loopback(self) -> bool:
        return all(rate is None for rate in self.rates)
