"""The paper's comparison of aggregation times, by `thinwire bench aggregation`, as a section of docs/claims.md.

python -m benchmarks.claims.aggregation [--results docs/results/aggregation.jsonl] [--page docs/claims.md]

It replaces the section in the page, and leaves the rest of it alone.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims.findings import UNMEASURED, Figures, verdict
from benchmarks.claims.page import table
from thinwire_lab.bench.aggregation import HOPS, RING, SHARDED
from thinwire_lab.report.jsonl import RecordError, build, line_error, read_lines

TITLE = "Aggregation time of GradiVeQ and QSGD"
COMMAND = "thinwire bench aggregation -o docs/results/aggregation.jsonl"
RESULTS = Path("docs/results/aggregation.jsonl")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One way on one kind of link."""

    way: str
    codec: str
    link: str
    ranks: int
    numel: int
    seconds: float
    plain_seconds: float
    bytes_sent: int


def aggregation_text(path: Path) -> str:
    """The section's text: the times, and where the paper's order holds."""
    claim = (
        "The paper reports aggregation 5.25 times as fast as fp32 at ratio 8, and almost twice that time for 4-bit"
        " QSGD, which decodes, adds and encodes at every hop of its ring."
    )
    if not path.is_file():
        return f"{claim} Not measured yet: `{COMMAND}`."
    rows = _read(path)
    shown = [
        [r.link, r.way, f"`{r.codec}`", f"{1e3 * r.seconds:.1f}", f"{r.plain_seconds / r.seconds:.2f}",
         f"{r.bytes_sent:,}"] for r in rows
    ]  # fmt: skip
    header = ("link", "way", "chain", "ms", "times as fast as fp32", "bytes of a rank")
    found = [sentence(link, {way: r.seconds for way, r in times.items()}) for link, times in _by_link(rows).items()]
    about = f"{rows[0].ranks} hosts, {rows[0].numel:,} numbers, all ways in turns in one run (`{COMMAND}`):"
    return "\n\n".join([claim, about, table(Figures("", header, shown)), "\n".join(f"- {each}" for each in found)])


def sentence(link: str, seconds: Mapping[str, float]) -> str:
    """Where the paper's order holds on this link, and which QSGD is faster than the paper's."""
    hops, shards = seconds[HOPS] / seconds[RING], seconds[SHARDED] / seconds[RING]
    order = "the paper's order holds" if hops > 1 else "the paper's order does not hold"
    ours = "faster" if shards < 1 else "slower"
    return (
        f"{link}: {order}: QSGD encoded at every hop takes {hops:.2f} times as long as GradiVeQ in the ring. Sharded"
        f" QSGD takes {shards:.2f} times as long: it is {ours} than GradiVeQ's ring, and {hops / shards:.2f} times as"
        " fast as the paper's QSGD."
    )


def order_of_times(path: Path) -> tuple[str, str]:
    """For the table of claims: how long the ways take, and whether GradiVeQ's ring is faster than QSGD, and which."""
    if not path.is_file():
        return "times are not measured", UNMEASURED
    found, cases = [], []
    for link, times in _by_link(_read(path)).items():
        ring, hops, shards = (times[way].seconds for way in (RING, HOPS, SHARDED))
        faster = times[RING].plain_seconds / ring
        found.append(
            f"{link}: {faster:.2f} times as fast as fp32; QSGD at every hop takes {hops / ring:.2f} times as long,"
            f" sharded QSGD {shards / ring:.2f} times"
        )
        cases += [hops > ring, shards > ring]
    return "; ".join(found), verdict(cases)


def _by_link(rows: Sequence[Timed]) -> dict[str, dict[str, Timed]]:
    return {link: {r.way: r for r in rows if r.link == link} for link in dict.fromkeys(r.link for r in rows)}


def _read(path: Path) -> list[Timed]:
    rows = []
    for number, record in read_lines(path, COMMAND):
        if isinstance(record, dict) and record.get("kind") == "aggregation":
            try:
                rows.append(build(Timed, record))
            except RecordError as reason:
                raise line_error(path, number, reason, COMMAND) from None
    for link in {row.link for row in rows} or {"any link"}:
        ways = {row.way for row in rows if row.link == link and row.seconds > 0}
        if not {RING, HOPS, SHARDED} <= ways:
            raise RecordError(f"{path}: not all ways were timed on {link}; run {COMMAND} again.")
    return rows


def replaced(page: str, text: str) -> str:
    """The page with this text as its section; a page that has none gets it behind "Convergence"."""
    sections = [section for section in page.split("\n## ") if not section.startswith(f"{TITLE}\n")]
    at = next((i + 1 for i, section in enumerate(sections) if section.startswith("Convergence\n")), len(sections))
    sections[at:at] = [f"{TITLE}\n\n{text}\n"]
    return "\n## ".join(sections)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--page", type=Path, default=Path("docs/claims.md"))
    chosen = options.parse_args()
    page = chosen.page.read_text(encoding="utf-8")
    chosen.page.write_text(replaced(page, aggregation_text(chosen.results)), encoding="utf-8")


if __name__ == "__main__":
    main()
