"""Messages over TCP connections of the ranks' own, for CPU tensors of Gloo groups."""
