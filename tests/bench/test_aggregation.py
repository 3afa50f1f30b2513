"""The paper's comparison: every way is timed and counted, and the page says which order came out."""

import json
from pathlib import Path

import pytest

from benchmarks.claims.aggregation import COMMAND, TITLE, aggregation_text, order_of_times, replaced
from thinwire import Codec
from thinwire_lab.bench.aggregation import (
    HOPS,
    RING,
    SHARDED,
    SUMMED,
    WAYS,
    AggregationRow,
    aggregation_table,
    bench_aggregation,
)
from thinwire_lab.bench.results import record_of
from thinwire_lab.report.jsonl import RecordError


def rows(link: str, **seconds: float) -> list[AggregationRow]:
    times = {RING: seconds["ring"], HOPS: seconds["hops"], SHARDED: seconds["shards"]}
    return [AggregationRow(way, *WAYS[way], link, 4, 1000, each, 1.0, 500) for way, each in times.items()]


def write(path: Path, found: list[AggregationRow]) -> Path:
    path.write_text('{"kind": "circumstances"}\n' + "".join(json.dumps(record_of(row)) + "\n" for row in found))
    return path


def test_the_section_says_where_the_papers_order_holds(tmp_path: Path) -> None:
    found = rows("100mbit", ring=0.1, hops=0.2, shards=0.05) + rows("1gbit", ring=0.2, hops=0.1, shards=0.4)
    text = aggregation_text(write(tmp_path / "aggregation.jsonl", found))
    assert "- 100mbit: the paper's order holds: QSGD encoded at every hop takes 2.00 times as long" in text
    assert "it is faster than GradiVeQ's ring, and 4.00 times as fast as the paper's QSGD" in text
    assert "- 1gbit: the paper's order does not hold" in text
    assert "it is slower than GradiVeQ's ring" in text
    assert f"| 100mbit | {RING} | `{WAYS[RING][0]}` | 100.0 | 10.00 | 500 |" in text


def test_the_verdict_counts_the_faster_qsgd_too(tmp_path: Path) -> None:
    assert order_of_times(tmp_path / "none.jsonl")[1] == "not measured"
    for hops, shards, verdict in ((0.2, 0.15, "holds"), (0.2, 0.05, "in part"), (0.05, 0.02, "does not hold")):
        times = write(tmp_path / "a.jsonl", rows("1gbit", ring=0.1, hops=hops, shards=shards))
        told, judged = order_of_times(times)
        assert judged == verdict
        assert told.startswith(f"1gbit: 10.00 times as fast as fp32; QSGD at every hop takes {hops / 0.1:.2f} times")


def test_a_page_gets_the_section_once(tmp_path: Path) -> None:
    page = "# Claims\n\n## Convergence\n\nwords\n\n## Other\n\nmore\n"
    once = replaced(page, aggregation_text(tmp_path / "none.jsonl"))
    assert f"\n## {TITLE}\n\nThe paper reports" in once
    assert f"Not measured yet: `{COMMAND}`." in once
    assert once.index("Convergence") < once.index(TITLE) < once.index("## Other")
    assert replaced(once, "new") == replaced(page, "new")
    assert once.endswith("## Other\n\nmore\n")


def test_incomplete_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not all ways were timed on 1gbit"):
        aggregation_text(write(tmp_path / "a.jsonl", rows("1gbit", ring=1, hops=1, shards=1)[:2]))
    (tmp_path / "b.jsonl").write_text('{"kind": "aggregation", "way": 3}\n')
    with pytest.raises(RecordError, match=r"b\.jsonl, line 1: the field 'way' must be str"):
        aggregation_text(tmp_path / "b.jsonl")


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_two_hosts_on_loopback() -> None:
    found = bench_aggregation("none", 2, turns=1, numel=640 * 32)
    assert [row.way for row in found] == [RING, SUMMED, HOPS, SHARDED]
    for row in found:
        assert row.seconds > 0
        assert row.bytes_sent == Codec.parse(row.codec).wire_bytes((32, 640), 2, row.reduction)
    assert len(list(aggregation_table(found).columns[0].cells)) == 4
