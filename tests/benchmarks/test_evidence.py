"""The evidence command: equal bytes are found on the curve, finished runs are kept, seeds and steps are told."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.evidence.__main__ import main
from benchmarks.evidence.adam import AdamVariant, Variant
from benchmarks.evidence.figures import Plain
from benchmarks.evidence.page import page
from benchmarks.evidence.runs import (
    Run,
    add_run,
    chain_of,
    data_of,
    evaluation_steps,
    is_done,
    provenance,
    read_runs,
    train,
)
from benchmarks.evidence.table import table
from benchmarks.evidence.tasks import TASKS, Line, outer, shorter
from thinwire import Codec, Plan, __version__
from thinwire_lab.recipes.data import load_images


def made(codec: str, seed: int, final: float, sent: float = 100.0, steps: int = 10) -> Run:
    curve = [[steps / 2, sent / 2, 3.0], [float(steps), sent, final]]
    return Run(task="text", codec=codec, seed=seed, steps=steps, ratio=1.0, curve=curve)


def test_figures_at_equal_bytes_are_those_of_shorter_uncompressed_runs() -> None:
    runs = [made("none", 0, 1.0, 400.0, 40), made("none", 0, 2.0, 100.0), made("none", 0, 3.0, 25.0, 2)]
    plain = Plain.of([*runs, made("none", 1, 0.0, 400.0, 40), made("none", 2, 0.0, 25.0, 2)], "text", 40)
    assert [plain.at_bytes(0, sent) for sent in (10, 25, 50, 100, 200, 400, 500)] == pytest.approx(
        [3.0, 3.0, 2.5, 2.0, 1.5, 1.0, 1.0]
    )
    assert plain.at_bytes(1, 100) is None  # the shorter runs of another seed are not taken


def test_shorter_runs_halve_the_steps() -> None:
    assert shorter(1500) == [23, 47, 94, 188, 375, 750]
    assert shorter(1) == []


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, run = tmp_path / "evidence.jsonl", replace(made("qsgd(bits=4)", 1, 2.0), chain="qsgd(bits=4)")
    add_run(path, run)
    assert read_runs(path) == [run]
    assert is_done(read_runs(path), "text", "qsgd(bits=4)", 1, 10)
    assert not is_done(read_runs(path), "text", "qsgd(bits=4)", 2, 10)


def test_the_page_tells_seeds_and_steps_and_marks_what_loses() -> None:
    runs = [made("none", 0, 1.0), made("none", 1, 1.02), made("qsgd", 0, 1.01), made("topk(density=0.01)", 0, 2.0)]
    text = page(runs, "command")
    assert "shorter than the 1,500 steps" in text
    unknown = "made with unknown defaults"
    assert f"| `topk(density=0.01)` | {unknown} | 1.0 × | 2.000 | **−1.000** |  | 1 |" in text
    assert f"| `qsgd` | {unknown} | 1.0 × | 1.010 | −0.010 |  | 1 |" in text
    assert "Made by: 4 runs with a version that was not recorded." in text
    assert page(runs[2:], "command").count("\n## ") == 1  # nothing to compare with, only the list of what is missing
    assert "- ResNet on CIFAR-10, SGD with momentum 0.9: 0 of 10 lines have been run, 0 with 3 seeds; 0 of 18" in text


def test_the_page_compares_at_equal_bytes_with_a_shorter_run_that_has_no_table_of_its_own() -> None:
    runs = [made("none", 0, 1.0, 400.0), made("none", 0, 1.5, 100.0, 2)]
    text = page([*runs, made("qsgd", 0, 1.25, 200.0), made("topk(density=0.01)", 0, 2.0)], "command")
    assert "| 1.0 × | 1.250 | **−0.250** | +0.000 | 1 |" in text
    assert "| 1.0 × | 2.000 | **−1.000** | **−0.500** | 1 |" in text
    assert text.count("| codec |") == 1


def test_the_short_table_sets_images_beside_text_and_says_what_is_missing() -> None:
    steps = {key: TASKS[key].steps for key in ("images", "text")}
    plain = [made("none", seed, 1.0 + seed / 100, steps=steps["text"]) for seed in (0, 1, 2)]
    shorter_runs = [made("none", seed, 3.0, 50.0, steps["text"] // 2) for seed in (0, 1, 2)]
    good = [made("qsgd(bits=4)", seed, 1.01 + seed / 100, 50.0, steps["text"]) for seed in (0, 1, 2)]
    bad = made("gradiveq(ratio=8)", 1, 2.0, 100.0, steps["text"])
    ignored = [made("qsgd", 0, 0.5, steps=steps["text"]), made("nuqsgd(bits=4)", 0, 0.5)]
    text = table([*plain, *shorter_runs, *good, bad, *ignored])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][1:]
    none, system, gentle = rows
    assert none == ["uncompressed", "`none`", "–", "–", "–", "1.0 ×", "1.010 ± 0.010", ""]
    lost = ["1.0 ×", "**2.000 (1 of 3 seeds)**", "**−0.990**"]
    assert system == ["GradiVeQ, paper's setting", "`gradiveq(ratio=8)`", "–", "–", "–", *lost]
    assert gentle == ["NUQSGD, gentler", "`qsgd(bits=4)`", "–", "–", "–", "1.0 ×", "1.020 ± 0.010", "+1.980"]
    assert "Not run: images (nothing to compare with), text `gradiveq(ratio=8, travel=" in text
    assert "text `nuqsgd(bits=4)`" in text  # its only run is shorter than the table's
    assert "Made with other or unknown defaults: text `gradiveq(ratio=8)`, text `qsgd(bits=4)`." in text


def test_the_command_prints_the_table_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence.jsonl"
    add_run(path, made("none", 0, 1.0, steps=TASKS["text"].steps))
    monkeypatch.setattr("sys.argv", ["benchmarks.evidence", "--table", "-o", str(path)])
    main()
    assert capsys.readouterr().out.strip() == table(read_runs(path)).strip()
    assert not path.with_suffix(".md").exists()


def test_a_run_whose_codec_stands_for_another_chain_now_is_made_again_and_replaces_it(tmp_path: Path) -> None:
    path, key = tmp_path / "evidence.jsonl", ("text", "fftsgd(theta=0.85)", 0, 10)
    old = replace(made(key[1], 0, 2.0), chain="fft | topk(density=0.15, dial=true) | rangefloat(bits=10)")
    assert not is_done([replace(old, chain=None)], *key)  # nothing is known of it
    assert not is_done([old], *key)
    assert "| paper's setting, made with other defaults |" in page([made("none", 0, 1.0), old], "command")
    fresh = replace(made(key[1], 0, 1.5), chain=chain_of(TASKS["text"], key[1]))
    add_run(path, old)
    add_run(path, fresh)
    assert read_runs(path) == [fresh]
    assert is_done(read_runs(path), *key)


def test_a_run_tells_what_it_was_made_with() -> None:
    told = provenance(TASKS["text"], "gradiveq(ratio=8)")
    assert told["chain"] == str(Codec.parse("gradiveq(ratio=8)"))
    assert str(told["thinwire"]).startswith(__version__)
    assert told["torch"] == torch.__version__
    tried = provenance(TASKS["text"], "topk(density=1/64), learning rate x 3")
    assert "lr=3.0" in str(tried["chain"])  # a variant of Adam is part of it
    assert "every=15" in str(provenance(TASKS["rounds"], "diloco, every=15")["chain"])
    assert str(provenance(TASKS["rounds"], "none, learning rate x 2")["chain"]).endswith("learning rate x 2")


def test_every_line_of_the_tables_is_one() -> None:
    for task in TASKS.values():
        assert task.lines["none"].kind == ""
        for text, line in task.lines.items():
            if line.outer is None:
                Plan.parse(line.plan or text)


def test_the_variant_of_adam_is_adamw_where_nothing_is_asked_of_it() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.zeros(5, 3, requires_grad=True) for _ in range(2))
    variant = AdamVariant([ours], Variant(), lr=0.1, weight_decay=0.1)
    adamw = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(5):
        ours.grad = theirs.grad = torch.randn(5, 3)
        variant.step()
        adamw.step()
    torch.testing.assert_close(ours, theirs)


def test_a_frozen_variance_stays_and_takes_the_momentum_of_the_chain() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = AdamVariant([weight], Variant(frozen=3), lr=0.1, weight_decay=0.0)
    moved = []
    for gradient in (2.0, 2.0, 2.0, 20.0, 40.0):  # from the fourth step on, sums of momentum 0.9
        before = weight.item()
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        moved.append(before - weight.item())
    assert moved == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.2])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("none", 0.95, 1.05),
        ("diloco, every=15", 14.25, 15.75),
        # whole chunks send 215 times fewer bytes, short ones and what is not compressed more than that
        ("sparseloco, every=15", 15 * 30, 15 * 215),
    ],
)
def test_a_short_training_with_outer_steps_counts_rounds(text: str, least: float, most: float, tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("a text that repeats itself. " * 400)
    task, data = data_of(TASKS["rounds"], str(source))
    task = replace(task, recipe=replace(task.recipe, test_limit=4, batch=1), ranks=2)
    run = train(task, text, 0, 15, data)
    assert least <= run.ratio <= most


def test_a_line_has_its_own_learning_rate(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("a text that repeats itself. " * 400)
    task, data = data_of(TASKS["rounds"], str(source))
    for exchange in (Line(plan="none"), outer("localsgd", every=2)):
        recipe = replace(task.recipe, test_limit=4, batch=1, context=8)
        few = replace(
            task, recipe=recipe, ranks=2, lines={"a": exchange, "b": replace(exchange, lr=2.0), "c": exchange}
        )
        twice = replace(few, recipe=replace(recipe, lr=2 * recipe.lr))
        assert train(few, "b", 0, 2, data).final == train(twice, "c", 0, 2, data).final
        assert train(few, "a", 0, 2, data).final != train(few, "b", 0, 2, data).final


@pytest.mark.timeout(120)
def test_a_short_training_has_a_curve_of_bytes() -> None:
    task = replace(TASKS["images"], recipe=replace(TASKS["images"].recipe, batch=2, test_limit=20))
    run = train(task, "qsgd(bits=4)", 0, 4, load_images())
    assert [int(point[0]) for point in run.curve] == evaluation_steps(4)
    assert all(a[1] < b[1] for a, b in pairwise(run.curve))
    assert 2 < run.ratio < 8
