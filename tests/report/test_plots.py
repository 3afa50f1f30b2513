"""Plots as files: all of them, without chance, whatever labels say."""

import sys
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import pytest

from tests.report.made_up import WAYS, Way, failed_run, write_results
from thinwire_lab.report.extras import ReportError
from thinwire_lab.report.plots import export_plots

ALL = ["accuracy", "loss", "speed", "parts", "layers"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plots") / "results.jsonl"
    return write_results(path, (*WAYS[:4], WAYS[6]), steps=40, extra=failed_run("powersgd", "the link went away"))


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_writes_every_plot(results: Path, tmp_path: Path, format: Literal["png", "svg"], start: bytes) -> None:
    written = export_plots(results, tmp_path / "new", format)
    assert written == [tmp_path / "new" / f"{name}.{format}" for name in ALL]
    assert all(path.read_bytes().startswith(start) for path in written)


def test_equal_results_give_equal_bytes(results: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export_plots(results, tmp_path / name, "svg")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_svg_is_vectors(results: Path, tmp_path: Path) -> None:
    for path in export_plots(results, tmp_path, "svg"):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        assert "path" in tags
        assert "image" not in tags


def test_labels_are_no_formulas(tmp_path: Path) -> None:
    odd = Way(r"_$\frac{ & <b>", "odd", 4, 0.01, 0.1)
    assert len(export_plots(write_results(tmp_path / "r.jsonl", (WAYS[0], odd), steps=20), tmp_path, "svg")) == len(ALL)


@pytest.mark.parametrize(("evals", "missing"), [(True, set()), (False, {"accuracy"})])
def test_leaves_out_what_was_not_measured(tmp_path: Path, evals: bool, missing: set[str]) -> None:
    results = write_results(tmp_path / "r.jsonl", WAYS[:2], seeds=1, steps=20, evals=evals)
    assert {path.stem for path in export_plots(results, tmp_path)} == set(ALL) - missing


@pytest.mark.filterwarnings("error")
def test_layers_that_lose_nothing_can_be_drawn(tmp_path: Path) -> None:
    results = write_results(tmp_path / "r.jsonl", (WAYS[0], Way("exact", "exact", 4, 0.01, 0.0)), seeds=1, steps=20)
    assert tmp_path / "layers.svg" in export_plots(results, tmp_path)


def test_empty_results(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").touch()
    assert export_plots(tmp_path / "r.jsonl", tmp_path) == []


def test_missing_library_is_one_sentence(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match=r"^drawing needs matplotlib, .*: pip install 'thinwire-lab\[report\]'$"):
        export_plots(results, tmp_path, "png")
