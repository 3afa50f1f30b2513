"""The names by which plans and checkpoints know parameters."""

from collections.abc import Collection

from torch import nn

# Modules that wrap another one in place put their attribute into every name below them.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def parameter_names(module: nn.Module, ignored: Collection[str] = ()) -> list[tuple[str, nn.Parameter]]:
    """Each parameter once, by the name it has without torch.compile and activation checkpointing around it."""
    return [(_plain_name(name), p) for name, p in module.named_parameters() if name not in ignored]


def _plain_name(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
