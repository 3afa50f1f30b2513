"""What the state of a PCA layer may be when it comes from a checkpoint, and a basis when it comes from another rank."""

import math
from collections.abc import Sequence

from torch import Tensor

from thinwire.core.checks import expect_count, expect_keys, expect_number, expect_tensor, expect_unit
from thinwire.core.context import State
from thinwire.core.ops import sent_by
from thinwire.errors import StateError, WireError
from thinwire.stages.pca_basis import Layout
from thinwire.stages.pca_samples import suffix


def check_samples(
    what: str, state: State, layouts: Sequence[Layout], taken: int, pool: bool, centre: bool, halved: bool
) -> None:
    """Raise StateError unless these are the statistics of so many sampled steps; one rank has those of all slices.

    `halved`: those of the first half may be there too.
    """
    first = layouts[0]
    count = first.count if pool else 1
    summed = ("sum",) if centre and taken else ()
    early = [f"early_gram{suffix(at)}" for at in range(len(layouts))] + ["early_sum"] if halved else []
    kinds = [f"{name}{suffix(at)}" for name in ("gram", "samples") for at in range(len(layouts))]
    expect_keys(what, state, ("taken", "scale", "rows", *summed), (*kinds, *early))
    expect_count(f"'taken' in {what}", state["taken"], taken, taken)
    expect_number(f"'scale' in {what}", state["scale"], 0.0)
    rows = expect_count(f"'rows' in {what}", state["rows"], 0, taken * count)
    shapes = {"sum": (first.count, first.length), "early_sum": (first.count, first.length)}
    for at, layout in enumerate(layouts):
        end, slices = suffix(at), taken * (layout.count if pool else 1)
        shapes |= {f"{name}{end}": (layout.length, layout.length) for name in ("gram", "early_gram")}
        shapes[f"samples{end}"] = (slices, layout.length)
        if rows not in (0, taken * count) or (f"gram{end}" in state) + (f"samples{end}" in state) != bool(rows):
            raise StateError(f"{what} has {rows} sampled rows, which do not fit its statistics of {taken} steps.")
        if f"early_gram{end}" in state and (f"gram{end}" not in state or ("early_sum" in state) != centre):
            raise StateError(f"{what} has statistics of half its samples, but not all that belong to them.")
    for key, shape in shapes.items():
        if key in state:
            expect_tensor(f"{key!r} in {what}", state[key], shape)


def check_basis(what: str, state: State, layouts: Sequence[Layout], most: Sequence[int], centre: bool) -> None:
    """Raise StateError unless this is the state of a basis in use, with at most so many columns in each layout."""
    needed = ("taken", "scale", "rows", "basis", *(("mean", "offset") if centre else ()))
    expect_keys(what, state, needed, ("reach", "fresh", "layout"))
    for key in ("taken", "rows"):
        expect_count(f"{key!r} in {what}", state[key], 0, 0)
    expect_number(f"'scale' in {what}", state["scale"], 0.0, 0.0)
    at = expect_count(f"'layout' in {what}", state.get("layout", 0), 0, len(layouts) - 1)
    layout, basis = layouts[at], state["basis"]
    columns = basis.shape[1] if isinstance(basis, Tensor) and basis.dim() == 2 else 0
    columns = min(max(columns, 1), most[at])
    expect_unit(f"'basis' in {what}", expect_tensor(f"'basis' in {what}", basis, (layout.length, columns)), dim=0)
    for key, width in (("mean", layout.length), ("offset", columns)):
        if key in state:
            expect_tensor(f"{key!r} in {what}", state[key], (layout.count, width))
    for key, low in (("reach", 0.0), ("fresh", -math.inf)):
        if key in state:
            expect_number(f"{key!r} in {what}", state[key], low)


def check_received(owner: int, kept: int, at: int, layouts: Sequence[Layout]) -> None:
    """Raise WireError unless a layer may have a basis of so many columns in this layout."""
    with sent_by(owner):
        if not 0 <= at < len(layouts) or not 0 <= kept <= layouts[at].length // 2:
            raise WireError(f"a basis of {kept} columns in layout {at} does not fit the layer.")
