"""Profiles are files: what was written is read, what is damaged is refused with a reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.planner.profiles import thin
from thinwire.errors import StateError
from thinwire.planner.profile import Link, Machine
from thinwire.planner.reading import load_profile, read_profile


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    given = replace(thin(), link=replace(thin().link, received_mbit=(94.0, 941.0, 940.0, 942.0)))
    given.save(tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == given


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("ranks",), 0, "ranks must be a whole number of at least 1"),
        (("thinwire_profile",), 2, "thinwire_profile must be a whole number"),
        (("link", "points", "reduce", 0, "seconds"), "fast", "seconds of a point of reduce must be a finite number"),
        (("link", "points", "reduce", 1, "sent"), 3, "sizes that grow"),
        (("model", "layers", 0, "shape"), [3, -1], "each number in shape"),
        (("model", "ready"), [0.1], "must be in the buckets 0 to 0"),
        (("machine", "cores"), 0, "cores must be a whole number of at least 1"),
        (("codecs", "qsgd(bits=4)", "layer1.weight", "error"), float("nan"), "must be a finite number"),
        (("codecs",), [], "codecs must be a mapping"),
    ],
)
def test_what_is_damaged_is_refused(path: tuple[Any, ...], value: Any, reason: str) -> None:
    content = json.loads(json.dumps(thin().to_dict()))
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(StateError, match=f"this is not a profile: .*{reason}"):
        read_profile(content)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text("not json")
    with pytest.raises(StateError, match=r"profile\.json is not a profile"):
        load_profile(tmp_path / "profile.json")


def test_a_broken_link_is_named() -> None:
    link = replace(thin().link, received_mbit=(941.0, 940.0, 94.0, 942.0))
    (fault,) = link.faults()
    assert fault.startswith("rank 2 receives 94 Mbit/s where the others receive 941")
    assert replace(link, received_mbit=(940.0, 941.0, 900.0, 930.0)).faults() == []
    assert replace(link, received_mbit=(94.0, 940.0)).faults() == []  # of two ranks, either may be broken


def test_a_described_link_has_its_rate_and_latency() -> None:
    link = Link.described(1e8, 0.02, 4)
    assert link.bits_per_second == pytest.approx(0.95e8)
    assert link.seconds("reduce", 1 << 26) == pytest.approx(8 * 2**26 / 0.95e8 + 6 * 0.02, rel=0.01)
    shared = Link.described(1e8, 0.02, 8, per_host=4)
    assert shared.seconds("exchange", 1 << 26) > 2 * link.seconds("exchange", 1 << 26)


def test_ranks_that_share_cores_share_time() -> None:
    assert Machine(2, 4, 1).parallel == 1.0
    assert Machine(8, 1, 4).parallel == 2.0
    assert Machine(2, 4, 1).cpu_factor == 2.0
    assert Machine(8, 1, 8).cpu_factor == 1.0
