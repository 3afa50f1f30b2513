"""What is waited for before the first step."""

import pytest

from thinwire_lab.bench.results import BenchError, at_most, verdicts
from thinwire_lab.bench.start import StartRow, bench_start, import_seconds, start_table


def test_the_time_of_a_statement_is_that_behind_torch() -> None:
    torch_seconds, own = import_seconds("import time; time.sleep(0.05)")
    assert torch_seconds > 0.05
    assert 0.05 <= own < torch_seconds + 10


def test_a_statement_that_fails_is_told() -> None:
    with pytest.raises(BenchError, match="No module named 'nowhere'"):
        import_seconds("import nowhere")


def test_seconds_have_a_limit() -> None:
    rows = [StartRow("a", seconds, "b", 1.0, at_most(0.3)) for seconds in (0.2, 0.4)]
    assert [verdicts(row) for row in rows] == [{"seconds": True}, {"seconds": False}]
    assert list(start_table(rows).columns[1].cells) == ["0.20 ≤ 0.3", "[bold red]0.40 > 0.3[/]"]


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_attaching_on_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire_lab.bench.start.import_seconds", lambda statement: (2.0, 0.1))
    *imports, attached = bench_start(turns=1, layers=4)
    assert [(row.seconds, row.baseline_seconds) for row in imports] == [(0.1, 2.0)] * 2
    assert attached.seconds > 0
    assert verdicts(attached) == {}
