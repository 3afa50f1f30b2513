"""What several ranks do with outer steps; each function runs on every rank and asserts."""

import copy
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

import thinwire
from tests.ddp.cases import assert_same_everywhere, ddp, flat, loss_of, net, raised, summed, train


def plain_sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def localsgd_is_averaging_of_weights(rank: int, ranks: int) -> None:
    model, alone = net(), net()
    optimizer, other = plain_sgd(model), plain_sgd(alone)
    handle = thinwire.attach_outer(model, optimizer, "localsgd", every=1)
    for step in range(4):
        train(model, rank, range(step, step + 1), optimizer)
        train(alone, rank, range(step, step + 1), other)
        mean = summed(flat(alone)) / ranks
        torch.testing.assert_close(flat(model).double(), mean, rtol=0, atol=1e-6)
        assert_same_everywhere(flat(model))
        nn.utils.vector_to_parameters(flat(model), alone.parameters())
    handle.close()


def every_step_with_sgd_is_ddp(rank: int, ranks: int) -> None:
    model, reference = net(), ddp(net())
    optimizer = plain_sgd(model)
    handle = thinwire.attach_outer(model, optimizer, "none", every=1, outer="sgd(lr=1)")
    train(model, rank, range(6), optimizer)
    train(reference, rank, range(6), plain_sgd(reference))
    torch.testing.assert_close(flat(model), flat(reference), rtol=0, atol=1e-6)
    handle.close()


def ranks_begin_equal_and_are_equal_after_each_round(rank: int, ranks: int) -> None:
    for codec in ("none", "qsgd(bits=4)", "topk(density=0.1)"):
        torch.manual_seed(rank)  # each rank has weights of its own
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        handle = thinwire.attach_outer(model, optimizer, codec, every=3, check=1)
        assert_same_everywhere(flat(model))
        for step in range(9):
            train(model, rank, range(step, step + 1), optimizer)
            if (step + 1) % 3 == 0:
                assert_same_everywhere(flat(model))
            else:
                assert float(summed(flat(model)).sub(flat(model).double() * ranks).abs().max()) > 0
        metrics = handle.metrics()
        assert metrics is not None
        assert (metrics.step, metrics.round) == (9, 2)
        assert metrics.bytes_sent > 0
        assert 0 < metrics.drift < 10
        assert metrics.bytes_per_step == 3 * metrics.bytes_sent / 9 or codec == "topk(density=0.1)"
        handle.close()


def an_overlapped_round_delivers_what_it_was_given(rank: int, ranks: int) -> None:
    """With one round sent at step 3 and applied at step 5, by hand."""
    model, alone = net(), net()
    optimizer, other = plain_sgd(model), plain_sgd(alone)
    start = flat(model)
    handle = thinwire.attach_outer(model, optimizer, "none", every=3, overlap=2, mix=0.25, outer="sgd(lr=0.5)")
    train(model, rank, range(4), optimizer)
    train(alone, rank, range(3), other)
    given = summed(start - flat(alone)) / ranks
    train(alone, rank, range(3, 4), other)
    assert torch.equal(flat(model), flat(alone))
    train(model, rank, range(4, 5), optimizer)
    train(alone, rank, range(4, 5), other)
    common = start.double() - 0.5 * given
    torch.testing.assert_close(flat(model).double(), 0.75 * flat(alone).double() + 0.25 * common, rtol=0, atol=1e-6)
    handle.synchronize()
    assert_same_everywhere(flat(model))
    handle.close()


def resumed_runs_are_equal_bit_for_bit(rank: int, ranks: int) -> None:
    """At every step: between rounds, after one, and while an exchange is under way."""
    options: dict[str, Any] = {"every": 4, "fragments": 2, "overlap": 1, "mix": 0.5}
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    handle = thinwire.attach_outer(model, optimizer, "topk(density=0.1)", **options)
    saved = []
    for step in range(10):
        train(model, rank, range(step, step + 1), optimizer)
        saved.append(copy.deepcopy((model.state_dict(), optimizer.state_dict(), handle.state_dict())))
    assert any(state["outer"]["flights"] for _, _, state in saved)
    handle.close()
    for step in (0, 1, 2, 3, 4, 6):
        again = net()
        other = torch.optim.AdamW(again.parameters(), lr=1e-2)
        resumed = thinwire.attach_outer(again, other, "topk(density=0.1)", **options)
        again.load_state_dict(saved[step][0])
        other.load_state_dict(copy.deepcopy(saved[step][1]))
        resumed.load_state_dict(saved[step][2])
        train(again, rank, range(step + 1, 10), other)
        assert torch.equal(flat(again), flat(model)), step
        resumed.close()


