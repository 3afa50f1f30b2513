"""What the threads of a warp do together, and additions that many threads make to one address; for `ptx.Run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.gpu.ptx import Run

U32 = np.uint32
LANE = np.arange(32)
TOGETHER = ("shfl", "redux", "ldmatrix", "stmatrix", "vote")


class Fault(Exception):
    """What a GPU would refuse, or compute otherwise than the reference."""


def expect_whole_warps(run: Run, op: str) -> None:
    here = run.active.reshape(-1, 32).any(1)
    if not run.on.reshape(-1, 32).all(1)[here].all():
        raise Fault(f"{op} without all threads of the warp")


def together(run: Run, op: str, parts: list[str], a: list[str], types: dict[str, Any]) -> None:
    expect_whole_warps(run, op)
    if parts[0] in ("ldmatrix", "stmatrix"):
        matrix(run, op, parts, a)
    elif op == "vote.sync.ballot.b32":
        votes = run.predicate_of(a[1]).reshape(-1, 32).astype(np.uint64)
        run.put(a[0], np.repeat((votes << LANE.astype(np.uint64)).sum(1).astype(U32), 32))
    elif parts[0] == "redux":
        x = run.get(a[1], types[parts[-1]]).reshape(-1, 32)
        value = {"max": x.max, "min": x.min, "add": lambda axis: x.sum(axis, dtype=x.dtype)}[parts[2]](1)
        run.put(a[0], np.repeat(value, 32))
    elif parts[0] == "shfl":
        shuffle(run, parts, a)
    else:
        raise Fault(f"{op} is not emulated")


def shuffle(run: Run, parts: list[str], a: list[str]) -> None:
    x = run.get(a[1], U32).reshape(-1, 32)
    by = run.get(a[2], U32).reshape(-1, 32).astype(np.int64)
    how = parts[2]
    if int(a[3], 0) != (0 if how == "up" else 31):
        raise Fault("shfl in segments is not emulated")
    source = {"bfly": LANE ^ by, "idx": by & 31, "up": np.where(by <= LANE, LANE - by, LANE)}[how]
    run.put(a[0].split("|")[0], np.take_along_axis(x, source, 1).reshape(-1))


def matrix(run: Run, op: str, parts: list[str], a: list[str]) -> None:
    """Lanes 8i .. 8i + 7 give the rows of matrix i; lane t gets, or gives, two numbers of row t // 4."""
    loads = parts[0] == "ldmatrix"
    place, data = (a[1], a[0]) if loads else (a[0], a[1])
    if parts[1:4] != ["sync", "aligned", "m8n8"] or parts[-2:] != ["shared", "b16"] or "trans" in parts:
        raise Fault(f"{op} is not emulated")
    rows = run.address(place).reshape(-1, 32)
    if (rows[run.on.reshape(-1, 32)] % 16).any():
        raise Fault(f"{op}: address not aligned")
    for i, register in enumerate(r.strip() for r in data.strip("{} ").split(",")):
        at = (rows[:, 8 * i + LANE // 4] + LANE % 4 * 4).reshape(-1)
        value = np.zeros(run.count, U32) if loads else run.get(register, U32)
        run.touch_shared(op, at, value, loads, 4)
        if loads:
            run.put(register, value)


def add_atomically(run: Run, op: str, parts: list[str], a: list[str]) -> None:
    """Sums of integers, the same in any order. What was there before depends on the order: it must not be used."""
    if parts[-2:] != ["add", "u32"] or parts[1] not in ("global", "shared") or set(parts[2:-2]) - {"gpu", "relaxed"}:
        raise Fault(f"{op} is not emulated")
    at, value = run.address(a[1]), run.get(a[2], U32)
    if (at[run.on] % 4).any():
        raise Fault(f"{op}: address not aligned")
    if parts[1] == "shared":
        words = run.shared.view(U32).reshape(run.shared.shape[0], -1)
        if run.on.any() and (at[run.on].min() < 0 or at[run.on].max() + 4 > run.shared_bytes):
            raise Fault(f"{op}: shared memory overrun")
        np.add.at(words, (run.block[run.on], at[run.on] // 4), value[run.on])
    else:
        done = np.zeros(run.count, bool)
        for low, high, buffer in run.buffers:
            mine = run.on & (at >= low) & (at + 4 <= high)
            done |= mine
            if mine.any():
                np.add.at(buffer.view(U32), (at[mine] - low) // 4, value[mine])
        if (run.on & ~done).any():
            raise Fault(f"{op}: outside every buffer")
    run.put(a[0], np.full(run.count, 0xA5A5A5A5, U32))
