"""Installed packages for the duration of a test: a module and its metadata in a folder on the path."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from thinwire.core.text import NAMES

STAGE = '''
from dataclasses import dataclass
from typing import ClassVar
from thinwire import FP16
from thinwire.extend import number

@dataclass(frozen=True, repr=False)
class Halved(FP16):
    """Half precision, as another package writes it. The second sentence."""

    name: ClassVar[str] = "{name}"
    amount: int = number(3, low=1, high=9, whole=True, help="how much of it")
'''


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, name: str, value: str = "Halved", source: str = STAGE
) -> None:
    """Install `package` 1.2, which declares the stage `name` as `value` of its one module."""
    module = package.replace("-", "_")
    place = folder / package
    metadata = place / f"{module}-1.2.dist-info"
    metadata.mkdir(parents=True)
    (place / f"{module}.py").write_text(source.replace("{name}", name))
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[thinwire.stages]\n{name} = {module}:{value}\n")
    monkeypatch.syspath_prepend(str(place))
    if name not in NAMES:  # what the test loads is forgotten when it ends
        monkeypatch.setitem(NAMES, name, None)
        monkeypatch.delitem(NAMES, name)
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.delitem(sys.modules, module)
