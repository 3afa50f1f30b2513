"""`thinwire advise`: will compression pay, with what, and how much."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire.cli.unknown import unknown_option

if TYPE_CHECKING:
    from thinwire.planner.profile import Link, Profile


def advise(
    ctx: typer.Context,
    script: Annotated[
        list[str] | None, typer.Argument(help="Your script and its arguments, or -m and a module.", show_default=False)
    ] = None,
    parameters: Annotated[str | None, typer.Option(help="Describe a model: its parameters, such as 125M.")] = None,
    shapes: Annotated[
        Path | None, typer.Option(help="Describe a model: a JSON file of names and shapes of parameters.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Describe a model: a recipe of thinwire-lab.")] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile that --save wrote; nothing is measured.")] = None,
    hosts: Annotated[int | None, typer.Option(help="Predict for so many hosts.", min=2)] = None,
    ranks_per_host: Annotated[int, typer.Option(help="Ranks on each host, which share its link.", min=1)] = 1,
    link: Annotated[str | None, typer.Option(help="Predict for links of this rate, such as 1gbit.")] = None,
    latency: Annotated[str, typer.Option(help="Time of a packet from one host to another, with --link.")] = "0.1ms",
    backward: Annotated[str, typer.Option(help="Time of a backward pass, for a described model.")] = "100ms",
    dtype: Annotated[
        str, typer.Option(help="Type of the gradients of a described model: float32, bfloat16, float16.")
    ] = "float32",
    quality: Annotated[str, typer.Option(help="How much a codec may lose: safe, balanced, bold.")] = "safe",
    codecs: Annotated[str | None, typer.Option(help="Codecs to compare, separated by semicolons.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of the script to look at.", min=3)] = 10,
    procs: Annotated[int, typer.Option(help="Processes for the script, where torchrun has not started it.", min=2)] = 2,
    save: Annotated[Path | None, typer.Option(help="Write the profile to this file.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page of plots to this file (thinwire-lab).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether compression would make training faster, with which codec, and by how much.

    With a script: runs it for some steps without changing what it does, measures the link, the model and the codecs,
    and stops it. Under torchrun it measures the cluster it runs on; otherwise it starts processes on this machine.
    With --parameters, --shapes or --recipe: predicts from a description, with codecs timed on this machine.
    With --profile: from figures measured before.

    Examples:

      thinwire advise -- train.py --epochs 1

      thinwire advise --hosts 16 --link 1gbit -- train.py

      torchrun --nnodes 4 ... -m thinwire advise -- train.py

      thinwire advise --parameters 125M --hosts 16 --link 1gbit --latency 20ms --backward 400ms
    """
    from thinwire.errors import CodecError

    argv = [*(script or []), *ctx.args]
    if argv and argv[0] != "--" and (wrong := unknown_option(ctx, argv[0])) is not None:
        raise CodecError(wrong)
    argv = argv[1:] if argv[:1] == ["--"] else argv
    given = [name for name, value in _sources(argv, parameters, shapes, recipe, profile).items() if value]
    if len(given) != 1:
        told = f"got {' and '.join(given)}" if given else "got none of them"
        raise CodecError(f"give one of a script, --parameters, --shapes, --recipe and --profile; {told}.")
    _check_files(argv, shapes, profile)
    if argv and "WORLD_SIZE" not in os.environ:
        raise typer.Exit(_start(procs))
    candidates = None if codecs is None else [text.strip() for text in codecs.split(";") if text.strip()]
    wanted = None if link is None else (link, latency, hosts, ranks_per_host)
    if argv:
        from thinwire.planner.script import profile_of_script

        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what the script prints is no JSON
            found = profile_of_script(argv, steps, candidates)
    elif profile is not None:
        from thinwire.planner.reading import load_profile

        found = load_profile(profile)
    else:
        found = _described(parameters, shapes, recipe, wanted, backward, dtype, candidates)
    if int(os.environ.get("RANK", "0")) == 0:
        elsewhere = found if not argv and profile is None else _elsewhere(found, wanted, hosts, ranks_per_host)
        _tell(elsewhere, quality, candidates if profile is not None else None, save, page, as_json)


def _sources(
    argv: list[str], parameters: str | None, shapes: Path | None, recipe: str | None, profile: Path | None
) -> dict[str, Any]:
    described = {"--parameters": parameters, "--shapes": shapes, "--recipe": recipe}
    return {"a script": argv, **described, "--profile": profile}


def _check_files(argv: list[str], shapes: Path | None, profile: Path | None) -> None:
    """Refuse files that are not there before any process is started."""
    from thinwire.errors import CodecError

    script = Path(argv[0]) if argv and argv[0] != "-m" else None
    for what, path in (("a script", script), ("--shapes", shapes), ("--profile", profile)):
        if path is not None and not path.is_file():
            raise CodecError(f"{what} must be a file; there is none at {path}.")


def _start(procs: int) -> int:
    """The same command in so many processes of this machine."""
    typer.echo(
        f"thinwire: starting {procs} processes on this machine; under torchrun, a cluster is measured.", err=True
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={procs}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run([*launcher, "-m", "thinwire", *sys.argv[1:]], env=environment).returncode


def _link(wanted: tuple[str, str, int | None, int], ranks: int) -> "Link":
    from thinwire.planner.describe import parse_rate, parse_seconds
    from thinwire.planner.profile import Link

    rate, latency, hosts, per_host = wanted
    count = ranks if hosts is None else hosts * per_host
    return Link.described(parse_rate(rate), parse_seconds(latency), count, min(per_host, count))


def _described(
    parameters: str | None,
    shapes: Path | None,
    recipe: str | None,
    wanted: tuple[str, str, int | None, int] | None,
    backward: str,
    dtype: str,
    candidates: list[str] | None,
) -> "Profile":
    from thinwire.errors import CodecError
    from thinwire.planner.describe import (
        described_model,
        described_profile,
        parse_count,
        parse_seconds,
        read_shapes,
        shapes_of,
    )

    if wanted is None or wanted[2] is None:
        raise CodecError("a described model needs a described network: give --hosts and --link.")
    if recipe is not None:
        described = _shapes_of_recipe(recipe)
    else:
        described = read_shapes(shapes) if shapes is not None else shapes_of(parse_count(parameters or ""))
    model = described_model(described, parse_seconds(backward), dtype=dtype)
    typer.echo("thinwire: timing codecs on this machine, on made-up gradients.", err=True)
    return described_profile(model, _link(wanted, 2), candidates, wanted[3])


def _shapes_of_recipe(name: str) -> dict[str, tuple[int, ...]]:
    from thinwire.cli.installed import lab_module

    found: dict[str, tuple[int, ...]] = lab_module("recipes.shapes", "--recipe").shapes_of_recipe(name)
    return found


def _elsewhere(
    profile: "Profile", wanted: tuple[str, str, int | None, int] | None, hosts: int | None, per_host: int
) -> "Profile":
    """The same training on the link, or among the ranks, that options describe."""
    from thinwire.planner.describe import on_link

    if wanted is not None:
        return on_link(profile, _link(wanted, profile.ranks))
    return profile if hosts is None else replace(profile, ranks=hosts * per_host)


def _tell(
    profile: "Profile",
    quality: str,
    codecs: list[str] | None,
    save: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    from thinwire.planner.advice import advice_on

    advice = advice_on(profile, quality, codecs)
    if save is not None:
        profile.save(save)
    if page is not None:
        from thinwire.cli.installed import lab_module

        lab_module("report.advice", "--page").write_page(advice, page)
    typer.echo(json.dumps(advice.to_dict()) if as_json else str(advice))
