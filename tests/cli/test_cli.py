"""The command line without a network: help, tables, explanations, and errors in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinwire import PRESETS, STAGES, Codec, __version__
from thinwire.cli import app
from thinwire.cli.compare import _lab_spec
from thinwire.lab import LabError

COMMANDS = ("run", "lab", "lab test", "lab clean", "train", "compare", "report", "codecs", "codecs explain", "doctor")


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    text = invoke(*command.split(), "--help")
    assert "Usage:" in text
    if command not in ("lab", "lab clean"):
        assert "Example" in text


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys\nfrom thinwire.cli import app\nassert 'torch' not in sys.modules and 'rich.live' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_version() -> None:
    assert invoke("--version").strip() == f"thinwire {__version__}"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("codecs", "explain", "qsdg"), "did you mean 'qsgd'"),
        (("codecs", "explain", "qsgd", "--shape", "a,b"), "a shape is whole numbers"),
        (("codecs", "explain", "qsgd", "--numel", "0"), "at least one number"),
        (("codecs", "explain", "qsgd", "--ranks", "1"), "at least 2 ranks"),
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


def test_all_stages_and_presets_are_listed() -> None:
    entries = json.loads(invoke("codecs", "--json"))
    assert {e["name"] for e in entries if e["kind"] == "stage"} == {stage.name for stage in STAGES}
    assert {e["name"] for e in entries if e["kind"] == "preset"} == set(PRESETS)
    assert all(e["does"] for e in entries)
    assert all(option["help"] for e in entries if e["kind"] == "stage" for option in e["options"])
    bits = {e["name"]: e["bits"] for e in entries}
    assert bits["fp16"] == 16
    assert bits["qsgd"] == pytest.approx(4 + 32 / 512, rel=0.01)
    assert bits["elias"] is None  # it needs symbols before it


def test_the_table_names_them() -> None:
    text = invoke("codecs")
    assert all(stage.name in text for stage in STAGES)
    assert "4.06" in text


def test_an_explanation_counts_the_bytes_of_the_codec() -> None:
    chain = "topk(density=1/64) | rangefloat(bits=8)"
    facts = json.loads(invoke("codecs", "explain", chain, "--shape", "64,32,3,3", "--ranks", "8", "--json"))
    assert facts["numel"] == 64 * 32 * 9
    assert facts["bytes"] == int(Codec.parse(chain).wire_bytes((64, 32, 3, 3), 8))
    assert [stage["role"] for stage in facts["stages"]] == ["wire", "wire"]
    assert facts["feedback"] == "fp32"
    assert not facts["unbiased"]


def test_an_explanation_shows_the_cut() -> None:
    text = invoke("codecs", "explain", "feedback(keep=bf16) | qsgd(bits=4)", "--numel", "1000000")
    assert text.index("feedback(keep=bf16)\n") < text.index("the cut") < text.rindex("qsgd(bits=4)\n")
    assert "sharded" in text
    assert "3-bit" not in text
    assert "kept in bf16" in text
    assert "no cut" in invoke("codecs", "explain", "fp16")


@pytest.mark.parametrize("text", ["none", *(stage.name for stage in STAGES), *PRESETS])
def test_everything_that_is_a_chain_can_be_explained(text: str) -> None:
    result = CliRunner().invoke(app, ["codecs", "explain", text])
    assert result.exit_code in (0, 2), result.output  # 2: it needs options, or another stage before it
    assert ("reduction" in result.output) == (result.exit_code == 0)


def test_the_doctor_knows_this_machine() -> None:
    facts = json.loads(invoke("doctor", "--json"))
    assert facts["python"] == sys.version.split()[0]
    assert facts["gloo"] is True
    assert facts["thin_links"] is (facts["thin_links_refused"] is None)
    assert "cores" in invoke("doctor")


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
    monkeypatch.setattr("thinwire.lab.why_no_thin_links", lambda: LabError("no namespaces here"))
    assert _lab_spec(4, "100mbit", "0ms", or_loopback=True).is_loopback
    assert "no namespaces here" in capsys.readouterr().err
    assert not _lab_spec(4, "100mbit", "0ms", or_loopback=False).is_loopback


def test_a_report_of_nothing_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("thinwire.report.page")
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
