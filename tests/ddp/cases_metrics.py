"""Figures of a step, memory, and the mode that sends nothing."""

import dataclasses
import gc
import json
import resource
from io import StringIO
from pathlib import Path

import pytest
import torch

import thinwire
from tests.contract.rows import Poisoned
from tests.ddp.cases import case, ddp, flat, last_of, loss_of, net, train
from thinwire import Codec, StepMetrics
from thinwire.core.buffers import Buffers
from thinwire.ddp.ddp_handle import DDPHandle

FIXED = ["none", "qsgd(bits=4)", "sign", "bf16", "integers(bits=8)", "rangefloat(bits=8)"]


@case(2, 3)
def bytes_are_those_that_codecs_announce(rank: int, ranks: int, folder: Path) -> None:
    for chain in FIXED:
        model = ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(model, chain)
        for steps in (range(1), range(1, 3)):  # before and after the buckets are rebuilt
            train(model, rank, steps)
            figures = last_of(handle)
            coded = sum(int(d.codec.wire_bytes(d.shape, ranks)) for d in handle.plan if d.codec.stages)
            groups = figures.codecs
            if coded:
                assert groups[str(Codec.parse(chain))].bytes_sent == coded
                plain = sum(Codec().wire_bytes(d.numel, ranks) for d in handle.plan if not d.codec.stages)
                assert groups["none"].bytes_sent == plain
            assert sum(group.bytes_sent for group in groups.values()) == figures.bytes_sent
            assert sum(group.bytes_received for group in groups.values()) == figures.bytes_received
            assert figures.bytes_received == figures.bytes_sent  # all ranks send alike
            assert sum(group.elements for group in groups.values()) == flat(model).numel() == figures.elements
            assert sum(group.parameters for group in groups.values()) == 6 == figures.parameters
        handle.close()


@case(2)
def ratios_errors_rounds_and_times(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "topk(density=0.05)", measure_every=2)
    assert handle.metrics() is None
    seen: list[StepMetrics] = []
    handle.on_step.append(seen.append)
    train(model, rank, range(6))
    assert [figures.step for figures in seen] == list(range(6))
    assert seen[-1] is handle.metrics()
    for figures in seen:
        coded = figures.codecs["topk(density=0.05)"]
        assert (coded.relative_error is not None) == (figures.step % 2 == 0)
        assert 19 < coded.element_ratio <= 20
        assert 1 < figures.element_ratio < 20
        assert figures.wire_ratio > 2
        assert figures.rounds >= 2
        times = [figures.encode_seconds, figures.communicate_seconds, figures.decode_seconds]
        assert all(seconds > 0 for seconds in times)
        assert figures.exposed_seconds >= 0
        shared = sum(group.communicate_seconds for group in figures.codecs.values())
        assert abs(shared - figures.communicate_seconds) < 1e-9
    assert 0.1 < (seen[0].codecs["topk(density=0.05)"].relative_error or 0) < 1
    handle.close()


class Writer:
    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.written.append((tag, value, step))


@case(2)
def figures_are_logged_and_shown(rank: int, ranks: int, folder: Path) -> None:
    from rich.console import Console

    model = ddp(net())
    handle = thinwire.attach(model, {"first.*": "sign", "*": "qsgd(bits=4)"})
    console = Console(width=160, record=True, file=StringIO())
    console.print(handle.report())
    shown = console.export_text()
    for words in ("no step yet", "sign", "qsgd(bits=4)", "2,048"):
        assert words in shown
    writer = Writer()
    handle.log_to(writer, "comm")
    with pytest.raises(TypeError, match="log_to needs a TensorBoard SummaryWriter"):
        handle.log_to(None)
    assert len(handle.on_step) == 1
    train(model, rank, range(2))
    tags = {tag for tag, _, step in writer.written if step == 1}
    assert {"comm/bytes_sent", "comm/wire_ratio", "comm/exposed_seconds", "comm/rounds"} <= tags
    assert ("comm/bytes_sent", float(last_of(handle).bytes_sent), 1) in writer.written
    console.print(handle.report())
    shown = console.export_text()
    assert "thinwire after 2 steps" in shown
    for words in ("sign", "qsgd(bits=4)", "none", "relative error", f"{last_of(handle).bytes_sent:,} bytes"):
        assert words in shown
    handle.close()


@case(2)
def every_step_has_every_field(rank: int, ranks: int, folder: Path) -> None:
    fields = {field.name for field in dataclasses.fields(StepMetrics)}
    for plan, options in (("topk(density=0.05)", {"start": 1}), ("none", {}), ("qsgd", {"headroom": True})):
        handle = thinwire.attach(model := ddp(net()), plan, measure_every=2, **options)
        seen: list[StepMetrics] = []
        handle.on_step.append(seen.append)
        train(model, rank, range(3))
        for metrics in seen:
            plain = metrics.to_dict()
            assert set(plain) == fields
            assert json.loads(json.dumps(plain, allow_nan=False)) == plain
            scalars = metrics.scalars()
            assert set(scalars) == fields - {"step", "codecs"} - (
                {"relative_error"} if plain["relative_error"] is None else set()
            )
            with pytest.raises(dataclasses.FrozenInstanceError):
                metrics.step = 7  # type: ignore[misc]
        measured = [metrics.relative_error is not None for metrics in seen]
        assert measured == ([False, False, True] if plan.startswith("topk") else [False] * 3)
        handle.close()


