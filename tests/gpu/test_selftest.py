"""The known answers, the first use of a device, and `thinwire selftest`: kernels that are wrong are found and named."""

import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.gpu.emulation import emulated
from thinwire.cli import app
from thinwire.kernels import gpu, known_answers, timing
from thinwire.kernels.gpu import launch
from thinwire.kernels.known_answers import Answer

CPU = torch.device("cpu")
ONLY_SIGN = {"sign": known_answers.FAMILIES["sign"]}
SMALL = ["selftest", "--device", "cpu", "--numbers", "512"]


@contextmanager
def wrong_launches(wrong: Callable[..., None]) -> Iterator[None]:
    """The emulated kernels, and something done after each launch."""
    with emulated():
        right = launch.run

        def run(kernel: Any, programs: int, args: Any, constants: Any) -> None:
            right(kernel, programs, args, constants)
            wrong(kernel.fn.__name__, args, constants)

        launch.run = run
        yield


def negate_signs(name: str, args: Any, constants: Any) -> None:
    if name == "decode" and constants["KIND"] == 3:
        args[2].neg_()


def fail(*_: Any) -> None:
    raise RuntimeError("no driver\nand more")


@pytest.mark.slow
@pytest.mark.parametrize("family", known_answers.FAMILIES)
def test_the_known_answers_are_right_when_the_kernels_are(family: str) -> None:
    with emulated():
        assert known_answers.implementation(CPU).startswith("Triton")
        assert known_answers.wrong_kernels(CPU, family) == []
    assert all(answer.right for answer in known_answers.answers(CPU, [family]))  # the compiled ones


def test_a_kernel_that_is_wrong_is_named() -> None:
    with wrong_launches(negate_signs):
        assert known_answers.wrong_kernels(CPU, "sign") == ["sign: decode", "sign: plain symbols"]
    with wrong_launches(fail):
        assert known_answers.wrong_kernels(CPU, "sign")[0] == "sign: encode (RuntimeError: no driver)"


def test_a_family_with_wrong_bits_uses_the_reference_and_the_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[str] = []

    def wrong_kernels(device: torch.device, family: str) -> list[str]:
        tested.append(family)
        return ["sign: encode"] if family == "sign" else []

    monkeypatch.setattr(known_answers, "wrong_kernels", wrong_kernels)
    monkeypatch.setattr(gpu, "_RIGHT", {})
    device = torch.device("cuda:7")
    with pytest.warns(RuntimeWarning, match=r"bits on cuda:7 \(sign: encode\).*'sign'.*selftest --device cuda:7"):
        assert gpu.kernels_of(device, "sign") is None
    assert gpu.kernels_of(device, "sign") is None  # and says so once
    assert tested == ["sign"]  # nothing is tested that is not used
    assert gpu.kernels_of(device, "shares") is not None
    assert tested == ["sign", "shares"]
    with gpu.untested(device):
        assert gpu.kernels_of(device, "sign") is not None


def test_other_threads_use_no_kernel_before_its_test_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread waits, and then gets what the test says; it is not taken for the one that tests."""
    device, found = torch.device("cuda:7"), queue.Queue[Any]()
    monkeypatch.setattr(gpu, "_RIGHT", {})

    def wrong_kernels(device: torch.device, family: str) -> list[str]:
        with gpu.untested(device):
            assert gpu.kernels_of(device, family) is not None
            other.start()
            other.join(0.3)
            assert found.empty()
        return ["sign: encode"]

    other = threading.Thread(target=lambda: found.put(gpu.kernels_of(device, "sign")), daemon=True)
    monkeypatch.setattr(known_answers, "wrong_kernels", wrong_kernels)
    with pytest.warns(RuntimeWarning, match="wrong bits"):
        gpu.kernels_of(device, "sign")
    assert found.get(timeout=20) is None


@pytest.mark.parametrize(("wrong", "line"), [(negate_signs, "WRONG sign: decode\n"), (fail, "RuntimeError: no driver")])
def test_the_selftest_finds_kernels_that_training_has_found_wrong(
    wrong: Callable[..., None], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_answers, "FAMILIES", ONLY_SIGN)
    monkeypatch.setattr(timing, "FAMILIES", ONLY_SIGN)
    monkeypatch.setattr(gpu, "_RIGHT", dict.fromkeys([(CPU, "sign"), (CPU, "shares")], False))
    monkeypatch.setattr(known_answers, "fallback_answers", lambda device: [])
    with wrong_launches(wrong):
        told = CliRunner().invoke(app, SMALL)
    assert told.exit_code == 1
    assert "kernels: Triton" in told.output
    assert line in told.output
    assert "All answers are right" not in told.output
    assert "answers are wrong or missing: please report this block" in told.output


def test_the_selftest_compares_and_times_every_family() -> None:
    told = CliRunner().invoke(app, SMALL)
    assert told.exit_code == 0
    assert "All answers are right" in told.output
    kernels = ("qsgd", "nuqsgd", "levels", "sign", "pack", "rangefloat", "integers", "share", "topk", "threshold")
    for name in (*kernels, "importance"):
        assert f"ok    {name}" in told.output
        assert re.search(rf"GB/s .* {name}", told.output)
    assert "same bits: fft, which has no Triton kernel" in told.output


def test_the_selftest_excuses_what_the_docs_say_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Answer("momentum", False), Answer("topk", True)]
    monkeypatch.setattr(known_answers, "fallback_answers", lambda device: answers)
    told = CliRunner().invoke(app, SMALL)
    assert told.exit_code == 0
    assert "differs, as it may: momentum" in told.output
    answers.append(Answer("fft", False))
    told = CliRunner().invoke(app, SMALL)
    assert told.exit_code == 1
    assert "WRONG, differs: fft" in told.output
