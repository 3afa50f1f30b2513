"""A pretended accelerator, "sim": tensors that compute at once on the CPU, streams and events that keep vector clocks.

Every access is compared, by its range of bytes, with all earlier ones: what a GPU would be free to reorder is an error
here each time, whatever the timing. Where CUDA differs from the CPU in what counts here, so does "sim":

- Division by a Python number multiplies by its reciprocal.
- Whatever needs a number on the host (`item`, `nonzero`, a copy to or from memory that is not pinned) waits for the
  stream, and is counted.
- A tensor of the CPU with dimensions cannot be mixed with one of the device.
- Memory belongs to the stream on which it was allocated: used on another without `record_stream`, it may be handed out
  again too early. That is an error when the tensor is used.

What it does not have: a caching allocator, time, and the kernels themselves, which are those of the CPU.
"""

import itertools
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.cuda._sanitizer import StreamSynchronizations
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_PRIVATE_USE = 20  # c10::DeviceType::PrivateUse1
_IDS = itertools.count(1)
_HERE = threading.local()
_LOCK = threading.RLock()
WAITING_OPS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::equal",
)


class Log:
    """What has been launched, and what was wrong with it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.clocks, self.at = StreamSynchronizations(), 0
        self.accesses: dict[int, list[tuple[int, int, bool, int, int, str]]] = {}  # by storage
        self._alive: list[Tensor] = []  # so that addresses are not used again: a GPU's allocator has pools for streams
        self.races: list[str] = []
        self.foreign: list[str] = []
        self.waits: list[str] = []
        self.launches: list[str] = []
        self.clocks.create_stream(0)

    def launch(self, name: str, reads: list["SimTensor"], writes: list["SimTensor"]) -> None:
        with _LOCK:
            self.at += 1
            self.launches.append(name)
            stream = current_stream().stream_id
            self.clocks.update_seq_num(stream, self.at)
            for tensor, writing in [*((t, False) for t in reads), *((t, True) for t in writes)]:
                self._access(name, stream, tensor, writing)

    def _access(self, name: str, stream: int, tensor: "SimTensor", writing: bool) -> None:
        low, high = span(tensor.on_cpu)
        if low == high:
            return
        storage = tensor.on_cpu.untyped_storage().data_ptr()
        if storage not in self.accesses:
            self._alive.append(tensor.on_cpu)
        known = self.accesses.setdefault(storage, [])
        for begin, end, wrote, at, other, op in known:
            mine = at == self.at or not (low < end and begin < high and (writing or wrote))
            if not mine and not self.clocks.is_ordered_after(stream, at, other):
                self.races.append(f"{name} on stream {stream} races with {op} on stream {other}")
        if stream not in tensor.home:
            self.foreign.append(f"{name} on stream {stream} uses memory of {sorted(tensor.home)}")
        known.append((low, high, writing, self.at, stream, name))

    def wait(self, name: str) -> None:
        with _LOCK:
            self.waits.append(name)
            self.clocks.all_streams_wait_for_stream(current_stream().stream_id)


LOG = Log()


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.id = next(_IDS)
        LOG.clocks.create_event(self.id)

    def record(self, stream: Any = None) -> None:
        with _LOCK:
            LOG.clocks.record_state(self.id, (stream or current_stream()).stream_id)

    def wait(self, stream: Any = None) -> None:
        with _LOCK:
            LOG.clocks.stream_wait_for_event((stream or current_stream()).stream_id, self.id)

    def synchronize(self) -> None:
        with _LOCK:
            LOG.waits.append("event")
            LOG.clocks.all_streams_wait_for_event(self.id)


class Stream(torch.Stream):
    def __new__(cls, device: Any = None, stream_id: int | None = None, **_: Any) -> "Stream":
        fresh = next(_IDS) if stream_id is None else stream_id
        self = super().__new__(cls, stream_id=fresh, device_index=0, device_type=_PRIVATE_USE)
        if stream_id is None:
            LOG.clocks.create_stream(fresh)
        return self

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, other: Any) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        with _LOCK:
            LOG.waits.append("stream")
            LOG.clocks.all_streams_wait_for_stream(self.stream_id)


@contextmanager
def stream(which: Stream) -> Iterator[Stream]:
    before = current_stream()
    _HERE.stream = which
    try:
        yield which
    finally:
        _HERE.stream = before


def current_stream(device: Any = None) -> Any:
    return getattr(_HERE, "stream", None) or _default()


@cache
def _default() -> Stream:
    return Stream(stream_id=0)


class Future:
    """As torch's with devices: `set_result` records an event, `wait` lets the waiter's stream wait for it."""

    def __init__(self, devices: Any = None) -> None:
        self._there, self._events, self._value, self._error = threading.Event(), list[Any](), None, None

    def set_result(self, value: Any) -> None:
        self._events, self._value = [current_stream().record_event()], value
        self._there.set()

    def set_exception(self, error: Any) -> None:
        self._error = error
        self._there.set()

    def done(self) -> bool:
        return self._there.is_set()

    def wait(self) -> Any:
        assert self._there.wait(20), "a future was not completed"
        if self._error is not None:
            raise self._error
        for event in self._events:
            event.wait()
        return self._value


def span(t: Tensor) -> tuple[int, int]:
    if not t.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


class SimTensor(torch.Tensor):
    """A tensor of the device; `on_cpu` has its numbers, `home` the streams that may use its memory."""

    on_cpu: Tensor
    home: set[int]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor, home: set[int] | None = None) -> "SimTensor":
        made: SimTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("sim:0"),
        )
        made.on_cpu = inner
        made.home = {current_stream().stream_id} if home is None else home
        return made

    def __init__(self, *_: Any) -> None:
        pass

    def data_ptr(self) -> int:
        return self.on_cpu.data_ptr()

    def tolist(self) -> Any:  # torch refuses subclasses
        return self.cpu().tolist()

    def record_stream(self, which: Any) -> None:
        self.home.add(which.stream_id)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, dict(kwargs or {}))


def _inner(value: Any) -> Any:
    return tree_map(lambda t: t.on_cpu if isinstance(t, SimTensor) else t, value)


def _on_device(value: Any) -> list[SimTensor]:
    return [t for t in tree_leaves(value) if isinstance(t, SimTensor)]


_SCALAR_DIVISIONS = {
    torch.ops.aten.div.Tensor: torch.ops.aten.mul.Tensor,
    torch.ops.aten.div_.Tensor: torch.ops.aten.mul_.Tensor,
    torch.ops.aten.div.out: torch.ops.aten.mul.out,
}


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    if func is torch.ops.aten.record_stream.default:
        args[0].record_stream(args[1])
        return None
    leaves = name == "aten::_to_copy" and str(kwargs.get("device")) == "cpu"
    leaves = leaves or (name == "aten::copy_" and not isinstance(args[0], SimTensor))
    arrives = name == "aten::copy_" and not isinstance(args[1], SimTensor)
    if leaves or arrives or name in WAITING_OPS or _masks(func, args):
        LOG.launch(name, _on_device(args), [])
        LOG.wait(name)
        if leaves or name == "aten::_local_scalar_dense":
            return func(*_inner(args), **_inner(kwargs))
    _refuse_mixed(name, args, kwargs)
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    op, given = func, _inner(args)
    if func in _SCALAR_DIVISIONS and not isinstance(args[1], SimTensor) and args[0].is_floating_point():
        wide = torch.float64 if args[0].dtype == torch.float64 else torch.float32  # what CUDA computes in
        op, given = _SCALAR_DIVISIONS[func], (given[0], float(1 / torch.tensor(float(args[1]), dtype=wide)))
    return _wrapped(func, args, kwargs, op(*given, **_inner(kwargs)))


def _masks(func: Any, args: Any) -> bool:
    """An index that is a mask must be counted before the result has a size."""
    if not func._schema.name.startswith("aten::index") or len(args) < 2 or not isinstance(args[1], (list, tuple)):
        return False
    return any(isinstance(t, Tensor) and t.dtype == torch.bool for t in args[1])


def _refuse_mixed(name: str, args: Any, kwargs: Any) -> None:
    if "copy" in name:
        return
    for t in tree_leaves((args, kwargs)):
        if isinstance(t, Tensor) and not isinstance(t, SimTensor) and t.dim() and t.numel():
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got sim:0 and cpu")


def _wrapped(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """The result as tensors of the device, and the launch noted."""
    before = {id(t.on_cpu): t for t in _on_device((args, kwargs))}
    homes = {t.on_cpu.untyped_storage().data_ptr(): t.home for t in before.values()}

    def wrap(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        known = before.get(id(t))
        return SimTensor(t, homes.get(t.untyped_storage().data_ptr())) if known is None else known

    wrapped = tree_map(wrap, out)
    if any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
        return wrapped  # a view
    reads, writes = list[SimTensor](), list[SimTensor]()
    for at, argument in enumerate(func._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        (writes if written else reads).extend(_on_device(value))
    if "empty" not in func._schema.name:
        writes += [t for t in _on_device(wrapped) if id(t.on_cpu) not in before]
        LOG.launch(func._schema.name, reads, writes)
    return wrapped


@cache
def set_up() -> None:
    """Register the device with torch, once in a process."""
    module = types.SimpleNamespace(
        Stream=Stream,
        Event=Event,
        stream=stream,
        current_stream=current_stream,
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,
        synchronize=lambda device=None: None,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
        get_amp_supported_dtype=list,
    )
    _setup_privateuseone_for_python_backend("sim", backend_module=module)

    @torch.library.impl("aten::empty.memory_format", "privateuseone")
    def empty(size: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return SimTensor(torch.empty(size, dtype=dtype))

    @torch.library.impl("aten::_copy_from", "privateuseone")
    def copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
        LOG.launch("aten::_copy_from", _on_device(source), _on_device(to))
        if not non_blocking:
            LOG.wait("aten::_copy_from")
        _inner(to).copy_(_inner(source))
        return to

    @torch.library.impl("aten::empty_strided", "privateuseone")
    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return SimTensor(torch.empty_strided(size, stride, dtype=dtype))


def on_device(tensor: Tensor) -> SimTensor:
    """A copy of it that was there before anything else."""
    return SimTensor(tensor.clone(), {0})
