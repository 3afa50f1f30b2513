"""docs/cli.md knows every command and every column of the final table."""

import re
from typing import Any

import typer

from tests.docs.pages import ROOT
from thinwire.cli import app
from thinwire_lab.compare.table import _COLUMNS

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_command_is_on_the_page() -> None:
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    assert len(commands) > 5
    assert [name for name in commands if not re.search(rf"^\| `thinwire {name}\b", PAGE, re.MULTILINE)] == []


def test_every_column_of_the_final_table_is_explained() -> None:
    table = PAGE.partition("| Column | Meaning |")[2].partition("\n\n")[0]
    named = {name.strip() for cell in re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for name in cell.split(",")}
    assert set(_COLUMNS) <= named
