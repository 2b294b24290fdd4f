"""Rules that differ by model family: one file for each."""
