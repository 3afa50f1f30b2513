"""Several rounds at once, a step apart: while one's bytes travel, the next encodes and the one before decodes."""

from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

from thinwire.core.ops import Begin, Finish, Rounds

T = TypeVar("T")

WINDOW = 4  # rounds under way at the same time


def staggered(rounds: Iterable[Rounds[T]], window: int = WINDOW) -> Rounds[list[T]]:
    """Run rounds with up to `window` operations in flight and return their results in order.

    Operations are begun in an order that depends on nothing but the rounds themselves, so it is the same on every
    rank: always the oldest one under way is finished and its rounds go on.
    """
    results: dict[int, T] = {}
    flying: deque[tuple[int, Rounds[T], Any]] = deque()
    waiting = iter(enumerate(rounds))
    while True:
        if len(flying) < window and (following := next(waiting, None)) is not None:
            index, current = following
            reply = None
        elif flying:
            index, current, ticket = flying.popleft()
            reply = yield Finish(ticket)
        else:
            return [results[i] for i in range(len(results))]
        try:
            op = current.send(reply)
        except StopIteration as end:
            results[index] = end.value
        else:
            assert not isinstance(op, Begin | Finish), "staggered rounds cannot be staggered again"
            flying.append((index, current, (yield Begin(op))))
