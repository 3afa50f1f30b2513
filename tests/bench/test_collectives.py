"""Averages over links: targets belong to links and codecs, and the workers measure what they say."""

import pytest

from thinwire import Codec
from thinwire.errors import CodecError
from thinwire_lab.bench import collectives
from thinwire_lab.bench.collectives import (
    GRADIVEQ,
    NUMEL,
    CollectiveRow,
    bench_collectives,
    collective_table,
    turns_in_span,
)
from thinwire_lab.bench.results import record_of, verdicts


def row(
    codec: str, link: str, seconds: float, limit: float | None, ranks: int = 4, numel: int = NUMEL
) -> CollectiveRow:
    return CollectiveRow(codec, link, ranks, numel, seconds, 1.0, 1000, limit)


@pytest.mark.parametrize(
    ("measured", "met"),
    [
        (row("qsgd(bits=4)", "1gbit", 1 / 6, 0.1), {"speed-up": True}),
        (row("qsgd(bits=4)", "1gbit", 1 / 5, 0.1), {"speed-up": False}),
        (row("sign", "1gbit", 1 / 5, 0.1), {}),
        (row("sign", "100mbit", 0.1, 0.095), {"share of the wire": True}),
        (row("none", "100mbit", 1.0, 0.8), {"share of the wire": False}),
        (row("none", "none", 1.0, None), {"speed-up": True}),
        (row("none", "none", 1.1, None), {"speed-up": False}),
        (row("qsgd(bits=4)", "1gbit", 1.0, 0.1, ranks=2), {}),
        (row("qsgd(bits=4)", "1gbit", 1.0, 0.1, numel=100), {}),
    ],
)
def test_targets_belong_to_links_and_codecs(measured: CollectiveRow, met: dict[str, bool]) -> None:
    assert verdicts(measured) == met
    assert record_of(measured)["speedup"] == measured.plain_seconds / measured.seconds


def test_every_target_is_that_of_a_codec_and_a_link_in_the_list() -> None:
    for link, codecs in collectives.SPEED_UPS.items():
        assert link in collectives.LINKS
        assert set(codecs) <= set(collectives.CODECS)


def test_the_table_shows_the_limit_where_there_is_one() -> None:
    table = collective_table([row("none", "100mbit", 1.0, 0.8), row("none", "none", 1.0, None)])
    cells = [list(column.cells) for column in table.columns]
    assert cells[-2:] == [["800.0", ""], ["[bold red]0.80 < 0.9[/]", ""]]


def test_a_wrong_codec_is_refused_before_anything_runs() -> None:
    with pytest.raises(CodecError, match="nope"):
        bench_collectives("none", 2, ["none", "nope"])


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_two_hosts_on_loopback() -> None:
    """Learnt bases are learnt before the clock runs: what is counted then is compressed."""
    numel, codecs, told = 640 * 32, ["none", "qsgd(bits=4)", GRADIVEQ], list[str]()
    rows = bench_collectives("none", 2, codecs, turns=2, numel=numel, tell=told.append)
    assert [(r.codec, r.link, r.ranks, r.numel) for r in rows] == [(text, "none", 2, numel) for text in codecs]
    assert all(r.seconds > 0 and r.plain_seconds > 0 and r.limit_seconds is None for r in rows)
    expected = [int(Codec.parse(text).wire_bytes((32, 640), 2)) for text in codecs]
    assert [r.bytes_sent for r in rows] == pytest.approx(expected, abs=8)  # gradiveq votes every eighth step
    assert told[-1] == "turn 8 of 8"  # short ones, so that there are four times as many as asked for


def test_quick_links_get_more_turns() -> None:
    assert turns_in_span(11, 13.0) == 11  # as many as asked for take longer than the span
    assert turns_in_span(11, 3.0) == 20
    assert turns_in_span(11, 0.01) == 44
