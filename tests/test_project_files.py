"""What the files of the project, and the wheel of the library, may contain."""

import importlib.util
import re
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.layers import PACKAGES, ROOT

MAX_WHEEL_BYTES = 1_500_000  # of the library, compressed

# A directory of somebody's machine; the look-behind spares addresses and paths relative to something else.
MACHINE_PATH = re.compile(r"(?<![\w.~$})>*-])/(?:home|Users|root|work|workspace|tmp|opt|mnt)/\w")


def project_files() -> list[Path]:
    """Everything that is, or would be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive: no repository, or no git
        listed = [
            str(p.relative_to(ROOT))
            for d in ("src", "packages", "tests", "native", "docs")
            for p in (ROOT / d).rglob("*")
        ]
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    faults = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # pictures and golden bytes
            continue
        faults += [
            f"{path.relative_to(ROOT)}:{n}" for n, line in enumerate(text.splitlines(), 1) if MACHINE_PATH.search(line)
        ]
    assert faults == []


@pytest.mark.parametrize("place", ["home/me/x", "work/data", "tmp/venv", "Users/me"])
def test_a_place_on_a_machine_is_found(place: str) -> None:
    assert MACHINE_PATH.search(f"see /{place}")
    assert not MACHINE_PATH.search(f"https://example.org/{place}")


def wheel_files(package: Path) -> list[Path]:
    """What a wheel of this package would hold beside compiled kernels: the project's files in its folder."""
    return [path for path in project_files() if path.is_relative_to(package)]


def compressed_bytes(paths: Iterable[Path]) -> int:
    return sum(len(zlib.compress(path.read_bytes())) for path in paths)


def test_the_library_is_code_alone() -> None:
    """No data set, no template of a report: they come with thinwire-lab."""
    files = wheel_files(PACKAGES["thinwire"])
    assert PACKAGES["thinwire"] / "__init__.py" in files
    assert [path for path in files if path.suffix != ".py" and path.name != "py.typed"] == []


def test_the_wheel_of_the_library_is_small() -> None:
    spec = importlib.util.find_spec("thinwire._native")
    kernels = [Path(spec.origin)] if spec is not None and spec.origin is not None else []
    assert compressed_bytes([*wheel_files(PACKAGES["thinwire"]), *kernels]) < MAX_WHEEL_BYTES


def test_the_data_set_alone_would_exceed_the_limit() -> None:
    """So it cannot slip in."""
    assert compressed_bytes(PACKAGES["thinwire_lab"].rglob("*.xz")) > MAX_WHEEL_BYTES
