"""Profiles are measured over Gloo: equal on all ranks, with the bytes and rounds that training then has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.distributed.processes import run_ranks
from tests.planner.profiles import thin
from thinwire.planner.choice import choose
from thinwire.planner.link import measure_link
from thinwire.planner.measure import fitted, measure
from thinwire.planner.predict import predict
from thinwire.planner.reading import read_profile
from thinwire.planner.script import profile_of_script
from thinwire.worlds.distributed import Distributed

CODECS = ["qsgd(bits=4)", "bf16", "powersgd(rank=2)"]
SCRIPT = """
import sys, torch
from torch.nn.parallel import DistributedDataParallel
assert sys.argv[1:] == ["--epochs", "1"]
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for _ in range(100):
    model.zero_grad()
    model(torch.randn(4, 64)).sum().backward()
raise SystemExit("it was not stopped")
"""


def trained(rank: int) -> tuple[DistributedDataParallel, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 300), nn.ReLU(), nn.Linear(300, 512)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 512)).square().sum().backward()
        optimizer.step()

    return model, step


def measured(rank: int, ranks: int, folder: str) -> dict[str, Any]:
    model, step = trained(rank)
    profile = measure(model, step, 3, CODECS, seconds=0.3)
    hooks = len(model._forward_pre_hooks)
    found: dict[str, Any] = {"profile": profile.to_dict(), "hooks": hooks, "best": choose(profile).best.codec}
    handle = thinwire.attach(model, "none")
    for codec in CODECS:
        handle.use(codec)
        step()
        metrics, prediction = handle.metrics(), predict(profile, codec)
        assert metrics is not None
        found[codec] = (metrics.bytes_sent, metrics.rounds, prediction.sent, prediction.rounds)
    handle.close()
    link = measure_link(Distributed(), 0.2)
    found["link"] = link
    path = Path(folder) / f"train{rank}.py"
    path.write_text(SCRIPT)
    found["script"] = profile_of_script([str(path), "--epochs", "1"], 3, ["bf16"]).to_dict()
    return found


def test_ranks_agree_on_a_profile_whose_bytes_are_those_of_training(tmp_path: Path) -> None:
    first, second = run_ranks(2, measured, str(tmp_path), seconds=120)
    assert first == second
    assert first["hooks"] == 0
    for codec in CODECS:
        sent, rounds, predicted_bytes, predicted_rounds = first[codec]
        assert (sent, rounds) == (predicted_bytes, predicted_rounds), codec
    profile = read_profile(first["profile"])
    assert [layer.name for layer in profile.model.layers][:2] in (["2.bias", "2.weight"], ["2.weight", "2.bias"])
    assert list(profile.codecs) == CODECS
    assert 0.1 < profile.codecs["qsgd(bits=4)"]["2.weight"].error < 1.0
    assert profile.codecs["powersgd(rank=2)"]["0.weight"].memory > 4 * 300 * 512
    assert profile.model.step > 0
    assert len(profile.link.received_mbit) == 2
    assert first["link"].bits_per_second > 0
    of_script = read_profile(first["script"])
    assert sorted(layer.shape for layer in of_script.model.layers) == [(64,), (64, 64)]


@pytest.mark.parametrize("factor", [0.02, 1.0, 30.0])
def test_a_link_of_a_wrong_bandwidth_is_fitted_to_the_plain_step(factor: float) -> None:
    plain, given = predict(thin(), "none").step, thin()
    found = fitted(replace(given, link=given.link.scaled(factor)), plain)
    assert predict(found, "none").step == pytest.approx(plain, rel=0.02)
    for codec in ("bf16", "qsgd(bits=4)"):
        assert predict(found, codec).step == pytest.approx(predict(given, codec).step, rel=0.1)


def test_a_link_of_which_one_size_was_measured_is_fitted_too() -> None:
    given = thin()
    short = replace(given.link, points={kind: those[:1] for kind, those in given.link.points.items()})
    plain = predict(given, "none").step
    assert predict(fitted(replace(given, link=short), plain), "none").step == pytest.approx(plain, rel=0.02)
