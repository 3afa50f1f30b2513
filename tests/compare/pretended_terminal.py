"""Run in a pseudo-terminal by test_terminal.py: a comparison with made-up records, shown by the real command's code.

python -m tests.compare.pretended_terminal
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.compare.test_session import COMPARISON
from tests.report.test_record import a_run, a_step, an_end
from thinwire_lab.cli.compare import _run, _show
from thinwire_lab.compare.contenders import parse_contenders
from thinwire_lab.compare.session import Comparison
from thinwire_lab.lab import LabSpec
from thinwire_lab.report.record import Eval

CHAINS = (
    "none",
    "qsgd",
    "gradiveq(warmup=2, sample=4, travel='qsgd(bits=8)')",
    "iwp(density=1/16, warmup=20, momentum=0.9)",
    "iwp(density=1/64, warmup=20, momentum=0.9)",
    "topk(density=0.01) | rangefloat(bits=8) | huffman",
    "torch-powersgd",
)
TIMED = Comparison(
    contenders=parse_contenders(["; ".join(CHAINS)]),
    recipe=COMPARISON.recipe,
    recipe_name="fashion-vgg",
    lab=LabSpec(hosts=4, links="100mbit"),
    seconds=20.0,
    target=0.7,
    guess=0.1,
)


class PretendedSession:
    """Tells the records of all runs, with a moment in between for the live table."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, watch: Any) -> None:
        for place, contender in enumerate(TIMED.contenders):
            label, accuracy = contender.text, 0.5 + 0.03 * place
            by_time: dict[str, Any] = {
                "mode": "seconds",
                "seconds": 20.0,
                "target_accuracy": 0.7,
                "guess_accuracy": 0.1,
            }
            watch(a_run(label, **by_time))
            step = replace(a_step(f"{label} #0", 113), seconds=12.5, bytes_sent=1_080_000, step_seconds=0.178)
            watch(step)
            watch(Eval(run=step.run, step=113, seconds=12.5, bytes_total=1, accuracy=accuracy, loss=1.0))
            time.sleep(0.3)  # longer than a frame
            figures: dict[str, Any] = {
                "seconds": 20.1,
                "step_seconds": 0.178,
                "bytes_per_step": 1.08e6,
                "wire_ratio": 7.76,
            }
            watch(an_end(label, steps=100 + place, accuracy=accuracy if place != 5 else 0.12, **figures))


if __name__ == "__main__":
    results = Path("r.jsonl")  # which is only named, never written
    logs = _run(PretendedSession(results), TIMED, quiet=False)  # type: ignore[arg-type]
    _show(logs, TIMED, results, as_json=False)
