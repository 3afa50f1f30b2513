"""Callbacks of the user: on the thread that trains, once for each step, and what they raise is the user's."""

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire
from tests.ddp.cases import case, ddp, flat, loss_of, net, train
from tests.ddp.cases_watching import Checkpointed
from thinwire import StepMetrics, WorldError

# Each way in which a step can end: on a lane, by DDP itself, compared, and without any communication.
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("qsgd(bits=4)", {}),
    ("none", {}),
    ("none", {"check": 1}),
    ("qsgd(bits=4)", {"headroom": True}),
)


@contextmanager
def attached(model: Any, plan: str, **options: Any) -> Iterator[thinwire.Handle]:
    handle = thinwire.attach(model, plan, **options)
    try:
        yield handle
    finally:
        handle.close()


@case(2)
def callbacks_run_on_the_thread_that_trains(rank: int, ranks: int, folder: Path) -> None:
    for plan, options in WAYS:
        model = ddp(net(), bucket_cap_mb=0.01)
        with attached(model, plan, **options) as handle:
            told: list[tuple[int, int]] = []
            handle.on_step.append(lambda metrics: told.append((metrics.step, threading.get_ident())))  # noqa: B023
            for step in range(3):
                with model.no_sync():  # no step
                    loss_of(model, rank, step).backward()
                loss_of(model, rank, step).backward()
                assert told == [(n, threading.get_ident()) for n in range(step + 1)], (plan, options)


@case(2)
def what_a_callback_raises_is_raised_by_backward(rank: int, ranks: int, folder: Path) -> None:
    """With its own type and traceback; training goes on as if it had not been raised."""
    for plan, options in WAYS:
        model, same = ddp(net(), bucket_cap_mb=0.01), ddp(net(), bucket_cap_mb=0.01)
        with attached(model, plan, **options) as handle, attached(same, plan, **options):
            seen: list[int] = []

            def broken(metrics: StepMetrics) -> None:
                if metrics.step == 1:
                    raise KeyError("of the user")

            handle.on_step += [broken, lambda metrics: seen.append(metrics.step)]  # noqa: B023
            loss_of(model, rank, 0).backward()
            with pytest.raises(KeyError, match="of the user") as caught:
                loss_of(model, rank, 1).backward()
            assert "in broken" in "".join(traceback.format_tb(caught.value.__traceback__))
            loss_of(model, rank, 2).backward()
            assert seen == [0, 1, 2]  # what stood behind the broken one was called later
            assert handle.step == 3
            for step in range(3):
                loss_of(same, rank, step).backward()
            for p, q in zip(model.parameters(), same.parameters(), strict=True):
                assert p.grad is not None
                assert q.grad is not None
                assert torch.equal(p.grad, q.grad), (plan, options)


@case(2)
def backward_that_ends_on_another_thread(rank: int, ranks: int, folder: Path) -> None:
    """As autograd does with accelerators: callbacks wait for the thread that called the model."""
    for plan, options in WAYS:
        model = ddp(net(), bucket_cap_mb=0.01)
        told: list[tuple[int, int]] = []
        with attached(model, plan, **options) as handle:
            handle.on_step.append(lambda metrics: told.append((metrics.step, threading.get_ident())))  # noqa: B023
            for calls in range(4):
                loss = loss_of(model, rank, calls)
                assert len(told) == calls  # the forward pass has called them, or metrics() has
                backward = threading.Thread(target=loss.backward)
                backward.start()
                backward.join()
                assert len(told) == calls
                if calls == 2:
                    handle.metrics()
                    assert len(told) == 3
            assert [step for step, _ in told] == [0, 1, 2]
        assert told == [(step, threading.get_ident()) for step in range(4)]  # close() has called the last


@case(2)
def a_rank_that_joined_calls_its_callbacks(rank: int, ranks: int, folder: Path) -> None:
    for plan in ("none", "qsgd(bits=4)"):
        model = ddp(net(), bucket_cap_mb=0.01)
        with attached(model, plan) as handle:
            told: list[tuple[int, int]] = []
            handle.on_step.append(lambda metrics: told.append((metrics.step, threading.get_ident())))  # noqa: B023
            with model.join():
                train(model, rank, range(2 + 2 * rank))
            assert told == [(n, threading.get_ident()) for n in range(4)], plan


@case(2)
def what_a_callback_raises_on_a_rank_that_joined(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    with attached(model, "qsgd(bits=4)") as handle:

        def broken(metrics: StepMetrics) -> None:
            if metrics.step == 3:
                raise KeyError("of the user")

        handle.on_step.append(broken)
        with pytest.raises(KeyError, match="of the user") as caught, model.join():
            train(model, rank, range(2 + 2 * rank))
        assert "in broken" in "".join(traceback.format_tb(caught.value.__traceback__))
        assert handle.step == 4


@case(2)
def failures_within_graphs_within_graphs_are_raised(rank: int, ranks: int, folder: Path) -> None:
    """Reentrant checkpoints run backward inside backward: the first bucket is ready in an inner one."""
    model = ddp(Checkpointed(net()), bucket_cap_mb=0.01)
    with attached(model, "qsgd(bits=4)") as handle:
        told: list[int] = []
        handle.on_step.append(lambda metrics: told.append(metrics.step))
        loss_of(model, rank, 0).backward()
        loss_of(model, rank, 1).backward()
        assert told == [0, 1]
        right = handle.engine.average

        def broken(pieces: Any, world: Any, whole: Any = None) -> None:
            if any(piece.name == "inner.first.weight" for piece in pieces):
                raise ZeroDivisionError("of a kernel")
            right(pieces, world, whole)

        handle.engine.average = broken  # type: ignore[method-assign]
        with pytest.raises(WorldError, match="ZeroDivisionError: of a kernel"):
            loss_of(model, rank, 2).backward()


@case(2)
def a_compiled_model_calls_callbacks(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    stepped: Any = torch.compile(model, backend="eager")
    with attached(model, "qsgd(bits=4)") as handle:
        told: list[tuple[int, int]] = []
        handle.on_step.append(lambda metrics: told.append((metrics.step, threading.get_ident())))
        train(stepped, rank, range(3))
        assert told == [(n, threading.get_ident()) for n in range(3)]


@case(2)
def a_closed_handle_leaves_the_model_as_it_was(rank: int, ranks: int, folder: Path) -> None:
    for plan, options in WAYS:
        model: nn.Module = ddp(net())
        before = len(model._forward_pre_hooks), len(model._forward_hooks)
        thinwire.attach(model, plan, **options).close()
        assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == before
        assert flat(model).numel() > 0
