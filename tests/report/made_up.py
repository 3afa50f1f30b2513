"""Results as a comparison would leave them, made up: four hosts at 100 Mbit/s, a small VGG, every codec its own way."""

import math
import random
from dataclasses import dataclass
from pathlib import Path

from thinwire_lab.report.record import Eval, Layer, Layers, Record, Run, Step, Summary, Writer

PARAMETERS = 1_150_000
RING_BYTES = 2 * 3 / 4 * 4 * PARAMETERS
LINK_BYTES = 100e6 / 8 * 0.95
COMPUTE_SECONDS = 0.16
LAYERS = (
    *(
        (f"features.{3 * i}.weight", [w, v, 3, 3])
        for i, (v, w) in enumerate([(1, 32), (32, 64), (64, 128), (128, 128)])
    ),
    *((f"features.{3 * i}.bias", [w]) for i, w in enumerate([32, 64, 128, 128])),
    ("classifier.0.weight", [256, 3200]),
    ("classifier.0.bias", [256]),
    ("classifier.2.weight", [10, 256]),
    ("classifier.2.bias", [10]),
)


@dataclass(frozen=True)
class Way:
    """How one codec behaves."""

    label: str
    codec: str
    ratio: float
    work: float  # seconds of encoding and decoding
    error: float
    slack: float = 0.0  # accuracy it costs
    baseline: bool = False


WAYS = (
    Way("none", "none", 1, 0.0, 0.0),
    Way("fp16", "fp16", 2, 0.004, 2.4e-4),
    Way("qsgd", "qsgd(bits=4, bucket=512)", 6.9, 0.02, 0.31, 0.002),
    Way("nuqsgd", "nuqsgd(bits=4, bucket=512) | huffman", 8.8, 0.045, 0.28, 0.001),
    Way("gradiveq", "ef | pca(ratio=8) | qsgd(bits=8)", 21, 0.03, 0.42, 0.006),
    Way("fftsgd", "ef | fft(keep=0.15) | rangefloat(bits=8)", 12.4, 0.11, 0.37, 0.004),
    Way("adacomp", "ef | adacomp(bin=50) | indices | elias", 30, 1.4, 0.71, 0.021),
    Way("torch-fp16", "torch-fp16", 2, 0.002, 2.4e-4, baseline=True),
)


def run_of(way: Way, seed: int, steps: int) -> Run:
    return Run(
        run=f"{way.label} #{seed}",
        label=way.label,
        codec=way.codec,
        baseline=way.baseline,
        seed=seed,
        hosts=4,
        procs_per_host=1,
        ranks=4,
        link="100mbit",
        latency="0ms",
        recipe={"name": "fashion-vgg", "model": "vgg", "batch": 32, "steps": steps, "lr": 0.05},
        parameters=PARAMETERS,
        target_accuracy=0.85,
        command="thinwire compare --hosts 4 --link 100mbit --seeds 2 --codecs " + ",".join(way.label for way in WAYS),
        versions={"thinwire": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        machine={
            "system": "Linux 6.1",
            "processor": "a processor",
            "cores": 2,
            "memory_bytes": 8 << 30,
            "native": True,
        },
        started="2026-01-02T03:04:05+00:00",
    )


def made_up_run(way: Way, seed: int, steps: int, evals: bool = True) -> list[Record]:
    """The records of one run that ended well."""
    chance = random.Random(f"{way.label} {seed}")
    run = run_of(way, seed, steps)
    sent = RING_BYTES / way.ratio
    wire = 2 * sent / LINK_BYTES
    exposed = max(0.01, wire + way.work - 0.05)
    records: list[Record] = [run]
    clock, total, losses, accuracy, reached = 0.0, 0, [], 0.0, None
    for step in range(1, steps + 1):
        took = (COMPUTE_SECONDS + exposed) * chance.uniform(0.95, 1.08)
        clock, total = clock + took, total + int(sent)
        losses.append((0.42 + 1.9 * math.exp(-step / 60) + way.slack) * chance.uniform(0.85, 1.15))
        parts = (None, None, None) if way.baseline else (way.work * 0.6, wire, way.work * 0.4)
        records.append(Step(
            run=run.run, step=step, loss=losses[-1], seconds=clock, step_seconds=took, bytes_sent=int(sent),
            bytes_total=total, encode_seconds=parts[0], communicate_seconds=parts[1], decode_seconds=parts[2],
            exposed_seconds=None if way.baseline else exposed, relative_error=way.error if step % 10 == 0 else None,
        ))  # fmt: skip
        if evals and (step % 20 == 0 or step == steps):
            accuracy = (0.885 - way.slack - 0.75 * math.exp(-step / 45)) + chance.uniform(-0.003, 0.003)
            reached = clock if reached is None and accuracy >= 0.85 else reached
            records.append(Eval(
                run=run.run, step=step, seconds=clock, bytes_total=total, accuracy=accuracy, loss=1.2 - accuracy,
            ))  # fmt: skip
    if not way.baseline:
        records.append(Layers(run=run.run, layers=[made_up_layer(way, *layer, chance) for layer in LAYERS]))
    step_seconds = COMPUTE_SECONDS + exposed
    records.append(Summary(
        run=run.run, label=way.label, seed=seed, steps=steps, seconds=clock, step_seconds=step_seconds,
        samples_per_second=128 / step_seconds, bytes_per_step=sent, wire_ratio=way.ratio,
        compute_seconds=None if way.baseline else COMPUTE_SECONDS, encode_seconds=parts[0],
        communicate_seconds=parts[1], decode_seconds=parts[2], exposed_seconds=None if way.baseline else exposed,
        relative_error=way.error, train_loss=losses[-1], test_loss=1.2 - accuracy if evals else None,
        accuracy=accuracy if evals else None, target_accuracy=0.85, seconds_to_target=reached,
    ))  # fmt: skip
    return records


def made_up_layer(way: Way, name: str, shape: list[int], chance: random.Random) -> Layer:
    """Small layers travel as they are, as the plan of a real run has it."""
    numel = math.prod(shape)
    alone = numel < 1000 or way.label == "none"
    ratio = 1.0 if alone else way.ratio * chance.uniform(0.7, 1.3)
    return Layer(
        name=name,
        shape=shape,
        numel=numel,
        codec="none" if alone else way.codec,
        why="small" if alone else "default",
        wire_bytes=int(6 * numel / ratio),
        wire_ratio=ratio,
        relative_error=0.0 if alone else way.error * chance.uniform(0.6, 1.2),
    )


def failed_run(label: str, error: str) -> list[Record]:
    """A run that came to nothing after its start."""
    run = run_of(Way(label, label, 1, 0, 0), 0, 100)
    return [run, Summary(run=run.run, label=label, seed=0, error=error)]


def write_results(
    path: Path,
    ways: tuple[Way, ...] = WAYS,
    *,
    seeds: int = 2,
    steps: int = 100,
    evals: bool = True,
    extra: list[Record] | None = None,
) -> Path:
    with Writer(path) as writer:
        for seed in range(seeds):
            for way in ways:
                for record in made_up_run(way, seed, steps, evals):
                    writer.write(record)
        for record in extra or []:
            writer.write(record)
    return path
