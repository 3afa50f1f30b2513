"""The public names are those that docs/reference.md lists, and each of them can be had."""

import re
from pathlib import Path

import thinwire
from thinwire.api import __all__ as public_names

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"


def documented_names() -> list[str]:
    """The first column of every table of the page."""
    return re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_lists_every_public_name_once() -> None:
    assert sorted(documented_names()) == sorted(public_names)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(thinwire, name) for name in public_names)
    assert set(public_names) <= set(dir(thinwire))
    assert getattr(thinwire, "__all__") == public_names  # noqa: B009  # types know nothing of the lazy list


def test_stages_are_listed_under_their_text_names() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {stage.__name__: stage.name for stage in thinwire.STAGES}
