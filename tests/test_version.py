"""One version in four places: the package, the change log, the citation and the installed metadata."""

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


def test_the_installed_metadata_has_this_version() -> None:
    try:
        installed = version("thinwire")
    except PackageNotFoundError:
        pytest.skip("thinwire is used from the source tree without being installed")
    assert installed == __version__
