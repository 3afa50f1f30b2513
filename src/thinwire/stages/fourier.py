"""Orthonormal transforms into the frequency domain, where smooth gradients need few numbers.

Not all gradients are smooth: a transform can decide for each tensor whether it is worth its place.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.checks import expect_count
from thinwire.core.context import Context, State
from thinwire.core.fast import BlockCoder, FastPath
from thinwire.core.options import number
from thinwire.core.spec import Spec
from thinwire.core.stage import DecidingStage, Encoded, Stage, Transform
from thinwire.errors import CodecError
from thinwire.kernels import spectra
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.reference.fourier import quarter_turns
from thinwire.kernels.shares import divided
from thinwire.stages.phases import Phases
from thinwire.stages.quantise import QSGD

_MOST_SIDE = 1024
TRIALS = 4  # steps that decide whether a transform stays
AGAIN = 100  # steps until those that stayed are tried again: gradients are unlike later ones at first
_AS_DEAR = 5 / 6  # the density at which plain elements take the bytes of pairs, positions included, at 8 to 12 bits
_BLOCK = 1 << 17  # numbers that are transformed at a time: what lies between the passes over them stays in the cache


@dataclass(frozen=True, repr=False)
class Chunked(DecidingStage, Transform):
    """An orthonormal map of each chunk of consecutive numbers; the rest at the end is cut into shorter powers of two.

    It is linear and keeps lengths: |encode(x)| = |x|, so that the error made on coefficients is the error made on
    the gradient, and spectra are summed before one inverse transform.

    With `auto`, a density, TRIALS steps of a tensor are sent in 8 bits, at first and once more AGAIN steps later. The
    chain goes on without the transform where, in half of these steps or more, so large a share of the coefficients held
    less energy than plain elements in as many bytes. All ranks see the same averages, and compare whole numbers.
    """

    isometry: ClassVar[bool] = True

    chunk: int = number(4096, low=2, high=2**20, whole=True, help="numbers transformed together; a power of two")
    auto: float | None = number(
        None, low=1e-9, high=1.0, optional=True, help="density at which the first steps decide whether it stays"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk & (self.chunk - 1):
            raise CodecError(f"{self}: chunk must be a power of two; use {1 << (self.chunk.bit_length() - 1)}.")

    @property
    def unbiased(self) -> bool:
        return True  # nothing is lost but the last bits

    # Whether the transform stays.

    def init(self, spec: Spec) -> State:
        return {} if self.auto is None else {"seen": 0, "better": 0}

    def check_state(self, state: State, spec: Spec) -> None:
        super().check_state(state, spec)
        if self.auto is not None:
            seen = expect_count(f"'seen' of {self}", state["seen"], 0, AGAIN + TRIALS)
            expect_count(f"'better' of {self}", state["better"], 0, min(seen, TRIALS))

    def instead(self, state: State, spec: Spec) -> tuple[Stage, ...] | None:
        return (_TRIAL,) if _is_tried(state) else None

    def observe(self, mean: Tensor, ctx: Context) -> None:
        """Compare in a trial; an average that this stage does not see says nothing against it."""
        state = ctx.state
        if self.auto is None or state["seen"] >= AGAIN + TRIALS:
            return
        tried = _is_tried(state)
        if state["seen"] in (0, AGAIN):
            state["better"] = 0
        state["seen"] += 1
        if not tried:
            return
        x = mean.reshape(-1).float()
        if x.numel() != ctx.spec.numel or not bool(x.any()):
            state["better"] += 1
            return
        coefficients, group = self.encode(x, ctx).values, self.out(ctx.spec).group
        held, whole = _largest_energies(coefficients, group, self.auto)
        plain, all_plain = _largest_energies(x, 1, self.auto * (1.0 if group == 1 else _AS_DEAR))
        state["better"] += int(held * all_plain >= plain * whole)

    def left_out(self, state: State) -> bool:
        return state.get("seen") in (TRIALS, AGAIN + TRIALS) and 2 * int(state["better"]) <= TRIALS

    def decided(self, state: State, spec: Spec) -> str | None:
        if self.auto is None or _is_tried(state):
            return None
        how = "left out" if self.left_out(state) else "kept"
        return f"{how}, its coefficients held more energy than plain elements in {state['better']} of {TRIALS} steps"

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor, ranks: int) -> None:  # [count, length] all
        raise NotImplementedError

    def backward(self, rows: Tensor, out: Tensor) -> None:  # [count, length] both
        raise NotImplementedError

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        y = ctx.empty(self.out(ctx.spec).numel, x)
        for low in range(0, x.numel(), self.block):
            self.encode_block(x[low : low + self.block], 1, None, y[low : low + self.block])
        return Encoded(y)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        y = encoded.values
        for low in range(0, out.numel(), self.block):
            here = out[low : low + self.block]
            self.decode_block(y[low : low + self.block], x := here if mode == "write" else torch.empty_like(here))
            if mode != "write":
                put(x, here, mode)

    @property
    def block(self) -> int:
        """Elements that are transformed at a time."""
        return max(1, _BLOCK // self.chunk) * self.chunk

    def fast(self, spec: Spec) -> FastPath:
        if self.out(spec).numel != spec.numel:
            return Phases(self.observe, self.looks)
        return ChunkedBlocks(self)

    def looks(self, ctx: Context) -> bool:
        """Whether this step looks at its mean."""
        return self.auto is not None and _is_tried(ctx.state)

    def encode_block(self, x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
        for low, high, length in self._pieces(out.numel()):
            rows = x[low:high]
            if rows.numel() < high - low:
                rows = torch.nn.functional.pad(rows, (0, high - low - rows.numel()))
            more = None if residual is None else residual[low:high].view(-1, length)
            self.forward(rows.view(-1, length), more, out[low:high].view(-1, length), ranks)

    def decode_block(self, y: Tensor, out: Tensor) -> None:
        for low, high, length in self._pieces(y.numel()):
            rows = out[low:high]
            if rows.numel() < high - low:
                rows = y.new_empty(high - low)
            self.backward(y[low:high].view(-1, length), rows.view(-1, length))
            if high > out.numel():
                out[low:].copy_(rows[: out.numel() - low])

    def _pieces(self, numel: int) -> Iterator[tuple[int, int, int]]:
        """Bounds of what is cut into chunks of one length, and the length."""
        low, length = 0, self.chunk
        while low < numel:
            high = low + (numel - low) // length * length
            if high > low:
                yield low, high, length
            low, length = high, length // 2


_TRIAL = QSGD(bits=8)


def _is_tried(state: State) -> bool:
    """Whether the next step belongs to a trial."""
    seen = int(state.get("seen", TRIALS))
    return seen < TRIALS or AGAIN <= seen < AGAIN + TRIALS


def _largest_energies(x: Tensor, group: int, density: float) -> tuple[int, int]:
    """The energy of the largest ceil(density * n) numbers (or pairs), and of all, in units of the largest one's.

    Whole numbers: their sums do not depend on the order of terms, which differs between processors.
    """
    scale = 2.0 ** (17 - math.frexp(float(x.abs().amax()))[1])
    energies = (x.double() * scale).round().long().square().view(-1, group).sum(1)
    count = min(len(energies), math.ceil(density * len(energies)))
    return int(energies.topk(count).values.sum()), int(energies.sum())


class ChunkedBlocks(Phases, BlockCoder):
    """Blocks of whole chunks."""

    def __init__(self, stage: Chunked) -> None:
        super().__init__(stage.observe, stage.looks)
        self.stage, self.length = stage, stage.block

    def encode(self, x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
        self.stage.encode_block(x, ranks, residual, out)

    def decode(self, y: Tensor, out: Tensor) -> None:
        self.stage.decode_block(y, out)


@dataclass(frozen=True, repr=False)
class FFT(Chunked):
    """The real FFT of each chunk, as pairs (real, imaginary) that a stage behind it chooses or drops together.

    A chunk of N numbers gives N numbers, N/2 pairs: first (X_0, X_{N/2}), the two real bins, then sqrt(2) X_j for
    0 < j < N/2, whose factor stands for the mirrored half, so that the map is orthonormal. An odd number of numbers is
    filled up with one zero. `fft | topk(density=1-theta) | rangefloat` is the system of Wang et al., HPDC 2020, with
    |error|^2 <= theta |gradient|^2 before the numbers are shortened.
    """

    name: ClassVar[str] = "fft"

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel + spec.numel % 2, group=2)

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor, ranks: int) -> None:
        spectra.pairs_of_rows(rows, owed, out, ranks)

    def backward(self, rows: Tensor, out: Tensor) -> None:
        spectra.rows_of_pairs(rows, out)


@dataclass(frozen=True, repr=False)
class DCT(Chunked):
    """The discrete cosine transform (DCT-II, orthonormal) of each chunk: real coefficients, chosen one by one.

    Computed from the spectrum of the same numbers in another order (Makhoul 1980): even positions, then odd ones
    backwards. Its pair j, times e^(-i pi j / 2N), has coefficient j as its real part, and coefficient N - j as its
    imaginary part with the opposite sign; the first pair has coefficients 0 and N/2.

    With `dims=2`, squares of chunk x chunk numbers of a matrix, whose rows are those of the tensor's first dimension;
    what is left at its edges is cut into rectangles of shorter powers of two. The coefficients of a square follow each
    other, row by row, so that `topk(chunk=...)` with the square of `chunk` chooses in each. A tensor of one dimension,
    and the flat numbers of a message, are one row: they are cut into chunks as without it.
    """

    name: ClassVar[str] = "dct"

    dims: int = number(1, low=1, high=2, whole=True, help="1: runs of numbers; 2: squares of a matrix")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dims == 2 and self.chunk > _MOST_SIDE:
            raise CodecError(f"{self}: the side of a square must be at most {_MOST_SIDE}; make chunk smaller.")

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def declines(self, spec: Spec) -> str | None:
        return "it has no rows" if self.dims == 2 and not spec.shape and spec.numel > 1 else None

    def fast(self, spec: Spec) -> FastPath:
        return super().fast(spec) if self.dims == 1 else Phases(self.observe, self.looks)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        shape = ctx.spec.shape
        if self.dims == 1 or len(shape) < 2 or x.numel() == 0:
            return super().encode(x, ctx)
        y = ctx.empty(x.numel(), x)
        for (top, bottom, high), (left, right, wide), to in self.squares(shape[0], x.numel() // shape[0]):
            part = x.view(shape[0], -1)[top:bottom, left:right]
            squares = part.reshape(-1, high, (right - left) // wide, wide).transpose(1, 2)
            y[to : to + part.numel()].view(squares.shape).copy_(self.both_ways(squares, self._forward))
        return Encoded(y)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        shape = ctx.spec.shape
        if self.dims == 1 or len(shape) < 2 or out.numel() == 0:
            super().decode(encoded, ctx, out, mode)
            return
        for (top, bottom, high), (left, right, wide), at in self.squares(shape[0], out.numel() // shape[0]):
            rows, columns = bottom - top, right - left
            squares = encoded.values[at : at + rows * columns].view(rows // high, columns // wide, high, wide)
            part = self.both_ways(squares, self.backward).transpose(1, 2).reshape(rows, columns)
            put(part, out.view(shape[0], -1)[top:bottom, left:right], mode)

    def squares(self, rows: int, columns: int) -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int], int]]:
        """Bounds and sides of what is cut into equal rectangles, down and across, and where its coefficients begin."""
        at = 0
        for down in self._pieces(rows):
            for across in self._pieces(columns):
                yield down, across, at
                at += (down[1] - down[0]) * (across[1] - across[0])

    def both_ways(self, squares: Tensor, turn: Callable[[Tensor, Tensor], None]) -> Tensor:  # [.., .., high, wide]
        """Each row of each rectangle, then each column."""
        for _ in range(2):
            rows = squares.contiguous().view(-1, squares.shape[-1])
            turned = torch.empty_like(rows)
            turn(rows, turned)
            squares = turned.view(squares.shape).transpose(2, 3)
        return squares

    def _forward(self, rows: Tensor, out: Tensor) -> None:
        self.forward(rows, None, out, 1)

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor, ranks: int) -> None:
        count, length = rows.shape
        if length == 1:
            divided(rows, ranks, out=out)
            if owed is not None:
                out += owed
            return
        folded = torch.cat([rows[:, 0::2], rows[:, 1::2].flip(1)], 1)
        spectra.pairs_of_rows(folded, None, folded, ranks)
        (re, im), (cosine, sine) = folded.view(count, length // 2, 2).unbind(2), quarter_turns(length, rows.device)
        out[:, 0], out[:, length // 2] = re[:, 0], im[:, 0]
        re, im = re[:, 1:], im[:, 1:]
        out[:, 1 : length // 2] = re * cosine + im * sine
        out[:, length // 2 + 1 :] = (re * sine - im * cosine).flip(1)
        if owed is not None:
            out += owed

    def backward(self, rows: Tensor, out: Tensor) -> None:
        count, length = rows.shape
        if length == 1:
            out.copy_(rows)
            return
        low, high = rows[:, 1 : length // 2], rows[:, length // 2 + 1 :].flip(1)
        cosine, sine = quarter_turns(length, rows.device)
        folded = torch.empty_like(rows)
        pairs = folded.view(count, length // 2, 2)
        pairs[:, 0, 0], pairs[:, 0, 1] = rows[:, 0], rows[:, length // 2]
        pairs[:, 1:, 0] = low * cosine + high * sine
        pairs[:, 1:, 1] = low * sine - high * cosine
        spectra.rows_of_pairs(folded, folded)
        out[:, 0::2] = folded[:, : length // 2]
        out[:, 1::2] = folded[:, length // 2 :].flip(1)
