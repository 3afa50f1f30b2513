"""The public names are those that docs/reference.md lists, and each of them can be had."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import thinwire
import thinwire.extend
from thinwire.api import __all__ as public_names

DOCS = Path(__file__).resolve().parent.parent / "docs"
REFERENCE = DOCS / "reference.md"
OFFERED = {"thinwire": set(public_names), "thinwire.extend": set(thinwire.extend.__all__)}


def documented_names() -> tuple[list[str], list[str]]:
    """The first column of every table of the page: those of `thinwire`, and those of `thinwire.extend`."""
    parts = REFERENCE.read_text(encoding="utf-8").split("### `thinwire.extend`")
    top, extend = (re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in parts)
    return top, extend


def private_names(source: str) -> list[str]:
    """What a program takes from thinwire that is no public name: imports, and attributes of `thinwire` itself."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] == "thinwire" and a.name not in OFFERED]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "thinwire":
            offered = OFFERED.get(str(node.module), set())
            found += [f"{node.module}.{a.name}" for a in node.names if a.name not in offered]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "thinwire":
            found += [] if node.attr in {*public_names, "extend", "integrations"} else [f"thinwire.{node.attr}"]
    return found


def test_the_page_lists_every_public_name_once() -> None:
    top, extend = documented_names()
    assert sorted(top) == sorted(public_names)
    assert sorted(extend) == sorted(thinwire.extend.__all__)


def test_the_page_on_stages_uses_public_names_only() -> None:
    text = (DOCS / "writing-a-stage.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    assert private_names("\n".join(blocks)) == []
    assert re.findall(r"thinwire\.(?:core|kernels)\b", text) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from thinwire.core.options import number", "thinwire.core.options.number"),
        ("import thinwire.core.text", "thinwire.core.text"),
        ("from thinwire.extend import NAMES", "thinwire.extend.NAMES"),
        ("import thinwire\nthinwire.core", "thinwire.core"),
    ],
)
def test_a_private_name_is_found(source: str, name: str) -> None:
    assert private_names(source) == [name]


def test_every_public_name_is_there() -> None:
    assert all(hasattr(thinwire, name) for name in public_names)
    assert set(public_names) <= set(dir(thinwire))
    assert getattr(thinwire, "__all__") == public_names  # noqa: B009  # types know nothing of the lazy list


def test_stages_are_listed_under_their_text_names() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {stage.__name__: stage.name for stage in thinwire.STAGES}


def test_front_ends_are_attributes_that_import_their_framework_at_use() -> None:
    """In a new process: here other tests have imported them."""
    program = """
import sys
import thinwire
names = dir(thinwire.integrations)
assert "accelerate" not in sys.modules and "torch" not in sys.modules
assert callable(thinwire.integrations.ray.report)
try:
    thinwire.integrations.keras
except AttributeError as reason:
    print(reason)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "module 'thinwire.integrations' has no attribute 'keras'\n", done.stderr
