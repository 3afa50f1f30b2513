"""Worlds perform the operations: in several processes (`distributed`), or for all ranks in one (`simulated`)."""
