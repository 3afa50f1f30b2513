"""What a new user types: help, its examples, and words that are spelt wrong."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from thinwire.cli import app
from thinwire.core.plan import Plan
from thinwire_lab.compare.contenders import parse_contenders
from thinwire_lab.recipes import RECIPES

QUICK = ("codecs", "doctor")  # commands whose examples are run


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
EXAMPLE = re.compile(r"^ *(?:torchrun [^\n]* -m )?(thinwire [^\n]*)$", re.MULTILINE)
EXAMPLES = [
    (path, example)
    for path, command in COMMANDS.items()
    for example in EXAMPLE.findall((command.help or "").partition("Example")[2])
]


def parse(words: list[str]) -> dict[str, Any]:
    """The values of the options of a command line, read and checked as if it were run."""
    command, context = COMMANDS[()], None
    while True:
        context = command.make_context(command.name, words, parent=context)
        if not getattr(command, "commands", None):
            return dict(context.params)
        rest = [*context._protected_args, *context.args]
        if not rest:
            return dict(context.params)
        _, command, words = command.resolve_command(context, rest)


def test_there_are_commands_in_groups() -> None:
    assert {("run",), ("lab", "clean"), ("bench", "ddp"), ("codecs",), ("doctor",)} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "thinwire")
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    if path == () or not getattr(COMMANDS[path], "commands", None):
        own = [example for at, example in EXAMPLES if at == path]
        assert own, f"thinwire {' '.join(path)} --help has no example"
        assert path == () or any(f"thinwire {' '.join(path)}" in example for example in own)


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_example_can_be_typed(path: tuple[str, ...], example: str) -> None:
    words = shlex.split(example)[1:]
    values = parse(words)
    assert values.get("recipe") in (None, *RECIPES)
    if isinstance(values.get("codec"), str):
        Plan.parse(values["codec"])
    parse_contenders([text for option in ("codecs", "baseline") if (text := values.get(option))])
    if (script := values.get("script")) and script[-1] != words[-1]:
        raise AssertionError(f"{example}: the script's own arguments were read as options")
    if script and script[:2] == ["-m", "thinwire"]:
        parse(script[2:])
    if words[0] in QUICK:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("wrong", ["codecs --shap 3", "compare --recipe", "nothing"])
def test_an_example_that_cannot_be_typed_is_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|requires an argument|no such command"):
        parse(wrong.split())


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("cmpare", "compare"),
        ("docter", "doctor"),
        ("codec", "codecs"),
        ("lab cleen", "clean"),
        ("bench kernel", "kernels"),
        ("compare --codcs x", "--codecs"),
        ("codecs --al", "--all"),
        ("codecs qsgd --rank 4", "--ranks"),
        ("doctor --jsn", "--json"),
        ("train --recip fashion-mlp", "--recipe"),
        ("lab test --lnik 1gbit", "--link"),
        ("report r.jsonl --markdwon x", "--markdown"),
        ("codecs nuqsdg", "'nuqsgd'"),
        ("train --codec topkk", "'topk'"),
        ("train --recipe fashion-vg", "fashion-vgg"),
    ],
)
def test_what_is_mistyped_is_answered_with_the_right_word(typed: str, suggested: str) -> None:
    result = CliRunner().invoke(app, typed.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert re.search(rf"(?i)(did you mean|possible options:)[^\n]*{re.escape(suggested)}", result.output), result.output


def test_the_module_is_the_command() -> None:
    texts = []
    for program in (["-m", "thinwire"], ["-c", "from thinwire.cli import main; main()"]):
        command = [sys.executable, *program, "codecs", "--help"]
        texts.append(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)
    assert texts[0] == texts[1]
    assert "Usage: thinwire codecs" in texts[0]
