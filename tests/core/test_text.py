"""The text form of a chain, and what is said when it cannot be read or cannot work."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thinwire
from thinwire import Codec, CodecError

DENSITIES = st.floats(min_value=1e-6, max_value=1.0, allow_nan=False)
BUCKETS = st.integers(min_value=1, max_value=10_000)
QUANTISERS = st.one_of(
    st.builds(thinwire.QSGD, bits=st.integers(2, 8), norm=st.sampled_from(["max", "l2"]), bucket=BUCKETS),
    st.builds(thinwire.NUQSGD, bits=st.integers(2, 8), norm=st.sampled_from(["max", "l2"]), bucket=BUCKETS),
    st.builds(thinwire.Ternary, clip=st.one_of(st.none(), st.floats(0.5, 5)), bucket=BUCKETS),
)
CHAINS = st.one_of(
    st.just(Codec()),
    st.builds(lambda q: Codec((q,)), QUANTISERS),
    st.builds(lambda q, c: q | c, QUANTISERS, st.sampled_from([thinwire.Huffman(), thinwire.Elias()])),
    st.builds(lambda d, q: thinwire.TopK(density=d) | q, DENSITIES, QUANTISERS),
    st.builds(lambda f, d: f | thinwire.TopK(density=d), st.builds(thinwire.Feedback, keep=st.just("bf16")), DENSITIES),
)


@given(CHAINS)
@settings(max_examples=200, deadline=None)
def test_parse_undoes_str(codec: Codec) -> None:
    assert Codec.parse(str(codec)) == codec


def test_objects_and_text_make_the_same_chain() -> None:
    built = thinwire.TopK(density=0.01) | thinwire.RangeFloat(bits=8) | thinwire.Huffman()
    assert built == Codec.parse("topk(density=0.01) | rangefloat(bits=8) | huffman")
    assert str(built) == "topk(density=0.01) | rangefloat(bits=8) | huffman"
    assert "topk(density=0.01)" | (thinwire.RangeFloat(bits=8) | "huffman") == built


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("none", "none"),
        ("  qsgd ", "qsgd(bits=4)"),
        ("qsgd(norm='l2')", "qsgd(bits=4, norm=l2)"),
        ('qsgd( norm = "l2" , bits=3 )', "qsgd(bits=3, norm=l2)"),
        ("topk(density=1/64)", "topk(density=0.015625)"),
        ("topk(density=1e-3)", "topk(density=0.001)"),
        ("topk(density=.5)|fp16", "topk(density=0.5) | fp16"),
        ("none | fp16", "fp16"),
        ("ternary(clip=none)", "ternary"),
        ("onebit", "sign"),
        ("qsgdinf(bits=2) | huffman", "qsgd(bits=2) | huffman"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(Codec.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qsdg", r"there is no stage or preset 'qsdg'; did you mean 'qsgd'\? known are .*none.*qsgd.*topk"),
        ("QSGD", r"there is no stage or preset 'QSGD'; did you mean 'qsgd'\? "),
        ("None", r"there is no stage or preset 'None'; did you mean 'none'\? "),
        ("none(bits=4)", r"none has no option 'bits'; it takes none\."),
        ("", r"a chain names at least one stage; got ''; write none for no compression\."),
        (" \t\n", r"a chain names at least one stage; got ' \\t\\n'; write none for no compression\."),
        ("pca(travel='')", r"a chain names at least one stage; got ''; write none"),
        ("qsgd(bit=4)", r"qsgd has no option 'bit'; its options are bits, norm, bucket\."),
        ("huffman(bits=4)", r"huffman has no option 'bits'; it takes none\."),
        ("topk", r"topk needs density; write topk\(density=\.\.\.\)\."),
        ("qsgd(bits=9)", r"qsgd\(bits=9\): bits must be a whole number from 2 to 8\."),
        ("qsgd(bits=4.0)", r"qsgd\(bits=4\.0\): bits must be a whole number from 2 to 8\."),
        ("qsgd(bits=true)", r"qsgd\(bits=true\): bits must be a whole number"),
        ("qsgd(norm=l1)", r"qsgd\(norm=l1\): norm must be one of max, l2\."),
        ("qsgd(bucket=0)", r"qsgd\(bucket=0\): bucket must be a whole number from 1"),
        ("topk(density=0)", r"topk\(density=0\): density must be a number from 1e-09 to 1\."),
        ("topk(density=1/0)", r"the fraction 1/0 divides by zero\."),
        ("topk(density=2/1)", r"topk\(density=2\.0\): density must be a number"),
        ("rangefloat(bits=6, mantissa=4)", r"6 bits leave room for 3 bits of mantissa"),
        ("rangefloat(bits=6, minimum=-1)", r"a frozen range needs both minimum and maximum"),
        ("qsgd(bits=4", r"a '\)' is missing"),
        ("qsgd(bits)", r"expected option=value at 'bits'"),
        ("qsgd(bits=4 norm=l2)", r"expected ',' or '\)' before 'norm'"),
        ("qsgd(bits=4, bits=5)", r"the option 'bits' is given twice"),
        ("qsgd qsgd", r"expected '\|' before 'qsgd'"),
        ("qsgd |", r"expected a stage name, found the end"),
        ("| qsgd", r"expected a stage name, found '\|'"),
        ("qsgd; topk", r"unexpected '; topk'"),
        ("qsgd | nuqsgd", r"nuqsgd cannot follow qsgd: it takes float32, and qsgd gives 4-bit symbols"),
        (
            "qsgd | integers",
            r"qsgd cannot come before integers: what it sends cannot be summed; write integers \| qsgd\.",
        ),
        ("huffman | qsgd", r"qsgd cannot follow huffman"),
        ("elias", r"elias cannot be the first stage: it takes symbols; put a quantiser before it"),
        ("sign | elias", r"elias codes signs and levels"),
        ("fp16 | topk(density=0.1)", r"topk cannot follow fp16: it takes float32, and fp16 gives float16 numbers"),
        (
            "hadamard | powersgd",
            r"powersgd cannot follow hadamard, which gives a flat run of numbers \(it is no matrix\); write powersgd",
        ),
        ("fft | gradiveq", r"pca cannot follow fft, which gives a flat run of numbers"),
        ("qsgd | feedback(keep=off)", r"feedback sets how the whole chain works and must come first"),
        ("feedback(keep=fp64) | qsgd", r"keep must be one of fp32, bf16, off"),
    ],
)
def test_what_is_said_of_bad_chains(text: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Codec.parse(text)


def test_nothing_is_not_a_part_of_a_chain() -> None:
    for made in (lambda: Codec.parse("qsgd") | "", lambda: thinwire.QSGD() | " "):
        with pytest.raises(CodecError, match="write none for no compression"):
            made()


def test_other_types_are_refused() -> None:
    with pytest.raises(CodecError, match=r"got NoneType; write none for no compression\."):
        Codec.parse(None)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="a codec is a text, a stage or a Codec; got int"):
        Codec.parse(3)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="a chain is made of stages; got str"):
        Codec(("qsgd",))  # type: ignore[arg-type]
