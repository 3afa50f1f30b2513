"""The parts of `benchmarks/against.py`, which compares the speed of two revisions."""
