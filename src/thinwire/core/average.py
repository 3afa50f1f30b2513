"""The heart: one tensor, averaged over the ranks through a chain. Read this first."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.chunks import Chunks
from thinwire.core.codec import Codec
from thinwire.core.given import Given
from thinwire.core.ops import Rounds
from thinwire.core.parts import Book, InParts, Parts
from thinwire.core.reduce import Reduced, choose_reduction, reduce
from thinwire.core.ring import ring
from thinwire.core.sharded import Want
from thinwire.core.slot import Slot
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, Scene, empty_like_spec
from thinwire.core.wire import Link, agree_on_wire
from thinwire.errors import CodecError
from thinwire.kernels.shares import all_finite, share_into


@dataclass(frozen=True)
class Turn:
    """Who averages, and when: this rank of how many, at which step, with which seed, in which work memory."""

    rank: int = 0
    ranks: int = 1
    seed: int = 0
    step: int = 0
    reduction: str | None = None
    company: int = 0  # numbers that travel in the same rounds, if more than the tensor's own
    measure: bool = False  # note how much of what was given is lost, at the cost of one more decoding
    buffers: Buffers = field(default_factory=Buffers)

    def empty(self, like: Tensor) -> Tensor:
        return self.buffers.empty(like.numel(), like.dtype, like.device)

    def alone(self, like: Tensor) -> Tensor:
        """The same, but it may be kept in a slot."""
        return self.buffers.alone(like.numel(), like.dtype, like.device)


def average(
    codec: Codec, tensor: Tensor, slot: Slot, turn: Turn, weights: Tensor | None = None, out: Tensor | None = None
) -> Rounds[Tensor]:
    """The mean of `tensor` over the ranks, with what the chain loses kept in `slot` for the next step.

    Divide by the number of ranks and add the residual; walk the additive stages (agree, encode); reduce; walk
    back (decode, observe); residual = given - delivered, kept behind those stages if they are orthonormal. A
    non-finite value on any rank reaches every rank as non-finite, and then no state changes. `out` takes the mean; it
    may be the tensor itself.
    """
    slot.open(codec, tuple(tensor.shape))
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format) if out is None else out
    if tensor.numel() == 0:
        return result
    landing = _landing(codec, result, turn)
    scenes = _scenes(codec, slot, turn, weights)
    behind = turn.step >= codec.delay and codec.holds_behind(Spec.of(slot.shape))
    carried = slot.held if behind and slot.behind else None
    owed = slot.residual if carried is None else None
    given, held_back = _given(codec, tensor, owed, scenes, turn, landing, behind)
    path, y = yield from _walk_in(codec, scenes, given, turn, carried)
    want = _wanted(codec, path, turn, behind)
    energy = float((y if behind else given.whole()).square().sum()) if turn.measure else 0.0

    def book(own: Tensor) -> None:
        missing = own if want == "left" else _missing(codec, slot, scenes, path.prefix, given.values, own, turn)
        if turn.measure:
            scenes[0].notes |= {"lost": float(missing.square().sum()), "given": energy}
        slot.hold(codec, missing if held_back is None else missing.add_(held_back), behind, turn.buffers)

    total, own, finite = yield from _reduce(path, y, given, turn, want, landing, book)
    decoded = path.parts is not None or path.chunks is not None  # by the last stage, while the sum was coming
    back = path.prefix[:-1] if decoded else path.prefix
    mean = _walk_back(codec, back, scenes, total, turn.ranks, landing)
    spread = all(codec.stages[i].spreads for i in back)  # then the mean is as finite as the sum
    stateful = bool(codec.working) or owed is not None  # otherwise nobody asks whether the mean is finite
    if stateful and (finite is None or not spread):
        told = codec.stages[back[0]].tells_finite(total, scenes[back[0]]) if len(back) == 1 else None
        finite = all_finite(total if spread else mean) if told is None else told
    if stateful and finite:
        if want != "nothing" and own is not None:
            book(own)
        for i in codec.working:
            codec.stages[i].observe(mean, scenes[i])
        slot.steps += 1
        if codec.feedback == "off":
            slot.residual = None  # left by an earlier chain, and delivered now
    if stateful:
        slot.notes = {"elements_sent": _elements_sent(codec, scenes, path, y)} | scenes[0].notes if scenes else {}
    if mean.data_ptr() != result.data_ptr() or mean.dtype != result.dtype:
        result.copy_(mean.view(result.shape))
    return result


def _landing(codec: Codec, result: Tensor, turn: Turn) -> Tensor:
    """Flat memory for the mean: the result's own, where chains that work in fp32 can write to it."""
    dtype = torch.float32 if codec.working else result.dtype
    if result.dtype == dtype and result.is_contiguous():
        return result.detach().view(-1)
    return turn.buffers.empty(result.numel(), dtype, result.device)


