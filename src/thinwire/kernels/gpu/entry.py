"""The Triton kernels that `gpu_for` hands out, by family."""

from thinwire.kernels.gpu import importance, quantise, select, shares, symbols

__all__ = ["importance", "quantise", "select", "shares", "symbols"]
