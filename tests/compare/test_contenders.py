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
