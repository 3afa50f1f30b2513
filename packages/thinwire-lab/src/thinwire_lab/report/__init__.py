"""What a comparison leaves behind, and how it is shown: records (JSONL), standings, and one page of plots."""
