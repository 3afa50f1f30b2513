"""Each measurement behind docs/claims.md, on small made-up gradients whose answer is known."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.claims import choice, errors, gradiveq, measurements, page, support, transform, variance
from benchmarks.claims.findings import FAILS, HOLDS, PARTLY, Claim, Figures, Finding, percent, verdict
from benchmarks.claims.gradiveq_findings import age_finding, dip, linear_finding, order_finding
from benchmarks.claims.plots import save_plots
from benchmarks.claims.recording import Recording, record
from benchmarks.claims.recovery import Recovery, Setting, recoveries, recovery_finding
from thinwire import PCA
from thinwire_lab.recipes import Images, Recipe
from thinwire_lab.recipes.simulated import RecordedStep

SHAPE = (16, 8, 3, 3)


def low_rank_steps(count: int, shape: tuple[int, ...] = SHAPE, rank: int = 4, seed: int = 0) -> Tensor:
    """Gradients [count, *shape] whose rows stay in a space of few dimensions, with little noise."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = shape[0], math.prod(shape[1:])
    space = torch.randn(rank, columns, generator=generator)
    noise = 0.01 * torch.randn(count, rows, columns, generator=generator)
    return (torch.randn(count, rows, rank, generator=generator) @ space + noise).view(count, *shape)


def wide_steps(count: int = 8, ranks: int = 8) -> list[RecordedStep]:
    own = [low_rank_steps(count, seed=rank) for rank in range(ranks)]
    weights = torch.randn(SHAPE, generator=torch.Generator().manual_seed(9))
    return [RecordedStep(at, [{"layer": own[r][at]} for r in range(ranks)], {"layer": weights}) for at in range(count)]


@pytest.fixture(scope="module")
def recording() -> Recording:
    steps = wide_steps()
    return Recording("made up", {"layer": low_rank_steps(180)}, {"layer": steps[0].weights["layer"]}, steps)


# GradiVeQ.


@pytest.mark.parametrize("codec", gradiveq.LINEAR)
def test_linear_chains_are_linear(codec: str) -> None:
    assert gradiveq.linearity(codec, "layer", wide_steps()) < 1e-5


def test_a_chain_that_is_not_linear_is_found_out() -> None:
    assert gradiveq.linearity("topk(density=0.1)", "layer", wide_steps()) > 1e-2


def test_the_ring_gives_what_the_all_reduce_gives() -> None:
    assert gradiveq.ring_deviation(gradiveq.LINEAR[0], "layer", wide_steps()) < 1e-5


def test_encoding_at_every_hop_costs() -> None:
    errors = gradiveq.hop_errors("layer", wide_steps(), "qsgd(bits=4)")
    assert errors["ring"] > errors["sharded"] > 0


def test_more_coefficients_lose_less() -> None:
    steps = low_rank_steps(140, rank=30)
    lost = [gradiveq.energy_lost(steps, gradiveq.DEFAULT, ratio) for ratio in (24, 8, 4, 2)]
    assert lost == sorted(lost, reverse=True)
    assert lost[0] > 0.5
    assert lost[-1] < 0.01  # 36 coefficients for a rank of 30


def test_no_basis_gives_no_number() -> None:
    assert math.isnan(gradiveq.energy_lost(torch.zeros(140, *SHAPE), gradiveq.DEFAULT, 8))


def test_a_basis_ages_when_its_space_turns() -> None:
    still, other = low_rank_steps(140), low_rank_steps(40, seed=1)
    curve = gradiveq.age_curve({"layer": torch.cat([still, other])}, gradiveq.DEFAULT, 8, 0)
    assert len(curve) == 4
    assert max(curve[:2]) < 0.01
    assert min(curve[2:]) > 0.5


def test_a_dip_is_seen_at_multiples_of_the_period() -> None:
    lengths = [90, 95, 100, 105, 110]
    found = gradiveq.Sweep("", 8, 100, lengths, {"form": [0.5, 0.5, 0.1, 0.5, math.nan]})
    assert dip(found, "form") == pytest.approx(0.2)


def test_samples_choose_the_order_that_holds_the_space(recording: Recording) -> None:
    columns = low_rank_steps(60, (32, 24), rank=2).transpose(1, 2).contiguous()
    both = Recording("both", {"rows": low_rank_steps(60, (24, 32), rank=2), "columns": columns}, {}, [])
    rows, holds, said = choice.order_rows(both)
    assert all(holds)
    assert len(rows) == 1  # only one moment has enough steps behind it
    assert said == "both: 0 of 2 layers and moments"
    lost = [choice.together(choice.losses(both, PCA(ratio=8, sample=20, order=o))[0]) for o in choice.ORDERS]
    assert lost[2] < 0.1 * min(lost[:2])


