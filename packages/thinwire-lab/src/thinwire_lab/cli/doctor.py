"""What `thinwire doctor` says about thin links and reports, if this package is installed."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from thinwire.cli.doctor import Check


def examine() -> dict[str, Any]:
    """Facts by name; text, truth values, or None for what is missing."""
    from thinwire_lab.lab import why_no_thin_links
    from thinwire_lab.lab.network import PACKAGES, find_tool

    refused = why_no_thin_links()
    return {
        **{f"{tool}_command": find_tool(tool) for tool in PACKAGES},
        "thin_links": refused is None,
        "thin_links_refused": str(refused) if refused is not None else None,
        "report_plots": find_spec("matplotlib") is not None,
        "report_page": find_spec("plotly") is not None,
    }


def diagnose(facts: Mapping[str, Any]) -> list[Check]:
    """What the facts mean, with a remedy for everything that is not as it should be."""
    return [_thin_links(facts), _reports(facts)]


def _thin_links(facts: Mapping[str, Any]) -> Check:
    if facts["thin_links"]:
        return Check("thin links", "ok", "network namespaces can be made and links shaped", "thin links")
    return Check("thin links", "warning", str(facts["thin_links_refused"]), "thin links")


def _reports(facts: Mapping[str, Any]) -> Check:
    packages = {"plotly": facts["report_page"], "matplotlib": facts["report_plots"]}
    missing = [name for name, there in packages.items() if not there]
    if not missing:
        return Check("reports", "ok", ", ".join(packages), "reports")
    text = f"{' and '.join(missing)} missing: pip install 'thinwire-lab[report]'"
    return Check("reports", "warning", text, "reports")
