"""Compressed gradients in real training: one line for DistributedDataParallel, one call for loops of one's own."""
