import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import ThinwireError
from thinwire_lab.lab import LabError, LabSpec, parse_delay, parse_rate, show_rate


@given(st.integers(10**5, 10**11).filter(lambda rate: float(f"{rate:.9g}") == rate) | st.none())
def test_a_shown_rate_reads_back(rate: int | None) -> None:
    assert parse_rate(show_rate(rate)) == rate


@pytest.mark.parametrize(
    ("text", "bits"),
    [("200mbit", 200e6), ("1gbit", 1e9), ("2.5gbit", 2.5e9), ("512kbit", 512e3), (" 10GBit ", 1e10), ("NONE", None)],
)
def test_rates(text: str, bits: float | None) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    "text", ["", "100", "fast", "-1mbit", "1 gbit", "1gbps", "1e3mbit", "0mbit", "1kbit", "999gbit"]
)
def test_a_bad_rate_is_named_in_the_error(text: str) -> None:
    with pytest.raises(LabError, match="link rate") as caught:
        parse_rate(text)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, ThinwireError)


@pytest.mark.parametrize(("text", "seconds"), [("5ms", 0.005), ("250us", 0.00025), ("0.1s", 0.1), ("0ms", 0.0)])
def test_delays(text: str, seconds: float) -> None:
    assert parse_delay(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "5 ms", "-5ms", "5min", "11s"])
def test_a_bad_delay_is_named_in_the_error(text: str) -> None:
    with pytest.raises(LabError, match="latency") as caught:
        parse_delay(text)
    assert repr(text) in str(caught.value)


def test_one_rate_serves_all_hosts() -> None:
    assert LabSpec(hosts=3, links="1gbit").rates == (10**9,) * 3


def test_each_host_may_have_its_own_rate() -> None:
    spec = LabSpec(hosts=4, links="1gbit,1gbit,100mbit,none")
    assert spec.rates == (10**9, 10**9, 10**8, None)
    assert not spec.is_loopback


def test_none_is_loopback() -> None:
    assert LabSpec(hosts=4).is_loopback


@pytest.mark.parametrize(
    ("hosts", "links", "latency", "what"),
    [
        (0, "1gbit", "0ms", "1 to 200 hosts"),
        (201, "1gbit", "0ms", "1 to 200 hosts"),
        (3, "1gbit,1gbit", "0ms", "3 rates"),
        (1, "1gbit,1gbit", "0ms", "1 rates"),
        (2, "none", "5ms", "needs shaped links"),
        (2, "1gbit,", "0ms", "link rate"),
    ],
)
def test_a_lab_that_cannot_be_is_refused_before_it_is_made(hosts: int, links: str, latency: str, what: str) -> None:
    with pytest.raises(LabError, match=what):
        LabSpec(hosts=hosts, links=links, latency=latency)