def test_what_unseen_steps_lose_is_measured_behind_the_samples() -> None:
    steps = torch.cat([low_rank_steps(40), low_rank_steps(40, seed=1)])
    found, without = choice.losses(Recording("turned", {"layer": steps}, {}, []), PCA(energy=0.05, sample=20))
    assert without == 0
    assert [loss.share > 0.7 for loss in found] == [True]
    still, _ = choice.losses(Recording("still", {"layer": low_rank_steps(80)}, {}, []), PCA(energy=0.05, sample=20))
    assert still[0].share < 0.05


def test_the_first_steps_keep_the_transform_of_smooth_gradients_only() -> None:
    noise = torch.randn(30, 16, 64, generator=torch.Generator().manual_seed(3))
    smooth, spiky = noise.flatten(1).cumsum(1).view_as(noise), noise**5
    assert transform.decided(smooth) == (True, 4)
    assert transform.decided(spiky) == (False, 0)
    finding = transform.transform_finding([Recording("made up", {"smooth": smooth, "spiky": spiky}, {}, [])])
    assert [row[-1] for row in finding.figures[0].rows] == ["yes", "yes"]
    always, auto, never = (float(cell.rstrip(" %")) for cell in finding.figures[1].rows[0][1:])
    assert auto < min(always, never)
    assert finding.claims[0].verdict == HOLDS


# Errors.


@pytest.mark.parametrize("text", [t for texts in errors.SELECTORS.values() for t in texts[:1]])
def test_selections_lose_some_but_not_all(recording: Recording, text: str) -> None:
    point = errors.measure(text, recording.series, recording.weights)
    assert 0 < point.lost < 1
    assert 0 < point.bits < 32


@pytest.mark.parametrize("family", ["qsgd", "alq", "hadamard | qsgd", "rangefloat", "integers"])
def test_more_bits_lose_less(recording: Recording, family: str) -> None:
    (points,) = errors.curves({family: errors.QUANTISERS[family]}, recording.series).values()
    lost = [point.lost for point in points]
    assert lost == sorted(lost, reverse=True)


@pytest.mark.parametrize(("text", "bits"), [("fp16", 16), ("qsgd(bits=4, bucket=128)", 4.25), ("sign(bucket=64)", 2)])
def test_bits_are_those_of_a_message(recording: Recording, text: str, bits: float) -> None:
    assert errors.measure(text, recording.series).bits == pytest.approx(bits, rel=0.05)


def test_a_chain_that_agrees_counts_what_it_sums_once(recording: Recording) -> None:
    assert errors.measure("pca(ratio=8, warmup=0, sample=60)", recording.series).bits == pytest.approx(4.0)


def test_losses_are_read_between_points() -> None:
    points = [errors.Point(1, 0.4), errors.Point(4, 0.1)]
    assert errors.at_bits(points, 2) == pytest.approx(0.2)
    assert errors.at_bits(points, 5) is None


def test_the_fft_wins_on_waves_and_loses_on_noise() -> None:
    signals = errors.made_up_signals(1 << 13)
    wins = {n: errors.rivalry(n, signal).wins(errors.RIVALS) for n, signal in signals.items()}
    assert wins == {"white noise": False, "two slow waves and noise": True}


def test_the_fft_gains_nothing_from_shuffled_numbers() -> None:
    waves = errors.made_up_signals(1 << 13)["two slow waves and noise"]
    in_order, mixed = (errors.rivalry("", s).lost for s in (waves, errors.shuffled(waves)))
    assert (mixed[errors.FFT] or 0) > 3 * (in_order[errors.FFT] or 0)


def test_the_share_regained() -> None:
    assert Recovery("", 0.5, [0.9, 0.8], [0.5, 0.4], [0.7, 0.6]).regained == pytest.approx(0.5)
    assert Recovery("", 0.5, [0.9], [0.5], [0.4]).regained < 0


# Variance.


def test_exponential_levels_suit_heavy_tails() -> None:
    heavy = variance.variances(variance.tails(1 << 13)["Student t3"], 4, 8192)
    assert heavy["NUQSGD"] < heavy["QSGD"]
    assert heavy["NUQSGDinf"] < heavy["QSGDinf"]


def test_uniform_levels_suit_light_tails() -> None:
    light = variance.variances(variance.tails(1 << 13)["Gaussian"], 4, 512)
    assert min(light, key=lambda name: light[name]) == "QSGDinf"


def test_bounds_hold_and_bias_is_seen() -> None:
    tails = variance.tails(512)
    assert 0 < variance.used_share_of_bound("NUQSGD", tails) <= 1
    assert 0 < variance.used_share_of_bound("QSGD", tails) <= 1
    x = tails["Gaussian"]
    assert variance.mean_deviation("qsgd(bits=4)", x, 200) == pytest.approx(1, abs=0.15)
    assert variance.mean_deviation("hadamard | ternary(clip=1)", x, 200) > 1.5  # clipping is biased


