"""Steps beside outer steps: ratios to steps without communication, and a target only where the exchange fits."""

from typing import Any

import pytest

from thinwire.errors import CodecError
from thinwire_lab.bench.outer import STEP_TARGET, bench_outer, outer_rows, outer_table
from thinwire_lab.bench.results import BenchError

ABOUT = {"model": "gpt-tiny", "parameters": 10, "link": "50mbit", "ranks": 4}


def found(contender: str, seconds: float, overlap: int = 0, exchange: float | None = None) -> dict[str, Any]:
    told = {"contender": contender, "seconds": seconds, "overlap": overlap, "exchange_seconds": exchange}
    return told | {"exposed_seconds": None, "bytes_per_step": None}


def test_only_an_exchange_that_fits_into_its_overlap_is_judged() -> None:
    rows = outer_rows(
        [
            found("alone", 0.1),
            found("diloco(every=20)", 0.2, exchange=1.0),
            found("sparseloco(every=20, overlap=10)", 0.104, 10, 0.9),
            found("sparseloco(every=20, overlap=9)", 0.12, 9, 1.1),
        ],
        ABOUT,
    )
    assert [row.step_ratio for row in rows] == pytest.approx([1.0, 2.0, 1.04, 1.2])
    assert [row.overlap_seconds for row in rows] == [None, None, pytest.approx(1.0), pytest.approx(0.9)]
    targets = [row.target for row in rows]
    assert targets[:2] == [None, None]
    assert targets[3] is None
    assert targets[2] is not None
    assert targets[2].value == STEP_TARGET
    assert outer_table(rows).row_count == 4


def test_what_cannot_be_measured_is_refused_before_hosts_start() -> None:
    with pytest.raises(BenchError, match="at least 2 hosts"):
        bench_outer("none", hosts=1)
    with pytest.raises(CodecError, match=r"write diloco\(codec='qsgd', every=20\)"):
        bench_outer("none", contenders=["qsgd"])


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_two_hosts_measure_each_contender() -> None:
    rows = bench_outer("none", 2, ["diloco(every=4, overlap=2)"], turns=1, width=8, batch=1)
    assert [row.contender for row in rows] == ["alone", "diloco(every=4, overlap=2)", "ddp"]
    alone, diloco, _ = rows
    assert alone.step_ratio == 1.0
    assert diloco.exchange_seconds is not None
    assert diloco.bytes_per_step == pytest.approx(4 * diloco.parameters / 4, rel=0.05)  # two ranks send each half twice
