"""Which plans can be summed in the way that a caller asks for."""

from thinwire.core.plan import Plan
from thinwire.errors import CodecError


def check_reduction(reduction: str | None, plan: Plan) -> Plan:
    """The plan, if all of its chains can be summed so; a ring adds what it receives, so that messages cannot go round.

    While a transform is not ready, its elements travel as it says, and not in a ring.
    """
    if reduction is None:
        return plan
    if reduction != "ring":
        raise CodecError(f"reduction must be 'ring', or None for the cheapest way; got {reduction!r}.")
    for rule in plan.rules:
        if rule.codec.coders:
            raise CodecError(
                f"reduction='ring' does not fit {rule.codec}: what {rule.codec.coders[0].name} sends cannot be summed;"
                " use a chain of transforms such as gradiveq, or leave reduction away."
            )
    return plan