# Support.


def test_only_the_union_of_local_choices_grows() -> None:
    found = support.support(Recording("made up", {}, {}, wide_steps(4)), (2, 8))
    growth = {name: each[1].density / each[0].density for name, each in found.exchanges.items()}
    assert growth["local top-k, union"] > 2
    assert growth["importance, 2 mask nodes"] < 1.2
    assert growth["importance, 1 mask node"] == pytest.approx(1, abs=0.05)
    magnitude, *others = found.lost.values()
    assert all(value >= magnitude for value in others)


def test_element_and_wire_ratio_differ_by_the_masks() -> None:
    found = support.exchange(wide_steps(4), 4, "importance(density=1/64, mask_nodes=1)")
    assert found.element_ratio == pytest.approx(64, rel=0.03)
    assert 20 < found.wire_ratio < found.element_ratio


# The page.


def test_verdicts() -> None:
    assert [verdict(cases) for cases in ([True, True], [True, False], [False])] == [HOLDS, PARTLY, FAILS]


@pytest.mark.parametrize(("share", "text"), [(0.1234, "12.3 %"), (1.8, "180 %"), (3e-6, "0.0003 %")])
def test_shares_are_written_short(share: float, text: str) -> None:
    assert percent(share) == text


def test_findings_have_claims(recording: Recording, small_images: Images) -> None:
    sweep = gradiveq.sweep_lengths("layer", recording.series["layer"], 8, [120, 128, 136])
    ages = gradiveq.Ages("made up", {"early": [0.1, 0.4], "late": [0.1, 0.1]})
    recipe = Recipe(model="mlp", model_options={"width": 8}, batch=4, steps=6, warmup=2)
    runs = recoveries([Setting("tiny", recipe, (0,), (0.5,))], small_images)
    findings = [linear_finding([recording]), order_finding([sweep]), age_finding([ages]), recovery_finding(runs)]
    assert [len(finding.claims) for finding in findings] == [3, 1, 1, 1]
    assert [claim.verdict for claim in findings[0].claims[:2]] == [HOLDS, HOLDS]
    assert findings[2].claims[0].verdict == PARTLY


def test_the_page_has_a_row_for_each_claim(tmp_path: Path) -> None:
    made = [Claim("paper", f"claim {n}", "2x", "3x", HOLDS) for n in range(3)]
    finding = Finding("key", "Title", made, [Figures("Caption", ("a",), [["`x | y`"]])], ["It loses."], "picture")
    drawn = {"picture": (2.0, lambda figure: figure.subplots().plot([1, 2]))}
    measurements.write_claims(tmp_path / "claims.md", [finding], drawn, {"command": "claims"})
    text = (tmp_path / "claims.md").read_text()
    assert text.count("| paper | claim ") == 3 + 1  # and the header
    assert "Not measured yet." in text
    assert "- It loses." in text
    assert r"`x \| y`" in text
    assert (tmp_path / "claims" / "picture.svg").exists()


def test_convergence_comes_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "convergence.json"
    summary = [{"codec": "sign", "accuracies": [0.8, 0.9], "none": [0.9], "wire_ratio": 28.4}]
    path.write_text(json.dumps({"circumstances": {"thinwire": "0.2.0", "date": "2026-11-15"}, "summary": summary}))
    text = page.convergence_text(path)
    assert "| `sign` | 85.00 % | 90.00 % | -5.00 | 28.4x | 2 |" in text
    assert "(thinwire 0.2.0, 2026-11-15)" in text
    path.write_text(json.dumps({"circumstances": {"thinwire": "0.1.0", "date": "2026-11-15"}, "summary": summary}))
    assert "| `sign` | 85.00 % | 90.00 % | -5.00 |  | 2 |" in page.convergence_text(
        path
    )  # its bytes were counted wrongly


def test_no_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["claims/__main__.py", "--text", "/a/b/text.xz"])
    assert measurements.public_circumstances()["command"] == "claims --text text.xz"


def test_all_measurements_are_drawn(recording: Recording, small_images: Images, tmp_path: Path) -> None:
    recorded = record(
        "tiny", Recipe(model="mlp", model_options={"width": 32}, batch=2, steps=6, warmup=2), small_images
    )
    assert recorded.steps == 6
    assert len(recorded.wide[0].gradients) == 16
    findings, drawings = measurements.measure_claims([recording], "variance", tell=lambda text: None)
    assert [finding.key for finding in findings] == ["variance"]
    assert [path.name for path in save_plots(tmp_path, drawings)] == ["variance.svg"]
