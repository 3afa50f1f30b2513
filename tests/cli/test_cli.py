"""The command line without a network: help, tables, explanations, and errors in one line."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from thinwire import __version__
from thinwire.cli import app
from thinwire_lab.cli.compare import _lab_spec
from thinwire_lab.lab import LabError


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("arguments", [["--help"], ["codecs"], ["compare", "--help"]])
def test_help_and_the_short_list_do_not_load_torch(arguments: list[str]) -> None:
    code = (
        f"import sys\nfrom thinwire.cli import app\napp({arguments}, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'rich.live' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_version() -> None:
    assert invoke("--version").strip() == f"thinwire {__version__}"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("codecs", "qsdg"), "did you mean 'qsgd'"),
        (("codecs", " "), "write none for no compression"),
        (("train", "--codec", ""), "write none for no compression"),
        (("codecs", "qsgd", "--shape", "a,b"), "a shape is whole numbers"),
        (("codecs", "qsgd", "--numel", "0"), "at least one number"),
        (("codecs", "qsgd", "--ranks", "1"), "at least 2 ranks"),
        (("codecs", "qsgd", "--numel", "9", "--shape", "3,3"), "give one of them"),
        (("codecs", "--ranks", "2"), "give its NAME too"),
        (("codecs", "qsgd", "--all"), "leave out --all or 'qsgd'"),
        (("compare", "--codecs", "none,nope"), "no stage or preset 'nope'"),
        (("compare", "--hosts", "1", "--link", "none"), "at least 2 ranks"),
        (("compare", "--link", "fast"), "a link rate is"),
        (("compare", "--seconds", "20", "--steps", "9"), "one length, but --steps and --seconds are given"),
        (("compare", "--epochs", "2", "--steps", "9"), "one length, but --steps and --epochs are given"),
        (("compare", "--seconds", "20", "--evaluate-every", "5"), "--evaluate-every 5 counts steps"),
        (("compare", "--seconds", "0", "--link", "none"), "must be a number greater than 0, not 0"),
        (("compare", "--recipe", "cake"), "no recipe 'cake'; known recipes: fashion-tiny"),
        (("compare", "--data", "nowhere", "--link", "none"), "no image data set 'nowhere'"),
        (("compare", "--heads", "2", "--link", "none"), "model vgg has no option heads"),
        (("train", "--steps", "0"), "steps must be at least 1"),
        (("train", "--codec", "nope"), "no stage or preset 'nope'"),
        (("run", "--link", "none", "--", "nowhere.py"), "'nowhere.py' is not a file"),
        (("lab", "test", "--hosts", "0"), "1 to 200 hosts"),
        (("run", "--host", "3", "--", "x.py"), "`thinwire run` has no option '--host'; did you mean '--hosts'?"),
        (("run", "--hosts", "2", "--lnik=none", "x.py"), "has no option '--lnik'; did you mean '--link'?"),
        (("run", "--frobnicate", "x.py"), "has no option '--frobnicate'; its options are --hosts, --link"),
        (("run", "-x", "--", "x.py"), "has no option '-x'; its options are"),
    ],
)
def test_user_errors_take_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    text = invoke(*arguments, code=2)
    assert complaint in text
    assert text.startswith("thinwire: ")
    assert text.count("\n") == 1


@pytest.mark.parametrize("arguments", [("compare", "--target", "-3"), ("nonsense",), ("compare", "--hosts", "x")])
def test_wrong_usage_has_the_same_exit_code(arguments: tuple[str, ...]) -> None:
    invoke(*arguments, code=2)


def mistyped_options() -> list[tuple[str, ...]]:
    """Each long option of each command without its last letter, as a name that no option has."""

    def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if path:
            yield path, command
        for name, below in getattr(command, "commands", {}).items():
            yield from leaves(below, (*path, name))

    found = []
    for path, command in leaves(get_command(app), ()):
        known = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        found += [(*path, option, option[:-1]) for option in sorted(known) if option[:-1] not in known]
    return found


@pytest.mark.parametrize("case", mistyped_options(), ids=" ".join)
def test_every_command_names_the_option_that_was_meant(case: tuple[str, ...]) -> None:
    *command, option, mistyped = case
    text = " ".join(invoke(*command, f"{mistyped}=1", code=2).replace("│", " ").split())
    assert re.search(rf"[Nn]o such option:? '?{mistyped}\b|has no option '{mistyped}'", text)
    assert re.search(rf"(ossible options:|did you mean) .*{option}\b", text)


def test_training_in_one_process(tmp_path: Path) -> None:
    common = ("--steps", "2", "--batch", "4", "--test-limit", "20", "--codec", "qsgd")
    folder, metrics = str(tmp_path / "saved"), str(tmp_path / "m.jsonl")
    result = json.loads(invoke("train", *common, "--checkpoint", folder, "--metrics", metrics, "--json"))
    assert (result["steps"], result["ranks"], result["codec"]) == (2, 1, "qsgd(bits=4)")
    text = invoke("train", "--steps", "3", *common[2:], "--resume", folder)
    assert "one rank alone sends nothing" in text
    assert "3 steps in" in text
    assert json.loads((tmp_path / "m.jsonl").read_text().splitlines()[-1])["step"] == 2


def test_without_thin_links_the_demo_falls_back_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("thinwire_lab.lab.why_no_thin_links", lambda: LabError("no namespaces here"))
    assert _lab_spec(4, "100mbit", "0ms", or_loopback=True).is_loopback
    assert "no namespaces here" in capsys.readouterr().err
    assert not _lab_spec(4, "100mbit", "0ms", or_loopback=False).is_loopback


def test_a_report_of_nothing_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("thinwire_lab.report.page")
    text = invoke("report", str(tmp_path / "nowhere.jsonl"), code=2)
    assert "nowhere.jsonl" in text


def test_a_script_runs_on_loopback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\nsys.exit(3)\n")
    command = [
        sys.executable,
        "-m",
        "thinwire",
        "run",
        "--hosts",
        "1",
        "--link",
        "none",
        "--",
        str(script),
        "--lr",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 3
    assert "[host0 rank0] rank 0 ['--lr', '1']" in done.stdout
    assert "thinwire: hosts: 1; ranks on each host: 1\n" in done.stderr
    assert "no network namespaces are made" in done.stderr
    assert f"{script} --lr 1\n" in done.stderr
    assert "thinwire:" not in done.stdout  # what the script prints stays as it is
