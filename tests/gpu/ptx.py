"""Runs the PTX of a Triton kernel on the CPU, in numpy: all threads of all blocks in lockstep.

It follows the PTX ISA for the integer and IEEE instructions that thinwire's kernels use, and refuses every other one:
approximate and flushing ones above all (div.full, rcp.approx, .ftz), and products that ptxas may fuse with a sum.
Addresses are checked: a load or store outside the buffers, or not aligned to its width, is an error, as it would be a
fault (or worse) on a GPU. What it cannot show: what ptxas makes of the PTX, races between blocks, time.
"""

import re
from typing import Any

import numpy as np

from tests.gpu import warps
from tests.gpu.warps import Fault

U32, U64, U16, F32, F64 = np.uint32, np.uint64, np.uint16, np.float32, np.float64
WIDTH = {"8": 1, "16": 2, "32": 4, "64": 8}
SIGNED = {"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64}
UNSIGNED = {"u8": np.uint8, "b8": np.uint8, "u16": U16, "b16": U16, "u32": U32, "b32": U32, "u64": U64, "b64": U64}
TYPES: dict[str, Any] = {**SIGNED, **UNSIGNED, "f32": F32, "f64": F64}
FLOATS = ("f32", "f64")
REGISTERS = {"%rs": 2, "%rd": 8, "%r": 4}
TWO = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum, "div": np.divide,
}  # fmt: skip
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def parse(ptx: str) -> tuple[list[str], int, list[tuple[str | None, str, list[str]]], dict[str, int]]:
    """Parameters, threads of a block, instructions and labels of the one entry."""
    ptx = re.sub(r"//.*", "", ptx)
    entry = re.search(r"\.entry\s+\w+\((.*?)\)", ptx, re.S)
    assert entry is not None
    rest = ptx[entry.end() :]
    threads = re.search(r"\.reqntid\s+(\d+)", rest)
    assert threads is not None
    start, depth, end = rest.index("{"), 0, 0
    for end in range(start, len(rest)):
        depth += {"{": 1, "}": -1}.get(rest[end], 0)
        if not depth:
            break
    body = re.sub(r"^\s*\.(loc|file|pragma|section).*$", "", rest[start + 1 : end], flags=re.M)
    body = re.sub(r"^(\$?\w+):", r"LABEL \1;", body, flags=re.M)
    program: list[tuple[str | None, str, list[str]]] = []
    labels: dict[str, int] = {}
    for text in (" ".join(part.split()) for part in body.split(";")):
        if text.startswith("LABEL"):
            labels[text.split()[1]] = len(program)
        elif text and not text.startswith("."):
            found = re.match(r"(?:@(!?%p\d+)\s+)?(\S+)\s*(.*)", text)
            assert found is not None
            program.append((found[1], found[2], _arguments(found[3])))
    return [part.split()[-1] for part in entry[1].split(",")], int(threads[1]), program, labels


def _arguments(text: str) -> list[str]:
    parts, depth, word = [], 0, ""
    for c in text:
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(c, 0)
        if c == "," and not depth:
            parts.append(word.strip())
            word = ""
        else:
            word += c
    return [*parts, word.strip()] if word.strip() else parts


