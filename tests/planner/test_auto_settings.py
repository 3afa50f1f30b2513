"""The texts of `auto`."""

import pytest

import thinwire
from thinwire.planner.auto_settings import AutoSettings


@pytest.mark.parametrize("plan", ["qsgd", "none", "autoencoder", {"*": "qsgd"}, "auto | qsgd(bits=4)"])
def test_other_plans_are_not_auto(plan: object) -> None:
    assert AutoSettings.of(plan) is None


def test_texts_and_settings() -> None:
    assert AutoSettings.of("auto") == AutoSettings()
    assert AutoSettings.of(" auto(quality=bold) ") == AutoSettings("bold")
    settings = AutoSettings.of("auto(candidates='qsgd(bits=4); powersgd')")
    assert settings == AutoSettings(candidates=("qsgd(bits=4)", "powersgd"))
    assert AutoSettings.of(settings) is settings
    assert AutoSettings.of(str(settings)) == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("auto(quality=best)", "quality is one of safe, balanced, bold"),
        ("auto(level=1)", "no option 'level'"),
        ("auto(candidates='qsdg')", "qsgd"),
    ],
)
def test_bad_texts_are_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(thinwire.CodecError, match=said):
        AutoSettings.of(text)


def test_auto_in_one_process_decides_that_nothing_is_sent() -> None:
    import torch

    model = torch.nn.Linear(8, 8)
    with pytest.warns(RuntimeWarning, match="one process"):
        handle = thinwire.attach(model, "auto")
    for _ in range(12):
        model(torch.ones(2, 8)).sum().backward()
    (decision,) = handle.decisions
    assert decision.plan == "none"
    assert "one rank" in decision.reason
    handle.load_state_dict(handle.state_dict())
    handle.close()
