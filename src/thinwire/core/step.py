"""One tensor's way through one step, as its route says: memory, contexts, encoding, residual."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from thinwire.core.blockwise import Blockwise
from thinwire.core.codec import Codec
from thinwire.core.context import Context, empty_like_spec
from thinwire.core.fast import BlockCoder, PartCoder, Parts
from thinwire.core.message import Link
from thinwire.core.ops import Rounds
from thinwire.core.profiling import ProfiledBlocks, ProfiledParts, is_profiling, span
from thinwire.core.reducers import choose_reduction, reduce
from thinwire.core.reducers.pipelined import PipelinedSum
from thinwire.core.reducers.ring import ring_of_parts
from thinwire.core.reducers.work import Reduced, Work
from thinwire.core.route import StepInfo, route
from thinwire.core.selection import is_selectable
from thinwire.core.slot import Slot
from thinwire.core.source import Share, Source, Undivided, plus
from thinwire.core.spec import Spec
from thinwire.core.stage import DeliveryStage, Encoded, InputStage, ScheduledStage, Stage, elements_of, fast_path
from thinwire.kernels.shares import divided, finiteness


class PartSource(Source):
    """Elements that the last transform encodes, and whose sum it decodes, in parts."""

    def __init__(self, values: Tensor, coder: PartCoder, parts: Parts) -> None:
        super().__init__(values)
        self.coder, self.parts = coder, parts


class Step:
    """The average of one tensor in one step."""

    def __init__(self, codec: Codec, slot: Slot, info: StepInfo, weights: Tensor | None, result: Tensor) -> None:
        codec, places = slot.in_use(codec)
        self.codec, self.slot, self.info = codec, slot, info
        spec, offset = Spec.of(slot.shape), codec.offset
        states = [slot.states[offset + i] for i in places]
        self.route = route(codec, spec, states, info, result.device.type, result.dtype)
        self.notes: dict[str, float] = {}
        self.links = [
            Link(stage, self._context(seen, state, offset + i))
            for i, stage, seen, state in zip(places, codec.stages, codec.specs(spec), states, strict=False)
        ]
        if self.links:
            self.links[0].ctx.weights = weights
        self._inputs = [(stage, ctx) for stage, ctx in self.links if isinstance(stage, InputStage)]
        self._told = [(stage, ctx) for stage, ctx in self.links if isinstance(stage, DeliveryStage)]
        self.transforms = self.links[: self.route.transforms]
        instead = self.route.instead
        self.coders = self.links[self.route.transforms :] if instead is None else self._links_instead(instead, spec)
        self.flat = self._flat_memory(result)
        self.carried: Tensor | None = None  # the residual in the space where sums are taken
        self.had_residual = False
        self.given = Source(self.flat)
        self._waiting: Tensor | None = None  # the part of the residual that does not enter yet
        self._energy = 0.0

    def _context(self, spec: Spec, state: dict[str, object], stream: int) -> Context:
        info = self.info
        who = info.rank, info.ranks, info.step, info.seed
        return Context(spec, state, *who, stream, dial=self.slot.dial, notes=self.notes, buffers=info.buffers)

    def _links_instead(self, coders: Sequence[Stage], spec: Spec) -> list[Link]:
        """Wire coders of their own, for the elements that reach the first transform that is not ready."""
        links, spec = [], Spec(self.codec.specs(spec)[self.route.transforms].numel)
        for i, stage in enumerate(coders):
            links.append(Link(stage, self._context(spec, stage.init(spec), 32 + i)))
            spec = stage.out(spec)
        return links

    def _flat_memory(self, result: Tensor) -> Tensor:
        """Flat memory for the mean: the result's own, where chains that work in fp32 can write to it."""
        dtype = torch.float32 if self.codec.stages else result.dtype
        if result.dtype == dtype and result.is_contiguous():
            return result.detach().view(-1)
        return self.info.buffers.empty(result.numel(), dtype, result.device)

    # What this rank gives.

    def enter(self, tensor: Tensor) -> Source:
        """This rank's share of the mean, with the residual of earlier steps."""
        flat, residual = tensor.detach().reshape(-1), self._residual()
        self.had_residual = residual is not None
        if not self.codec.stages:  # summed in place
            divided(flat, self.info.ranks, out=self.flat)
            self.given = plus(Source(self.flat), residual)
            return self.given
        for link in self.links:
            link.ctx.has_residual = self.had_residual or self.carried is not None
        entering = self._entering(residual)
        memory = self.info.alone(self.flat) if self._share_is_kept() else self.info.empty(self.flat)
        share = (Share if self.route.share else Undivided)(flat, self.info.ranks, memory)
        x: Source = share
        for stage, ctx in self._inputs:
            x = stage.accumulate(x, ctx)
        self.given = share.plus(entering) if x is share else plus(x, entering)
        if self.info.measure and not self.route.in_sum_space:
            self._energy = float(self.given.tensor().square().sum())
        return self.given.split()

    def _residual(self) -> Tensor | None:
        slot = self.slot
        if self.route.in_sum_space and slot.in_sum_space:
            self.carried = self._decayed(slot.residual_data)
            return None
        return self._decayed(slot.residual)

    def _decayed(self, residual: Tensor | None) -> Tensor | None:
        """The residual as it enters; the slot keeps the old one until the result is known to be finite."""
        if residual is None or self.codec.decay == 1.0:
            return residual
        return torch.mul(residual.float(), self.codec.decay, out=self.info.empty(residual.float()))

    def _entering(self, residual: Tensor | None) -> Tensor | None:
        """The part of the residual that enters in this step; the rest waits."""
        if residual is None:
            return None
        residual = residual if residual.dtype == self.flat.dtype else residual.float()
        steps = max([stage.residual_steps(ctx.state) for stage, ctx in self._inputs], default=1)
        if steps == 1:
            return residual
        entering = divided(residual, steps)
        self._waiting = residual - entering
        return entering

    def _share_is_kept(self) -> bool:
        """Whether what is left of the share becomes the residual, in its own memory."""
        return self.codec.feedback == "fp32" and self.route.share and not self._told

    # Into the space where sums are taken, and back.

    def encode(self, link: Link, x: Source) -> Source:
        """The output of a transform: made now, or a source that makes it when it is needed."""
        stage, ctx = link
        fast = fast_path(stage, ctx.spec) if link is self.transforms[-1] else None
        if self.route.encoding == "blocks" and isinstance(fast, BlockCoder):
            keeps = self.codec.feedback == "fp32"  # what is left of it becomes the residual
            memory = self.info.alone(x.values) if keeps else self.info.empty(x.values)
            blocks = ProfiledBlocks(fast, stage) if is_profiling() else fast
            return Blockwise(blocks, x, self.carried, memory)
        if self.route.encoding == "parts" and isinstance(fast, PartCoder):
            parts = fast.parts(x, ctx)
            if parts is not None:
                return PartSource(x.values, fast, ProfiledParts(parts, stage) if is_profiling() else parts)
        with span("encode", stage):
            y = stage.encode(x.tensor(), ctx).values
        self._follow(link, y.numel())
        return Source(y)

    def _follow(self, link: Link, numel: int) -> None:
        """Tell later stages how many elements a transform gave, where only the shared context could say that."""
        spec = link.stage.out(link.ctx.spec)
        if spec.exact and spec.numel == numel:
            return
        spec = replace(spec, numel=numel, exact=True)
        at = next(i for i, each in enumerate(self.links) if each is link)
        for stage, ctx in self.links[at + 1 :]:
            ctx.spec = spec
            spec = stage.out(spec)

    def add_residual_in_sum_space(self, x: Source) -> Source:
        if self.carried is not None and not isinstance(x, Blockwise):
            x = Source(x.tensor().add_(self.carried))
        if self.info.measure and self.route.in_sum_space:
            self._energy = float(x.tensor().square().sum())
        return x

    def sum(self, x: Source) -> Rounds[Reduced]:
        """Sum over the ranks."""
        info, coders = self.info, self.coders
        if isinstance(x, PartSource):
            return (yield from self._sum_parts(x))
        bits = x.values.element_size() * 8
        spec = coders[0].ctx.spec if coders else Spec(x.numel, bits=bits)
        kind = choose_reduction([c.stage for c in coders], spec, info.ranks, self.route.wish, info.bundle_numel)
        total = info.empty(x.values) if self.transforms else self.flat
        sink = x if isinstance(x, Blockwise) else None
        if sink is not None:
            sink.set_output(total, self.flat)
        bundle = max(info.bundle_numel / self.flat.numel(), 1.0)
        who = info.rank, info.ranks
        return (yield from reduce(kind, Work(coders, x, total, self.route.keep, *who, info.buffers, sink, bundle)))

    def _sum_parts(self, x: PartSource) -> Rounds[Reduced]:
        info, last = self.info, self.transforms[-1]
        x.parts.set_output(self.flat if len(self.transforms) == 1 else info.empty(x.values))
        kind = choose_reduction((), last.stage.out(last.ctx.spec), info.ranks, self.route.wish)
        if kind == "ring":
            total, contribution = yield from ring_of_parts(x.parts, info.rank, info.ranks)
            return Reduced(total, contribution, x.parts.finite() if x.values.is_cpu else None)
        keep = self.route.keep != "nothing"
        early = self.commit if keep and len(self.transforms) == 1 else None
        return (yield from PipelinedSum(x.parts, x.coder, keep, x.values.is_cpu).run(early))

    def decode(self, x: Source, total: Tensor) -> Tensor:
        """The mean: what the last transform has not decoded yet goes back through all of them."""
        if isinstance(x, Blockwise):
            return self.flat
        links = self.transforms[:-1] if isinstance(x, PartSource) else self.transforms
        return self._back(links, total, self.info.ranks, self.flat)

    def _back(self, links: Sequence[Link], y: Tensor, contributions: int, out: Tensor | None) -> Tensor:
        """From the space where sums are taken to the tensor's own; into `out`, if there is any way to go."""
        for link in reversed(links):
            ctx = link.ctx.moved(contributions=contributions)
            memory = empty_like_spec(ctx.spec, ctx.buffers, y.device)
            to = out if link is links[0] and out is not None else memory
            with span("decode", link.stage):
                link.stage.decode(Encoded(y), ctx, to)
            y = to
        return y

    # What is kept.

    def finish(self, x: Source, reduced: Reduced, mean: Tensor) -> None:
        """Change the state if the mean is finite."""
        finite = self._is_finite(x, reduced, mean)
        if isinstance(finite, Tensor) and not is_selectable(self.codec, self.slot, self.links, self.route):
            finite = bool(finite)  # waits for the device
        self.slot.finite = finite
        if isinstance(finite, Tensor) or finite:
            self._change_state(reduced, mean, finite if isinstance(finite, Tensor) else None)
        self.slot.notes = {"elements_sent": self._elements_sent(x)} | self.notes if self.links else {}

    def _change_state(self, reduced: Reduced, mean: Tensor, finite: Tensor | None) -> None:
        """`finite`: where only the device knows whether the mean is finite, what is kept is selected by it."""
        if self.route.keep != "nothing" and reduced.kept is not None:
            self.commit(reduced.kept, finite)
        for stage, ctx in self.links:
            if finite is None:
                stage.observe(mean, ctx)
            elif (fast := fast_path(stage, ctx.spec)) is not None:
                fast.select(finite, mean, ctx)
        self.slot.steps += 1
        if self.codec.feedback == "off":
            self.slot.residual = None  # left by an earlier chain, and delivered now

    def _is_finite(self, x: Source, reduced: Reduced, mean: Tensor) -> bool | Tensor:
        if isinstance(x, Blockwise):
            return x.finite
        if not mean.is_cpu:
            return finiteness(mean)
        back = self.transforms[:-1] if isinstance(x, PartSource) else self.transforms
        if not back:
            return finiteness(mean) if reduced.finite is None else reduced.finite
        fast = fast_path(back[0].stage, back[0].ctx.spec) if len(back) == 1 else None
        told = fast.finite(reduced.total, back[0].ctx) if fast is not None else None
        return finiteness(mean) if told is None else told

    def commit(self, kept: Tensor, finite: Tensor | None = None) -> None:
        """Keep what was given and not delivered."""
        missing = kept if self.route.keep == "remainder" else self._undelivered(kept)
        if self.info.measure:
            self.notes |= {"lost": float(missing.square().sum()), "given": self._energy}
        if self._waiting is not None:
            missing.add_(self._waiting)
        self.slot.hold(self.codec, missing, self.route.in_sum_space, self.info.buffers, finite)

    def _undelivered(self, contribution: Tensor) -> Tensor:
        """What was given less this rank's contribution, in the memory of what was given."""
        given = self.given.values
        if self._told or not self.transforms:
            sent = self._back(self.transforms, contribution, 1, None)
            for stage, ctx in self._told:
                stage.delivered(sent, ctx)
            return torch.sub(given, sent, out=self.info.empty(given))
        y = self._back(self.transforms[1:], contribution, 1, None)
        first = self.transforms[0]
        with span("decode", first.stage):
            first.stage.decode(Encoded(y), first.ctx.moved(contributions=1), given, "subtract")
        return given

    def _elements_sent(self, x: Source) -> int:
        """How many elements left this rank in this step; stages that choose their own count note it themselves."""
        fewest = self.flat.numel()
        if self.transforms and elements_of(self.transforms[-1].stage, self.transforms[-1].ctx.spec) is not None:
            fewest = min(fewest, x.parts.count * x.parts.length if isinstance(x, PartSource) else x.numel)
        for stage, ctx in self.coders:
            given = stage.out_now(ctx).numel if isinstance(stage, ScheduledStage) else elements_of(stage, ctx.spec)
            fewest = fewest if given is None else min(fewest, given)
        return fewest
