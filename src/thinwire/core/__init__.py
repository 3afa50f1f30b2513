"""The data path without I/O: stages, chains, slots, and the rounds that average a tensor through them."""
