"""What is computed once: keys of results, one computation at a time for each, and where results are kept."""
