"""Other engines on the same checkpoint, for perf/engine.py; also the bare loop and ours, so that all run alike.

One file for each; `environments.py` makes the environments they need, `child.py` is what they have in common.
"""
