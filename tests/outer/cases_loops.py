"""What loops may look like around outer steps, and what happens to models that change; each function asserts."""

import copy
import time
import warnings
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire
from tests.ddp.cases import assert_same_everywhere, flat, loss_of, net, raised, summed, train


def sgd(parameters: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def a_loop_with_all_that_loops_have_gives_what_it_gives_by_hand(rank: int, ranks: int) -> None:
    """Closures, a scheduler, accumulation, two parameter groups, two optimizers, a frozen parameter, tied weights."""

    def run(attached: bool) -> Tensor:
        model: Any = net()
        model.extra = nn.Linear(64, 48)
        model.extra.weight = model.second.weight  # tied
        model.last.bias.requires_grad_(False)
        groups = [{"params": [model.first.weight], "lr": 0.05}, {"params": [model.first.bias, model.second.weight]}]
        first, second = sgd(groups), sgd([model.second.bias, model.last.weight, model.extra.bias])
        scheduler = torch.optim.lr_scheduler.StepLR(second, 2, gamma=0.5)
        start = flat(model)
        handle = None
        if attached:
            handle = thinwire.attach_outer(model, [first, second], "none", every=2, outer="sgd(lr=0.5)")
            assert [name for part in handle.fragments for name in part] == [
                *("first.weight", "first.bias", "second.weight", "second.bias", "last.weight", "extra.bias"),
            ]
        for step in range(4):

            def closure(step: int = step) -> Any:
                for optimizer in (first, second):
                    optimizer.zero_grad()
                for part in range(2):  # accumulation
                    loss = loss_of(model, rank, 10 * step + part) + model.extra.bias.square().sum()
                    loss.backward()
                return loss

            first.step(closure)
            second.step()
            scheduler.step()
            if not attached and step % 2:
                mean = summed(start - flat(model)) / ranks
                start = (start.double() - 0.5 * mean).float()
                nn.utils.vector_to_parameters(start.clone(), model.parameters())
        if handle is not None:
            assert handle.step == 4
            handle.close()
        return flat(model)

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=1e-6)


def frozen_weights_are_those_of_rank_0(rank: int, ranks: int) -> None:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4, dtype=torch.bfloat16))
    with torch.no_grad():
        model[1].running_mean.fill_(rank)  # type: ignore[operator]
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = thinwire.attach_outer(model, sgd(model[0].parameters()), every=2)
    assert "(1.weight, 1.bias) are in none of the given optimizers" in str(caught[0].message)
    for tensor in [*model[0].parameters(), *model[2].parameters(), *model.buffers()]:
        assert_same_everywhere(tensor.detach().float())
    handle.close()


def a_parameter_added_later_is_an_error(rank: int, ranks: int) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    handle = thinwire.attach_outer(model, optimizer, every=2)
    train(model, rank, range(1), optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(5))]})
    assert "a parameter of shape (5,) is trained now" in raised(lambda: train(model, rank, range(1, 2), optimizer))
    handle.close()


def buffers_follow_their_option(rank: int, ranks: int) -> None:
    def trained(how: str) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
        optimizer = sgd(model.parameters(), lr=0.01)
        handle = thinwire.attach_outer(model, optimizer, every=2, overlap=1, buffers=how)
        train(model, rank, range(2), optimizer)
        norm: Any = model[1]
        own = norm.running_mean.clone()
        norm.running_mean = norm.running_mean.clone()  # modules may replace a buffer
        train(model, rank, range(2, 3), optimizer)
        handle.close()
        return own, norm.running_mean, norm.num_batches_tracked

    own, after, _ = trained("average")
    torch.testing.assert_close(after.double(), summed(own) / ranks)
    own, after, count = trained("broadcast")
    assert_same_everywhere(after)
    assert int(count) == 2  # that of the moment when it was sent, from rank 0
    if rank == 0:
        assert torch.equal(after, own)
    _, after, _ = trained("local")
    assert float((after.double() - summed(after) / ranks).abs().max()) > 0


def a_buffer_of_another_shape_is_an_error(rank: int, ranks: int) -> None:
    model = net()
    model.register_buffer("table", torch.zeros(4))
    optimizer = sgd(model.parameters())
    handle = thinwire.attach_outer(model, optimizer, every=1)
    model.table = torch.zeros(5)
    assert "the buffer table was torch.float32 (4,)" in raised(lambda: train(model, rank, range(1), optimizer))
    handle.close()


def another_codec_in_the_middle_delivers_what_was_held(rank: int, ranks: int) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    start = flat(model)
    handle = thinwire.attach_outer(model, optimizer, "topk(density=0.1)", every=2, overlap=1, outer="sgd(lr=1)")
    assert "sparseloco is a preset with settings" in raised(lambda: handle.use("sparseloco"))
    train(model, rank, range(2), optimizer)  # now an exchange is under way
    moved = start - flat(model)
    handle.use("none")
    handle.synchronize()
    # the first exchange delivered a part; the second one the rest, which the first had kept, and no further steps
    torch.testing.assert_close(flat(model).double(), start.double() - summed(moved) / ranks, rtol=0, atol=1e-5)
    assert_same_everywhere(flat(model))
    handle.close()


