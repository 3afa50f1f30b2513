"""The options of `compare` that are its own."""

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.completion import complete_codec
from thinwire_lab.cli.completion import complete_baseline, complete_codecs

CodecsOption = Annotated[
    str | None,
    typer.Option(
        help="Codecs, separated by commas or semicolons outside of parentheses.", autocompletion=complete_codecs
    ),
]
MoreOption = Annotated[
    list[str] | None, typer.Option(help="One more codec; may be repeated.", autocompletion=complete_codec)
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        help="PyTorch's own ways: ddp, torch-fp16, torch-bf16, torch-powersgd(rank=4); headroom.",
        autocompletion=complete_baseline,
    ),
]
OrLoopbackOption = Annotated[
    bool, typer.Option("--or-loopback", help="Where links cannot be shaped, say so and use plain loopback.")
]
EpochsOption = Annotated[float | None, typer.Option(help="Passes over the training part, in place of --steps.")]
SecondsOption = Annotated[
    float | None,
    typer.Option(help="Train each contender for this time, as many steps as fit, in place of --steps."),
]
SeedOption = Annotated[int, typer.Option(help="The first seed of weights, batches and codecs.")]
SeedsOption = Annotated[int, typer.Option(help="Runs of every codec, each with a seed of its own.")]
TargetOption = Annotated[
    float | None, typer.Option(help="Measure the time until this accuracy (0.85 or 85) is reached.")
]
ResultsOption = Annotated[Path, typer.Option("--output", "-o", help="JSONL file of the results.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Skip the runs that are in the file already.")]
