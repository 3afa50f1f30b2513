"""A cluster of hosts joined by thin links on one machine, and torchrun on it."""

from thinwire_lab.lab.cluster import Lab, why_no_thin_links
from thinwire_lab.lab.keeper import remove_leftovers
from thinwire_lab.lab.launcher import launch, run
from thinwire_lab.lab.measure import LinkSpeed, measure_links
from thinwire_lab.lab.rates import LabError, LabSpec, parse_delay, parse_rate, show_rate

__all__ = [
    "Lab",
    "LabError",
    "LabSpec",
    "LinkSpeed",
    "launch",
    "measure_links",
    "parse_delay",
    "parse_rate",
    "remove_leftovers",
    "run",
    "show_rate",
    "why_no_thin_links",
]
