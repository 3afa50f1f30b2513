"""The time line of a step, by a clock without a network."""

import pytest

from thinwire.planner.timeline import Job, Phase, elapsed


def test_without_jobs_a_step_is_what_it_is() -> None:
    found = elapsed([], 0.10, 0.08, 1.0)
    assert (found.step, found.backward, found.exposed) == (0.10, 0.08, 0.0)


def test_what_is_sent_during_backward_is_hidden() -> None:
    found = elapsed([Job(0.02, [Phase(wire=0.05)])], 0.10, 0.08, 1.0)
    assert found.step == pytest.approx(0.10)
    assert found.exposed == pytest.approx(0.0)


def test_what_is_sent_after_backward_is_exposed() -> None:
    found = elapsed([Job(0.08, [Phase(work=0.01), Phase(wire=0.05), Phase(work=0.02)])], 0.10, 0.08, 1.0)
    assert found.exposed == pytest.approx(0.08)
    assert found.step == pytest.approx(0.18)


def test_work_on_the_only_core_makes_backward_longer() -> None:
    jobs = [Job(0.02, [Phase(work=0.03)])]
    alone, shared = elapsed(jobs, 0.08, 0.08, 2.0), elapsed(jobs, 0.08, 0.08, 1.0)
    assert alone.step == pytest.approx(0.08)
    assert shared.step == pytest.approx(0.11)


def test_two_lanes_share_the_link_and_not_the_latency() -> None:
    jobs = [Job(0.0, [Phase(wire=0.05, latency=0.2)]), Job(0.0, [Phase(wire=0.05, latency=0.2)])]
    assert elapsed(jobs, 0.0, 0.0, 1.0).step == pytest.approx(0.2)
    jobs = [Job(0.0, [Phase(wire=0.05)]), Job(0.0, [Phase(wire=0.05)])]
    assert elapsed(jobs, 0.0, 0.0, 1.0).step == pytest.approx(0.1)


def test_jobs_of_one_lane_go_one_after_the_other() -> None:
    jobs = [Job(0.0, [Phase(latency=0.1)]) for _ in range(3)]
    assert elapsed(jobs, 0.0, 0.0, 1.0, lanes=1).step == pytest.approx(0.3)
    assert elapsed(jobs, 0.0, 0.0, 1.0, lanes=2).step == pytest.approx(0.2)


def test_work_hides_behind_the_wire() -> None:
    found = elapsed([Job(0.0, [Phase(work=0.04, wire=0.05)])], 0.0, 0.0, 1.0)
    assert found.step == pytest.approx(0.05)
