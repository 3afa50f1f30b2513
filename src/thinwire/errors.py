"""The exceptions a caller may want to catch.

ThinwireError
├── CodecError   (also ValueError)    a chain, a stage or an option that cannot work
├── WireError    (also ValueError)    a message that is truncated, altered or not ours
├── StateError   (also ValueError)    a checkpoint or slot that belongs to something else
└── WorldError   (also RuntimeError)  the ranks disagree, or one of them is gone
"""


class ThinwireError(Exception):
    """Base of everything thinwire raises on purpose."""


class CodecError(ThinwireError, ValueError):
    """A chain, a stage or an option that cannot work; raised before any data is touched."""


class WireError(ThinwireError, ValueError):
    """Bytes that do not form a message of this codec: truncated, altered or foreign."""


class StateError(ThinwireError, ValueError):
    """A slot or checkpoint that does not belong to this codec, model or world."""


class WorldError(ThinwireError, RuntimeError):
    """The ranks disagree with each other, or a peer stopped answering."""
