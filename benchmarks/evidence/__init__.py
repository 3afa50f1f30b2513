"""Trainings at the papers' own settings beside gentler ones: `python -m benchmarks.evidence`."""
