"""Spans that torch.profiler records: what is encoded, exchanged and decoded, and when.

`record_function` takes more than 10 µs even if nothing records, so that it is entered only while a profiler runs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

from torch import Tensor
from torch.autograd import profiler

from thinwire.core.fast import BlockCoder, Parts

P = ParamSpec("P")
T = TypeVar("T")

_NOTHING: AbstractContextManager[object] = nullcontext()


def is_profiling() -> bool:
    """Whether a profiler runs in this process, on any thread."""
    return profiler._is_profiler_enabled


def span(action: str, *subjects: object) -> AbstractContextManager[object]:
    """A span `thinwire: action subject, subject` in the profile; nothing if no profiler runs.

    A span must not contain a `yield`: between two rounds of one tensor a thread works on others.
    """
    return profiler.record_function(_name(action, subjects)) if profiler._is_profiler_enabled else _NOTHING


def in_span(function: Callable[P, T], action: str, *subjects: object) -> Callable[P, T]:
    """A function whose calls are spans; the function itself if no profiler runs now."""
    if not profiler._is_profiler_enabled:
        return function
    name = _name(action, subjects)

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with profiler.record_function(name):
            return function(*args, **kwargs)

    return run


def _name(action: str, subjects: tuple[object, ...]) -> str:
    return f"thinwire: {action} {', '.join(map(str, subjects))}".rstrip()


class ProfiledBlocks(BlockCoder):
    """Blocks whose encoding and decoding are spans."""

    def __init__(self, blocks: BlockCoder, stage: object) -> None:
        self.length = blocks.length
        self._encode = in_span(blocks.encode, "encode", stage)
        self._decode = in_span(blocks.decode, "decode", stage)

    def encode(self, x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
        self._encode(x, ranks, residual, out)

    def decode(self, y: Tensor, out: Tensor) -> None:
        self._decode(y, out)


class ProfiledParts(Parts):
    """Parts whose encoding and decoding are spans."""

    def __init__(self, parts: Parts, stage: object) -> None:
        self.length, self.count = parts.length, parts.count
        self._parts = parts
        self._encode = in_span(parts.encode, "encode", stage)
        self._decode = in_span(parts.decode, "decode", stage)

    def set_output(self, out: Tensor) -> None:
        self._parts.set_output(out)

    def prepare(self) -> None:
        self._parts.prepare()

    def encode(self, low: int, high: int) -> Tensor:
        return self._encode(low, high)

    def decode(self, values: Tensor, low: int, high: int) -> None:
        self._decode(values, low, high)

    def result(self) -> Tensor:
        return self._parts.result()

    def finite(self) -> bool | None:
        return self._parts.finite()

    def certain(self, largest: float) -> bool:
        return self._parts.certain(largest)

    def whole(self, encoded: list[Tensor]) -> Tensor:
        return self._parts.whole(encoded)