def _wanted(codec: Codec, path: "Path", turn: Turn, behind: bool) -> Want:
    """What must be known of this rank's contribution."""
    settling = any(codec.stages[i].settles for i in codec.working)
    if not codec.working or not (turn.measure or codec.feedback != "off" or settling):
        return "nothing"
    return "own" if (path.prefix and not behind) or settling else "left"


def _reduce(
    path: "Path", y: Tensor, given: Given, turn: Turn, want: Want, landing: Tensor, book: Book
) -> Rounds[Reduced]:
    """The sum; what this rank delivered is booked at once if it is known in time that the sum is finite."""
    if path.parts is not None:
        path.parts.land(landing if len(path.prefix) == 1 else turn.empty(y))
        if path.reduction == "ring":
            total, own = yield from ring(path.parts, turn.rank, turn.ranks)
            return Reduced(total, own, path.parts.finite())
        work = InParts(path.parts, want != "nothing", path.asks)
        early = book if want == "own" and len(path.prefix) == 1 else None
        total = yield from work.summed(early)
        if work.certain and early is not None:
            return Reduced(total, None, True)
        finite = True if work.certain else path.parts.finite()
        return Reduced(total, work.own() if want != "nothing" else total, finite)
    place = landing if not path.prefix else None
    if path.chunks is not None:
        path.chunks.land(place := turn.empty(y), landing)
    who = turn.rank, turn.ranks
    crowd = max(turn.company / landing.numel(), 1.0)
    flow = path.chunks or given
    reduced = yield from reduce(path.reduction, path.wire, y, who, want, turn.buffers, place, crowd, flow)
    return reduced if path.chunks is None else Reduced(landing, reduced.own, path.chunks.finite)


@dataclass(frozen=True)
class Path:
    """The way the numbers take in this step: shorter than the chain while one of its stages is not ready."""

    prefix: tuple[int, ...]
    wire: Sequence[Link]
    reduction: str
    parts: Parts | None = None
    asks: bool = False
    chunks: Chunks | None = None


def _walk_in(
    codec: Codec, scenes: list[Scene], given: Given, turn: Turn, carried: Tensor | None
) -> Rounds[tuple[Path, Tensor]]:
    """Agree and encode, stage by stage, into the space where sums are taken; `carried` is what is owed there.

    Where nothing is encoded yet, the numbers are given when they are wanted."""
    y = given.values
    if turn.step < codec.delay:
        return Path((), (), "summed"), given.whole()
    prefix, wire, wish = codec.prefix, Link.chain(codec, codec.tail, scenes), turn.reduction
    for at, i in enumerate(prefix):
        stage, scene = codec.stages[i], scenes[i]
        if not stage.ready(scene.state, scene.spec):
            prefix, wire, wish = prefix[:at], _detour(stage.detour(), y.numel(), turn), None
            break
        if (chunks := _chunks(codec, scenes, given, turn, carried, wish)) is not None:
            return Path(prefix, wire, "sharded", chunks=chunks), chunks.values
        last = i == codec.working[-1]
        if not (last and stage.late):
            given.whole()
        scene.context = yield from stage.agree(y, scene)
        if last and (parts := stage.parts(given if at == 0 else Given(y), scene)) is not None:
            reduction = choose_reduction((), stage.out(scene.spec), turn.ranks, turn.reduction)
            return Path(prefix, (), reduction, parts, stage.asks), y
        given.whole()
        y = stage.encode(y, scene).values
        _follow(codec, scenes, i, y.numel())
    if carried is not None:
        given.whole()
        y += carried
    spec = wire[0].scene.spec if wire else Spec(y.numel(), bits=y.element_size() * 8)
    reduction = choose_reduction([link.stage for link in wire], spec, turn.ranks, wish, turn.company)
    if reduction != "sharded" or any(link.stage.rounds for link in wire):
        given.whole()
    yield from agree_on_wire(wire, y)
    return Path(prefix, wire, reduction), y


