"""Checkpoints of torch.distributed.checkpoint, read without running code from the folder.

Torch reads the metadata of such a folder, and everything in it that is not a tensor, with pickle, which can run code.
Here the metadata may contain only torch's own descriptions, and the rest is loaded with `weights_only=True`.
"""

import pickle
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import torch

from thinwire.core.checks import expect_count
from thinwire.errors import StateError
from thinwire.worlds.peers import Peers

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

_DESCRIPTIONS = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "PureWindowsPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath", "PureWindowsPath"},
}

_MOST_RANKS = 1 << 20


class _Descriptions(pickle.Unpickler):
    """Unpickles torch's descriptions of tensors and files, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _DESCRIPTIONS.get(module, ()) or (module == "torch" and _is_dtype(name)):
            return super().find_class(module, name)
        raise StateError(
            f"its metadata asks for {module}.{name}, which no description of tensors needs and which may run code;"
            " load only checkpoints that you trust, with torch.distributed.checkpoint itself."
        )


def _is_dtype(name: str) -> bool:
    return isinstance(getattr(torch, name, None), torch.dtype)


def read_distributed(folder: str | Path, key: str, world: Peers, *inside: str) -> dict[str, Any]:
    """What was saved under `key` with torch.distributed.checkpoint: of this rank, or of all if the world has changed.
    `inside`: the keys under which it is in the dictionary that was saved.

    Loading in place needs a target of the right shape, which a new handle does not have: the target is built from
    what the checkpoint says it holds. Every rank reads for itself, so that none waits for one that fails.
    """
    try:
        return _read(Path(folder), (key, *inside), world)
    except Exception as reason:  # whatever torch raises on files that are missing, damaged or foreign
        said = str(reason) if isinstance(reason, StateError) else f"{type(reason).__name__}: {reason}"
        raise StateError(f"the checkpoint in {folder} cannot be read: {said}") from reason


def _read(folder: Path, keys: tuple[str, ...], world: Peers) -> dict[str, Any]:
    with (folder / ".metadata").open("rb") as file:
        metadata = _described(file)
    key, deep = keys[-1], len(keys)
    paths = {flat: path[deep - 1 :] for flat, path in (metadata.planner_data or {}).items() if path[:deep] == keys}
    if (key, "world_size") not in paths.values():
        raise StateError(f"it has no thinwire state under {'.'.join(keys)!r}.")
    head = _values(folder, metadata, [flat for flat, path in paths.items() if len(path) == 2])
    before = next(head[flat] for flat, path in paths.items() if path == (key, "world_size"))
    expect_count("'world_size'", before, 1, _MOST_RANKS)
    wanted = {flat: path for flat, path in paths.items() if before != world.ranks or path[1] == f"rank{world.rank}"}
    body = _values(folder, metadata, [flat for flat, path in wanted.items() if len(path) > 2])
    nested = _nested({paths[flat][1:]: value for flat, value in {**head, **body}.items()})
    if all(len(path) == 2 for path in paths.values()):  # nobody had anything to remember
        nested |= {f"rank{rank}": {} for rank in ([world.rank] if before == world.ranks else range(before))}
    return nested


def _described(file: IO[bytes]) -> "Metadata":
    from torch.distributed.checkpoint.metadata import Metadata

    metadata = _Descriptions(file).load()
    if not isinstance(metadata, Metadata):
        raise StateError(f"its metadata is a {type(metadata).__name__}.")
    for stored in (metadata.storage_data or {}).values():
        place = PurePosixPath(stored.relative_path)
        if place.is_absolute() or ".." in place.parts:
            raise StateError(f"its metadata names a file outside of it, {place}.")
    return metadata


def _values(folder: Path, metadata: "Metadata", names: list[str]) -> dict[str, Any]:
    """The entries of these names; what is not a tensor is loaded with `weights_only=True`."""
    # at use: importing thinwire stays cheap
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    most = sum(path.stat().st_size for path in folder.iterdir())
    values = {name: _target(name, metadata.state_dict_metadata[name], most) for name in names}
    reader, planner = FileSystemReader(folder), _planner()(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(values, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.read_data(plan, planner).wait()
    return values


@cache
def _planner() -> Any:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Weights(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

    return Weights


def _target(name: str, described: Any, most: int) -> Any:
    """Memory for one entry of a checkpoint, whose files have `most` bytes together."""
    if not hasattr(described, "size"):
        return None
    size, dtype = torch.Size(described.size), described.properties.dtype
    if size.numel() * dtype.itemsize > most:
        raise StateError(f"{name} has the shape {tuple(size)} by its metadata, and its files have {most} bytes.")
    return torch.empty(size, dtype=dtype)


def _nested(flat: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        at = nested
        for part in path[:-1]:
            at = at.setdefault(str(part), {})
        at[str(path[-1])] = value
    return nested
