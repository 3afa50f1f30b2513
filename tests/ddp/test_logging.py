"""Which loggers `log_to` takes, and how it refuses others: no processes are needed for this."""

import logging
from typing import Any
from unittest.mock import create_autospec

import pytest

from thinwire.ddp.display import log_function

VALUES = {"thinwire/bytes_sent": 12.0, "thinwire/rounds": 3.0}


class TensorBoard:
    def add_scalar(
        self, tag: str, scalar_value: float, global_step: int | None = None, walltime: float | None = None
    ) -> None: ...


class Wandb:
    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None: ...


class Mlflow:
    @staticmethod
    def log_metrics(
        metrics: dict[str, float], step: int | None = None, synchronous: bool | None = None, run_id: str | None = None
    ) -> None: ...

    def log_metric(self, key: str, value: float, step: int | None = None) -> None: ...


def test_tensorboard_gets_a_call_for_each_number() -> None:
    writer = create_autospec(TensorBoard, instance=True)
    log_function(writer)(VALUES, 7)
    assert [call.args for call in writer.add_scalar.call_args_list] == [
        ("thinwire/bytes_sent", 12.0, 7),
        ("thinwire/rounds", 3.0, 7),
    ]


@pytest.mark.parametrize(("kind", "method"), [(Wandb, "log"), (Mlflow, "log_metrics")])
def test_others_get_one_call_for_each_step(kind: type, method: str) -> None:
    logger = create_autospec(kind, instance=True)
    log_function(logger)(VALUES, 7)
    getattr(logger, method).assert_called_once_with(VALUES, step=7)


def test_a_module_may_change_its_function_later() -> None:
    """As wandb does in wandb.init()."""
    module, called = Wandb(), []
    log = log_function(module)
    module.log = lambda data, step=None, commit=None: called.append(step)  # type: ignore[method-assign]
    log(VALUES, 7)
    assert called == [7]


class Other:
    def log(self, text: str) -> None: ...


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "an object of type NoneType"),
        (print, "an object of type builtin_function_or_method"),
        (logging.getLogger("thinwire"), "an object of type Logger"),
        (Other(), "an object of type Other"),
        (TensorBoard, "the class TensorBoard"),
    ],
)
def test_what_has_no_known_interface_is_refused(given: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^log_to needs a TensorBoard SummaryWriter.*; got {name}, .*handle\.on_step"):
        log_function(given)
