"""Compressed gradients for FSDP2: between the replicas of HSDP, or in the reduce-scatter where there are none."""

from thinwire.fsdp.attach import attach_fsdp

__all__ = ["attach_fsdp"]
