"""Completion as shells ask for it: through the variables that the installed script sets."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.installed import install
from thinwire import OUTER_PRESETS, PRESETS, STAGES
from thinwire._names import OUTER_NAMES
from thinwire.cli import app
from thinwire.cli import completion as known
from thinwire_lab.cli import completion as known_to_lab
from thinwire_lab.compare.contenders import BASELINES
from thinwire_lab.recipes import RECIPES


def completed(line: str) -> list[str]:
    """What bash offers behind this line; a blank at its end begins a new word."""
    words = line.split()
    at = len(words) if line.endswith(" ") else len(words) - 1
    env = {"_THINWIRE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    result = CliRunner().invoke(app, [], prog_name="thinwire", env=env)
    assert result.exit_code == 0, result.output
    return [offer for offer in result.output.splitlines() if offer]


def test_the_names_are_those_that_exist() -> None:
    assert tuple(stage.name for stage in STAGES) == known.STAGE_NAMES
    assert tuple(PRESETS) == known.PRESET_NAMES
    assert tuple(OUTER_PRESETS) == OUTER_NAMES
    assert tuple(RECIPES) == known_to_lab.RECIPE_NAMES
    assert known_to_lab.BASELINE_NAMES == BASELINES


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("thinwire codecs nuq", ["nuqsgd", "nuqsgdinf"]),
        ("thinwire codecs topk(density=0.01)|huf", ["topk(density=0.01)|huffman"]),
        ("thinwire train --codec power", ["powersgd"]),
        ("thinwire train --codec topk(den", []),
        ("thinwire train --recipe text", ["text-gpt", "text-tiny"]),
        ("thinwire compare --recipe fashion-m", ["fashion-mlp"]),
        ("thinwire compare --codecs none,fp16,grad", ["none,fp16,gradiveq"]),
        ("thinwire compare --codecs topk(density=0.01);torch-p", ["topk(density=0.01);torch-powersgd"]),
        ("thinwire compare --codec itself", []),
        ("thinwire compare --codec scale", ["scalecom"]),
        ("thinwire compare --baseline ddp,torch-b", ["ddp,torch-bf16"]),
        ("thinwire cod", ["codecs"]),
        ("thinwire compare --targ", ["--target"]),
    ],
)
def test_words_are_completed(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_an_empty_word_offers_everything() -> None:
    assert completed("thinwire codecs ") == ["none", *known.STAGE_NAMES, *known.PRESET_NAMES, *OUTER_NAMES]
    assert completed("thinwire train --recipe ") == list(RECIPES)


def test_names_of_installed_packages_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "broken-package", "crooked", source="raise SystemExit('it was loaded')")
    assert completed("thinwire codecs croo") == ["crooked"]


@pytest.mark.parametrize("program", [["-m", "thinwire"], ["-c", "from thinwire.cli import main; main()"]])
def test_completion_loads_no_torch_and_is_the_same_for_the_module(program: list[str]) -> None:
    env = {"_THINWIRE_COMPLETE": "complete_bash", "COMP_WORDS": "thinwire compare --codecs qs", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["qsgd", "qsgdinf"]
    modules = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "thinwire.cli.completion" in modules
    assert "torch" not in modules
