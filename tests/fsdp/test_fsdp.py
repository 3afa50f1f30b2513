"""Every case of cases_*.py, in four processes over Gloo."""

from pathlib import Path

import pytest

from tests.fsdp.cases import load_cases, outcomes

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fsdp")


@pytest.mark.parametrize("name", load_cases())
def test_case(name: str, folder: Path) -> None:
    failures = {rank: told[name] for rank, told in enumerate(outcomes(str(folder))) if told[name]}
    assert not failures, "\n".join(f"rank {rank}:\n{text}" for rank, text in failures.items())
