"""`thinwire codecs`: what to choose from, and what a stage, a preset or a chain does."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from thinwire._names import OUTER_NAMES
from thinwire.cli.completion import complete_codec
from thinwire.cli.layout import columns, terminal_width, wrapped
from thinwire.errors import CodecError


class Starter(NamedTuple):
    """A codec to begin with; its ratio is that of `RATIO_SHAPE` and `RATIO_RANKS`, in the form in which it is shown."""

    chain: str
    ratio: str
    when: str


RATIO_SHAPE, RATIO_RANKS = (1024, 1024), 4
STARTERS = (
    Starter("fp16", "2.0", "half the bytes are enough; nothing to tune, keeps nothing"),
    Starter("qsgd(bits=4)", "7.9", "you compress for the first time: unbiased, keeps nothing, good for short runs too"),
    Starter("powersgd(rank=4)", "128", "most weights are in large matrices; keeps a residual"),
    Starter("gradiveq", "~8.0", "a few thousand steps and more; the first 30 are sent in 4 bits; keeps a residual"),
    Starter("fftsgd", "~18", "a few thousand steps and more; the FFT takes time; keeps a residual"),
    Starter("topk(density=1/64)", "~52", "tens of thousands of steps over a very slow link; keeps a residual"),
)
MORE = "`thinwire codecs --all` lists everything, `thinwire codecs NAME` explains one."


def codecs(
    chain: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help='A stage, a preset, or a whole chain in quotes: "topk(density=0.01) | huffman".',
            autocompletion=complete_codec,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every stage and preset.")] = False,
    numel: Annotated[int | None, typer.Option(help="Numbers of the gradient that NAME compresses.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of the gradient in place of --numel: 512,512,3,3.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks that average; 4 unless given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which codecs to start from, list all of them, or explain one.

    An explanation says what each stage does, where sums are taken, what
    travels, and how many bytes.

    Examples:

      thinwire codecs

      thinwire codecs --all

      thinwire codecs qsgd

      thinwire codecs "topk(density=0.01)" --shape 512,512,3,3 --ranks 8
    """
    _check(chain, everything, (numel, shape, ranks))
    if chain is not None:
        facts = _explained(chain.strip(), _shape(numel, shape), 4 if ranks is None else ranks)
        _print(facts, _explanation_lines(facts), as_json)
    elif everything:
        from thinwire.cli.catalogue import catalogue

        entries = catalogue()
        _print(entries, _catalogue_lines(entries), as_json)
    else:
        _print([starter._asdict() for starter in STARTERS], _starter_lines(), as_json)


def _check(chain: str | None, everything: bool, gradient: Sequence[object]) -> None:
    if chain is not None and everything:
        raise CodecError(f"--all lists all codecs and NAME explains one; leave out --all or {chain!r}.")
    if chain is None and any(option is not None for option in gradient):
        raise CodecError("--numel, --shape and --ranks are for the bytes of one codec; give its NAME too.")
    if gradient[0] is not None and gradient[1] is not None:
        raise CodecError("--numel and --shape both say how large the gradient is; give one of them.")


def _shape(numel: int | None, shape: str | None) -> tuple[int, ...]:
    if shape is None:
        extents: tuple[int, ...] = (numel,) if numel is not None else (1000, 1000)
    else:
        try:
            extents = tuple(int(part) for part in shape.replace("x", ",").split(","))
        except ValueError:
            raise CodecError(f"a shape is whole numbers with commas, not {shape!r}; write 512,512,3,3.") from None
    if any(extent < 1 for extent in extents):
        raise CodecError(f"a gradient has at least one number in each direction, not {extents}.")
    return extents


def _print(data: Any, lines: Sequence[str], as_json: bool) -> None:
    typer.echo(json.dumps(data) if as_json else "\n".join(lines))


def _starter_lines() -> list[str]:
    width, size = terminal_width(), " x ".join(map(str, RATIO_SHAPE))
    return [
        *columns([("codec", "ratio", "take it when"), *STARTERS], width, right=1),
        "",
        *wrapped(f"ratio: bytes of fp32 / bytes sent, for {size} numbers and {RATIO_RANKS} ranks; ~ varies.", width),
        *wrapped(MORE, width),
    ]


def _catalogue_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for the stages, one for the presets, and one for what other packages add."""
    titles = {
        "stage": "Stages, to be joined with |",
        "preset": "Presets: whole chains, shown below each",
        "preset of outer steps": "Outer steps, for attach_outer: codec, and ratio with the steps between",
        "installed": "From installed packages",
    }
    width, lines = terminal_width(), list[str]()
    for group, title in titles.items():
        rows = [_row(e) for e in entries if (e["kind"] if e["package"] == "thinwire" else "installed") == group]
        if rows:
            lines += [title, *columns([("name", "ratio", "what it does"), *rows], width, indent=2, right=1), ""]
    return [*lines, "`thinwire codecs NAME` explains one, with its options."]


def _row(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    ratio = "" if entry["ratio"] is None else f"{'' if entry['exact'] else '~'}{entry['ratio']:.1f}"
    package = "" if entry["package"] == "thinwire" else f"[{entry['package']}] "
    chain = f"\n= {entry['chain']}" if entry["kind"] != "stage" and entry["chain"] else ""
    return entry["name"], ratio, f"{package}{entry['does']}{chain}"


def _explained(text: str, shape: Sequence[int], ranks: int) -> dict[str, Any]:
    """The facts of a chain; for a single name also those of the stage or preset, whose example is the chain."""
    from thinwire.cli.catalogue import entry, outer_entry
    from thinwire.cli.explain import explanation

    if text in OUTER_NAMES:
        found = outer_entry(text)
        return found | explanation(found["chain"], shape, ranks)
    if text == "none" or not re.fullmatch(r"[\w-]+", text):
        return explanation(text, shape, ranks)
    found = entry(text)
    return found | (explanation(found["example"], shape, ranks) if found["example"] else {})


def _explanation_lines(facts: Mapping[str, Any]) -> list[str]:
    from thinwire.cli.explain import explanation_lines

    width = terminal_width()
    chain = explanation_lines(facts, width) if "stages" in facts else []
    if "kind" not in facts:
        return chain
    call = "attach_outer(model, optimizer" if facts["name"] in OUTER_NAMES else "attach(model"
    options = [(f"{option['name']}={option['default']}", option["help"]) for option in facts["options"]]
    example = facts["example"] or f"{facts['name']}(...)"
    return [
        f"{facts['name']}: a {facts['kind']} of {facts['package']}",
        "",
        *(line for part in facts["text"].split("\n\n") for line in (*wrapped(" ".join(part.split()), width), "")),
        *(["Options, with their defaults", *columns(options, width, indent=2), ""] if options else []),
        "Example",
        f'  thinwire.{call}, "{example}")',
        f'  thinwire compare --codecs "none; {example}"',
        *(["", "The example in detail", "", *chain] if chain else []),
    ]
