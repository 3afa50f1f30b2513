"""The same training once for each codec, each over the thin links of a lab, and who wins."""
