"""Plans: what is decided and why, every form they can have, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire import Codec, CodecError, Plan, Rule
from thinwire.core.plan import SMALL
from thinwire.stages.quantise import QSGD

RULES = {"*.bias": "none", "fc.*": "nuqsgd(bits=4)", "*": "topk(density=0.01)"}


def codecs(plan: Plan, *names: str, shape: tuple[int, ...] = (64, 64)) -> list[str]:
    return [str(plan.decide(name, shape).codec) for name in names]


def test_the_first_matching_rule_decides() -> None:
    plan = Plan.parse(RULES)
    assert codecs(plan, "fc.weight", "fc.bias", "conv.weight") == ["nuqsgd(bits=4)", "none", "topk(density=0.01)"]
    assert plan.decide("fc.weight", (64, 64)).why == "rule 'fc.*'"


def test_what_no_rule_matches_travels_as_it_is() -> None:
    decision = Plan.parse({"fc.*": "qsgd"}).decide("conv.weight", (64, 64))
    assert (decision.codec, decision.why, decision.numel) == (Codec(), "no rule matches", 4096)


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((4096,), torch.float32, "one-dimensional"),
        ((), torch.float32, "one-dimensional"),
        ((31, 33), torch.float32, f"small (1023 < {SMALL})"),
        ((64, 64), torch.int64, "torch.int64 is not float32, float64, float16 or bfloat16"),
    ],
)
def test_vectors_small_tensors_and_integers_are_exempt(shape: tuple[int, ...], dtype: torch.dtype, why: str) -> None:
    decision = Plan.parse("qsgd").decide("x", shape, dtype)
    assert (decision.codec, decision.why) == (Codec(), why)


@pytest.mark.parametrize(
    ("rule", "shape", "codec", "why", "compressed"),
    [
        ("powersgd(rank=4)", (4, 512), "none", "powersgd(rank=4): too small for rank 4, travels as it is", False),
        (
            "powersgd(rank=4) | fp16",
            (4, 512),
            "none",
            "powersgd(rank=4): too small for rank 4, travels as it is",
            False,
        ),
        (
            {"codec": "powersgd(rank=4)", "small": True},
            (5000,),
            "none",
            "powersgd(rank=4): it is no matrix, travels as it is",
            False,
        ),
        ("pca(ratio=2048)", (64, 64), "none", "pca(ratio=2048): too small for ratio 2048, travels as it is", False),
        (
            {"codec": "pca(ratio=8, travel='qsgd(bits=8)')", "small": True},
            (5000,),
            "pca(ratio=8, travel='qsgd(bits=8)')",
            "pca(ratio=8, travel='qsgd(bits=8)'): it is no matrix, travels through qsgd(bits=8)",
            True,
        ),
        (
            "momentum(beta=0.9) | powersgd(rank=4)",
            (4, 512),
            "momentum(beta=0.9) | powersgd(rank=4)",
            "powersgd(rank=4): too small for rank 4, travels as it is",
            False,
        ),
        ("powersgd(rank=4)", (64, 64), "powersgd(rank=4)", "rule '*'", True),
        ("momentum(beta=0.9)", (64, 64), "momentum(beta=0.9)", "rule '*'", False),
    ],
)
def test_decisions_say_what_will_happen(
    rule: Any, shape: tuple[int, ...], codec: str, why: str, compressed: bool
) -> None:
    decision = Plan.parse({"*": rule}).decide("x", shape)
    assert (str(decision.codec), decision.why, decision.compressed) == (codec, why, compressed)


@pytest.mark.parametrize("codec", ["none", "fp32", "momentum(beta=0.9)", "topk(density=1)", "delay(steps=3)"])
def test_codecs_that_compress_nothing_leave_parameters_out(codec: str) -> None:
    assert not Rule(Codec.parse(codec)).compresses
    assert Plan.parse(codec).decide("x", (64, 64)).left_out


@pytest.mark.parametrize("codec", ["fp16", "qsgd", "iwp", "signsgd", "dgc", "threshold(value=1)", "pca(ratio=2048)"])
def test_codecs_that_compress_leave_nothing_out(codec: str) -> None:
    assert Rule(Codec.parse(codec)).compresses
    assert not Plan.parse(codec).decide("x", (64, 64)).left_out


def test_exemptions_can_be_waived() -> None:
    plan = Plan.parse([{"codec": "qsgd", "small": True}])
    assert plan.decide("x", (3,)).codec.stages
    assert not plan.decide("x", (3,), torch.int32).codec.stages


def test_conditions_must_all_hold() -> None:
    plan = Plan.parse(
        [
            {"match": "a*", "codec": "fp16", "dim": 4},
            {"match": "a*", "codec": "bf16", "min_numel": 5000, "max_numel": 6000},
            {"match": "a*", "codec": "sign", "dtype": "bfloat16"},
            "qsgd",
        ]
    )
    got = [
        str(plan.decide(name, shape, dtype).codec).split("(")[0]
        for name, shape, dtype in [
            ("a", (8, 8, 8, 8), torch.float32),
            ("a", (100, 50), torch.float32),
            ("a", (100, 60), torch.float32),
            ("a", (100, 61), torch.float32),
            ("a", (64, 64), torch.bfloat16),
            ("b", (8, 8, 8, 8), torch.float32),
        ]
    ]
    assert got == ["fp16", "bf16", "bf16", "qsgd", "sign", "qsgd"]


def test_every_form_of_one_codec_is_the_same_plan() -> None:
    expected = Plan((Rule(Codec.parse("qsgd(bits=4)")),))
    same: list[Any] = [
        "qsgd(bits=4)",
        QSGD(bits=4),
        Codec.parse("qsgd(bits=4)"),
        ["qsgd(bits=4)"],
        {"*": "qsgd(bits=4)"},
    ]
    for form in [*same, {"rules": same[3]}, expected, str(expected), json.dumps({"*": "qsgd(bits=4)"})]:
        assert Plan.parse(form) == expected
    assert Rule("qsgd(bits=4)") == expected.rules[0]  # type: ignore[arg-type]


YAML = """
rules:
  - {match: "*.bias", codec: none}
  - {match: "fc.*", codec: nuqsgd(bits=4)}
  - {match: "*", codec: topk(density=0.01)}
