"""Every rank sends its whole message to all, and each sums what it decodes."""

from collections.abc import Sequence

import torch

from thinwire.core.message import decode_message, encode_message, encode_message_into, message_size
from thinwire.core.ops import LENGTH_BYTES, AllGather, Rounds, longest_message, sent_by
from thinwire.core.profiling import span
from thinwire.core.reducers.work import Reduced, Work
from thinwire.core.shards import size_of
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage


def cost(coders: Sequence[Stage], spec: Spec, ranks: int) -> Size:
    """Bytes a rank sends: its message to each other rank."""
    size = message_size(tuple(coders), spec.part(spec.numel))
    return size.plus(0 if size.exact else LENGTH_BYTES).times(ranks - 1)


def gathered(work: Work) -> Rounds[Reduced]:
    links, source = work.links, work.source
    size = size_of(links, source.numel)
    stages = [link.stage for link in links]
    with span("encode", *stages):
        if size.exact:
            message = work.buffers.empty(size, torch.uint8, work.total.device)
            encode_message_into(links, source, message)
        else:
            message = encode_message(links, source.tensor())
    replies = yield AllGather([message], size.exact, longest_message(source.numel))
    for rank, (received,) in enumerate(replies):
        with sent_by(rank), span("decode", *stages):
            decode_message(links, received, work.total, "write" if rank == 0 else "add")
    if work.keep == "nothing":
        return Reduced(work.total, None)
    kept = source.values if work.keep == "remainder" else work.empty(source.numel)
    with span("decode", *stages):
        decode_message(links, message, kept, "subtract" if work.keep == "remainder" else "write")
    return Reduced(work.total, kept)
