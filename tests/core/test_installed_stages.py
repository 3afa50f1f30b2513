"""Stages that other packages declare, and those that a program registers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import thinwire
from tests.installed import install
from thinwire import FP16, Codec, CodecError, Stage
from thinwire.core.text import NAMES
from thinwire.extend import register


def test_a_stage_of_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "other-package", "halved")
    assert str(Codec.parse("halved(amount=4)")) == "halved(amount=4)"
    with pytest.raises(CodecError, match="did you mean 'halved'"):
        Codec.parse("halvd")


@pytest.mark.parametrize(
    ("value", "source", "what"),
    [
        ("Halved", "import no_such_module", "No module named 'no_such_module'; repair or remove that package"),
        ("Halved", "raise SystemError('of its\\n own')", "SystemError: of its own; repair"),
        ("Missing", "", "has no attribute 'Missing'"),
        ("Halved", "Halved = 3", "neither a stage class nor a function"),
        ("Halved", "class Halved: pass", "must be a subclass of Stage"),
        ("FP16", "from thinwire import FP16", "its class has the name 'fp16'"),
    ],
)
def test_a_package_that_gives_no_stage_is_named(
    value: str, source: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "other-package", "halved", value, source)
    with pytest.raises(CodecError, match=r"'halved' of the package other-package 1\.2 cannot be used") as refused:
        Codec.parse("halved")
    assert what in str(refused.value)
    assert str(Codec.parse("fp16")) == "fp16"
    with pytest.raises(CodecError, match="did you mean 'qsgd'"):  # the package is not loaded for another name
        Codec.parse("qsdg")


def test_two_packages_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "first-package", "halved")
    install(tmp_path, monkeypatch, "second-package", "halved")
    with pytest.raises(CodecError, match=r"first-package 1\.2.*keep only one") as refused:
        Codec.parse("halved")
    assert "second-package 1.2" in str(refused.value)


def test_registered_names_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "myown"):
        monkeypatch.setitem(NAMES, name, None)
        monkeypatch.delitem(NAMES, name)

    def defined() -> type[Stage]:
        @register
        @dataclass(frozen=True, repr=False)
        class Mine(FP16):
            name: ClassVar[str] = "mine"

        return Mine

    defined()
    again = defined()  # the cell of a notebook, run twice
    assert Codec.parse("mine").stages == (again(),)

    @register
    def myown(bits: int = 4) -> Codec:
        return Codec.parse(f"qsgd(bits={bits})")

    assert str(Codec.parse("myown(bits=3)")) == "qsgd(bits=3)"


class NoDataclass(FP16):
    name: ClassVar[str] = "nodataclass"


@dataclass(frozen=True)
class Unnamed(FP16):
    name: ClassVar[str] = ""


@dataclass(frozen=True)
class Literal(FP16):
    name: ClassVar[str] = "true"


@dataclass(frozen=True)
class Taken(FP16):
    name: ClassVar[str] = "qsgd"


@pytest.mark.parametrize(
    ("maker", "what"),
    [
        (NoDataclass, "with @dataclass"),
        (Unnamed, "'' is no name"),
        (Literal, "'true' is no name"),
        (Taken, "'qsgd' belongs to thinwire.stages.quantise.QSGD; choose another"),
        (3, "is no name"),
        (int, "is no name"),
    ],
)
def test_what_cannot_be_registered_is_refused(maker: Any, what: str) -> None:
    before = dict(NAMES)
    with pytest.raises(CodecError, match=what):
        register(maker)
    assert before == NAMES
    assert NAMES["qsgd"] is thinwire.QSGD
