"""Every case of cases_*.py, in processes over Gloo."""

from pathlib import Path

import pytest

from tests.ddp.cases import load_cases, outcomes

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ddp")


@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, cases in load_cases().items() for name in cases])
def test_case(ranks: int, name: str, folder: Path) -> None:
    failures = {rank: told[name] for rank, told in enumerate(outcomes(ranks, str(folder / str(ranks)))) if told[name]}
    assert not failures, "\n".join(f"rank {rank}:\n{text}" for rank, text in failures.items())
