"""thinwire-lab: slow links on one machine, recipes to train, comparisons, reports and benchmarks of thinwire.

Its commands (`run`, `lab`, `train`, `compare`, `report`, `bench`) are part of the command `thinwire`.
"""
