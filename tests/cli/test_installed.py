"""Commands of installed packages, and what the library says alone."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinwire.cli import app, installed
from thinwire.cli.installed import COMMANDS, DOCTOR, LAB, LAB_COMMANDS, installed_commands

Declared = dict[str, list[EntryPoint]]
ADDED = """
import typer

app = typer.Typer()

@app.command()
def wave() -> None:
    print("a wave")

@app.command()
def codecs() -> None:
    print("codecs of another package")
"""


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Declared:
    """The entry points that are found; none, as if the library were installed alone."""
    found: Declared = {}
    for module in ("installed", "doctor"):
        monkeypatch.setattr(sys.modules[f"thinwire.cli.{module}"], "entry_points", lambda group: found.get(group, []))
    return found


def entry(folder: Path, value: str, group: str, package: str = LAB) -> EntryPoint:
    """An entry point of a package whose metadata are in the folder."""
    metadata = folder / "package-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\nx = {value}\n")
    (found,) = PathDistribution(metadata).entry_points
    return found


def test_the_lab_declares_its_commands() -> None:
    assert set(installed_commands()) == set(LAB_COMMANDS)


@pytest.mark.parametrize("rest", [[], ["--help"], ["clean"], ["--no-such-option", "x"]])
@pytest.mark.parametrize("command", LAB_COMMANDS)
def test_a_command_of_the_lab_says_what_to_install(command: str, rest: list[str], declared: Declared) -> None:
    result = CliRunner().invoke(app, [command, *rest])
    assert result.exit_code == 2
    assert result.output.startswith(
        f"thinwire: `thinwire {command}` is a command of thinwire-lab, which is not installed"
    )
    assert "run `pip install thinwire-lab`" in result.output
    assert result.output.count("\n") == 1


def test_the_library_alone_lists_its_own_commands(declared: Declared) -> None:
    text = CliRunner().invoke(app, ["--help"]).output
    assert "codecs" in text
    assert "doctor" in text
    assert not any(f" {command} " in text for command in LAB_COMMANDS)


def test_a_shell_that_completes_meets_no_error(declared: Declared) -> None:
    env = {"_THINWIRE_COMPLETE": "complete_bash", "COMP_WORDS": "thinwire compare --c", "COMP_CWORD": "2"}
    result = CliRunner().invoke(app, [], prog_name="thinwire", env=env)
    assert result.exit_code == 0, result.output


def test_another_command_is_unknown_as_before(declared: Declared) -> None:
    result = CliRunner().invoke(app, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output


def test_the_doctor_of_the_library_alone(declared: Declared) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert facts["gloo"] is True
    assert "thin_links" not in facts


def test_the_library_needs_no_module_of_the_lab() -> None:
    """Its own commands run where `thinwire_lab` cannot be imported."""
    code = (
        "import sys; sys.modules['thinwire_lab'] = None; import thinwire.cli as cli\n"
        "cli.app(['codecs', 'qsgd'], standalone_mode=False); import thinwire; thinwire.attach"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "qsgd" in done.stdout


def test_commands_are_added_and_none_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: Declared
) -> None:
    (tmp_path / "added_commands.py").write_text(ADDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    declared[COMMANDS] = [entry(tmp_path, "added_commands:app", COMMANDS, "added")]
    assert CliRunner().invoke(app, ["wave"]).output == "a wave\n"
    assert "another package" not in CliRunner().invoke(app, ["codecs"]).output


def test_a_package_that_cannot_be_loaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: Declared
) -> None:
    monkeypatch.setattr(installed, "LAB", "broken-lab")
    declared[COMMANDS] = [entry(tmp_path, "no_such_module:app", COMMANDS, "broken-lab")]
    declared[DOCTOR] = [entry(tmp_path, "no_such_module", DOCTOR, "broken-lab")]
    runner = CliRunner()
    assert runner.invoke(app, ["codecs"]).exit_code == 0
    result = runner.invoke(app, ["compare"])
    assert result.exit_code == 2
    reason = "broken-lab is installed but cannot be loaded (ModuleNotFoundError: No module named 'no_such_module')"
    assert result.output == f"thinwire: {reason}; run `pip install --force-reinstall broken-lab`.\n"
    told = runner.invoke(app, ["doctor"], env={"COLUMNS": "120"})
    assert told.exit_code == 0
    assert "Missing: broken-lab;" in told.output
