"""The checks of the built site find what they are for, and the site takes in all that pages link."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

CHECK: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "check_site.py"))


def site_of(folder: Path, body: str, head: str = "") -> Path:
    (folder / "sub").mkdir()
    (folder / "index.html").write_text(f"<html><head>{head}</head><body><h2 id='here'>x</h2>{body}</body></html>")
    (folder / "sub" / "index.html").write_text("<p id='there'>y</p>")
    return folder


@pytest.mark.parametrize(
    ("body", "head", "fault"),
    [
        ("<a href='#gone'>x</a>", "", "no such anchor"),
        ("<a href='sub/index.html#here'>x</a>", "", "no such anchor"),
        ("<a href='gone.html'>x</a>", "", "no such file"),
        ("<img src='gone.png'>", "", "no such file"),
        ("<script src='https://cdn.example.org/x.js'></script>", "", "another server"),
        ("", "<link rel='stylesheet' href='//fonts.example.org/css'>", "another server"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, body: str, head: str, fault: str) -> None:
    (found,) = CHECK["faults_of"](site_of(tmp_path, body, head))
    assert fault in found


def test_a_style_sheet_that_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    (site_of(tmp_path, "") / "x.css").write_text("@font-face { src: url(https://fonts.example.org/x.woff2) }")
    (found,) = CHECK["faults_of"](tmp_path)
    assert "x.css" in found


def test_what_is_right_passes(tmp_path: Path) -> None:
    body = "<a href='sub/#there'>x</a><a href='#here'>x</a><a href='https://example.org/x#y'>x</a>"
    head = "<link rel='canonical' href='https://example.org/'>"
    assert CHECK["faults_of"](site_of(tmp_path, body, head)) == []


def test_bars_in_code_lose_their_backslash_in_tables_only() -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    hooks = runpy.run_path(str(ROOT / "tools" / "site_hooks.py"))
    table = "| `a \\| b` | c \\| d |\n\n`a \\| b`"
    assert hooks["unescaped"](table) == "| `a | b` | c \\| d |\n\n`a \\| b`"


def test_a_warning_fails_make_docs(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    (command,) = re.findall(r"^\t.*-m (mkdocs .*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[a page](gone.md)")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\ntheme: {name: mkdocs}\n")
    words = [sys.executable, "-m", *shlex.split(command)]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "gone.md" in ended.stderr


def test_a_folder_without_a_site_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["check_site.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="make docs"):
        CHECK["main"]()
