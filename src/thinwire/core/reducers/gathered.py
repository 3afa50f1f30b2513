"""Every rank sends its whole message to all, and each sums what it decodes."""

from collections.abc import Sequence

from thinwire.core.message import message_size
from thinwire.core.ops import LENGTH_BYTES, AllGather, Rounds, longest_message, sent_by
from thinwire.core.reducers.work import Reduced, Work
from thinwire.core.shards import Shards
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage


def cost(coders: Sequence[Stage], spec: Spec, ranks: int) -> Size:
    """Bytes a rank sends: its message to each other rank."""
    size = message_size(tuple(coders), spec.part(spec.numel))
    return size.plus(0 if size.exact else LENGTH_BYTES).times(ranks - 1)


def gathered(work: Work) -> Rounds[Reduced]:
    links, source = work.links, work.source
    shards = Shards.of(links, source.numel, 1, work.buffers, work.total.device)  # one shard: all elements
    message = shards.encoder(source)(0)
    replies = yield AllGather([message], shards.exact, longest_message(source.numel))
    write, add = shards.decoder(work.total), shards.decoder(work.total, mode="add")
    for rank, (received,) in enumerate(replies):
        with sent_by(rank):
            (add if rank else write)(0, received)
    if work.keep == "nothing":
        return Reduced(work.total, None)
    kept = source.values if work.keep == "remainder" else work.empty(source.numel)
    shards.decoder(kept, mode="subtract" if work.keep == "remainder" else "write")(0, message)
    return Reduced(work.total, kept)
