"""What the state of a PCA layer may be when it comes from a checkpoint."""

import math

from torch import Tensor

from thinwire.core.checks import expect_count, expect_keys, expect_number, expect_tensor, expect_unit
from thinwire.core.context import State
from thinwire.errors import StateError
from thinwire.stages.pca_basis import Layout


def check_samples(what: str, state: State, layout: Layout, taken: int, pool: bool, centre: bool) -> None:
    """Raise StateError unless these are the statistics of so many sampled steps; one rank has those of all slices."""
    count, length = (layout.count if pool else 1), layout.length
    summed = ("sum",) if centre and taken else ()
    expect_keys(what, state, ("taken", "scale", "rows", *summed), ("gram", "samples"))
    expect_count(f"'taken' in {what}", state["taken"], taken, taken)
    expect_number(f"'scale' in {what}", state["scale"], 0.0)
    rows = expect_count(f"'rows' in {what}", state["rows"], 0, taken * count)
    if rows not in (0, taken * count) or ("gram" in state) + ("samples" in state) != bool(rows):
        raise StateError(f"{what} has {rows} sampled rows, which do not fit its statistics of {taken} steps.")
    shapes = {"sum": (layout.count, length), "gram": (length, length), "samples": (rows, length)}
    for key, shape in shapes.items():
        if key in state:
            expect_tensor(f"{key!r} in {what}", state[key], shape)


def check_basis(what: str, state: State, layout: Layout, most: int, centre: bool) -> None:
    """Raise StateError unless this is the state of a basis in use, with at most so many columns."""
    needed = ("taken", "scale", "rows", "basis", *(("mean", "offset") if centre else ()))
    expect_keys(what, state, needed, ("reach", "fresh"))
    for key in ("taken", "rows"):
        expect_count(f"{key!r} in {what}", state[key], 0, 0)
    expect_number(f"'scale' in {what}", state["scale"], 0.0, 0.0)
    basis = state["basis"]
    columns = basis.shape[1] if isinstance(basis, Tensor) and basis.dim() == 2 else 0
    columns = min(max(columns, 1), most)
    expect_unit(f"'basis' in {what}", expect_tensor(f"'basis' in {what}", basis, (layout.length, columns)), dim=0)
    for key, width in (("mean", layout.length), ("offset", columns)):
        if key in state:
            expect_tensor(f"{key!r} in {what}", state[key], (layout.count, width))
    for key, low in (("reach", 0.0), ("fresh", -math.inf)):
        if key in state:
            expect_number(f"{key!r} in {what}", state[key], low)
