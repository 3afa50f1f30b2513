"""What `auto` has decided in a comparison, and why: a table for the page and for Markdown."""

from collections.abc import Sequence
from html import escape

from thinwire_lab.report.contenders import Contender
from thinwire_lab.report.record import Decision
from thinwire_lab.report.wording import show_percent, show_seconds

COLUMNS = ("Run", "After step", "Plan", "Plain step", "Added by the network", "Tried", "Why")
_LONGEST = 60  # characters of a plan that are shown; those by layer have a rule for each


def decision_rows(contenders: Sequence[Contender]) -> list[list[str]]:
    """One row for each decision, in the order in which they were made."""
    logs = [log for c in contenders for log in c.logs]
    return [[log.run.run, *_cells(decision)] for log in logs for decision in log.decisions]


def _cells(decision: Decision) -> list[str]:
    tried = ", ".join(f"{shown_plan(plan)} {show_seconds(took)}" for plan, took in decision.measured.items())
    plain, share = show_seconds(decision.plain_seconds), show_percent(decision.network_share)
    return [str(decision.step), shown_plan(decision.plan), plain, share, tried or "nothing", decision.reason]


def shown_plan(plan: str) -> str:
    return plan if len(plan) <= _LONGEST else f"{plan[: _LONGEST - 3]}..."


def decisions_html(contenders: Sequence[Contender]) -> str:
    """The table; empty if nobody has decided anything."""
    rows = decision_rows(contenders)
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    table = (
        f"<table><caption>Decisions of auto</caption><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    )
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Decisions of auto">{table}</div>'


def decisions_markdown(contenders: Sequence[Contender]) -> list[str]:
    """The section; empty if nobody has decided anything."""
    rows = decision_rows(contenders)
    if not rows:
        return []
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    lines += [[f"`{row[0]}`", row[1], f"`{row[2]}`", *row[3:]] for row in rows]
    table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return ["## What auto decided", table]
