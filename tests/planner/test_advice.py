"""Advice as people and programs read it, and profiles of what is only described."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.planner.profiles import fast, thin
from thinwire.cli import app
from thinwire.cli.link import faults_of
from thinwire.core.plan import Plan
from thinwire.errors import CodecError, StateError
from thinwire.planner.advice import advice_on, break_even, speedups
from thinwire.planner.describe import (
    described_model,
    parse_count,
    parse_rate,
    parse_seconds,
    read_shapes,
    rebucketed,
    shapes_of,
)


def test_a_fast_link_is_told_to_leave_it() -> None:
    advice = advice_on(fast())
    assert advice.verdict.startswith("Do not compress: the network adds ")
    assert "DistributedDataParallel" in advice.line
    assert advice.outer is None


def test_a_thin_link_gets_a_line_to_paste() -> None:
    advice = advice_on(thin())
    assert advice.line == 'handle = thinwire.attach(model, "qsgd(bits=4)")'
    assert advice.verdict.startswith("Compress with qsgd(bits=4): ")
    assert advice.speedup > 2
    told = str(advice)
    assert "<- recommended" in told
    assert told.count("loses too much") == 3


def test_outer_steps_are_advised_where_no_codec_suffices() -> None:
    given = thin()
    advice = advice_on(replace(given, link=given.link.scaled(0.02)))
    assert advice.outer is not None
    assert advice.outer.every > 2
    assert advice.outer.step < 1.1 * given.model.step
    assert "attach_outer" in str(advice)


def test_json_has_a_plan_that_can_be_used() -> None:
    content = json.loads(json.dumps(advice_on(thin()).to_dict()))
    assert content["compress"] is True
    assert Plan.parse(content["plan"]) == Plan.parse("qsgd(bits=4)")
    assert content["plain"]["step_seconds"] > content["admitted"][0]["step_seconds"]


def test_a_broken_link_is_told() -> None:
    given = thin()
    broken = replace(given, link=replace(given.link, received_mbit=(95.0, 94.0, 9.0, 95.0)))
    assert "rank 2 receives 9 Mbit/s where the others receive 95" in str(advice_on(broken))
    assert faults_of(given.link, 1e9)[0].startswith("exchanges reach 95 Mbit/s where 1000 are expected")
    assert faults_of(given.link, 1e8) == []


def test_codecs_pay_up_to_their_break_even() -> None:
    rates = (1e7, 1e8, 1e9, 1e10, 1e11)
    gains = speedups(thin(), "qsgd(bits=4)", rates)
    assert gains == sorted(gains, reverse=True)
    assert break_even((1e6, 1e7), (2.0, 1.5)) is None
    assert break_even((1e6, 1e8), (2.0, 0.0)) == pytest.approx(1e7)


def test_figures_are_read() -> None:
    assert parse_rate("1gbit") == 1e9
    assert parse_seconds("20ms") == pytest.approx(0.02)
    assert parse_count("125M") == 125_000_000
    assert parse_count("1.3B") == 1_300_000_000
    with pytest.raises(CodecError, match="a link rate is written 200mbit or 1gbit; got 'fast'"):
        parse_rate("fast")


def test_a_number_of_parameters_is_a_model_of_that_size() -> None:
    for count in (1, 50, 12_345, 5_600_000):
        model = described_model(shapes_of(count), 0.1)
        assert model.numel == count
        assert model.ready[-1] == pytest.approx(model.step)
        assert list(model.ready) == sorted(model.ready)


def test_other_buckets_keep_the_layers_and_the_end_of_backward() -> None:
    model = described_model(shapes_of(30_000_000), 0.1)
    other = rebucketed(model, 5)
    assert [layer.name for layer in other.layers] == [layer.name for layer in model.layers]
    assert len(other.ready) > len(model.ready)
    assert other.ready[-1] == pytest.approx(model.ready[-1])


def test_described_gradients_have_a_type() -> None:
    halves, numbers = (described_model(shapes_of(30_000_000), 0.1, dtype=name) for name in ("bfloat16", "float32"))
    assert {layer.dtype for layer in halves.layers} == {"bfloat16"}
    assert len(halves.ready) < len(numbers.ready)  # buckets are counted in bytes
    with pytest.raises(CodecError, match=r"the type of gradients is one of float32, bfloat16, .*; got 'int8'"):
        described_model(shapes_of(100), 0.1, dtype="int8")


def test_shapes_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps({"a.weight": [3, 4], "a.bias": [3]}))
    assert read_shapes(path) == {"a.weight": (3, 4), "a.bias": (3,)}
    path.write_text(json.dumps({"a.weight": "big"}))
    with pytest.raises(StateError, match=r"the shape of a\.weight must be a list"):
        read_shapes(path)


def test_the_command_needs_one_source() -> None:
    for words in (["advise"], ["advise", "--parameters", "1M", "--profile", "x.json"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert "give one of a script, --parameters, --shapes, --recipe and --profile" in result.output


def test_the_command_describes_and_reads_profiles(tmp_path: Path) -> None:
    saved = tmp_path / "profile.json"
    words = ["--parameters", "200k", "--hosts", "4", "--link", "50mbit", "--backward", "20ms", "--codecs", "qsgd; bf16"]
    first = CliRunner().invoke(app, ["advise", *words, "--save", str(saved)])
    assert first.exit_code == 0, first.output
    assert "200,000 parameters, 4 ranks" in first.output
    again = CliRunner().invoke(app, ["advise", "--profile", str(saved), "--link", "10gbit", "--json"])
    assert json.loads(again.output)["plain"]["step_seconds"] < 0.2


def test_a_page_of_a_saved_profile_is_written_by_the_lab(tmp_path: Path) -> None:
    saved, page = tmp_path / "p.json", tmp_path / "page.html"
    thin().save(saved)
    result = CliRunner().invoke(app, ["advise", "--profile", str(saved), "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert "Will compression pay?" in page.read_text()


def test_the_link_is_said_to_be_described(tmp_path: Path) -> None:
    given = replace(thin(), link=replace(thin().link, received_mbit=(100.0,) * 4))
    assert "(10 steps measured)" in str(advice_on(given))
    assert "(10 steps measured, the link described)" in str(advice_on(thin()))


def test_a_recipe_describes_a_model() -> None:
    words = ["--hosts", "4", "--link", "100mbit", "--codecs", "bf16"]
    result = CliRunner().invoke(app, ["advise", "--recipe", "fashion-tiny", *words])
    assert result.exit_code == 0, result.output
    assert "4 ranks, 95 Mbit/s (described, not measured)" in result.output
    unknown = CliRunner().invoke(app, ["advise", "--recipe", "nope", *words])
    assert "there is no recipe 'nope'; known recipes: fashion-tiny" in unknown.output


@pytest.mark.parametrize("words", [["--profile", "gone.json"], ["--shapes", "gone.json"], ["--", "gone.py"]])
def test_files_that_are_not_there_are_refused_before_anything_starts(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["advise", *words])
    assert result.exit_code == 2
    assert f"there is none at {words[1]}." in result.output
