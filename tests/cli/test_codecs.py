"""`thinwire codecs`: the short list, the long list, and the explanation of one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.installed import STAGE, install
from thinwire import OUTER_PRESETS, PRESETS, STAGES, Codec
from thinwire.cli import app
from thinwire.cli.catalogue import EXAMPLES
from thinwire.cli.codecs import RATIO_RANKS, RATIO_SHAPE, STARTERS, Starter

NAMES = [*(stage.name for stage in STAGES), *PRESETS]
LISTED = [*NAMES, *OUTER_PRESETS]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["codecs", *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_list_to_start_from_is_short_and_leads_on() -> None:
    text = invoke()
    assert len(text.splitlines()) <= 12
    assert all(starter.chain in text for starter in STARTERS)
    assert "`thinwire codecs --all` lists everything, `thinwire codecs NAME` explains one." in text
    assert [row["chain"] for row in json.loads(invoke("--json"))] == [starter.chain for starter in STARTERS]


@pytest.mark.parametrize("starter", STARTERS, ids=lambda starter: str(starter.chain))
def test_the_ratios_of_the_short_list_are_true(starter: Starter) -> None:
    size = Codec.parse(starter.chain).wire_bytes(RATIO_SHAPE, RATIO_RANKS)
    ratio = int(Codec().wire_bytes(RATIO_SHAPE, RATIO_RANKS)) / int(size)
    assert float(starter.ratio.lstrip("~")) == pytest.approx(ratio, rel=0.02)
    assert starter.ratio.startswith("~") == (not size.exact)


def test_all_stages_and_presets_are_listed() -> None:
    entries = json.loads(invoke("--all", "--json"))
    assert [e["name"] for e in entries if e["package"] == "thinwire"] == LISTED
    assert all(e["does"] for e in entries)
    assert all(option["help"] for e in entries if e["kind"] == "stage" for option in e["options"])
    bits = {e["name"]: e["bits"] for e in entries}
    assert bits["fp16"] == 16
    assert bits["qsgd"] == pytest.approx(4 + 32 / 512, rel=0.01)
    assert bits["elias"] is None  # it needs symbols before it
    assert bits["diloco"] == 32 / 500
    text = invoke("--all")
    assert set(LISTED) <= set(re.findall(r"^  ([\w-]+)", text, re.MULTILINE))
    assert "= feedback(keep=off) | ballot | vote" in text
    assert "From installed packages" not in text


@pytest.mark.parametrize("name", OUTER_PRESETS)
def test_outer_steps_are_explained_with_their_codec(name: str) -> None:
    text = invoke(name)
    assert text.startswith(f"{name}: a preset of outer steps of thinwire\n")
    assert f'thinwire.attach_outer(model, optimizer, "{name}")' in text
    assert f"every={OUTER_PRESETS[name].every}" in text
    facts = json.loads(invoke(name, "--json"))
    assert facts["chain"] == str(Codec.parse(str(OUTER_PRESETS[name].codec)))
    assert all(option["help"] for option in facts["options"])


def test_stages_of_installed_packages_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "good-package", "halved")
    install(tmp_path, monkeypatch, "broken-package", "crooked", source="import no_such_module")
    install(tmp_path, monkeypatch, "rude-package", "qsgd")
    install(tmp_path, monkeypatch, "faulty-package", "faulty", source=STAGE + "Halved.out = None\n")
    text = invoke("--all")
    ours, others = text.split("From installed packages")
    assert " halved" not in ours
    assert re.search(r"^  halved +2\.0  \[good-package 1\.2\] Half precision, as", others, re.MULTILINE)
    assert re.search(r"^  crooked +\[broken-package 1\.2\] the stage 'crooked'", others, re.MULTILINE)
    assert re.search(r"^  qsgd +\[rude-package 1\.2\] it cannot be used", others, re.MULTILINE)
    assert re.search(r"^  faulty +\[faulty-package 1\.2\] TypeError", others, re.MULTILINE)


def test_a_stage_of_an_installed_package_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "good-package", "halved")
    text = invoke("halved")
    assert text.startswith("halved: a stage of good-package 1.2\n")
    assert "The second sentence." in text
    assert "amount=3  how much of it (1 to 9)" in text
    assert 'thinwire.attach(model, "halved")' in text
    assert "ratio      2.00x" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_explained_with_an_example(name: str) -> None:
    facts: dict[str, Any] = json.loads(invoke(name, "--json"))
    assert re.search(rf"\b{name}\b", facts["example"])
    assert facts["bytes"] == int(Codec.parse(facts["example"]).wire_bytes((1000, 1000), 4))
    text = invoke(name)
    assert text.startswith(f"{name}: a ")
    assert f'thinwire.attach(model, "{facts["example"]}")' in text
    assert all(f"  {option['name']}={option['default']}" in text for option in facts["options"])
    assert "ratio  " in text


def test_examples_are_of_stages_that_exist() -> None:
    assert set(EXAMPLES) <= {stage.name for stage in STAGES}


def test_an_explanation_counts_the_bytes_of_the_codec() -> None:
    chain = "topk(density=1/64) | rangefloat(bits=8)"
    facts = json.loads(invoke(chain, "--shape", "64,32,3,3", "--ranks", "8", "--json"))
    assert facts["numel"] == 64 * 32 * 9
    assert facts["bytes"] == int(Codec.parse(chain).wire_bytes((64, 32, 3, 3), 8))
    assert [stage["role"] for stage in facts["stages"]] == ["wire", "wire"]
    assert facts["feedback"] == "fp32"
    assert not facts["unbiased"]


def test_an_explanation_warns_users_of_adam_of_biased_chains() -> None:
    for biased in ("topk(density=1/64)", "signsgd"):
        assert "with Adam  most biased chains lost more" in invoke(biased)
    for harmless in ("qsgd", "bf16", "none"):  # unbiased, or rounded to a shorter float
        assert "with Adam  nothing arrives late" in invoke(harmless)


def test_an_explanation_shows_the_cut() -> None:
    text = invoke("feedback(keep=bf16) | qsgd(bits=4)", "--numel", "1000000")
    assert text.index("feedback(keep=bf16)\n") < text.index("the cut") < text.rindex("qsgd(bits=4)\n")
    assert "sharded" in text
    assert "3-bit" not in text
    assert "kept in bf16" in text
    assert "no cut" in invoke("fp16")
    assert "ratio      1.00x" in invoke("none")
