"""Checks of the arguments that all ways to attach share: a wrong one would otherwise fail in the middle of a step."""

from datetime import timedelta
from typing import Any

from thinwire.errors import CodecError

_WHOLE = {"seed": "", "start": " of at least 0", "check": " of at least 0", "measure_every": " of at least 0"}


def check_arguments(given: dict[str, Any]) -> None:
    """Refuse what cannot be meant; arguments with other names are not looked at."""
    for name, value in given.items():
        if name in _WHOLE and (not _whole(value) or (_WHOLE[name] and value < 0)):
            raise CodecError(f"{name} must be a whole number{_WHOLE[name]}; got {value!r}.")
    if (lanes := given.get("lanes")) is not None and (not _whole(lanes) or lanes < 1):
        raise CodecError(f"lanes must be a whole number of at least 1, or None; got {lanes!r}.")
    if not isinstance(given.get("headroom", False), bool):
        raise CodecError(f"headroom must be True or False; got {given['headroom']!r}.")
    scaler, timeout = given.get("scaler"), given.get("timeout")
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise CodecError(f"scaler must be the loop's torch.amp.GradScaler; got {type(scaler).__name__}.")
    if timeout is not None and (not isinstance(timeout, timedelta) or timeout <= timedelta(0)):
        raise CodecError(f"timeout must be a datetime.timedelta above 0, such as timedelta(seconds=60); got {timeout}.")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
