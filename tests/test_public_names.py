"""The public names are those that docs/reference.md lists, and each of them can be had."""

import re
from pathlib import Path

import thinwire

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"


def documented_names() -> list[str]:
    """The first column of every table of the page."""
    return re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_lists_every_public_name_once() -> None:
    assert sorted(documented_names()) == sorted(thinwire.__all__)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(thinwire, name) for name in thinwire.__all__)
    assert set(thinwire.__all__) <= set(dir(thinwire))


def test_stages_are_listed_under_their_text_names() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {stage.__name__: stage.name for stage in thinwire.STAGES}
