"""The benchmark of `auto`: rows, targets, and a run on loopback."""

import pytest

from thinwire_lab.bench.auto import AutoRow, auto_table, bench_auto
from thinwire_lab.bench.results import missed
from thinwire_lab.compare.contenders import parse_contender


def row(plain: float, best: float, auto: float, cost: float = 0.01) -> AutoRow:
    return AutoRow("vgg", 1000, "1gbit", 4, plain, "bf16", best, auto, "bf16", "why", cost, {"bf16": best})


def test_auto_is_judged_against_the_plain_step_and_the_best_one() -> None:
    assert missed([row(1.0, 0.5, 0.52)]) == ([], 3)
    assert missed([row(1.0, 0.5, 0.9)])[0] == ["auto, vgg, 1gbit, step / best step"]
    assert len(missed([row(1.0, 1.2, 1.2, cost=0.03)])[0]) == 3
    assert auto_table([row(1.0, 0.5, 0.9)]).row_count == 1


def test_auto_is_a_contender() -> None:
    contender = parse_contender("auto(quality=bold)")
    assert contender.auto
    assert contender.plan is None
    assert contender.codec == "auto(quality=bold)"


@pytest.mark.distributed
@pytest.mark.timeout(240)
def test_a_run_on_loopback() -> None:
    found = bench_auto("vgg", "none", hosts=2, codecs=["bf16"])
    assert found.searched.keys() == {"bf16"}
    assert found.reason
    assert min(found.plain, found.auto, found.best_seconds) > 0
