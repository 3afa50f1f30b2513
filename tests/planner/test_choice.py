"""Decisions from recorded profiles: no clock, so that they are exact."""

from dataclasses import replace

import pytest

from tests.planner.profiles import fast, profile, thin, with_error
from thinwire.errors import CodecError, StateError
from thinwire.planner.candidates import checked_candidates, quality_of
from thinwire.planner.choice import choose
from thinwire.planner.predict import predict
from thinwire.planner.profile import Link, Machine


def test_nothing_is_compressed_on_a_fast_link() -> None:
    choices = choose(fast())
    assert not choices.pays
    assert choices.best is choices.plain
    assert str(choices.best.plan) == "none"


def test_a_thin_link_is_worth_four_bits() -> None:
    choices = choose(thin())
    assert choices.pays
    assert choices.best.codec == "qsgd(bits=4)"
    assert choices.best.prediction.step < 0.4 * choices.plain.prediction.step
    assert {choice.codec for choice in choices.refused} == {"qsgd(bits=2)", "powersgd(rank=4)", "sign"}


def test_a_larger_budget_takes_what_loses_more() -> None:
    assert choose(thin(), "bold").best.codec == "sign"
    assert choose(thin(), "bold").best.prediction.step < choose(thin()).best.prediction.step


def test_a_layer_that_loses_too_much_is_spared() -> None:
    sensitive = with_error(thin(), "qsgd(bits=4)", "layer1.weight", 1.5)
    best = choose(sensitive, "safe", ["qsgd(bits=4)"]).best
    assert best.spared == ("layer1.weight",)
    assert str(best.plan.decide("layer1.weight", (128, 64, 3, 3)).codec) == "none"
    assert str(best.plan.decide("layer2.weight", (256, 128, 3, 3)).codec) == "qsgd(bits=4)"


def test_a_spared_layer_takes_another_codec_if_that_is_better() -> None:
    sensitive = with_error(thin(), "qsgd(bits=4)", "layer2.weight", 1.5)
    best = choose(sensitive).best
    assert best.codec == "by layer"
    assert str(best.plan.decide("layer2.weight", (256, 128, 3, 3)).codec) == "qsgd(bits=8)"
    assert str(best.plan.decide("layer3.weight", (512, 256)).codec) == "qsgd(bits=4)"


def test_candidates_can_be_named() -> None:
    choices = choose(thin(), "safe", ["bf16"])
    assert [choice.codec for choice in choices.admitted] == ["bf16"]


def test_the_same_profile_gives_the_same_choice() -> None:
    assert choose(thin()) == choose(thin())


def test_a_straggler_makes_every_step_longer_and_compression_worth_more() -> None:
    link = profile(Link.described(1e9, 1e-4, 4))
    plain, slow = predict(link, "none"), predict(link, "none", straggler=0.1)
    assert slow.step > plain.step
    gain, slow_gain = (p.step / predict(link, "qsgd", straggler=s).step for p, s in ((plain, 1.0), (slow, 0.1)))
    assert slow_gain > gain


def test_a_link_scaled_to_the_slowest_rank_is_worth_compressing() -> None:
    given = fast()
    assert not choose(given).pays
    assert choose(replace(given, link=given.link.scaled(1e-3))).pays


def test_the_profile_of_a_gpu_host_has_one_queue() -> None:
    host = Machine(64, 8, 8, "cuda")
    assert host.parallel == 1.0
    assert choose(replace(thin(8), machine=host)).pays
    assert not choose(replace(fast(8), machine=host)).pays


def test_more_ranks_are_never_faster() -> None:
    steps = [predict(thin(), "qsgd", ranks).step for ranks in (2, 4, 16, 256, 10_000)]
    assert steps == sorted(steps)


def test_an_unknown_quality_is_refused() -> None:
    with pytest.raises(CodecError, match="quality is one of safe, balanced, bold; got 'reckless'"):
        quality_of("reckless")


def test_candidates_are_a_list() -> None:
    with pytest.raises(CodecError, match=r"candidates are a list of codecs; got the text 'qsgd'; write \['qsgd'\]"):
        checked_candidates("qsgd")
    assert checked_candidates(["qsgd", "none", "qsgd(bits=4)"]) == ("qsgd(bits=4)",)


def test_a_codec_that_was_not_measured_is_told() -> None:
    with pytest.raises(StateError, match="no figures of mx"):
        predict(thin(), "mx(bits=4)")
