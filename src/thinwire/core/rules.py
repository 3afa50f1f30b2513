"""Which chains can work."""

from thinwire.core.spec import Spec
from thinwire.core.stage import InputStage, Stage, Transform, may_code
from thinwire.errors import CodecError


def check_chain(stages: tuple[Stage, ...]) -> None:
    """Refuse a chain that cannot work, naming both stages and the way out."""
    spec, before, cut = Spec.of((1 << 15, 1 << 15)), None, None
    for stage in stages:
        if not isinstance(stage, Stage):
            raise CodecError(f"a chain is made of stages; got {type(stage).__name__}.")
        if cut is not None and not may_code(stage):
            raise CodecError(
                f"{cut.name} cannot come before {stage.name}: what it sends cannot be summed;"
                f" write {stage.name} | {cut.name}."
            )
        if before is None and spec.kind not in stage.accepts:
            takes = " or ".join(sorted(stage.accepts))
            raise CodecError(f"{stage.name} cannot be the first stage: it takes {takes}; put a quantiser before it.")
        if before is not None and spec.kind not in stage.accepts:
            raise CodecError(_misfit(before, stage, spec))
        declines = stage.declines(spec) if isinstance(stage, Transform) and not spec.shape else None
        if before is not None and declines is not None:
            raise CodecError(
                f"{stage.name} cannot follow {before.name}, which gives a flat run of numbers ({declines});"
                f" write {stage.name} | {before.name}, or leave one of the two out."
            )
        if cut is None and not isinstance(stage, Transform):
            cut = stage
        spec, before = stage.out(spec), stage
    if before is not None and cut is None and spec.kind not in ("float32", "float16", "bfloat16", "int32"):
        raise CodecError(f"{before.name} leaves {spec.describe()}, which no all-reduce can sum.")


def _misfit(before: Stage, stage: Stage, spec: Spec) -> str:
    return (
        f"{stage.name} cannot follow {before.name}: it takes {' or '.join(sorted(stage.accepts))},"
        f" and {before.name} gives {spec.describe()}; leave one of the two out or change their order."
    )


def loss_keeper(stages: tuple[Stage, ...]) -> Stage | None:
    """The stage that makes up for what the chain loses, in place of a residual."""
    return next((stage for stage in stages if isinstance(stage, InputStage) and stage.keeps_losses), None)


def check_feedback(stages: tuple[Stage, ...], feedback: str) -> None:
    """Refuse a residual beside a stage that makes up for losses by itself: both would deliver the same twice."""
    keeper = loss_keeper(stages)
    if keeper is not None and feedback != "off":
        raise CodecError(f"{keeper.name} makes up for losses by itself; leave feedback out.")
