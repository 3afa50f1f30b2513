"""Triton is installed wherever the tests of its kernels must run."""

import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu import conftest

ROOT = Path(__file__).resolve().parents[2]


def collected() -> Any:
    """What happens to a test of this directory, and to another one."""
    marks: list[list[Any]] = [[], []]
    here: Any = SimpleNamespace(path=Path(conftest.__file__).parent / "test_any.py", add_marker=marks[0].append)
    other: Any = SimpleNamespace(path=ROOT / "tests/test_any.py", add_marker=marks[1].append)
    conftest.pytest_collection_modifyitems([here, other])
    assert marks[1] == []
    return marks[0]


def test_triton_is_there_in_ci() -> None:
    assert find_spec("triton") is not None, "CI must install Triton (Makefile): its kernels are tested nowhere else"


@pytest.mark.parametrize("ci", [True, False])
def test_without_triton_ci_fails_and_others_skip(ci: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true" if ci else "")
    assert collected() == []
    monkeypatch.setattr(conftest, "find_spec", lambda name: None)
    found = collected()
    assert len(found) == (0 if ci else 1)
    assert ci or "Triton is not there" in found[0].kwargs["reason"]


@pytest.mark.parametrize(("ci", "kept"), [("true", ""), ("", "-")])
def test_make_goes_on_without_triton_but_not_in_ci(ci: str, kept: str, tmp_path: Path) -> None:
    """The line of the Makefile, with a command that fails."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if "$(TRITON)" in line]
    (tmp_path / "Makefile").write_text(f"BIN := /no/such\ninstall:\n{line}\n", encoding="utf-8")
    done = subprocess.run(["make", "-C", tmp_path, f"CI={ci}"], capture_output=True, text=True, timeout=30)
    assert (done.returncode == 0) == (kept == "-"), done.stderr
