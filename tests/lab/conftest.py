"""Real labs need the right to make namespaces; where it is missing, their tests are skipped with the refusal."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from thinwire_lab.lab import why_no_thin_links
from thinwire_lab.lab.keeper import marked_processes


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "distributed: several processes, real sockets")


@pytest.fixture(scope="session")
def namespaces() -> None:
    if (error := why_no_thin_links()) is not None:
        pytest.skip(f"no labs here: {error}")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails a test after which a process of a lab of this test run is still there."""
    yield
    assert [mark for _, mark in marked_processes() if not belongs_to_others(mark)] == []


def belongs_to_others(mark: str) -> bool:
    """Whether a mark is of another live launcher on this machine."""
    pid = int(mark.split("-")[1])
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
