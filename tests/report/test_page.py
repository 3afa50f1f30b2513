"""The page is complete in itself, shows every contender, and believes nothing that results say."""

import json
import re
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.made_up import WAYS, Way, failed_run, made_up_run, write_results
from thinwire_lab.report.extras import ReportError
from thinwire_lab.report.page import write_page
from thinwire_lab.report.record import Run, to_line
from thinwire_lab.report.tables import COLUMNS
from thinwire_lab.report.wording import row_names

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)"> & @c1 %{x} $page'


class Seen(HTMLParser):
    """Tags and text of a page, scripts and styles apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.within = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within = tag

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.within in ("script", "style") else self.text).append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(folder: Path, results: Path) -> str:
    write_page(results, folder / "out" / "report.html")
    return (folder / "out" / "report.html").read_text(encoding="utf-8")


def figures_of(seen: Seen) -> dict[str, dict[str, list[dict[str, object]]]]:
    found: dict[str, dict[str, list[dict[str, object]]]] = json.loads(
        next(script for script in seen.scripts if script.startswith("{"))
    )
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    return page_of(
        folder, write_results(folder / "results.jsonl", steps=300, extra=failed_run("powersgd", "the link went away"))
    )


def test_shows_everyone_everywhere(page: str) -> None:
    seen = Seen(page)
    table = page[page.index("<table>") : page.index("</table>")]
    assert all(f"{way.label}<" in table for way in WAYS)
    assert "failed: the link went away" in table
    figures = figures_of(seen)
    assert list(figures) == ["accuracy", "loss", "layers", "speed", "parts"]
    for curves in ("accuracy", "loss"):
        assert {trace["name"] for trace in figures[curves]["data"]} == {way.label for way in WAYS}
    assert {trace["name"] for trace in figures["layers"]["data"]} == {w.label for w in WAYS if not w.baseline}


def test_says_who_wins_and_who_loses(page: str) -> None:
    words = Seen(page).words
    assert re.search(
        r"6\.49× as fast as none over the whole training with gradiveq \(87.\d\d %\), at equal accuracy", words
    )
    assert "adacomp is slower over the whole training than none" in words
    assert "0.82× slower" in words
    assert "thinwire compare --hosts 4 --link 100mbit" in words
    assert "torch 2.13.0" in words
    assert "memory 8.0 GiB" in words


def test_parts_add_up_to_the_step(page: str) -> None:
    parts = figures_of(Seen(page))["parts"]["data"]
    by_row = [sum(x for x in row if x is not None) for row in zip(*(trace["x"] for trace in parts), strict=True)]
    column = [name for name, _ in COLUMNS].index("Step") - 1
    rows = re.findall(r"<tr[^>]*><th scope=\"row\">.*?</tr>", page)
    cells = [re.findall(r'<td(?: data-order="([^"]+)")?', row)[column] for row in rows]
    assert by_row == pytest.approx(sorted(float(cell) for cell in cells if cell))


def test_loads_nothing(page: str) -> None:
    seen = Seen(page)
    assert not [
        attrs for tag, attrs in seen.tags if tag in ("link", "img", "iframe", "object", "embed", "base", "form")
    ]
    for tag, attrs in seen.tags:
        assert "src" not in attrs, tag
        assert "href" not in attrs, tag
    assert not re.search(r"@import|url\(", "".join(s for s in seen.scripts if s.lstrip().startswith(":root")))
    policy = next(
        a["content"] for t, a in seen.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy


def test_believes_no_text_of_results(tmp_path: Path) -> None:
    way = Way(HOSTILE, f"codec {HOSTILE}", 4, 0.01, 0.1)
    results = write_results(
        tmp_path / "results.jsonl", (WAYS[0], way), steps=20, extra=failed_run("x" + HOSTILE, HOSTILE)
    )
    seen = Seen(page_of(tmp_path, results))
    plain = Seen(
        page_of(tmp_path, write_results(tmp_path / "plain.jsonl", WAYS[:2], steps=20, extra=failed_run("x", "y")))
    )
    assert sorted(tag for tag, _ in seen.tags if tag in ("script", "img")) == ["script"] * 4
    assert len(seen.scripts) == len(plain.scripts)
    assert HOSTILE in seen.words
    names = {str(trace["name"]) for trace in figures_of(seen)["accuracy"]["data"]}
    assert all("<" not in name for name in names)
    assert {unescape(name) for name in names} == {"none", HOSTILE}


def test_empty_results(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").touch()
    assert "There are no runs in these results yet." in page_of(tmp_path, tmp_path / "results.jsonl")


def test_one_run_alone(tmp_path: Path) -> None:
    seen = Seen(page_of(tmp_path, write_results(tmp_path / "results.jsonl", WAYS[2:3], seeds=1, steps=20)))
    assert "so there are no speed-ups" in seen.words
    assert list(figures_of(seen)) == ["accuracy", "loss", "layers", "parts"]


def test_nothing_but_failures(tmp_path: Path) -> None:
    results = write_results(tmp_path / "results.jsonl", (), extra=failed_run("qsgd", "no route"))
    seen = Seen(page_of(tmp_path, results))
    assert "qsgd failed: no route" in seen.words
    assert figures_of(seen) == {}


def test_without_evaluations(tmp_path: Path) -> None:
    seen = Seen(page_of(tmp_path, write_results(tmp_path / "results.jsonl", steps=20, evals=False)))
    assert "accuracy" not in figures_of(seen)
    assert "as fast as none over the whole training with gradiveq ." in seen.words


def test_cut_short(tmp_path: Path) -> None:
    """A run that still goes on, whose last line is half written."""
    results = write_results(tmp_path / "results.jsonl", WAYS[:1], seeds=1, steps=20)
    lines = [to_line(record) for record in made_up_run(WAYS[2], 0, 20)]
    with results.open("a") as file:
        file.write("\n".join(lines[:12]) + "\n" + lines[12][:30])
    seen = Seen(page_of(tmp_path, results))
    assert "Not finished: qsgd #0" in seen.words
    assert {trace["name"] for trace in figures_of(seen)["loss"]["data"]} == {"none", "qsgd"}


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    start = next(record for record in made_up_run(WAYS[0], 0, 1) if isinstance(record, Run))
    (tmp_path / "results.jsonl").write_text(to_line(start) + "\n")
    assert figures_of(Seen(page_of(tmp_path, tmp_path / "results.jsonl"))) == {}


def test_no_codec_beats_none(tmp_path: Path) -> None:
    slow = Way("slow", "slow", 2, 3.0, 0.1)
    words = Seen(page_of(tmp_path, write_results(tmp_path / "results.jsonl", (WAYS[0], slow), steps=20))).words
    assert "No contender is faster than none here" in words


def test_missing_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ReportError, match=r"^drawing needs plotly, .*: pip install 'thinwire-lab\[report\]'$"):
        write_page(tmp_path / "results.jsonl", tmp_path / "report.html")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["qsgd", "gradiveq(ratio=4, travel='qsgd(bits=8)')"], ["qsgd", "gradiveq"]),
        (["qsgd", "qsgd(bits=2)"], ["qsgd", "qsgd(bits=2)"]),
        (["topk(density=0.1) | fp16", "(odd)"], ["topk | fp16", "(odd)"]),
        (["a-long-name(x=1, y=2)", "a-long-name(x=1, y=3)"], ["a-long-name(x=… 1", "a-long-name(x=… 2"]),
    ],
)
def test_bars_are_named_shortly_where_that_is_clear(labels: list[str], names: list[str]) -> None:
    assert row_names(labels) == names
