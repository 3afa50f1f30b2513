"""What installed packages add to `thinwire`: commands, and lines of `thinwire doctor`.

A package declares an entry point of the group `thinwire.commands` that names a Typer app, and one of the group
`thinwire.doctor` that names a module like `thinwire.cli.doctor`, with `examine` and `diagnose`. thinwire-lab has both.
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from typer.main import get_command

from thinwire.errors import ThinwireError

COMMANDS, DOCTOR = "thinwire.commands", "thinwire.doctor"
LAB = "thinwire-lab"
LAB_COMMANDS = ("run", "lab", "train", "compare", "report", "bench")


class PackageError(ThinwireError, RuntimeError):
    """A package that is needed and is not installed, or cannot be loaded."""


def installed_commands() -> dict[str, Any]:
    """The commands of installed packages by name. A package that cannot be loaded has none: `doctor` tells why."""
    found: dict[str, Any] = {}
    for entry in entry_points(group=COMMANDS):
        try:
            found |= getattr(get_command(load(entry)), "commands", {})
        except PackageError:
            continue
    return found


def load(entry: EntryPoint) -> Any:
    """What an entry point names, or one sentence that says why it cannot be had."""
    try:
        return entry.load()
    except Exception as error:  # another package's code: whatever it raises, thinwire's own commands still work
        raise PackageError(
            f"{package_of(entry)} is installed but cannot be loaded ({type(error).__name__}: {error});"
            f" run `pip install --force-reinstall {package_of(entry)}`."
        ) from error


def package_of(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def check_command(name: str) -> None:
    """Refuse a command of thinwire-lab that is not there: the package is missing, or broken."""
    if name not in LAB_COMMANDS:
        return
    _load_lab()
    raise _missing(f"`thinwire {name}` is a command of {LAB}")


def lab_module(name: str, wanted: str) -> Any:
    """A module of thinwire-lab; `wanted` is the option that needs it."""
    if not _load_lab():
        raise _missing(f"{wanted} needs {LAB}")
    return import_module(f"thinwire_lab.{name}")


def _load_lab() -> bool:
    """Whether thinwire-lab is installed; a PackageError if it is broken."""
    found = [entry for entry in entry_points(group=COMMANDS) if package_of(entry) == LAB]
    for entry in found:
        load(entry)
    return bool(found)


def _missing(what: str) -> PackageError:
    return PackageError(
        f"{what}, which is not installed; run `pip install {LAB}`, or `pip install packages/{LAB}` in a clone."
    )