@case(2)
def a_report_has_no_empty_column(rank: int, ranks: int, folder: Path) -> None:
    def columns(handle: thinwire.Handle) -> list[str]:
        table = handle.report()
        assert table.row_count > 0
        assert all(any(column.cells) for column in table.columns)
        return [str(column.header) for column in table.columns]

    for plan, every, error in (
        ("topk(density=0.05)", 2, ["relative error"]),
        ("topk(density=0.05)", 10, ["relative error at step 0"]),
        ("topk(density=0.05)", 0, []),
        ("none", 10, []),
    ):
        handle = thinwire.attach(model := ddp(net()), plan, measure_every=every)
        assert columns(handle) == ["codec", "parameters", "elements"]
        train(model, rank, range(3))
        measured = ["codec", "parameters", "elements", "ratio of elements", "bytes sent", "ratio of bytes"]
        assert columns(handle) == measured + error
        handle.close()
    handle = thinwire.attach(model := ddp(net()), "qsgd", headroom=True)
    train(model, rank, range(1))
    assert columns(handle) == ["codec", "parameters", "elements"]
    handle.close()


@case(2)
def headroom_sends_nothing(rank: int, ranks: int, folder: Path) -> None:
    model, alone = ddp(net()), net()
    handle = thinwire.attach(model, "qsgd", headroom=True)
    seen: list[int] = []
    handle.on_step.append(lambda figures: seen.append(figures.bytes_sent))
    train(model, rank, range(3))
    train(alone, rank, range(3))
    assert torch.equal(flat(model), flat(alone))  # every rank for itself
    assert seen == [0, 0, 0]
    assert handle.step == 3
    handle.close()


@case(2)
def feedback_is_one_copy_of_the_gradients(rank: int, ranks: int, folder: Path) -> None:
    compressed = 64 * 32 + 64 * 48
    for chain, width in (("topk(density=0.05)", 4), ("feedback(keep=bf16) | topk(density=0.05)", 2), ("qsgd", 0)):
        model = ddp(net())
        handle = thinwire.attach(model, chain)
        train(model, rank, range(3))
        held = [slot.residual for slot in handle.engine.slots.values() if slot.residual is not None]
        assert sum(t.numel() * t.element_size() for t in held) == compressed * width
        handle.close()


def grown(steps: int, rank: int) -> tuple[int, int]:
    """Objects and bytes by which the process grew in the later half of so many steps."""
    model = ddp(net(), bucket_cap_mb=0.01)
    plan = {"first.*": "topk(density=0.05) | rangefloat(bits=8) | huffman", "*": "sign"}
    handle = thinwire.attach(model, plan, check=10)
    optimizer = train(model, rank, range(steps // 2))
    gc.collect()
    objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train(model, rank, range(steps // 2, steps), optimizer)
    gc.collect()
    grown = len(gc.get_objects()) - objects
    handle.close()
    return grown, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)


@case(2)
def memory_does_not_grow(rank: int, ranks: int, folder: Path) -> None:
    objects, process = grown(200, rank)
    assert objects < 50
    assert process < 4 * 1024 * 1024


@case(2)
def work_memory_and_residuals_are_used_again(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "sign")

    def addresses() -> list[int]:
        assert isinstance(handle, DDPHandle)
        kept = [block for lane in handle.hook.lanes for block in lane.world.buffers.blocks]
        return [t.data_ptr() for t in kept + [slot.residual for slot in handle.engine.slots.values()] if t is not None]

    optimizer = train(model, rank, range(4))
    before = addresses()
    train(model, rank, range(4, 12), optimizer)
    assert all(before)
    assert addresses() == before
    handle.close()


@case(2)
def loops_of_ones_own_use_their_work_memory_again(rank: int, ranks: int, folder: Path) -> None:
    for chain in (
        "sign",
        "fftsgd(transform=always)",
        "qsgd",
        "gradiveq(ratio=4, warmup=0, sample=2, reuse=9, order=rows)",
    ):
        fresh, kept = thinwire.GradientState(), thinwire.GradientState()
        kept.buffers = Poisoned()
        models, addresses = (net(), net()), list[list[int]]()
        for step in range(6):
            fresh.buffers = Buffers()
            for model, state in zip(models, (fresh, kept), strict=True):
                model.zero_grad()
                loss_of(model, rank, step).backward()
                thinwire.average_gradients(model, {"*": {"codec": chain, "small": True}}, state)
            pairs = zip(*(model.parameters() for model in models), strict=True)
            assert all(a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad) for a, b in pairs)
            addresses.append([block.data_ptr() for block in kept.buffers.blocks])
        assert addresses[-1]
        assert addresses[-1] == addresses[3]
