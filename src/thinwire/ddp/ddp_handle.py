"""The handle of a DistributedDataParallel model."""

import warnings
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire._version import __version__
from thinwire.core.plan import Plan, PlanLike
from thinwire.ddp.advice import warn_optimizer, warn_uncompressed
from thinwire.ddp.arithmetic import warn_if_arithmetic_differs
from thinwire.ddp.bucket_hook import BucketHook
from thinwire.ddp.consistency import check_agreement, new_run
from thinwire.ddp.engine import Engine
from thinwire.ddp.handle import Handle
from thinwire.ddp.host_exchange import HostExchange
from thinwire.ddp.hosts import Hosts, carriers, find_hosts, share_of
from thinwire.ddp.lane import Lane, end_forgotten, group_count, lane_count
from thinwire.ddp.names import parameter_names
from thinwire.ddp.reduction import check_reduction
from thinwire.worlds.distributed import Distributed


class DDPHandle(Handle):
    """The handle of a DistributedDataParallel model: a hook averages its buckets on lanes."""

    _world: Distributed

    def __init__(
        self,
        model: DistributedDataParallel,
        plan: Plan,
        *,
        seed: int,
        start: int,
        check: int,
        scaler: Any,
        headroom: bool,
        lanes: int | None,
        timeout: timedelta | None,
        measure_every: int,
        optimizer: Any,
        reduction: str | None,
        local_size: int | str,
    ) -> None:
        names = parameter_names(model.module, model.parameters_to_ignore)
        self._layout = [(name, p.detach().to("meta")) for name, p in names if p.requires_grad]
        self._world = Distributed(model.process_group)
        self.engine = Engine.of(plan, self._layout, seed, start)
        self.engine.reduction = reduction
        self.engine.meter.every = measure_every
        self.engine.skips = scaler is not None
        self.engine.drops_idle = bool(model.find_unused_parameters) and not model.static_graph
        self._names = {id(p): name for name, p in names}
        self._optimizer, self._timeout = optimizer, timeout
        device = next((p.device for _, p in names), torch.device("cpu"))
        lanes = lane_count(lanes, model.process_group, device)
        self._agree(lanes, check, headroom, local_size)
        hosts = find_hosts(self._world, local_size)
        self.engine.run = new_run(self._world)
        end_forgotten(self._world)
        own = [Lane(model.process_group, device, timeout) for _ in range(0 if headroom else lanes)]
        exchanges = self._share_links(hosts, own)
        self._compare_arithmetic = partial(warn_if_arithmetic_differs, self._world, device=device)
        self._compare_arithmetic(self.engine.codecs())
        # torch makes groups without waiting for all ranks: one that closed at once would break the others' connections
        check_agreement(self._world, {"lanes": len(own)}, "attach", timeout)
        self.hook = BucketHook(
            self.engine,
            self._world,
            own,
            names=self._names,
            layout=self._layout,
            check=check,
            scaler=scaler,
            headroom=headroom,
            exchanges=exchanges,
        )
        self._callbacks = self.hook.callbacks
        self._warn(stacklevel=6)

    @property
    def headroom(self) -> bool:
        return self.hook.headroom

    @property
    def check(self) -> int:
        return self.hook.check

    def use(self, plan: PlanLike) -> None:
        new = check_reduction(self.engine.reduction, Plan.parse(plan))
        check_agreement(self._world, {"the new plan": str(new), "the step": self.engine.step}, "use", self._timeout)
        before = self.engine.plan
        self.engine.use(new, self._layout)
        try:
            self.hook.take_slot()
        except Exception:
            self.engine.use(before, self._layout)  # there are no residuals yet
            raise
        if not any(self._world.gathered(self.hook.works(), "the agreement on a hook")):
            self.hook.leave_slot()
        self._compare_arithmetic(self.engine.codecs())
        self._warn(stacklevel=3)

    def _take_slot(self) -> None:
        self.hook.take_slot()

    def close(self) -> None:
        self.hook.close()

    def _warn(self, stacklevel: int) -> None:
        if not self.headroom:
            warn_uncompressed(self.engine.plan, self.plan, stacklevel)
            warn_optimizer(self._optimizer, self._names, self.engine.decisions, stacklevel)

    def _share_links(self, hosts: Hosts, lanes: Sequence[Lane]) -> list[HostExchange]:
        """What each lane needs so that the ranks of a host share its link; nothing if there is one rank on each."""
        if len(hosts.ranks) == 1 and hosts.local_size > 1:
            warnings.warn(
                f"local_size finds all {hosts.local_size} ranks on one host. There is nothing between"
                " hosts: the ranks exchange compressed gradients with each other, as with local_size=1.",
                RuntimeWarning,
                stacklevel=6,
            )
        if len(hosts.ranks) == 1 or hosts.local_size == 1 or not lanes:
            return []
        carried = carriers(self._layout, hosts.local_size)
        self.engine.share = share_of(hosts, carried)
        return [HostExchange(lane.part(hosts.ranks), lane.part(hosts.columns), carried) for lane in lanes]

    def _agree(self, lanes: int, check: int, headroom: bool, local_size: int | str) -> None:
        engine = self.engine
        check_agreement(
            self._world,
            {
                "the thinwire version": __version__,
                "the plan": str(engine.plan),
                "the parameters": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._layout],
                "the seed": engine.seed,
                "start": engine.start,
                "check": check,
                "headroom": headroom,
                "the number of lanes": lanes,
                "having a scaler": engine.skips,
                "the reduction": engine.reduction,
                "local_size": local_size,
                "the number of process groups": group_count(self._world.group),
            },
            "attach",
            self._timeout,
        )
