"""Compares the speed of the working tree with that of another revision, in one run.

python benchmarks/against.py REV [--only kernels,averages,steps] [--row TITLE] [--rounds 7] [--quick] [-o record.json]

Both are built and installed, and then measured in turns. See benchmarks/README.md. The exit code is 0 whatever the
ratios are.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the command may be called from any folder

from rich.console import Console

from benchmarks.revisions.cases import PARTS, Case, chosen_cases
from benchmarks.revisions.installing import RevisionError, installed, named_revision, working_tree
from benchmarks.revisions.sides import NEW, OLD, MeasuringError, measure
from benchmarks.revisions.table import comparison_table, record, summary

ROUNDS, QUICK_ROUNDS = 7, 3  # odd: see `measure_row`
WIDTH = 400  # characters: more than the table takes, so that no cell is cut


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; what is wrong is said before anything is built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", metavar="REV", help="a commit, branch or tag of this repository")
    parser.add_argument("--only", type=_parts, default=PARTS, help="parts to measure, with commas: " + ",".join(PARTS))
    parser.add_argument("--row", action="append", help="a part of the titles of the rows to measure; may be repeated")
    parser.add_argument("--rounds", type=_rounds, help=f"samples of each side ({ROUNDS}; {QUICK_ROUNDS} if quick)")
    parser.add_argument("--quick", action="store_true", help="fewer codecs, rounds and models")
    parser.add_argument("-o", "--output", type=_output, help="a file of JSON for the record of this run")
    chosen = parser.parse_args(arguments)
    chosen.rounds = chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS)
    return chosen


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts or not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"parts are {', '.join(PARTS)}, with commas between them, not {text!r}.")
    return parts


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"rounds are a whole number of at least 1, not {text!r}.")
    return int(text)


def _output(text: str) -> Path:
    if not Path(text).resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"the record goes into a folder that exists, and that of {text!r} does not.")
    return Path(text)


def titled_cases(cases: list[Case], texts: Sequence[str] | None) -> list[Case]:
    """The cases with one of these texts in their titles, or all; a text that is in no title is refused."""
    if texts is None:
        return cases
    for text in texts:
        if not any(text in case.title for case in cases):
            raise SystemExit(f"against.py: no row has {text!r} in its title, such as {cases[0].title!r}.")
    return [case for case in cases if any(text in case.title for text in texts)]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parse(arguments)
    cases = titled_cases(chosen_cases(chosen.only, chosen.quick), chosen.row)
    try:
        revisions = {OLD: named_revision(chosen.revision), NEW: working_tree()}
        pythons = {side: installed(revision) for side, revision in revisions.items()}
        print(f"old: {revisions[OLD].title}; new: {revisions[NEW].title}")
        if pythons[OLD] == pythons[NEW]:
            print("the same is built from both: all differences are noise.")
        rows = measure(cases, pythons, chosen.rounds, tell=lambda title: print(f"  {title}", file=sys.stderr))
    except (RevisionError, MeasuringError) as error:
        raise SystemExit(f"against.py: {error}") from error
    Console(width=WIDTH).print(comparison_table(rows))
    print(*summary(rows), sep="\n")
    if chosen.output is not None:
        options = {"only": list(chosen.only), "row": chosen.row, "rounds": chosen.rounds, "quick": chosen.quick}
        text = json.dumps(record(rows, revisions, options), indent=1, ensure_ascii=False)
        chosen.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