class Run:
    """One compiled kernel; call it with the number of blocks, and arrays and numbers for its parameters."""

    def __init__(self, ptx: str, shared: int) -> None:
        self.params, self.threads, self.program, self.labels = parse(ptx)
        self.shared_bytes = -(-max(shared, 16) // 16) * 16

    def __call__(self, blocks: int, *args: Any) -> None:
        self.count = blocks * self.threads
        self.block = np.repeat(np.arange(blocks), self.threads)
        self.tid = np.tile(np.arange(self.threads), blocks)
        self.shared = np.zeros((blocks, self.shared_bytes), np.uint8)
        self.reg: dict[str, Any] = {}
        self.buffers: list[tuple[int, int, Any]] = []
        self.values: dict[str, int] = {}
        base = 1 << 40
        for name, arg in zip(self.params, [*args, *[0] * len(self.params)], strict=False):
            if isinstance(arg, np.ndarray):
                at = base + (arg.__array_interface__["data"][0] & 255)  # aligned as the real address is
                self.buffers.append((at, at + arg.nbytes, arg.reshape(-1).view(np.uint8)))
                self.values[name] = at
                base += (arg.nbytes + 4096) // 4096 * 4096 + (1 << 20)
            elif isinstance(arg, float):
                self.values[name] = int(np.array(arg, F32).view(U32))
            else:
                self.values[name] = int(arg)
        self.pc = np.zeros(self.count, np.int64)
        while (at := int(self.pc.min())) < len(self.program):
            self.active = self.pc == at
            guard, op, operands = self.program[at]
            self.on = self.active
            if guard:
                p = self.reg[guard.lstrip("!")]
                self.on = self.active & (~p if guard[0] == "!" else p)
            self.pc[self.active] += 1
            with np.errstate(all="ignore"):
                self.step(op, operands)

    # Operands.

    def get(self, text: str, kind: Any) -> Any:
        """An operand as an array of this type."""
        size = np.dtype(kind).itemsize
        if text == "%tid.x":
            return self.tid.astype(f"u{size}").view(kind)
        if text == "%ctaid.x":
            return self.block.astype(f"u{size}").view(kind)
        if text[0] == "%":
            raw = self.reg.get(text)
            if raw is None:  # compilers may read a register that was never set, if its bits do not matter
                raw = np.full(self.count, 0xA5A5A5A5A5A5A5A5 & ((1 << 8 * size) - 1), f"u{size}")
            return raw.view(kind) if raw.dtype.itemsize == size else raw.astype(f"u{size}").view(kind)
        if text == "global_smem":
            return np.zeros(self.count, kind)
        if text[:2] in ("0f", "0d"):
            return np.full(self.count, int(text[2:], 16), U32 if text[1] == "f" else U64).view(kind)
        return np.full(self.count, int(text.rstrip("U"), 0) & ((1 << 8 * size) - 1), f"u{size}").view(kind)

    def put(self, name: str, value: Any) -> None:
        value = np.ascontiguousarray(value)
        if value.dtype != np.bool_:
            bits = REGISTERS[re.match(r"%[a-z]+", name)[0]]  # type: ignore[index]
            if value.dtype.itemsize != bits:  # PTX widens by the sign of the type
                value = value.astype(f"{'i' if value.dtype.kind == 'i' else 'u'}{bits}")
            value = value.view(f"u{bits}")
        if not self.on.all():
            value = np.where(self.on, value, self.reg.get(name, np.zeros_like(value)))
        self.reg[name] = value

    # Memory.

    def address(self, text: str) -> Any:
        name, _, offset = text.strip("[] ").partition("+")
        kind = U64 if name.strip().startswith("%rd") else U32
        return self.get(name.strip(), kind).astype(np.int64) + (int(offset, 0) if offset.strip() else 0)

    def memory(self, op: str, operands: list[str]) -> None:
        head, space, *rest = op.split(".")
        if set(rest[:-1]) - {"v2", "v4"}:
            raise Fault(f"{op} is not emulated")
        size, loads = WIDTH[rest[-1][1:]], head == "ld"
        place, data = (operands[1], operands[0]) if loads else (operands[0], operands[1])
        registers = [r.strip() for r in data.strip("{} ").split(",")]
        at = self.address(place)
        if self.on.any() and (at[self.on] % (size * len(registers))).any():
            raise Fault(f"{op}: address not aligned")
        for i, register in enumerate(registers):
            value = np.zeros(self.count, f"u{size}")
            if not loads:
                value = self.get(register, {1: U16, 2: U16, 4: U32, 8: U64}[size]).astype(f"u{size}")
            (self.touch_shared if space == "shared" else self.touch_global)(op, at + i * size, value, loads, size)
            if loads:
                self.put(register, value)

    def touch_shared(self, op: str, at: Any, value: Any, loads: bool, size: int) -> None:
        on = self.on
        if on.any() and (at[on].min() < 0 or at[on].max() + size > self.shared_bytes):
            raise Fault(f"{op}: shared memory overrun")
        for b in range(size):
            if loads:
                value[on] |= self.shared[self.block[on], at[on] + b].astype(value.dtype) << value.dtype.type(8 * b)
            else:
                self.shared[self.block[on], at[on] + b] = (value[on] >> value.dtype.type(8 * b)).astype(np.uint8)

    def touch_global(self, op: str, at: Any, value: Any, loads: bool, size: int) -> None:
        done = np.zeros(self.count, bool)
        for low, high, buffer in self.buffers:
            mine = self.on & (at >= low) & (at + size <= high)
            if not mine.any():
                continue
            done |= mine
            offset = at[mine] - low
            for b in range(size):
                if loads:
                    value[mine] |= buffer[offset + b].astype(value.dtype) << value.dtype.type(8 * b)
                else:
                    buffer[offset + b] = (value[mine] >> value.dtype.type(8 * b)).astype(np.uint8)
        if (self.on & ~done).any():
            raise Fault(f"{op}: outside every buffer")

    # Instructions.

    def step(self, op: str, a: list[str]) -> None:
        parts = op.split(".")
        head, last = parts[0], parts[-1]
        if head in ("ld", "st"):
            self.parameter(last, a) if parts[1] == "param" else self.memory(op, a)
        elif head == "bra":
            self.pc[self.on] = self.labels[a[0]]
        elif head == "ret":
            self.pc[self.on] = len(self.program)
        elif head in warps.TOGETHER:
            warps.together(self, op, parts, a, TYPES)
        elif head == "bar":
            warps.expect_whole_warps(self, op)
        elif head == "atom":
            warps.add_atomically(self, op, parts, a)
        elif last == "pred":
            self.predicate(op, head, a)
        elif head == "setp":
            self.compare(op, parts, a)
        elif head == "selp":
            kind = {"f32": U32, "f64": U64}.get(last, TYPES[last])
            self.put(a[0], np.where(self.predicate_of(a[3]), self.get(a[1], kind), self.get(a[2], kind)))
        elif head == "mov":
            self.move(last, a)
        elif head == "cvt":
            self.convert(op, parts, a)
        elif last in FLOATS:
            self.real(op, parts, a)
        else:
            self.integer(op, parts, a)

    def parameter(self, kind: str, a: list[str]) -> None:
        size = np.dtype(TYPES[kind]).itemsize
        self.put(a[0], np.full(self.count, self.values[a[1].strip("[]")] & ((1 << 8 * size) - 1), f"u{size}"))

    def move(self, last: str, a: list[str]) -> None:
        if a[1][0] == "{":  # several registers become one
            low, high = (self.get(part.strip(), U32).astype(U64) for part in a[1].strip("{} ").split(","))
            half = np.dtype(TYPES[last]).itemsize * 4
            self.put(a[0], ((high << U64(half)) | (low & U64((1 << half) - 1))).astype(TYPES[last]))
        elif a[0][0] == "{":
            half = np.dtype(TYPES[last]).itemsize * 4
            value = self.get(a[1], TYPES[last]).astype(U64)
            for at, part in enumerate(a[0].strip("{} ").split(",")):
                if part.strip() != "_":
                    self.put(part.strip(), ((value >> U64(half * at)) & U64((1 << half) - 1)).astype(f"u{half // 8}"))
        else:
            self.put(a[0], self.get(a[1], TYPES[last]))

    def predicate_of(self, text: str) -> Any:
        if text in ("0", "-1", "1"):
            return np.full(self.count, text != "0")
        return self.reg[text]

    def predicate(self, op: str, head: str, a: list[str]) -> None:
        given = [self.predicate_of(text) for text in a[1:]]
        if head == "mov":
            self.put(a[0], given[0])
        elif head == "not":
            self.put(a[0], ~given[0])
        elif head in ("and", "or", "xor"):
            self.put(a[0], TWO[head](*given))
        else:
            raise Fault(f"{op} is not emulated")

    def compare(self, op: str, parts: list[str], a: list[str]) -> None:
        x, y = (self.get(t, TYPES[parts[-1]]) for t in a[1:3])
        how = parts[1]
        unordered = parts[-1] in FLOATS and how.endswith("u") and how[:-1] in COMPARE
        if len(parts) != 3 or (how not in COMPARE and not unordered) or (how == "ne" and parts[-1] in FLOATS):
            raise Fault(f"{op} is not emulated")
        found = COMPARE[how[:-1] if unordered else how](x, y)
        self.put(a[0], found | np.isnan(x) | np.isnan(y) if unordered else found)

    def real(self, op: str, parts: list[str], a: list[str]) -> None:
        kind = TYPES[parts[-1]]
        x = [self.get(t, kind) for t in a[1:]]
        if parts[1:-1] == ["rn"] and parts[0] in ("add", "sub", "mul", "div"):
            value = canonical(TWO[parts[0]](*x))
        elif op in ("add.f32", "sub.f32", "mul.f32", "add.f64", "sub.f64", "mul.f64", "fma.rn.f32", "fma.rn.f64"):
            raise Fault(f"{op}: ptxas may fuse it, or it is fused; compile with enable_fp_fusion=False")
        elif parts[0] in ("abs", "neg") and len(parts) == 2:
            u, top = (U32, 31) if kind is F32 else (U64, 63)
            sign = u(1) << u(top)
            value = (x[0].view(u) & ~sign if parts[0] == "abs" else x[0].view(u) ^ sign).view(kind)
        elif parts[0] in ("max", "min") and len(parts) == 2:  # of a number and NaN, the number
            value = canonical((np.fmax if parts[0] == "max" else np.fmin)(*x))
        elif parts[0] in ("max", "min") and parts[1] == "NaN":
            value = canonical((np.maximum if parts[0] == "max" else np.minimum)(*x))
        elif parts[:2] == ["sqrt", "rn"]:
            value = canonical(np.sqrt(x[0]))
        else:
            raise Fault(f"{op} is not emulated (approximate, flushing or unknown)")
        self.put(a[0], value)

    def integer(self, op: str, parts: list[str], a: list[str]) -> None:
        head, kind = parts[0], TYPES[parts[-1]]
        if head in ("shl", "shr"):
            self.shift(head, kind, a)
        elif op == "prmt.b32":
            self.permute(a)
        elif head == "bfe":
            self.extract(kind, a)
        elif op == "bfi.b32":
            self.insert(a)
        elif head == "popc":
            bits = np.unpackbits(self.get(a[1], kind).view(np.uint8).reshape(self.count, -1), axis=1)
            self.put(a[0], bits.sum(1).astype(U32))
        elif parts[1:2] == ["wide"]:
            wide = np.int64 if kind is np.int32 else U64
            x, y = (self.get(t, kind).astype(wide) for t in a[1:3])
            value = (x * y).view(U64)
            self.put(a[0], value + self.get(a[3], U64) if head == "mad" else value)
        else:
            self.arithmetic(op, parts, a)

    def arithmetic(self, op: str, parts: list[str], a: list[str]) -> None:
        head, kind = parts[0], TYPES[parts[-1]]
        x = [self.get(t, kind) for t in a[1:]]
        if head in ("mul", "mad"):
            if parts[1] != "lo":
                raise Fault(f"{op} is not emulated")
            value = x[0] * x[1] + (x[2] if head == "mad" else kind(0))
        elif head in ("not", "neg"):
            value = ~x[0] if head == "not" else -x[0]
        elif head in ("div", "rem"):
            divisor = np.where(x[1] == 0, kind(1), x[1])
            quotient = np.where(
                (x[0] < 0) ^ (divisor < 0), -(np.abs(x[0]) // np.abs(divisor)), np.abs(x[0]) // np.abs(divisor)
            )
            value = (quotient if head == "div" else x[0] - quotient * divisor).astype(kind)
        elif head in TWO and len(parts) == 2:
            value = TWO[head](x[0], x[1])
        else:
            raise Fault(f"{op} is not emulated")
        self.put(a[0], value)

    def shift(self, head: str, kind: Any, a: list[str]) -> None:
        x, size = self.get(a[1], kind), 8 * np.dtype(kind).itemsize
        n = np.minimum(self.get(a[2], U32).astype(np.int64), size)
        held = np.minimum(n, size - 1)
        if head == "shl":
            value = np.where(n < size, x.view(f"u{size // 8}") << held.astype(f"u{size // 8}"), 0)
        elif np.dtype(kind).kind == "i":
            value = x >> held.astype(kind)
        else:
            value = np.where(n < size, x >> held.astype(kind), 0)
        self.put(a[0], value.astype(kind if head == "shr" else f"u{size // 8}"))

    def extract(self, kind: Any, a: list[str]) -> None:
        x = self.get(a[1], U32).astype(U64)
        at, n = (self.get(t, U32).astype(U64) & U64(255) for t in a[2:4])
        field = (x >> np.minimum(at, U64(63))) & ((U64(1) << np.minimum(n, U64(32))) - U64(1))
        if kind is np.int32:  # the top bit of the field is its sign
            sign = (U64(1) << np.maximum(n, U64(1)) - U64(1)) & np.where(n > 0, U64(2**64 - 1), U64(0))
            field = (field ^ sign) - sign
        self.put(a[0], field.astype(U32))

    def insert(self, a: list[str]) -> None:
        x, into = (self.get(t, U32).astype(U64) for t in a[1:3])
        at, n = (self.get(t, U32).astype(U64) & U64(255) for t in a[3:5])
        field = (((U64(1) << np.minimum(n, U64(32))) - U64(1)) << np.minimum(at, U64(31))) & U64(0xFFFFFFFF)
        self.put(a[0], ((into & ~field) | ((x << np.minimum(at, U64(31))) & field)).astype(U32))

    def permute(self, a: list[str]) -> None:
        x, y, s = (self.get(t, U32).astype(U64) for t in a[1:4])
        both, value = x | (y << U64(32)), np.zeros(self.count, U64)
        for i in range(4):
            pick = (s >> U64(4 * i)) & U64(15)
            byte = (both >> ((pick & U64(7)) * U64(8))) & U64(255)
            byte = np.where(pick & U64(8), np.where(byte & U64(128), U64(255), U64(0)), byte)
            value |= byte << U64(8 * i)
        self.put(a[0], value.astype(U32))

    def convert(self, op: str, parts: list[str], a: list[str]) -> None:
        to, source = parts[-2], parts[-1]
        rounding = parts[1:-2]
        x = self.get(a[1], TYPES[source])
        if (to in FLOATS and source not in FLOATS and rounding == ["rn"]) or (to, source) == ("f64", "f32"):
            value = x.astype(TYPES[to])
        elif (to, source, rounding) == ("f32", "f64", ["rn"]):
            value = canonical(x.astype(F32))
        elif op == "cvt.rzi.f32.f32":
            value = canonical(np.trunc(x))
        elif op == "cvt.rzi.s32.f32":
            wide = np.where(np.isnan(x), 0, x).astype(F64)
            value = np.clip(np.trunc(wide), -(2**31), 2**31 - 1).astype(np.int32)
        elif not rounding and to not in FLOATS and source not in FLOATS:
            value = x.astype(TYPES[to])
        else:
            raise Fault(f"{op} is not emulated")
        self.put(a[0], value)


def canonical(value: Any) -> Any:
    """NVIDIA's arithmetic gives one NaN."""
    if value.dtype == F64:
        return np.where(np.isnan(value), np.array(0x7FFFFFFFFFFFFFFF, U64).view(F64), value)
    return np.where(np.isnan(value), np.array(0x7FFFFFFF, U32).view(F32), value.astype(F32))
