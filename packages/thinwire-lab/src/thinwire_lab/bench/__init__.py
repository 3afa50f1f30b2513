"""Benchmarks: kernels, collectives and training, each as ratios to a baseline measured in the same run."""
