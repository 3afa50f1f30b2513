"""The handle of a model that FSDP2 manages in one process: nothing is sent, so nothing is compressed."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn

from thinwire.core.plan import Plan
from thinwire.ddp.single_handle import SingleHandle
from thinwire.ddp.unhooked import PassWatch
from thinwire.fsdp.checkpoint import ShardedCheckpoints
from thinwire.fsdp.groups import Mesh, ParameterGroup


class GroupWatch(PassWatch):
    """Notices when backward passes end whose gradients FSDP would reduce."""

    def __init__(
        self, modules: Iterable[nn.Module], groups: Sequence[ParameterGroup], ended: Callable[[float], None]
    ) -> None:
        super().__init__(modules, (), ended)  # FSDP sets gradients by itself, without hooks of parameters
        self._groups = groups
        for group in groups:
            group.follow(self._on_group)

    def end(self) -> None:
        super().end()
        for group in self._groups:
            group.restore(None)

    def _on_group(self, group: ParameterGroup) -> Callable[[], None]:
        if group.inner.reduce_grads and group.inner.all_reduce_grads and group.reduced():
            self._on_gradient()
        return lambda: None


class AloneHandle(ShardedCheckpoints, SingleHandle):
    """As `SingleHandle`, with the checkpoints of models that FSDP2 shards."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        groups: Sequence[ParameterGroup],
        mesh: Mesh,
        *,
        seed: int,
        start: int,
        reduction: str | None,
    ) -> None:
        self._groups, self._mesh = groups, mesh
        super().__init__(model, plan, seed=seed, start=start, reduction=reduction)

    def _watched(self, modules: Iterable[nn.Module], parameters: Iterable[Tensor]) -> PassWatch:
        return GroupWatch(modules, self._groups, self._on_pass)
