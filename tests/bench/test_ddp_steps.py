"""Steps of DDP: ratios to plain DDP and headroom, the verdict on PyTorch's hooks, and the trace of one step."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from thinwire_lab.bench.ddp import (
    HOOKS,
    WORKLOADS,
    DdpVerdict,
    Workload,
    bench_ddp,
    ddp_rows,
    ddp_table,
    trace_ddp,
    verdict,
)
from thinwire_lab.bench.results import BenchError, verdicts
from thinwire_lab.recipes import RecipeError, build_model

TINY = Workload("vgg", 2, options={"width": 8})
ABOUT = {"model": "vgg", "parameters": 10, "ranks": 4, "batch": 4}


def found(contender: str, seconds: float, wait: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"contender": contender, "seconds": seconds, "wait_seconds": wait, "bytes_sent": 1}
    return row | {"encode_seconds": None, "communicate_seconds": None, "decode_seconds": None}


def test_shares_are_those_of_plain_ddp() -> None:
    told = [found("ddp", 1.0), found("headroom", 0.6, 0.0), found("qsgd", 0.8, 0.1), found("torch-fp16", 0.9, 0.2)]
    rows = {row.contender: row for row in ddp_rows(told, ABOUT | {"link": "1gbit"}, judge=True)}
    assert rows["ddp"].exposed_seconds == pytest.approx(0.4)
    assert rows["qsgd"].step_ratio == pytest.approx(0.8)
    assert rows["qsgd"].exposed_share == pytest.approx(0.5)
    assert rows["qsgd"].wait_seconds == 0.1
    assert rows["torch-fp16"].exposed_share == pytest.approx(0.75)
    assert {who: verdicts(row) for who, row in rows.items() if verdicts(row)} == {"qsgd": {"exposed share": False}}


def test_what_is_exposed_is_the_same_for_all() -> None:
    """Whoever takes as long as plain DDP exposes as much, whatever it says of its waiting."""
    told = [found("ddp", 1.0), found("headroom", 0.6, 0.0), found("none", 1.0, 0.7), found("qsgd", 0.7, 0.3)]
    rows = {row.contender: row for row in ddp_rows(told, ABOUT | {"link": "1gbit"}, judge=True)}
    assert rows["ddp"].exposed_share == rows["none"].exposed_share == 1.0
    assert verdicts(rows["qsgd"]) == {"exposed share": True}


@pytest.mark.parametrize(("seconds", "met"), [(1.02, True), (1.05, False)])
def test_none_must_not_cost_anything_on_loopback(seconds: float, met: bool) -> None:
    told = [found("ddp", 1.0), found("headroom", 0.6, 0.0), found("none", seconds, 0.1)]
    rows = ddp_rows(told, ABOUT | {"link": "none"}, judge=True)
    assert verdicts(rows[-1]) == {"step / plain DDP's": met}
    assert not any(verdicts(row) for row in ddp_rows(told, ABOUT | {"link": "none"}, judge=False))


def test_communication_that_costs_nothing_has_no_share() -> None:
    rows = ddp_rows([found("ddp", 0.5), found("headroom", 0.6, 0.0)], ABOUT | {"link": "none"}, judge=True)
    assert [row.exposed_share for row in rows] == [None, None]
    assert ddp_table(rows).row_count == 2


@pytest.mark.parametrize(("codec", "met"), [(0.7, True), (0.9, False)])
def test_the_fastest_codec_is_set_against_the_fastest_hook(codec: float, met: bool) -> None:
    told = [found("ddp", 2.0), found("headroom", 0.1, 0.0), found("none", 0.2, 0.1), found("qsgd", codec, 0.1)]
    told += [found("iwp", 1.5, 0.1), found("torch-fp16", 1.0, 0.1), found("torch-powersgd(rank=2)", 0.8, 0.1)]
    rows = ddp_rows(told, ABOUT | {"link": "100mbit"}, judge=True)
    (end,) = verdict(rows, judge=True)
    assert (end.codec, end.hook, verdicts(end)) == ("qsgd", "torch-powersgd(rank=2)", {"step / the hook's": met})
    assert "qsgd / torch-powersgd(rank=2)" in str(ddp_table([*rows, end]).caption)
    assert verdict(rows[:4], judge=True) == []


@pytest.mark.parametrize(("name", "least", "most"), [("vgg", 5e6, 7e6), ("resnet", 3e6, 6e6), ("gpt", 9e6, 12e6)])
def test_workloads_have_the_size_they_should(name: str, least: float, most: float) -> None:
    model = build_model(WORKLOADS[name].model, **WORKLOADS[name].options)
    assert least < sum(p.numel() for p in model.parameters()) < most


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"hosts": 1}, "at least 2 hosts"),
        ({"steps": 0}, "at least 1 step"),
        ({"contenders": ["torch-x"]}, "no baseline"),
    ],
)
def test_what_cannot_run_is_refused_at_once(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        bench_ddp("vgg", TINY, "none", **{"hosts": 2, **options})


def test_a_model_that_cannot_be_built_is_refused_at_once() -> None:
    with pytest.raises(RecipeError, match="no option"):
        bench_ddp("vgg", Workload("vgg", 2, options={"heads": 8}), "none", 2)
    with pytest.raises(BenchError, match="at least 1 example"):
        bench_ddp("vgg", Workload("vgg", 0), "none", 2)


@pytest.mark.distributed
@pytest.mark.timeout(240)
def test_two_hosts_on_loopback() -> None:
    rows = bench_ddp("vgg", TINY, "none", 2, ["none", "qsgd", *HOOKS[:2]], steps=3, turn=2)
    *steps, end = rows
    assert isinstance(end, DdpVerdict)
    by_name: Mapping[str, Any] = {row.contender: row for row in steps if not isinstance(row, DdpVerdict)}
    assert list(by_name) == ["ddp", "headroom", "none", "qsgd", *HOOKS[:2]]
    assert all(row.seconds > 0 and row.ranks == 2 and not verdicts(row) for row in by_name.values())
    assert by_name["headroom"].bytes_sent < 2000 < by_name["qsgd"].bytes_sent < by_name["ddp"].bytes_sent / 4
    assert by_name["none"].bytes_sent == pytest.approx(by_name["ddp"].bytes_sent, rel=0.05)
    assert by_name["qsgd"].wait_seconds > 0
    assert by_name["qsgd"].encode_seconds > 0


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_the_trace_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace_ddp(TINY, "none", 2, "qsgd", path)
    document = json.loads(path.read_text())
    assert document["codec"] == "qsgd"
    spans = [event for event in document["traceEvents"] if str(event.get("name", "")).startswith("thinwire: ")]
    threads: dict[str, set[int]] = {}  # by the first word of the span
    for event in spans:
        threads.setdefault(event["name"].split()[1], set()).add(event["tid"])
    assert {"step", "forward", "backward", "optimiser", "wait", "average", "encode", "exchange", "decode"} <= {*threads}
    assert threads["wait"] == threads["step"]
    assert not threads["average"] & threads["step"]  # on the threads of lanes
    (step,) = [event for event in spans if event["name"] == "thinwire: step"]
    assert all(step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"] + 1 for e in spans)


def test_a_trace_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="a folder that exists"):
        trace_ddp(TINY, "none", 2, "qsgd", tmp_path / "nowhere" / "trace.json")
