"""Kernels in the language of Triton, which looks like Python and is compiled for the GPU."""
