"""Who takes part: lists of chains are cut at the right places, and wrong names are refused before anything runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import CodecError
from thinwire_lab.compare.contenders import BASELINES, parse_contender, parse_contenders, split_list, usual_contenders

CHAINS = ("none", "qsgd(bits=4, bucket=64)", "topk(density=1/64) | rangefloat(bits=8)", "torch-powersgd(rank=2)", "ddp")


@given(st.lists(st.sampled_from(CHAINS)), st.sampled_from([",", ";", " , ", "; "]))
def test_a_list_is_cut_between_chains_only(chains: list[str], separator: str) -> None:
    assert split_list(separator.join(chains)) == chains


def test_one_that_is_named_twice_takes_part_once() -> None:
    assert [c.text for c in parse_contenders(["none,qsgd", "qsgd", "none; ddp"])] == ["none", "qsgd", "ddp"]


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_known(name: str) -> None:
    assert parse_contender(name).baseline


def test_a_chain_has_its_whole_text() -> None:
    contender = parse_contender(" nuqsgdinf ")
    assert (contender.text, contender.baseline) == ("nuqsgdinf", False)
    assert contender.codec == "nuqsgd(bits=4, norm=max)"


def test_powersgd_of_torch_travels_in_one_bucket() -> None:
    contender = parse_contender("torch-powersgd(rank=2)")
    assert (contender.rank, contender.codec) == (2, "torch-powersgd(rank=2)")
    assert contender.ddp_options["bucket_cap_mb"] > 10**5


def test_without_communication_there_is_no_training_result() -> None:
    assert [c.text for c in parse_contenders([",".join(BASELINES)]) if not c.trains] == ["headroom"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("qsdg", "did you mean 'qsgd'"),
        ("torch-fp8", "no baseline 'torch-fp8'"),
        ("ddp(rank=3)", "ddp takes no rank"),
        ("torch-powersgd(rank=0)", "at least 1; got 0"),
        ("qsgd(bits=99)", "bits must be"),
    ],
)
def test_a_wrong_name_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(CodecError, match=complaint.replace("(", r"\(")):
        parse_contender(text)


def test_the_usual_ones_are_there() -> None:
    usual = parse_contenders([usual_contenders()])
    assert {"none", "fp16", "qsgd", "nuqsgd"} <= {c.text for c in usual}


def test_outer_steps_are_contenders_with_their_settings() -> None:
    contender = parse_contender("diloco(every=50)")
    assert contender.outer is not None
    assert contender.outer.every == 50
    assert contender.plan is None
    assert contender.codec == "none (every=50, outer=nesterov(lr=0.7, momentum=0.9))"
    assert parse_contender("streaming-diloco").codec.endswith("fragments=4, overlap=5, mix=0.5)")


def test_every_makes_outer_steps_of_codecs_alone() -> None:
    found = parse_contenders(["none; gradiveq(travel='qsgd(bits=8)'); ddp; sparseloco"], 30, "sgd(lr=1)")
    assert [c.text for c in found] == [
        "diloco(every=30, outer='sgd(lr=1)')",
        "diloco(codec=\"gradiveq(travel='qsgd(bits=8)')\", every=30, outer='sgd(lr=1)')",
        "ddp",
        "sparseloco",
    ]
    assert all(c.outer.every == 30 for c in found if c.outer is not None)


@pytest.mark.parametrize(
    ("texts", "every", "outer", "complaint"),
    [
        (["diloco(rounds=3)"], None, None, "diloco has no option 'rounds'"),
        (["diloco(codec=qsdg)"], None, None, "did you mean 'qsgd'"),
        (["qsgd"], 0, None, "every must be"),
        (["qsgd"], 5, "adam", "no outer optimizer 'adam'"),
        (["qsgd"], None, "sgd", "give --every too"),
        (["sparseloco | huffman"], None, None, "is no codec but a preset of outer steps"),
    ],
)
def test_wrong_outer_steps_are_refused(texts: list[str], every: int | None, outer: str | None, complaint: str) -> None:
    with pytest.raises(CodecError, match=complaint):
        parse_contenders(texts, every, outer)
