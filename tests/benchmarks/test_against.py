"""The comparison of two revisions: its options, its verdicts on recorded samples, its installations and its links."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import against
from benchmarks.revisions import cases, installing, links, models, sides, worker
from benchmarks.revisions.cases import Case, chosen_cases
from benchmarks.revisions.installing import ROOT, Revision, RevisionError, named_revision, working_tree
from benchmarks.revisions.links import LOOPBACK, LinkError, opened_link
from benchmarks.revisions.sides import NEW, OLD, MeasuringError, Row, measure, measure_row, started
from benchmarks.revisions.table import Comparison, comparison_table, record, summary, verdict

KERNEL = Case("kernels", "encode", "sign", 1, 2**16)
STEP = Case("steps", "vgg", "qsgd", link="1gbit")


def row(old: list[float], new: list[float], case: Case = KERNEL, processor: list[float] | None = None) -> Row:
    """Processor times are those of the wall, unless the new ones are given."""
    return Row(case, {OLD: old, NEW: new}, {OLD: old, NEW: processor or new})


# Options.


def test_options_of_a_full_and_of_a_quick_run() -> None:
    full, quick = against.parse(["HEAD"]), against.parse(["HEAD", "--quick"])
    assert (full.revision, full.only, full.rounds, full.output) == ("HEAD", cases.PARTS, against.ROUNDS, None)
    assert quick.rounds == against.QUICK_ROUNDS
    assert against.parse(["x", "--only", "steps, kernels", "--rounds", "9"]).only == ("steps", "kernels")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "REV"),
        (["HEAD", "--only", "kernel"], "parts are kernels, averages, steps"),
        (["HEAD", "--only", ","], "parts are kernels, averages, steps"),
        (["HEAD", "--rounds", "0"], "at least 1, not '0'"),
        (["HEAD", "--rounds", "few"], "at least 1, not 'few'"),
        (["HEAD", "-o", "no/such/folder/x.json"], "a folder that exists"),
    ],
)
def test_wrong_options_are_refused(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        against.parse(words)
    assert complaint in capsys.readouterr().err


def test_rows_are_chosen_by_their_titles() -> None:
    everything = chosen_cases(cases.PARTS, quick=False)
    assert against.titled_cases(everything, None) == everything
    chosen = against.titled_cases(everything, ["average_gradients, 25 MiB, fftsgd", "vgg, none, 1gbit"])
    assert [case.title for case in chosen] == [
        "average_gradients, 25 MiB, fftsgd, loopback",
        "average_gradients, 25 MiB, fftsgd, 1gbit",
        "vgg, none, 1gbit",
    ]
    with pytest.raises(SystemExit, match="no row has 'averages' in its title, such as 'encode, 64 MiB, qsgd"):
        against.titled_cases(everything, ["none", "averages"])


def test_an_unknown_revision_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "installed", lambda revision: pytest.fail("something is built"))
    with pytest.raises(SystemExit, match=r"'no-such-revision' is none; `git log`"):
        against.main(["no-such-revision"])


# Cases.


def test_every_part_is_there_on_every_link_and_titles_differ() -> None:
    everything = chosen_cases(cases.PARTS, quick=False)
    assert len({case.title for case in everything}) == len(everything)
    for part in ("averages", "steps"):
        assert {case.link for case in everything if case.part == part} == {LOOPBACK, "1gbit"}
    sizes = {(case.tensors, 4 * case.numel) for case in everything if case.part != "steps"}
    assert sizes == {(1, 64 << 20), (1, 256 << 10), (1, 25 << 20), (100, 64 << 10)}


def test_a_quick_run_has_fewer_cases_of_every_part() -> None:
    for part in cases.PARTS:
        quick, full = chosen_cases([part], quick=True), chosen_cases([part], quick=False)
        assert 0 < len(quick) <= len(full) // 2
        assert set(quick) < set(full)


@pytest.mark.parametrize(("name", "least", "most"), [("vgg", 5e6, 7e6), ("gpt", 9e6, 12e6)])
def test_the_networks_have_the_size_of_the_recipes(name: str, least: float, most: float) -> None:
    network, batches = models.build(name, rank=1)
    assert least < sum(p.numel() for p in network.parameters()) < most
    x, y = batches[0]
    assert network(x).shape[:-1] == y.shape


# What samples say.


def test_a_ratio_is_that_of_the_two_samples_of_a_round() -> None:
    """The machine became slower all the time; the new side takes 2 % longer than the old one."""
    old = [1.0, 2.0, 4.0, 8.0]
    found = Comparison.of({OLD: old, NEW: [1.02 * seconds for seconds in old]})
    assert (found.old, found.new) == pytest.approx((3.0, 3.06))
    assert (found.ratio, found.low, found.high) == pytest.approx((1.02, 1.02, 1.02))


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ([1.04, 1.04, 1.05], "within 5 %"),
        ([0.96, 0.96, 1.3], "within 5 %"),
        ([1.10, 1.12, 1.14], "12 % slower"),
        ([0.80, 0.80, 0.80], "20 % faster"),
        ([0.60, 1.10, 1.30], "10 % slower, uncertain"),
        ([0.50, 0.90, 1.80], "10 % faster, uncertain"),
    ],
)
def test_verdicts(new: list[float], said: str) -> None:
    assert verdict(row([1.0, 1.0, 1.0], new)) == said


def test_wall_and_processor_have_verdicts_of_their_own() -> None:
    mixed = row([1.0, 1.0], [1.0, 1.0], processor=[1.2, 1.2])
    assert verdict(mixed) == "wall within 5 %; processor 20 % slower"


def test_the_table_and_the_lines_below_it() -> None:
    rows = [
        row([0.010, 0.010], [0.012, 0.012], processor=[0.010, 0.010]),
        Row(STEP, skipped="old: CodecError: no stage qsgd"),
    ]
    console = Console(width=against.WIDTH)
    with console.capture() as shown:
        console.print(comparison_table(rows))
    (line,) = [line for line in shown.get().splitlines() if "encode, 256 KiB, sign" in line]
    for cell in ("1.200 (1.20 to 1.20)", "1.000 (1.00 to 1.00)", "wall 20 % slower; processor within 5 %"):
        assert cell in line
    assert "vgg" not in shown.get()
    assert summary(rows) == [
        "1 of 2 ratios are within 5 %.",
        "not measured (old: CodecError: no stage qsgd): vgg, qsgd, 1gbit",
    ]


def test_a_record_holds_revisions_machine_and_samples() -> None:
    revisions = {OLD: Revision("main", "a" * 40, "b" * 40), NEW: Revision("working tree", "c" * 40, "d" * 40)}
    rows = [row([1.0], [2.0]), Row(STEP, skipped="why")]
    told: dict[str, Any] = json.loads(json.dumps(record(rows, revisions, {"rounds": 1})))
    assert told["revisions"]["old"] == {"name": "main", "commit": "a" * 40, "tree": "b" * 40}
    assert all(told[key] for key in ("date", "processor", "cores", "torch", "python"))
    first, second = told["rows"]
    assert (first["wall"]["ratio"], first["samples"]["wall"]) == (2.0, {"old": [1.0], "new": [2.0]})
    assert second["skipped"] == "why"


# Revisions.


def test_the_working_tree_includes_new_files_and_leaves_the_index_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1\n")
    git("add", "--all")
    git("commit", "--quiet", "-m", "first")
    monkeypatch.setattr(installing, "ROOT", tmp_path)
    clean, head = working_tree(), named_revision("HEAD")
    assert (clean.tree, clean.name) == (head.tree, "working tree")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("a page\n")
    assert working_tree().tree != head.tree
    assert working_tree().built_files == head.built_files
    (tmp_path / "src" / "b.py").write_text("2\n")
    changed = working_tree()
    assert changed.name == "working tree with changes"
    assert changed.built_files != head.built_files
    assert git("status", "--porcelain") == "?? docs/\n?? src/b.py\n"


def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "CACHE", tmp_path)
    monkeypatch.setattr(installing, "_unpack", lambda revision, folder: folder.mkdir())
    revision = named_revision("HEAD")
    with pytest.raises(RevisionError, match=r"HEAD \(\w{10}\) cannot be installed; .* says:\n.*pyproject.toml"):
        installing.installed(revision)
    assert not list(tmp_path.glob("*/installed"))


# Ranks.


class Scripted:
    """A side whose samples are given, and that notes when it is asked."""

    def __init__(self, name: str, reply: dict[str, Any], asked: list[tuple[str, int]]) -> None:
        self.name, self.reply, self.asked = name, reply, asked

    def sample(self, calls: int, **request: Any) -> dict[str, Any]:
        self.asked.append((self.name, calls))
        return self.reply


def test_sides_take_turns_and_the_first_one_changes() -> None:
    asked: list[tuple[str, int]] = []
    both: Any = [Scripted(name, {"wall": 0.04, "processor": 0.02}, asked) for name in (OLD, NEW)]
    measured = Row(Case("averages", "average", "qsgd"))
    measure_row(measured, both, range(3))
    assert asked[:2] == [(OLD, 1), (NEW, 1)]
    assert [name for name, _ in asked[2:]] == [OLD, NEW, NEW, OLD, OLD, NEW]
    assert {calls for _, calls in asked[2:]} == {4}
    assert measured.wall == {OLD: [0.04] * 3, NEW: [0.04] * 3}


def test_what_one_side_lacks_is_skipped_with_the_reason() -> None:
    able, unable = Scripted(NEW, {"wall": 1.0, "processor": 1.0}, []), Scripted(OLD, {"refused": "no such codec"}, [])
    both: Any = [unable, able]
    measured = Row(KERNEL)
    measure_row(measured, both, range(3))
    assert measured.skipped == "old: no such codec"
    assert measured.wall == {OLD: [], NEW: []}


def test_a_rank_that_ends_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    wrong = tmp_path / "python"
    wrong.write_text('#!/bin/sh\nread request\necho "no thinwire here" >&2\nexit 3\n')
    wrong.chmod(0o755)
    with (
        opened_link(LOOPBACK, 1) as link,
        started(OLD, wrong, link, 1) as side,
        pytest.raises(MeasuringError, match=r"a rank of the old revision ended; .*\nno thinwire here"),
    ):
        side.ask(calls=1)


def test_a_rank_that_is_silent_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "REPLY_TIMEOUT", 0.2)
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nwhile read request; do :; done\n")
    silent.chmod(0o755)
    with (
        opened_link(LOOPBACK, 2) as link,
        started(NEW, silent, link, 2) as side,
        pytest.raises(MeasuringError, match="a rank of the new revision gave no reply in 0 seconds"),
    ):
        side.ask(calls=1)


def test_an_installation_in_another_place_is_refused(tmp_path: Path) -> None:
    worker.check_place(tmp_path / "venv" / "lib" / "thinwire" / "__init__.py", tmp_path / "venv")
    with pytest.raises(SystemExit, match="not from the installation in"):
        worker.check_place(tmp_path / "src" / "thinwire" / "__init__.py", tmp_path / "venv")


def test_links_that_cannot_be_made_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PATH", "")
    (skipped,) = measure([STEP], {OLD: Path("x"), NEW: Path("x")}, 2, lambda title: None)
    assert skipped.skipped is not None
    assert skipped.skipped.startswith("no link of 1gbit: the commands ip, tc, unshare, nsenter are needed")


def test_hosts_reach_each_other_through_their_links() -> None:
    listen = (
        "import socket; s = socket.create_server(('', 7000)); print(flush=True); s.settimeout(20); "
        "print(s.accept()[1][0])"
    )
    try:
        with opened_link("1gbit", 2) as link:
            command = [*link.enter[1], sys.executable, "-c", listen]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                server.stdout.readline()
                call = f"import socket; socket.create_connection(({link.addresses[1]!r}, 7000), 20)"
                subprocess.run([*link.enter[0], sys.executable, "-c", call], check=True, timeout=30)
                assert server.stdout.read().strip() == link.addresses[0]
            shown = subprocess.run([*link.enter[0], "tc", "qdisc"], capture_output=True, text=True, check=True).stdout
    except LinkError as error:
        pytest.skip(f"this machine makes no links: {error}")
    assert "rate 1Gbit" in shown


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_head_against_the_working_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with two small cases: both revisions are built, measured, shown and recorded."""
    few = [Case("kernels", call, "qsgd(bits=4)", 1, 2**12) for call in ("encode", "decode")]
    few += [Case("kernels", "encode", "a-codec-of-the-future", 1, 2**12)]
    monkeypatch.setattr(against, "chosen_cases", lambda parts, quick: few)
    output = tmp_path / "record.json"
    against.main(["HEAD", "--only", "kernels", "--rounds", "3", "-o", str(output)])
    told = json.loads(output.read_text())
    encode, decode, missing = told["rows"]
    for found in (encode, decode):
        samples = [found["samples"][kind][side] for kind in ("wall", "processor") for side in (OLD, NEW)]
        assert all(len(some) == 3 and min(some) > 0 for some in samples)
    assert "old: CodecError" in missing["skipped"]
    assert "new: CodecError" in missing["skipped"]
    assert (ROOT / ".cache").is_dir()
