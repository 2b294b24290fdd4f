"""What is computed once: names of cached results, and one computation at a time for each name."""
