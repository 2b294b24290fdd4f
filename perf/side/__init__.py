"""The whole of a model that sees, side by side with what a user would run instead: python -m perf.side."""