"""
TOML = """
"*.bias" = "none"
"fc.*" = "nuqsgd(bits=4)"
"*" = {codec = "topk(density=0.01)"}
"""


@pytest.mark.parametrize(
    ("name", "text"), [("p.yaml", YAML), ("p.yml", YAML), ("p.json", json.dumps(RULES)), ("p.toml", TOML)]
)
def test_files(name: str, text: str, tmp_path: Path) -> None:
    if name.endswith("toml"):
        pytest.importorskip("tomllib")
    (tmp_path / name).write_text(text)
    assert Plan.parse(tmp_path / name) == Plan.parse(str(tmp_path / name)) == Plan.parse(RULES)


def test_a_mapping_in_a_toml_file_keeps_its_conditions(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    (tmp_path / "p.toml").write_text('[[rules]]\nmatch = "fc.*"\ncodec = "sign"\ndim = 2\nsmall = true\n')
    assert Plan.parse(tmp_path / "p.toml").rules == (Rule(Codec.parse("sign"), "fc.*", dim=2, small=True),)


rules = st.builds(
    Rule,
    st.sampled_from(["none", "sign", "topk(density=0.01) | qsgd(bits=4)"]),
    st.text(alphabet="abc.*?[]\"'é", min_size=1).filter(lambda text: text != "*"),
    dim=st.none() | st.integers(0, 5),
    min_numel=st.none() | st.integers(0, 99),
    max_numel=st.none() | st.integers(0, 99),
    dtype=st.none() | st.sampled_from(["float32", "bfloat16"]),
    small=st.booleans(),
)


@given(st.lists(rules, max_size=4))
def test_printed_plans_read_back(made: list[Rule]) -> None:
    plan = Plan(tuple(made))
    assert Plan.parse(str(plan)) == plan
    assert Plan.parse(plan.to_dict()) == plan


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (3, "a plan is a codec, a mapping of patterns to codecs, or a file; got int."),
        (None, "got NoneType"),
        ({"*": 3}, "a codec is a text, a stage or a Codec; got int"),
        ({"*": None}, "a codec is a text, a stage or a Codec; got NoneType; write none for no compression."),
        ("", "a chain names at least one stage; got ''; write none for no compression."),
        ([""], "write none for no compression."),
        ({"*": " "}, "a chain names at least one stage; got ' '; write none for no compression."),
        ([{"codec": ""}], "write none for no compression."),
        ({"*": "qsdg"}, "there is no stage or preset 'qsdg'"),
        ({3: "qsgd"}, "match must be a pattern of parameter names, as text; got 3"),
        ([{"codec": "qsgd", "layer": "x"}], "a rule has no 'layer'; it takes match, codec, dim, min_numel"),
        ([{"match": "x"}], "the rule {'match': 'x'} names no codec; add codec: none"),
        ([{"codec": "qsgd", "dim": -1}], "dim must be a whole number of at least 0 in a rule; got -1"),
        ([{"codec": "qsgd", "dim": True}], "dim must be a whole number of at least 0 in a rule; got True"),
        ([{"codec": "qsgd", "min_numel": "1k"}], "min_numel must be a whole number of at least 0 in a rule; got '1k'"),
        ([{"codec": "qsgd", "dtype": "fp33"}], "dtype must name a type of torch, such as float32; got 'fp33'"),
        ([{"codec": "qsgd", "small": "yes"}], "small must be true or false in a rule; got 'yes'"),
        ({"*": "qsgd", "fc.*": "sign"}, "rule 'fc.*' can never apply: rule '*' before it matches everything"),
        ('{"*": ', "this text is neither a codec nor a printed plan"),
        ("nowhere.yaml", "cannot read the plan nowhere.yaml: No such file"),
    ],
)
def test_bad_plans_say_what_is_wrong(what: Any, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        Plan.parse(what)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("p.yaml", "a: [b"), ("p.json", "{"), ("p.toml", "= 3")])
def test_files_that_are_not_what_they_seem(name: str, text: str, tmp_path: Path) -> None:
    if name.endswith("toml"):
        pytest.importorskip("tomllib")
    (tmp_path / name).write_text(text)
    with pytest.raises(CodecError, match=f"{name} is not valid {name.split('.')[1]}: "):
        Plan.parse(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('rules:\n  - {match: "*", codec: qsgd(bits=4, norm=max)}', "the parentheses of 'qsgd(bits=4' do not match"),
        ('{"*": qsgd(bits=4, norm=max)}', "the parentheses of 'qsgd(bits=4' do not match"),
        ("rules: [qsgd(bits=4, norm=max, bucket=64)]", "the parentheses of 'qsgd(bits=4' do not match"),
        ("- {codec: topk(density=0.1) | rangefloat(bits=8, mantissa=3), dim: 2}", "YAML cuts bare texts at commas"),
        ("*: qsgd", "expected alphabetic"),
        ("rules:\n  - match: *.bias\n    codec: none", "expected alphabetic"),
        ("rules:\n  - {match: [ab].weight, codec: none}", "expected ',' or '}'"),
    ],
)
def test_texts_that_yaml_reads_otherwise_need_quotes(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(CodecError) as caught:
        Plan.parse(tmp_path / "p.yaml")
    assert fault in str(caught.value)
    assert str(caught.value).endswith(
        'Put quotes around patterns and codecs: {match: "*.weight", codec: "qsgd(bits=4, norm=max)"}.'
    )


def test_bare_texts_that_yaml_reads_rightly_are_taken(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("""rules: [{match: "*", codec: "qsgd(bits=4, norm=max)"}]""")
    quoted = Plan.parse(tmp_path / "p.yaml")
    (tmp_path / "p.yaml").write_text('rules:\n  - match: "*"\n    codec: qsgd(bits=4, norm=max)')
    assert Plan.parse(tmp_path / "p.yaml") == quoted


@pytest.mark.parametrize(("name", "text"), [("p.yaml", '"*":'), ("p.json", '{"*": ""}'), ("p.yaml", "- codec: ''")])
def test_files_without_a_codec_are_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CodecError, match="write none for no compression"):
        Plan.parse(tmp_path / name)


def test_decisions_of_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 2))
    decided = Plan.parse("qsgd(bits=4)").decisions(model.named_parameters())
    assert [(d.name, str(d.codec), d.why) for d in decided] == [
        ("0.weight", "qsgd(bits=4)", "rule '*'"),
        ("0.bias", "none", "one-dimensional"),
        ("1.weight", "none", "small (128 < 1024)"),
        ("1.bias", "none", "one-dimensional"),
    ]