def after_close_a_rank_trains_alone(rank: int, ranks: int) -> None:
    model, alone = net(), net()
    optimizer, other = sgd(model.parameters()), sgd(alone.parameters())
    handle = thinwire.attach_outer(model, optimizer, every=2)
    handle.close()
    handle.close()
    train(model, rank, range(3), optimizer)
    train(alone, rank, range(3), other)
    assert torch.equal(flat(model), flat(alone))
    assert handle.step == 0
    assert "is closed" in raised(handle.synchronize)


def ranks_that_differ_are_found(rank: int, ranks: int) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    handle = thinwire.attach_outer(model, optimizer, "qsgd(bits=4)", every=1, check=2)
    train(model, rank, range(1), optimizer)
    if rank == 1:
        handle.outer.param_groups[0]["lr"] *= 2
    assert "weights after an outer step of rank 1 differ" in raised(lambda: train(model, rank, range(1, 2), optimizer))
    handle.close()


def one_optimizer_has_one_handle(rank: int, ranks: int) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    handle = thinwire.attach_outer(model, optimizer, every=2)
    assert "has outer steps already" in raised(lambda: thinwire.attach_outer(model, optimizer, every=2))
    handle.close()
    thinwire.attach_outer(model, optimizer, every=2).close()
    first, second = sgd(model.first.parameters()), sgd([*model.second.parameters(), *model.last.parameters()])
    handle = thinwire.attach_outer(model, [first, second], every=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the others are in none of its optimizers
        assert "has outer steps already" in raised(lambda: thinwire.attach_outer(model, first, every=2))
    handle.close()


def one_scaler_serves_several_handles(rank: int, ranks: int) -> None:
    """Those that stay go on counting skipped steps, whichever is closed first."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    models = [net() for _ in range(3)]
    optimizers = [sgd(model.parameters()) for model in models]
    handles = [
        thinwire.attach_outer(model, optimizer, every=9, scaler=scaler)
        for model, optimizer in zip(models, optimizers, strict=True)
    ]

    def skip() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, rank, 0) * float("inf")).backward()
            scaler.step(optimizer)
        scaler.update()

    skip()
    for closed, steps in ((1, [2, 1, 2]), (0, [2, 1, 3]), (2, [2, 1, 3])):
        handles[closed].close()
        skip()
        assert [handle.step for handle in handles] == steps
    assert "step" not in vars(scaler)


def metrics_are_logged_and_add_up(rank: int, ranks: int) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    handle = thinwire.attach_outer(model, optimizer, "qsgd(bits=4)", every=4, fragments=2, overlap=1)
    assert handle.metrics() is None
    handle.report()

    class Writer:
        seen: ClassVar[list[tuple[str, float, int]]] = []

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.seen.append((name, value, step))

    writer = Writer()
    every: list[Any] = []
    handle.log_to(writer, "outer")
    handle.on_step.append(every.append)
    for step in range(9):
        train(model, rank, range(step, step + 1), optimizer)
    assert [(m.step, m.fragment) for m in every] == [(3, 0), (5, 1), (7, 0), (9, 1)]
    last: Any = handle.metrics()
    sent = [value for name, value, _ in writer.seen if name == "outer/bytes_sent"]
    assert last.bytes_per_step == sum(sent) / 9
    assert last.exposed_seconds >= 0
    assert 0 < last.drift < 1
    assert {step for _, _, step in writer.seen} == {3, 5, 7, 9}
    assert "bytes for each inner step" in str(handle.report().caption)
    handle.close()


def drift_is_0_if_all_go_the_same_way_and_1_if_they_cancel(rank: int, ranks: int) -> None:
    for sign, expected in ((1.0, 0.0), (1.0 if rank else 1.0 - ranks, 1.0)):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = thinwire.attach_outer(model, optimizer, every=1)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, sign)
        optimizer.step()
        metrics = handle.metrics()
        assert metrics is not None
        assert abs(metrics.drift - expected) < 1e-3, (metrics.drift, expected)
        handle.close()


def any_torch_optimizer_can_be_the_outer_one(rank: int, ranks: int) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    handle = thinwire.attach_outer(
        model, optimizer, every=2, fragments=2, outer=lambda tensors: torch.optim.Adam(tensors, lr=0.01)
    )
    train(model, rank, range(4), optimizer)
    handle.synchronize()
    assert_same_everywhere(flat(model))
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    for damage in (
        {"state": {0: {"exp_avg": torch.zeros(3)}}},
        {"state": [1]},
        {"param_groups": [{**saved["outer"]["optimizer"]["param_groups"][0], "lr": "fast"}]},
    ):
        bad = copy.deepcopy(saved)
        bad["outer"]["optimizer"].update(damage)
        assert "StateError" in raised(lambda: handle.load_state_dict(bad))  # noqa: B023
    handle.close()


def a_slow_rank_only_delays(rank: int, ranks: int) -> None:
    def run(slow: bool) -> Tensor:
        model = net()
        optimizer = sgd(model.parameters())
        handle = thinwire.attach_outer(
            model, optimizer, "qsgd(bits=4)", every=3, overlap=1, timeout=timedelta(seconds=20)
        )
        for step in range(7):
            train(model, rank, range(step, step + 1), optimizer)
            time.sleep(0.03 * (3 if rank == 1 else 1) if slow else 0.0)
        handle.close()
        return flat(model)

    assert torch.equal(run(True), run(False))


def other_numbers_of_ranks_go_on(rank: int, ranks: int) -> None:
    """What `ranks` ranks saved while an exchange was under way is loaded by one rank less."""
    model = net()
    optimizer = sgd(model.parameters())
    options: dict[str, Any] = {"every": 2, "overlap": 1, "outer": "sgd(lr=1)"}
    handle = thinwire.attach_outer(model, optimizer, "topk(density=0.1)", **options)
    train(model, rank, range(4), optimizer)
    saved = copy.deepcopy(handle.stateful().state_dict())
    handle.close()
    fewer = dist.new_group(list(range(ranks - 1)))
    if rank < ranks - 1:
        again = net()
        other = sgd(again.parameters())
        resumed = thinwire.attach_outer(again, other, "topk(density=0.1)", group=fewer, **options)
        resumed.stateful().load_state_dict(saved)
        assert resumed.step == 4
        train(again, rank, range(4, 5), other)  # the exchange that was under way is applied
        alike: list[Any] = [None] * (ranks - 1)
        dist.all_gather_object(alike, flat(again), group=fewer)
        assert all(torch.equal(each, alike[0]) for each in alike)
        resumed.close()


def a_larger_number_of_ranks_goes_on(rank: int, ranks: int) -> None:
    """What rank 0 saved alone while an exchange was under way is loaded by all; no residual is lost."""
    options: dict[str, Any] = {"every": 2, "overlap": 1, "outer": "sgd(lr=1)"}
    alone = dist.new_group([0])
    saved: list[Any] = [None, None]
    if rank == 0:
        model = net()
        optimizer = sgd(model.parameters())
        handle = thinwire.attach_outer(model, optimizer, "topk(density=0.1)", group=alone, **options)
        train(model, rank, range(2), optimizer)
        saved = [copy.deepcopy(handle.full_state_dict()), copy.deepcopy(model.state_dict())]
        handle.close()
    dist.broadcast_object_list(saved)
    model = net()
    resumed = thinwire.attach_outer(model, sgd(model.parameters()), "topk(density=0.1)", **options)
    model.load_state_dict(saved[1])
    resumed.load_state_dict(saved[0])
    assert resumed.step == 2
    moved = flat(model).double()
    before = torch.cat([value.flatten() for value in saved[0]["outer"]["anchors"].values()]).double()
    resumed.use("none")  # delivers residuals
    resumed.synchronize()  # applies what was under way, which leaves nothing else to send but the residual
    assert_same_everywhere(flat(model))
    # sgd(lr=1) without a codec: all that rank 0 had moved by has arrived
    torch.testing.assert_close(flat(model).double(), moved, rtol=0, atol=1e-5)
    assert float((before - moved).abs().max()) > 1e-3
    resumed.close()


def weights_of_another_rank_are_told(rank: int, ranks: int) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    handle = thinwire.attach_outer(model, optimizer, every=4)
    train(model, rank, range(1), optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saved = handle.full_state_dict()
    assert "every rank has weights of its own" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle.load_state_dict(saved)
    train(model, rank, range(1, 2), optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle.load_state_dict(saved)
    assert "are not those with which its checkpoint was written" in str(caught[0].message)
    handle.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle.full_state_dict()
    handle.close()


def what_accelerate_and_lightning_wrap_is_found(rank: int, ranks: int) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def step(self, closure: Any = None) -> Any:
            return self.optimizer.step(closure)

    model = net()
    optimizer = sgd(model.parameters())
    handle = thinwire.attach_outer(model, Wrapper(optimizer), every=1)
    train(model, rank, range(1), optimizer)
    assert handle.step == 1
    handle.close()
    assert "must be a torch.optim.Optimizer" in raised(lambda: thinwire.attach_outer(model, "sgd"))  # type: ignore[arg-type]


LOOPS = (
    a_loop_with_all_that_loops_have_gives_what_it_gives_by_hand,
    frozen_weights_are_those_of_rank_0,
    a_parameter_added_later_is_an_error,
    buffers_follow_their_option,
    a_buffer_of_another_shape_is_an_error,
    another_codec_in_the_middle_delivers_what_was_held,
    after_close_a_rank_trains_alone,
    ranks_that_differ_are_found,
    one_optimizer_has_one_handle,
    one_scaler_serves_several_handles,
    metrics_are_logged_and_add_up,
    drift_is_0_if_all_go_the_same_way_and_1_if_they_cancel,
    any_torch_optimizer_can_be_the_outer_one,
    a_slow_rank_only_delays,
    other_numbers_of_ranks_go_on,
    a_larger_number_of_ranks_goes_on,
    weights_of_another_rank_are_told,
    what_accelerate_and_lightning_wrap_is_found,
)