def _chunks(
    codec: Codec, scenes: list[Scene], given: Given, turn: Turn, carried: Tensor | None, wish: str | None
) -> Chunks | None:
    """A chain of one orthonormal stage and a wire that is sharded, if they can work a block at a time.

    Elsewhere than on the CPU nobody does other work between blocks, and each would cost a launch."""
    first = codec.prefix[0]
    stage, spec = codec.stages[first], scenes[first].spec
    block = stage.block(spec) if len(codec.prefix) == 1 and codec.tail else 0
    if not block or turn.measure or not given.values.is_cpu or any(link.rounds for link in (stage, *codec.wire)):
        return None
    if choose_reduction(codec.wire, stage.out(spec), turn.ranks, wish, turn.company) != "sharded":
        return None
    keeps = codec.feedback == "fp32"  # what is not delivered of it
    values = turn.alone(given.values) if keeps else turn.empty(given.values)
    return Chunks(stage, block, given, carried, values)


def _follow(codec: Codec, scenes: list[Scene], at: int, numel: int) -> None:
    """Tell the stages behind `at` how many numbers it gave, where only the agreed context could say that."""
    spec = codec.stages[at].out(scenes[at].spec)
    if spec.exact and spec.numel == numel:
        return
    spec = replace(spec, numel=numel, exact=True)
    for i in codec.working[codec.working.index(at) + 1 :]:
        scenes[i].spec = spec
        spec = codec.stages[i].out(spec)


def _scenes(codec: Codec, slot: Slot, turn: Turn, weights: Tensor | None) -> list[Scene]:
    """A scene for each stage; the first that touches data sees the tensor's shape and the weights."""
    notes: dict[str, float] = {}
    specs = codec.specs(Spec.of(slot.shape))
    scenes = []
    for i in range(len(codec.stages)):
        first = bool(codec.working) and i == codec.working[0]
        flat = weights.detach().reshape(-1).float() if first and weights is not None else None
        scene = Scene(specs[i], slot.states[i], turn.rank, turn.ranks, turn.step, turn.seed, i, notes=notes)
        scene.weights, scene.dial, scene.buffers = flat, slot.dial, turn.buffers
        scenes.append(scene)
    return scenes


def _given(
    codec: Codec,
    tensor: Tensor,
    residual: Tensor | None,
    scenes: list[Scene],
    turn: Turn,
    landing: Tensor,
    behind: bool,
) -> tuple[Given, Tensor | None]:
    """This rank's share of the mean with what is owed from earlier steps, and the part of that still held back.

    `behind`: what is not delivered is known without them."""
    flat = tensor.detach().reshape(-1)
    if not codec.working:  # summed in place
        torch.div(flat, turn.ranks, out=landing)
        return Given(landing if residual is None else landing.add_(residual)), None
    if residual is None and _encoder_divides(codec, flat, turn):
        scenes[codec.working[0]].divisor = turn.ranks
        return Given(flat), None
    keeps = codec.feedback == "fp32" and not codec.prefix  # what is not delivered of it
    share = turn.alone(landing) if keeps else turn.empty(landing)
    if residual is not None and residual.dtype != share.dtype:
        residual = residual.float()
    released = residual
    for i in codec.working:
        released = None if released is None else codec.stages[i].release(released, scenes[i])
    held_back = None if residual is None or released is None or released is residual else residual - released
    if not any(codec.stages[i].accumulates(scenes[i]) for i in codec.working):
        return Given.share(flat, turn.ranks, released, share, once=behind), held_back
    if not share_into(flat, turn.ranks, None, share):
        return Given(share.fill_(float("nan"))), None
    for i in codec.working:
        share = codec.stages[i].accumulate(share, scenes[i])
    return Given(share if released is None else share.add_(released)), held_back


