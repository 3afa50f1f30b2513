"""`thinwire bench`: help, one-line errors, tables, records and files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinwire.cli import app
from thinwire_lab.cli import bench as bench_commands
from thinwire_lab.cli import bench_options

QUICK = ("bench", "kernels", "--only", "sign", "--sizes", "4k", "--threads", "1", "--turns", "1")


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["kernels", "collectives", "ddp", "growth", "start", "all"])
def test_every_benchmark_has_help(command: str) -> None:
    text = invoke("bench", command, "--help")
    assert "Usage:" in text
    assert "Example" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("kernels", "--only", "cake"), "no codec of the benchmark contains 'cake'"),
        (("kernels", "--sizes", "large"), "write 4k,256k,64m"),
        (("kernels", "--threads", "0"), "threads are whole numbers"),
        (("collectives", "--links", "fast"), "a link rate is"),
        (("collectives", "--links", "none", "--codecs", "nope"), "no stage or preset 'nope'"),
        (("ddp", "--model", "cake"), "no model 'cake' to benchmark; known are vgg, resnet, gpt"),
        (("ddp", "--links", "none", "--hosts", "1"), "at least 2 hosts"),
        (("ddp", "--links", "none", "--batch", "0"), "at least 1 example"),
        (("ddp", "--links", "none", "--codecs", "qsgd", "--trace", "no/t.json"), "a folder that exists"),
        (("growth", "--ranks", "few"), "ranks are whole numbers"),
        (("growth", "--sizes", "4k"), "two sizes above 64 KiB"),
    ],
)
def test_what_the_user_can_put_right_is_told_in_one_line(
    arguments: tuple[str, ...], complaint: str, elsewhere: Path
) -> None:
    output = invoke("bench", *arguments, code=2)
    assert complaint in output
    assert output.strip().count("\n") == 0


def test_a_table_and_a_dated_file(elsewhere: Path) -> None:
    (elsewhere / "benchmarks" / "results").mkdir(parents=True)
    output = invoke(*QUICK)
    assert "shares of the speed of Tensor.copy_" in output
    (path,) = (elsewhere / "benchmarks" / "results").iterdir()
    assert path.name.endswith("-kernels.jsonl")
    assert path.name in output
    heading, *rows = map(json.loads, path.read_text().splitlines())
    assert (heading["kind"], heading["benchmark"]) == ("circumstances", "kernels")
    assert [(row["kind"], row["codec"], row["met"]) for row in rows] == [("kernel", "sign", {})]


def test_json_instead_of_tables_and_files(elsewhere: Path) -> None:
    records = list(map(json.loads, invoke(*QUICK, "--json").splitlines()))
    assert [record["kind"] for record in records] == ["circumstances", "kernel"]
    assert list(elsewhere.iterdir()) == []


def test_a_file_of_ones_own(elsewhere: Path) -> None:
    invoke(*QUICK, "--json", "-o", "own.jsonl")
    assert len(Path("own.jsonl").read_text().splitlines()) == 2


def test_thin_links_are_left_out_where_they_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("thinwire_lab.lab.why_no_thin_links", lambda: "no permission")
    assert bench_options.chosen_links("1gbit, none", (), or_loopback=True) == ["none"]
    assert "1gbit are left out: no permission" in capsys.readouterr().err
    assert bench_options.chosen_links(None, ("1gbit", "none"), or_loopback=False) == ["1gbit", "none"]


def test_all_runs_everything_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    for name in ("start", "kernels", "growth", "collectives", "outer", "ddp"):
        monkeypatch.setattr(bench_commands, name, lambda name=name, **options: ran.append((name, options)))
    invoke("bench", "all")
    assert list(dict(ran)) == ["start", "kernels", "growth", "collectives", "ddp", "outer"]
    assert all(options.get("or_loopback") for name, options in ran if name in ("collectives", "ddp", "outer"))
