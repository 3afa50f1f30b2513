"""Outer steps: every rank trains alone for some steps, then the ranks exchange compressed differences of weights."""
