"""One version in all places: both packages, the change log, the citation and the installed metadata."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml

from thinwire._version import __version__

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"


def test_the_newest_entry_of_the_change_log_is_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\] - (.+)$", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE)
    newest, date = headings[0]
    assert newest == __version__
    assert re.fullmatch(r"unreleased|\d{4}-\d{2}-\d{2}", date)


def test_the_citation_has_this_version_and_the_four_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert len(citation["references"]) == 4


def test_the_second_package_has_this_version_and_needs_it() -> None:
    declared = (ROOT / "packages" / "thinwire-lab" / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'^version = "(.+)"$', declared, re.MULTILINE) == [__version__]
    assert re.findall(r'"thinwire==(.+?)"', declared) == [__version__]


def test_both_packages_have_the_same_licence() -> None:
    assert (ROOT / "packages" / "thinwire-lab" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("package", ["thinwire", "thinwire-lab"])
def test_the_installed_metadata_has_this_version(package: str) -> None:
    try:
        installed = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is used from the source tree without being installed")
    assert installed == __version__
