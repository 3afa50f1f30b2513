"""The benchmark of kernels: it times what it says, and judges only what the targets are meant for."""

import pytest
import torch

from thinwire_lab.bench import kernels
from thinwire_lab.bench.kernel_subjects import EAGER, MASK, PEERS, subject
from thinwire_lab.bench.kernels import TARGETS, KernelRow, bench_kernels, kernel_table
from thinwire_lab.bench.results import BenchError, at_least, missed, verdicts

NUMEL = 4096


@pytest.mark.parametrize("name", [*TARGETS, *PEERS])
def test_a_subject_does_its_work(name: str) -> None:
    """What is decoded points the same way as what was encoded, and is added."""
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0))
    out = x.clone()
    timed = subject(name, x, out)
    encoded = timed.encode()
    assert 0 < timed.bits <= 32
    if timed.decode is None:
        assert len(encoded) > 0
        return
    timed.decode()
    added = out - x
    assert added.norm() > 0
    assert torch.dot(added, x) > 0.1 * added.norm() * x.norm()


def test_eager_qsgd_is_unbiased_and_within_a_level() -> None:
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    total = torch.zeros(NUMEL)
    turns = 64
    for _ in range(turns):
        out = torch.zeros(NUMEL)
        timed = subject(EAGER, x, out)
        assert timed.decode is not None
        timed.decode()
        assert (out - x).abs().max() <= 1.001 * x.norm() / 127
        total += out / turns
    assert (total - x).mean().abs() < 4 * float(x.norm()) / 127 / (turns * NUMEL) ** 0.5


def test_the_mask_has_the_density_it_says() -> None:
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0))
    assert len(subject(MASK, x, x.clone()).encode()) == NUMEL // 64


def test_rows_are_complete_and_small_ones_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"qsgd(bits=4)": (0.7, 0.6), MASK: (0.3, None)}
    monkeypatch.setattr(kernels, "TARGETS", names)
    monkeypatch.setattr(kernels, "PEERS", (EAGER,))
    threads = torch.get_num_threads()
    rows = bench_kernels(NUMEL, 2, turns=1)
    assert torch.get_num_threads() == threads
    assert [(row.codec, row.numel, row.threads) for row in rows] == [(name, NUMEL, 2) for name in (*names, EAGER)]
    assert all(row.encode > 0 and row.copy_gbs > 0 and not verdicts(row) for row in rows)
    assert rows[0].over_eager == rows[0].encode / rows[2].encode
    assert rows[1].decode is None
    assert kernel_table(rows).row_count == 3


def test_targets_are_judged_where_they_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "JUDGED", (NUMEL, 1))
    monkeypatch.setattr(kernels, "TARGETS", {"qsgd(bits=4)": (1e-9, 1e9)})
    monkeypatch.setattr(kernels, "PEERS", (EAGER,))
    (row, eager) = bench_kernels(NUMEL, 1, turns=1)
    assert {"encode": True, "decode": False}.items() <= verdicts(row).items()
    assert "over eager torch" in verdicts(row)
    assert verdicts(eager) == {}
    assert missed([row])[0][0] == "qsgd(bits=4), 16 KiB, 1 thread, decode"


def test_the_table_marks_what_is_missed() -> None:
    row = KernelRow("qsgd", 2**24, 1, 5.0, 0.4, 0.4, 4.0, at_least(0.5), at_least(0.1))
    cells = [next(iter(column.cells)) for column in kernel_table([row]).columns]
    assert "[bold red]0.40 < 0.5[/]" in cells
    assert "0.40 ≥ 0.1" in cells


def test_a_name_that_nothing_contains_is_refused() -> None:
    with pytest.raises(BenchError, match="no codec of the benchmark contains 'cake'"):
        bench_kernels(16, only="cake")