def bad_checkpoints_change_nothing(rank: int, ranks: int) -> None:
    model = net()
    optimizer = plain_sgd(model)
    handle = thinwire.attach_outer(model, optimizer, "none", every=2)
    train(model, rank, range(3), optimizer)
    good = handle.state_dict()
    bad = copy.deepcopy(good)
    if rank == ranks - 1:
        bad["outer"]["step"] = 7
    assert "the ranks disagree on the inner step" in raised(lambda: handle.load_state_dict(bad))
    bad["outer"]["step"] = good["outer"]["step"]
    bad["outer"]["anchors"].pop("first.weight")
    assert "first.weight" in raised(lambda: handle.load_state_dict(bad))
    assert "no 'outer'" in raised(lambda: handle.load_state_dict({k: v for k, v in good.items() if k != "outer"}))
    assert handle.step == 3
    handle.close()


def skipped_steps_count_on_every_rank(rank: int, ranks: int) -> None:
    """One rank's gradients overflow; all come to the round in the same iteration."""
    model = net()
    optimizer, scaler = plain_sgd(model), torch.amp.GradScaler("cpu", init_scale=4.0)
    handle = thinwire.attach_outer(model, optimizer, "none", every=3, scaler=scaler)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        scaler.scale(loss * float("inf") if (rank, step) in ((0, 2), (1, 3)) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert handle.step == step + 1
    assert_same_everywhere(flat(model))
    handle.close()
    assert "step" not in vars(scaler)


def buffers_are_averaged_if_they_change(rank: int, ranks: int) -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    model.register_buffer("mask", torch.ones(4000))
    optimizer = plain_sgd(model)
    handle = thinwire.attach_outer(model, optimizer, "none", every=2)
    train(model, rank, range(2), optimizer)
    norm: Any = model[1]
    assert_same_everywhere(norm.running_mean)
    metrics = handle.metrics()
    assert metrics is not None
    assert metrics.codecs["buffers"].elements == 32  # the mask stays at home
    handle.close()


def what_cannot_work_is_refused(rank: int, ranks: int) -> None:
    model = net()
    optimizer = plain_sgd(model)
    for options, words in (
        ({"every": 0}, "every must be"),
        ({"every": 2, "overlap": 2}, "overlap=2 must be less than every=2"),
        ({"every": 2, "fragments": 3}, "fragments=3"),
        ({"mix": 0.0}, "mix"),
        ({"outer": "adam(lr=1)"}, "no outer optimizer 'adam'"),
        ({"outer": "sgd(rate=1)"}, "no option 'rate'"),
        ({"outer": torch.optim.LBFGS}, "outer cannot be LBFGS"),
        ({"buffers": "sum"}, "buffers must be one of"),
        ({"mix": True}, "mix"),
        ({"check": "a"}, "check must be a whole number of at least 0; got 'a'"),
        ({"check": True}, "check must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number; got 1.5"),
        ({"measure_every": -1}, "measure_every must be a whole number of at least 0; got -1"),
        ({"timeout": 5}, "timeout must be a datetime.timedelta above 0, such as timedelta(seconds=60); got 5"),
        ({"timeout": timedelta(seconds=-1)}, "timeout must be a datetime.timedelta above 0"),
        ({"scaler": True}, "scaler must be the loop's torch.amp.GradScaler; got bool"),
        ({"group": 3}, "group must be a ProcessGroup that has this rank, or a one-dimensional DeviceMesh; got 3"),
        ({"every": 2 + rank}, "the ranks disagree on the settings of outer steps"),
    ):
        arguments: dict[str, Any] = dict(options)
        assert words in raised(lambda: thinwire.attach_outer(model, optimizer, "none", **arguments)), words  # noqa: B023
    assert "averages gradients over ranks" in raised(lambda: thinwire.attach_outer(ddp(net()), optimizer))
    assert "no trained parameter" in raised(lambda: thinwire.attach_outer(net(), optimizer))
    complex_model = nn.Linear(4, 4, dtype=torch.complex64)
    assert "got torch.complex64" in raised(lambda: thinwire.attach_outer(complex_model, plain_sgd(complex_model)))
    thinwire.attach_outer(model, optimizer, "none").close()  # what was refused left nothing behind


def weights_that_are_not_finite_are_an_error_everywhere(rank: int, ranks: int) -> None:
    model = net()
    optimizer = plain_sgd(model)
    thinwire.attach_outer(model, optimizer, "none", every=1)
    if rank == 1:
        with torch.no_grad():
            model.first.weight[0, 0] = float("nan")

    def step() -> Tensor | None:
        optimizer.zero_grad()
        loss_of(model, rank, 0).backward()
        optimizer.step()
        return None

    said = raised(step)
    assert "not finite" in said
    assert ("weights of this rank are not finite" in said) == (rank == 1), said


CASES = (
    localsgd_is_averaging_of_weights,
    every_step_with_sgd_is_ddp,
    ranks_begin_equal_and_are_equal_after_each_round,
    an_overlapped_round_delivers_what_it_was_given,
    resumed_runs_are_equal_bit_for_bit,
    bad_checkpoints_change_nothing,
    skipped_steps_count_on_every_rank,
    buffers_are_averaged_if_they_change,
    what_cannot_work_is_refused,
    weights_that_are_not_finite_are_an_error_everywhere,
)
