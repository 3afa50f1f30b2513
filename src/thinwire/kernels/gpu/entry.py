"""The Triton kernels that `gpu_for` hands out, by family."""

from thinwire.kernels.gpu import quantise, shares, symbols

__all__ = ["quantise", "shares", "symbols"]