def _encoder_divides(codec: Codec, flat: Tensor, turn: Turn) -> bool:
    """Whether the gradient can be encoded where it lies: the share of it is then wanted by nobody else."""
    stage = codec.stages[codec.working[0]]
    alone = len(codec.working) == 1 and codec.feedback == "off" and turn.step >= codec.delay
    return alone and stage.divides and flat.dtype == torch.float32 and not turn.measure


def _detour(codec: Codec | None, numel: int, turn: Turn) -> list[Link]:
    """The wire of a stage that is not ready: plain numbers, or a codec of its own."""
    if codec is None:
        return []
    if codec.prefix:
        raise CodecError(
            f"what travels in place of a stage must be a wire chain; {codec} begins with an additive stage."
        )
    spec, links = Spec(numel), []
    for i in codec.working:
        scene = Scene(spec, codec.stages[i].init(spec), turn.rank, turn.ranks, turn.step, turn.seed, 32 + i)
        links.append(Link(codec.stages[i], scene))
        spec = codec.stages[i].out(spec)
    return links


def _walk_back(
    codec: Codec,
    prefix: Sequence[int],
    scenes: list[Scene],
    y: Tensor,
    contributions: int,
    landing: Tensor | None = None,
) -> Tensor:
    """From the sum space back to the tensor's own; in `landing`, if there is any way to go."""
    for i in reversed(prefix):
        scene = scenes[i].moved(contributions=contributions)
        if i == prefix[0] and landing is not None:
            out = landing
        else:
            out = empty_like_spec(scene.spec, scene.buffers, y.device)
        codec.stages[i].decode(Encoded(y), scene, out)
        y = out
    return y


def _missing(
    codec: Codec, slot: Slot, scenes: list[Scene], prefix: Sequence[int], given: Tensor, own: Tensor, turn: Turn
) -> Tensor:
    """What was given and not delivered, made where it stays if nothing else is wanted from there; stages that want to
    know are told what was delivered."""
    held = slot.residual
    begins = codec.feedback == "fp32" and held is None
    if codec.feedback == "fp32" and codec.beta == 1.0 and held is not None and held.dtype == given.dtype:
        missing = held
    else:
        missing = torch.empty_like(given) if begins else turn.empty(given)
    settling = [i for i in codec.working if codec.stages[i].settles]
    only = codec.stages[prefix[0]] if len(prefix) == 1 and not settling else None
    if only is None or not only.undelivered(given, own, scenes[prefix[0]], missing):
        sent = _walk_back(codec, prefix, scenes, own, 1, landing=missing if not settling else None)
        for i in settling:
            codec.stages[i].settle(sent, scenes[i])
        torch.sub(given, sent, out=missing)
    if begins:
        slot.residual = missing
    return missing


def _elements_sent(codec: Codec, scenes: list[Scene], path: Path, y: Tensor) -> int:
    """How many numbers left this rank in this step; stages that choose their own count note it themselves."""
    specs = [codec.stages[i].out(scenes[i].spec) for i in path.prefix[-1:]]
    summed = y.numel() if path.parts is None else path.parts.count * path.parts.grain
    specs = [replace(spec, numel=summed) for spec in specs]
    specs += [link.stage.out_now(link.scene) for link in path.wire]
    return min([scenes[0].spec.numel, *(s.numel for s in specs if s.kind not in ("bytes", "int32"))])
